"""Measures what an export costs, end to end, beside what it could cost at least and what people do without it.

    python scripts/bench_export.py                              # 0.1 and 2 GB in the current directory's filesystem
    python scripts/bench_export.py --sizes 0.1 2 5 --filesystems ext4 xfs btrfs      # as root: on loop devices
    python scripts/bench_export.py --specforge DIR              # DIR: `pip install --no-deps --target DIR specforge`

All ways are measured in the same rounds, one after the other, with the source in the page cache and nothing else to be
written to the disk; each way has its best and its median round, and the ratios of these to those of the first way.

"end to end": from a checkpoint on the disk to a draft on the disk, synced. `convert` is the whole command: the start of
Python, checks, config, copy, scan for NaN, metadata, sync, publication and exit. The ways to compare with do their
reading, writing and syncing only; their imports are not counted.

"parts": what the command is made of, each on its own, in a process that has imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eagle3_export.config import ExportConfig
from eagle3_export.export import export_checkpoint, prepare_export
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from eagle3_export.storage.copy import write_safetensors
from eagle3_export.storage.finite import non_finite_tensors
from eagle3_export.storage.publish import replace_file
from eagle3_export.storage.safetensors_file import TensorSource, read_safetensors
from tests.support import drafts

GIB_STEP = 1 << 30


# By nominal size in GB.
DRAFTS = {"0.1": drafts.SIZES_OF_1B, "2": drafts.SIZES_OF_8B, "5": drafts.SIZES_OF_KIMI}


@dataclass
class Way:
    """One way to get the file, and how long each round of it took."""

    name: str
    act: Callable[[Path], float]
    seconds: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def write_checkpoint(directory: Path, sizes: drafts.Sizes) -> Path:
    """A checkpoint with finite random weights, on the disk and in the page cache."""
    noise = np.random.default_rng(0).integers(0x3C00, 0x3F80, 1 << 20, dtype=np.uint16).tobytes()
    drafts.write_large_checkpoint(directory, sizes, noise)
    with (directory / "model.safetensors").open("r+b") as file:
        os.fsync(file.fileno())
    return directory


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def bare_copy(source: Path, target: Path) -> None:
    """Copies a file with copy_file_range from end to end and syncs it, and does nothing else."""
    with source.open("rb") as reader, target.open("xb") as writer:
        while os.copy_file_range(reader.fileno(), writer.fileno(), GIB_STEP):
            pass
        os.fsync(writer.fileno())


def cp(source: Path, target: Path) -> None:
    """Copies a file with cp and syncs it."""
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def start_up() -> None:
    """Starts Python and imports what the command `convert` does, and ends."""
    needed = "import eagle3_export.cli.given, eagle3_export.convert"
    subprocess.run([sys.executable, "-c", needed], check=True)


# What people do today: everything through memory. The imports are not counted.
LOAD_RENAME_SAVE = """
import os, resource, sys, time
from safetensors.torch import load_file, save_file
started = time.perf_counter()
tensors = load_file(sys.argv[1])
save_file({n.replace("layers.0.", "midlayer."): t for n, t in tensors.items()}, sys.argv[2], {"format": "pt"})
os.fsync(os.open(sys.argv[2], os.O_RDONLY))
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

# SpecForge's own exporter on its own checkpoint format (made here beforehand). The imports are not counted.
SPECFORGE = """
import os, resource, sys, time
from pathlib import Path
import torch
from safetensors.torch import load_file
from specforge.export.to_sglang import export_to_sglang
from specforge.modeling.auto import AutoDraftModel
state, out = Path(sys.argv[2] + ".pt"), sys.argv[2]
tensors = {n.replace("layers.0.", "midlayer."): t for n, t in load_file(sys.argv[1]).items() if "embed" not in n}
torch.save({"strategy": "eagle3", "draft_state_dict": tensors}, state)
del tensors
started = time.perf_counter()
export_to_sglang(str(state), sys.argv[3], out)
for path in Path(out).rglob("*"):
    os.fsync(os.open(path, os.O_RDONLY))
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
state.unlink()
"""


def in_child(way: list[Way], program: str, *arguments: str | Path, path: Path | None = None) -> float:
    """Runs a program that prints its seconds and its peak memory in kB; notes the latter."""
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    if answer.returncode:
        raise SystemExit(f"A way to compare with failed:\n{answer.stderr[-2000:]}")
    seconds, kilobytes = answer.stdout.split()[-2:]
    way[0].note = f"peak memory {int(kilobytes) / 1e6:.2f} GB"
    return float(seconds)


# A small process in between: a child inherits the peak memory of the one that starts it (Linux, `exec_mmap`).
STARTER = """
import os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(status, time.perf_counter() - started, usage.ru_maxrss)
"""


