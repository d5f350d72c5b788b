"""Faults of the filesystem, made for real: each is named, and what was published before stays whole."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.config import ExportConfig
from eagle3_export.errors import StorageError
from eagle3_export.export import PreparedExport, export_checkpoint
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.storage import copy
from eagle3_export.storage.lock import output_lock
from eagle3_export.training.run_exports import RunExports, Save
from eagle3_export.verify import verify_export
from tests.support.drafts import save_epoch
from tests.support.machine import program, require_root
from tests.support.storage.filesystems import mounted

NOBODY = 65534

# What a run's output directory holds besides exports, and what mkfs makes.
RUN_FILES = {"index.json", "latest", "best", "lost+found"}


class Place:
    """An output directory with one export in it, and checkpoints of the same run to export next."""

    def __init__(self, output_dir: Path, run: Path) -> None:
        self.out, self.run = output_dir, run
        self.config = ExportConfig()
        self.first = save_epoch(run / "0", seed=0)
        self.next = save_epoch(run / "1", seed=1, epoch=1)
        export_checkpoint(self.first, self.out / "0", self.config)

    def export(self, name: str = "1", **options: Any) -> None:
        export_checkpoint(self.next, self.out / name, self.config, **options)

    def require_untouched(self) -> None:
        """The first export is whole, and no other lies beside it."""
        assert verify_export(self.out / "0", source=self.first).ok
        assert {path.name for path in self.out.iterdir()} - RUN_FILES == {"0"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "out", tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted("ext4", tmp_path, 8) as path:
        yield path


def fill(directory: Path, leave: int) -> None:
    """Writes until only about `leave` bytes are free."""
    status = os.statvfs(directory)
    with (directory / "lost+found" / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - leave)


def convert(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eagle3_export", "convert", *arguments],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env={**os.environ, **environment},
    )


def as_nobody(action: Callable[[], None]) -> None:
    """Runs `action` in a child without root's rights."""
    if os.geteuid() != 0:
        action()
        return
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            action()
            status = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def open_to_all(path: Path) -> None:
    """Lets other users pass through the directories that pytest keeps to itself."""
    for parent in (path, *path.parents):
        if parent != Path("/tmp") and parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)


def test_a_disk_too_small_is_refused_before_the_first_byte(small_disk: Path, tmp_path: Path) -> None:
    place = Place(small_disk, tmp_path / "run")
    fill(small_disk, leave=100_000)
    with pytest.raises(StorageError, match=r"no space left \(14\d\.\d kB needed, \d+\.\d kB free\)"):
        place.export()
    place.require_untouched()


