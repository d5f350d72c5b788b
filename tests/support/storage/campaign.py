"""Kills, or fails, a real export at each of its system calls, or cuts the power, and looks at what is left after each.

A program of its own, so that it can wait for any child: ``python -m tests.support.storage.campaign kill|fail|cut
DIRECTORY [--share K/N]``. For ``cut``, DIRECTORY is the mount point of a loop device with ext4 or XFS and
nothing else on it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from eagle3_export.config import ExportConfig
from eagle3_export.errors import Eagle3ExportError
from eagle3_export.export import prepare_export
from eagle3_export.output_directory import OutputDirectory, read_exports
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from eagle3_export.verify import verify_export
from tests.support.drafts import save_epoch
from tests.support.storage.system_calls import run

CONFIG = ExportConfig(sglang_version="0.5.23", keep_last=2)
# linux/ext4.h EXT4_IOC_SHUTDOWN, xfs_fs.h XFS_IOC_GOINGDOWN: one number.
GOING_DOWN, NO_LOG_FLUSH = 0x8004587D, struct.pack("=I", 2)
FAULTS = (errno.EIO, errno.ENOSPC, errno.EACCES)


class Stage:
    """A run of three checkpoints; 0 and 1 are exported, then 1 is saved anew and 2 is new."""

    def __init__(self, directory: Path, *, lagging: bool = False) -> None:
        self.lagging = lagging  # a network filesystem: what is deleted may be seen, and held, a little longer
        self.run, self.out, self.before = directory / "run", directory / "out", directory / "before"
        self.old = directory / "old"
        for epoch in (0, 1):
            save_epoch(self.run / str(epoch), seed=epoch, epoch=epoch)
        self.saved = ("0", "1")
        self.export()
        shutil.copytree(self.out, self.before, symlinks=True)
        shutil.copytree(self.run, self.old, symlinks=True)
        save_epoch(self.run / "1", seed=11, epoch=1)
        save_epoch(self.run / "2", seed=2, epoch=2)
        self.saved = ("1", "2")

    def reset(self) -> None:
        while self.out.exists():
            shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(self.before, self.out, symlinks=True)

    def export(self) -> int:
        """The action under test, as in training: a replacement, a new export, pointers, index, retention."""
        with OutputDirectory(self.out, self.run, keep_last=CONFIG.keep_last) as output:
            for name in self.saved:
                with prepare_export(read_checkpoint(self.run / name), self.out / name, CONFIG) as prepared:
                    prepared.run(output, replace=True)
        return 0

    def action(self) -> int:
        try:
            return self.export()
        except Eagle3ExportError as error:
            str(error)
            return 2

    def problems(self) -> list[str]:
        """What a reader could trip over right now."""
        found = []
        for name in ("0", "1", "2"):
            if not (self.out / name).exists():
                # 0 may be pruned once 2 is there, 2 may not be there yet; 1 is always there.
                if name == "1" or (name == "0" and not (self.out / "2").exists()):
                    found.append(f"{name} has vanished")
                continue
            sources = [source / name for source in (self.run, self.old) if (source / name).exists()]
            reports = []
            while sources and not (reports and reports[-1].ok):
                reports.append(verify_export(self.out / name, source=sources.pop()))
            if not reports[-1].ok:
                found.append(f"{name}: {[report.problems for report in reports]}")
        for pointer in ("latest", "best"):
            if not (self.out / pointer / "model.safetensors").exists():
                found.append(f"{pointer} points nowhere")
        try:
            json.loads((self.out / "index.json").read_bytes())
        except ValueError as error:
            found.append(f"index.json: {error}")
        return found

    def problems_after_recovery(self) -> list[str]:
        """What is wrong once the next, undisturbed run is through."""
        status = self.export()
        if self.lagging and any(self.out.glob(".eagle3-export-*")):
            status = self.export()  # goes with the run after the next one
        found = [f"the next run ended with {status}"] if status else []
        found += self.problems()
        # A deleted file that is still open stays under such a name on FUSE for a moment.
        names = {child.name for child in self.out.iterdir() if not child.name.startswith(".fuse_hidden")}
        if names - {"0", "1", "2", "latest", "best", "index.json"} or not {"1", "2"} <= names:
            found.append(f"left behind: {sorted(names)}")
        found += [f"left behind: {path}" for path in self.out.glob("*/.eagle3*")]
        weights = [(self.out / name / "model.safetensors").stat().st_mtime_ns for name in self.saved]
        if weights != [(self.run / name / "model.safetensors").stat().st_mtime_ns for name in self.saved]:
            found.append("the next run did not export the newest checkpoints")
        if {export.name for export in read_exports(self.out)} != names - {"latest", "best", "index.json"}:
            found.append("an export has no metadata")
        return found


def kill_everywhere(stage: Stage, share: tuple[int, int]) -> dict[str, Any]:
    """SIGKILL before each system call."""
    stage.reset()
    total = len(run(stage.action).calls)
    faults: list[str] = []
    kills = 0
    for index in range(share[0], total, share[1]):
        stage.reset()
        kills += run(stage.action, kill_before=index).status is None
        faults += [f"killed before call {index}: {problem}" for problem in stage.problems()]
        faults += [f"after a kill before call {index}: {p}" for p in stage.problems_after_recovery()]
    return {"calls": total, "kills": kills, "faults": faults}


def fail_everywhere(stage: Stage, share: tuple[int, int]) -> dict[str, Any]:
    """An error from each system call that touches files."""
    stage.reset()
    undisturbed = run(stage.action)
    faults: list[str] = []
    statuses: Counter[str] = Counter()
    points = [(index, fault) for index in range(undisturbed.file_calls) for fault in FAULTS]
    for index, fault in points[share[0] :: share[1]]:
        stage.reset()
        outcome = run(stage.action, fail=(index, fault))
        where = f"{outcome.failed} (file call {index}) answers {errno.errorcode[fault]}"
        statuses[str(outcome.status)] += 1
        if outcome.status not in (0, 1, 2):
            faults.append(f"{where}: exit status {outcome.status}")
        faults += [f"{where}: {problem}" for problem in stage.problems()]
        faults += [f"after {where}: {problem}" for problem in stage.problems_after_recovery()]
    return {
        "calls": undisturbed.file_calls,
        "failures": sum(statuses.values()),
        "statuses": statuses,
        "faults": faults,
    }


def cut_everywhere(stage: Stage, share: tuple[int, int]) -> dict[str, Any]:
    """The power fails before a system call: what had not reached the disk is lost."""
    mount = stage.out.parent
    device, kind = next(
        (Path(words[0]), words[2])
        for words in map(str.split, Path("/proc/mounts").read_text().splitlines())
        if words[1] == str(mount)
    )
    image = Path("/sys/block", device.name, "loop", "backing_file").read_text().strip()
    stage.reset()
    total = len(run(stage.action).calls)
    faults: list[str] = []
    cuts = 0
    for index in range(share[0], total, share[1]):
        stage.reset()
        subprocess.run(["sync", "-f", mount], check=True)
        cuts += run(stage.action, kill_before=index).status is None
        shut_down(mount)
        subprocess.run(["umount", mount], check=True)
        subprocess.run(["mount", "-t", kind, "-o", "loop", image, mount], check=True)
        faults += [f"cut before call {index}: {problem}" for problem in stage.problems()]
        faults += [f"after a cut before call {index}: {p}" for p in stage.problems_after_recovery()]
    return {"calls": total, "cuts": cuts, "faults": faults}


def shut_down(mount: Path) -> None:
    """Stops the filesystem as a power cut would: nothing more is written, not even its log (ext4 and XFS)."""
    descriptor = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, GOING_DOWN, NO_LOG_FLUSH)
    finally:
        os.close(descriptor)


CAMPAIGNS = {"kill": kill_everywhere, "fail": fail_everywhere, "cut": cut_everywhere}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(CAMPAIGNS))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--share", default="0/1", help="only every N-th point, from the K-th on")
    arguments = parser.parse_args()
    first, step = map(int, arguments.share.split("/"))
    logging.disable(logging.CRITICAL)
    stage = Stage(arguments.directory)
    json.dump(CAMPAIGNS[arguments.kind](stage, (first, step)), sys.stdout)


if __name__ == "__main__":
    main()