def convert_from_shell(checkpoint: Path, target: Path, way: list[Way]) -> float:
    """Runs `eagle3-export convert` as a user does: start-up, export, exit."""
    command = [Path(sys.executable).with_name("eagle3-export"), "convert", checkpoint, target]
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs
    answer = subprocess.run(
        [sys.executable, "-c", STARTER, *command],
        stdout=subprocess.PIPE, text=True, check=True, env=environment,
    )  # fmt: skip
    status, seconds, kilobytes = answer.stdout.split()
    if status != "0":
        raise SystemExit("eagle3-export convert failed")
    way[0].note = f"peak memory {int(kilobytes) / 1e3:.0f} MB"
    return float(seconds)


def ways(checkpoint: Path, draft: drafts.Sizes, specforge: Path | None) -> dict[str, list[Way]]:
    """Returns the ways to compare, by table."""
    source = checkpoint / "model.safetensors"
    file = read_safetensors(source)
    tensors = [(n.replace("layers.0.", "midlayer."), TensorSource(file, e)) for n, e in file.tensors.items()]
    config = ExportConfig()
    buffer = bytearray(1 << 20)

    def read_once(_: Path) -> None:
        with source.open("rb", buffering=0) as reader:
            while reader.readinto(buffer):
                pass

    def prepare(target: Path) -> None:
        prepare_export(read_checkpoint(checkpoint), target, config).close()

    def child(name: str, program: str, *arguments: str | Path, path: Path | None = None) -> Way:
        slot: list[Way] = []
        slot.append(Way(name, lambda target: in_child(slot, program, source, target, *arguments, path=path)))
        return slot[0]

    shell: list[Way] = []
    shell.append(Way("eagle3-export convert", lambda t: convert_from_shell(checkpoint, t, shell)))
    end_to_end = [
        shell[0],
        Way("bare copy_file_range, fsync", lambda t: timed(lambda: bare_copy(source, t))),
        Way("cp, fsync", lambda t: timed(lambda: cp(source, t))),
        child("load, rename, save (safetensors.torch), fsync", LOAD_RENAME_SAVE),
    ]
    if specforge is not None:
        decoder = drafts.speculators_config(draft)["transformer_layer_config"]
        specforge_config = checkpoint.parent / "specforge.json"
        specforge_config.write_text(
            json.dumps(
                {
                    **decoder, "architectures": ["LlamaForCausalLMEagle3"], "torch_dtype": "bfloat16",
                    "draft_vocab_size": draft.draft_vocabulary, "target_hidden_size": draft.hidden,
                    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                }
            )
        )  # fmt: skip
        end_to_end.append(
            child("SpecForge's exporter (no embedding), fsync", SPECFORGE, specforge_config, path=specforge)
        )
    return {
        "end to end": end_to_end,
        "parts": [
            Way("what a save waits for (prepare)", lambda t: timed(lambda: prepare(t))),
            Way(
                "clone or copy of the weights, not synced",
                lambda t: timed(lambda: write_safetensors(t, tensors)),
            ),
            Way("scan for NaN and infinity", lambda t: timed(lambda: non_finite_tensors(tensors))),
            Way("reading the file once", lambda t: timed(lambda: read_once(t))),
            Way(
                "the whole export, without start-up and exit",
                lambda t: timed(lambda: export_checkpoint(checkpoint, t, config)),
            ),
            Way("start-up: Python and the imports of convert", lambda _: timed(start_up)),
        ],
    }


def measure(directory: Path, size: str, rounds: int, specforge: Path | None) -> dict[str, object]:
    """All tables for one size in one directory."""
    work = Path(tempfile.mkdtemp(prefix="bench-", dir=directory))
    try:
        draft = DRAFTS[size]
        checkpoint = write_checkpoint(work / "checkpoint", draft)
        nbytes = (checkpoint / "model.safetensors").stat().st_size
        first = read_safetensors(checkpoint / "model.safetensors")
        trial = [(n, TensorSource(first, e)) for n, e in first.tensors.items()]
        method = write_safetensors(work / "trial", trial).method
        (work / "trial").unlink()
        tables = ways(checkpoint, draft, specforge)
        for number in range(rounds):
            for table in tables.values():
                for way in table:
                    target = work / "target"
                    os.sync()
                    way.seconds.append(way.act(target))
                    shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
                    print(f"  round {number + 1}: {way.name}: {way.seconds[-1]:.4f} s", file=sys.stderr)
    finally:
        shutil.rmtree(work)
    return {
        "size": size,
        "bytes": nbytes,
        "method": method,
        "tables": {
            name: [
                {
                    "way": way.name,
                    "best_seconds": way.best,
                    "median_seconds": way.median,
                    "seconds": way.seconds,
                    "note": way.note,
                }
                for way in table
            ]
            for name, table in tables.items()
        },
    }