def test_a_disk_that_fills_up_under_the_copy(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer was faster: the check beforehand is left out."""
    place = Place(small_disk, tmp_path / "run")
    monkeypatch.setattr(copy, "_require_space", lambda *_: None)
    fill(small_disk, leave=60_000)
    if os.geteuid() == 0:  # root may use the reserve
        with pytest.raises(StorageError, match="no space left"):
            for index in range(200):
                place.export(f"filler{index}")
        for filler in small_disk.glob("filler*"):
            shutil.rmtree(filler)
    place.require_untouched()
    export_checkpoint(place.first, small_disk / "0", place.config, overwrite=True)


def test_training_goes_on_when_the_disk_is_full(
    small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(small_disk, tmp_path / "run")
    fill(small_disk, leave=50_000)
    exports = RunExports(place.config, place.run, OutputDirectory(place.out, place.run))
    with caplog.at_level(logging.WARNING):
        exports.export(Save("1"))
        exports.finish(30)
    assert "no space left (14" in caplog.text
    assert "Checkpoints without an export" in caplog.text
    assert isinstance(exports.failure, StorageError)
    place.require_untouched()
    (small_disk / "lost+found" / "filler").unlink()
    exports.export(Save("1"))
    exports.finish(30)
    assert verify_export(place.out / "1", source=place.next).ok


def test_a_rewrite_waits_for_the_export_unless_that_reads_a_private_clone(
    reflink_directory: Path, ext4_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    run = PreparedExport.run
    monkeypatch.setattr(
        PreparedExport, "run", lambda self, *args, **kwargs: (release.wait(30), run(self, *args, **kwargs))[1]
    )
    for directory, waits in ((reflink_directory / "rewrite", False), (ext4_directory / "rewrite", True)):
        release.clear()
        checkpoint = save_epoch(directory / "run" / "0")
        kept = shutil.copytree(checkpoint, directory / "kept")
        exports = RunExports(
            ExportConfig(), directory / "run", OutputDirectory(directory / "out", directory / "run")
        )
        exports.saves_rewrite_in_place = True  # as with safetensors before 0.8
        exports.export(Save("0"))
        assert exports.wait_for("0", 0.05) == (not waits)
        if not waits:
            with (checkpoint / "model.safetensors").open("r+b") as file:
                file.write(bytes(1000))
        release.set()
        exports.finish(30)
        assert verify_export(directory / "out" / "0", source=kept).ok
        shutil.rmtree(directory)


def test_quota(tmp_path: Path) -> None:
    """A limit on one subvolume of btrfs; the disk itself has room."""
    btrfs = program("btrfs")
    with mounted("btrfs", tmp_path, 256) as disk:
        for command in (["quota", "enable", disk], ["subvolume", "create", disk / "out"]):
            subprocess.run([btrfs, *command], check=True, capture_output=True)
        place = Place(disk / "out", tmp_path / "run")
        os.sync()
        subprocess.run([btrfs, "qgroup", "limit", "2M", disk / "out"], check=True)
        with pytest.raises(StorageError, match=r"no space left .*quota is exhausted"):
            for index in range(1, 50):
                place.export(str(index))
        names = {path.name for path in place.out.iterdir()}
        assert names == {str(index) for index in range(len(names))}
        assert all(verify_export(place.out / name).ok for name in names)


def test_a_read_only_filesystem(small_disk: Path, tmp_path: Path) -> None:
    place = Place(small_disk, tmp_path / "run")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StorageError, match=r"Read-only file system.*mounted for writing"):
        place.export()
    with pytest.raises(StorageError, match="Read-only file system"), output_lock(place.out):
        pass
    place.require_untouched()


def test_no_permission_to_write(place: Place, tmp_path: Path) -> None:
    open_to_all(place.next)
    open_to_all(place.out)
    if os.geteuid() != 0:
        place.out.chmod(0o555)

    def export() -> None:
        with pytest.raises(
            StorageError, match=rf"{place.out} failed: Permission denied.*Give this user permission"
        ):
            place.export()

    as_nobody(export)
    place.out.chmod(0o755)
    place.require_untouched()


def test_the_output_directory_is_removed_under_the_export(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_file_range = os.copy_file_range

    def removing(*arguments: int) -> int:
        shutil.rmtree(place.out, ignore_errors=True)
        return copy_file_range(*arguments)

    monkeypatch.setattr(os, "copy_file_range", removing)
    with pytest.raises(StorageError, match=r"No such file or directory"):
        place.export()
    assert not place.out.exists()
    monkeypatch.undo()
    place.export()
    assert verify_export(place.out / "1", source=place.next).ok


def test_the_source_is_removed_under_the_export(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's rotation: the open file still has the bytes."""
    kept = shutil.copytree(place.next, place.run / "kept")
    copy_file_range = os.copy_file_range

    def removing(*arguments: int) -> int:
        shutil.rmtree(place.next, ignore_errors=True)
        return copy_file_range(*arguments)

    monkeypatch.setattr(os, "copy_file_range", removing)
    place.export()
    assert verify_export(place.out / "1", source=kept).ok


def test_a_mount_where_the_export_should_go(place: Place, tmp_path: Path) -> None:
    require_root("mounting a filesystem")
    (place.out / "1").mkdir()
    answer = subprocess.run(["mount", "-t", "tmpfs", "none", place.out / "1"], capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {answer.stderr.strip()}")
    try:
        with pytest.raises(StorageError, match=r"(busy|Invalid cross-device link)"):
            place.export(overwrite=True)
    finally:
        subprocess.run(["umount", place.out / "1"], check=True)
    (place.out / "1").rmdir()
    place.require_untouched()


def test_no_temporary_directory_is_needed(place: Place) -> None:
    answer = convert(place.next, place.out / "1", TMPDIR="/nonexistent")
    assert answer.returncode == 0, answer.stderr
    assert verify_export(place.out / "1", source=place.next).ok


def test_names_that_are_long_or_not_utf8_on_the_command_line(place: Place) -> None:
    for name in ("x" * 255, os.fsdecode(b"caf\xe9")):
        answer = convert(place.next, place.out / name, "--json")
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["status"] == "exported"
        assert verify_export(place.out / name, source=place.next).ok
    again = convert(place.next, place.out / name)
    assert again.returncode == 1
    assert r"caf\xe9 exists" in again.stderr


def test_two_runs_on_one_directory(place: Place) -> None:
    with output_lock(place.out):
        answer = convert("--all", place.run, place.out)
    assert answer.returncode == 1
    assert f"Another export is running in {place.out} (process {os.getpid()} on" in " ".join(
        answer.stderr.split()
    )
    assert [path.name for path in place.out.iterdir()] == ["0"]