def index_costs(directory: Path, rounds: int, counts: Sequence[int] = (10, 1000)) -> dict[str, object]:
    """Times what brings index.json and the pointers up to date after one new export, by number of exports.

    The exporter runs on, as in training and in `watch`: it has seen all exports but the new one.
    """
    seconds: dict[int, float] = {}
    floor: dict[int, float] = {}
    for count in counts:
        work = Path(tempfile.mkdtemp(prefix="bench-index-", dir=directory))
        try:
            seconds[count] = _index_rounds(work, count, rounds)
            content = (work / "out" / "index.json").read_bytes()
            writes = [
                timed(lambda: replace_file(work / "same.json", content))  # noqa: B023
                for _ in range(max(rounds, 1))
            ]
            floor[count] = statistics.median(writes)
        finally:
            shutil.rmtree(work)
    fewest, most = min(counts), max(counts)
    return {
        "seconds": seconds,
        "ratio": seconds[most] / seconds[fewest],
        "write_and_sync_only": floor,
        "ratio_write_and_sync_only": floor[most] / floor[fewest],
    }


def _index_rounds(work: Path, count: int, rounds: int) -> float:
    checkpoint = drafts.save_epoch(work / "run" / "0")
    out = work / "out"

    def add(epoch: int) -> None:
        (out / str(epoch)).mkdir()
        for file in (out / "0").iterdir():
            (out / str(epoch) / file.name).hardlink_to(file)
        content = json.loads((out / "0" / "metadata.json").read_text())
        (out / str(epoch) / "metadata.json").unlink()
        content |= {"epoch": epoch, "global_step": 100 + epoch}
        (out / str(epoch) / "metadata.json").write_text(json.dumps(content))

    with OutputDirectory(out, checkpoint.parent) as output:
        with prepare_export(read_checkpoint(checkpoint), out / "0", ExportConfig()) as prepared:
            prepared.run(output, replace=False)
        for epoch in range(1, count):
            add(epoch)
        output.refresh()
        taken = []
        for epoch in range(count, count + max(rounds, 1)):
            add(epoch)
            os.sync()
            taken.append(timed(lambda: output.refresh(changed=str(epoch))))  # noqa: B023
    return statistics.median(taken)


@contextmanager
def loop_filesystem(kind: str, directory: Path, gigabytes: float) -> Iterator[Path]:
    """A new filesystem in a sparse file; needs root."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        image, target = Path(place, "image"), Path(place, kind)
        target.mkdir()
        with image.open("wb") as file:
            file.truncate(int(gigabytes * 1e9))
        subprocess.run([f"/sbin/mkfs.{kind}", "-q", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, target], check=True)
        try:
            yield target
        finally:
            subprocess.run(["umount", target], check=True)


def seconds_text(seconds: float) -> str:
    """Returns a duration for people."""
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds:.3f} s"


def show(results: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=140)
    for result in results:
        title = f"{result['bytes'] / 1e9:.2f} GB on {result['filesystem']} ({result['method']})"  # type: ignore[operator]
        table = Table("", "best", "median", "GB/s", "ratio of best", "of median", "", title=title)
        for name, rows in result["tables"].items():  # type: ignore[attr-defined]
            table.add_section()
            for row in rows:
                best, median = row["best_seconds"], row["median_seconds"]
                table.add_row(
                    f"{row['way']} [{name}]".replace("[", "\\["),
                    seconds_text(best),
                    seconds_text(median),
                    f"{result['bytes'] / best / 1e9:.1f}",  # type: ignore[operator]
                    f"{best / rows[0]['best_seconds']:.2f}",
                    f"{median / rows[0]['median_seconds']:.2f}",
                    row["note"],
                )
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=sorted(DRAFTS), default=["0.1", "2"], help="GB")
    parser.add_argument(
        "--filesystems", nargs="+", choices=["here", "ext4", "xfs", "btrfs"], default=["here"]
    )
    parser.add_argument(
        "--directory", type=Path, default=Path(), help="where to work; needs three times the size"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--specforge", type=Path, help="directory with the package specforge 0.2.0")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    arguments = parser.parse_args()
    results: list[dict[str, object]] = []
    for filesystem in arguments.filesystems:
        for size in arguments.sizes:
            print(f"{filesystem}, {size} GB", file=sys.stderr)
            if filesystem == "here":
                result = measure(arguments.directory, size, arguments.rounds, arguments.specforge)
            else:
                with loop_filesystem(filesystem, arguments.directory, 3.5 * float(size) + 2) as place:
                    result = measure(place, size, arguments.rounds, arguments.specforge)
            results.append({"filesystem": filesystem, **result})
    machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "python": platform.python_version()}
    index = index_costs(arguments.directory, arguments.rounds)
    if arguments.json:
        print(json.dumps({"machine": machine, "results": results, "index": index}, indent=2))
    else:
        show(results)
        costs = ", ".join(f"{count} exports: {seconds_text(s)}" for count, s in index["seconds"].items())  # type: ignore[attr-defined]
        print(f"index.json after one new export: {costs}; ratio {index['ratio']:.2f}")
        floor = ", ".join(
            f"{count} exports: {seconds_text(s)}" for count, s in index["write_and_sync_only"].items()
        )  # type: ignore[attr-defined]
        print(
            f"writing and syncing these bytes only: {floor}; ratio {index['ratio_write_and_sync_only']:.2f}"
        )


if __name__ == "__main__":
    main()
