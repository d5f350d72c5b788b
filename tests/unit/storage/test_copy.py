"""Clones and copies, on real filesystems, read back by safetensors itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_export.errors import CheckpointError, StorageError
from eagle3_export.storage import copy, write_back
from eagle3_export.storage.copy import write_safetensors
from eagle3_export.storage.safetensors_file import TensorSource, read_safetensors
from eagle3_export.storage.sources import open_sources
from tests.support.drafts import SIZES, SMALL, draft_tensors, safetensors_bytes
from tests.support.storage import system_calls
from tests.support.storage.filesystems import WIDE, WIDE_AND_LONG, served_names

Write = Callable[..., Path]


def holds_exactly(path: Path, expected: dict[str, Any]) -> None:
    """safetensors reads from `path` the names, dtypes, shapes and bytes of `expected`."""
    found = {
        name: (tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
        for name, tensor in safetensors.deserialize(path.read_bytes())
    }
    assert found == expected


def renamed(tensors: dict[str, Any], drop: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        name.replace("layers.0.", "midlayer."): value for name, value in tensors.items() if name not in drop
    }


def shared_bytes(path: Path) -> int:
    """Bytes of `path` in extents that another file has too, as the kernel tells it (FIEMAP through filefrag)."""
    listing = subprocess.run(
        ["filefrag", "-s", "-v", "-b1", path], capture_output=True, text=True, check=True
    ).stdout
    extents = [line for line in listing.splitlines() if "shared" in line.split(":")[-1]]
    return sum(int(line.split(":")[3]) for line in extents)


def test_a_rename_keeps_every_byte_and_the_header_length(tmp_path: Path, write_draft: Write) -> None:
    source = write_draft()
    report = write_safetensors(tmp_path / "out", served_names(source))
    holds_exactly(tmp_path / "out", renamed(draft_tensors(WIDE)))
    assert report.bytes_total == source.stat().st_size == (tmp_path / "out").stat().st_size
    assert read_safetensors(tmp_path / "out").metadata == {"format": "pt"}


def test_a_whole_file_is_cloned(reflink_directory: Path, write_draft: Write) -> None:
    directory = reflink_directory / "whole"
    source = write_draft(directory, sizes=WIDE_AND_LONG)
    report = write_safetensors(directory / "out", served_names(source))
    assert (report.method, report.bytes_copied) == ("reflink", 0)
    holds_exactly(directory / "out", renamed(draft_tensors(WIDE_AND_LONG)))
    assert shared_bytes(directory / "out") > report.bytes_total - 2 * 65536


@pytest.mark.parametrize(
    ("drop", "metadata"),
    [
        (("embed_tokens.weight",), None),
        (("d2t", "embed_tokens.weight"), None),
        (("t2d",), None),
        ((), {"note": "x" * 5000}),  # a header that no longer fits in front of the first tensor
    ],
)
def test_the_rest_of_a_file_is_cloned_by_blocks(
    reflink_directory: Path,
    write_draft: Write,
    tmp_path: Path,
    drop: tuple[str, ...],
    metadata: dict[str, str] | None,
) -> None:
    directory = reflink_directory / tmp_path.name
    source = write_draft(directory, sizes=WIDE_AND_LONG)
    report = write_safetensors(directory / "out", served_names(source, drop), metadata=metadata)
    assert report.method == "reflink"
    assert report.bytes_copied < 100_000
    holds_exactly(directory / "out", renamed(draft_tensors(WIDE_AND_LONG), drop))
    assert read_safetensors(directory / "out").data_start < 16_384
    assert shared_bytes(directory / "out") > report.bytes_total - 200_000


def test_a_clone_on_the_way_is_a_copy_elsewhere(
    reflink_directory: Path, tmp_path: Path, write_draft: Write
) -> None:
    """EXDEV: the checkpoint on one filesystem, the export on another."""
    source = write_draft(reflink_directory / "exdev")
    report = write_safetensors(tmp_path / "out", served_names(source))
    assert report.method in ("copy_file_range", "sendfile")
    holds_exactly(tmp_path / "out", renamed(draft_tensors(WIDE)))


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_every_way_of_copying_gives_the_same_bytes(
    tmp_path: Path, ext4_directory: Path, write_draft: Write, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    """The ladder below: what an older kernel or a filesystem without the call answers is injected."""

    def unsupported(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    for call in ("copy_file_range", "sendfile")[:missing]:
        monkeypatch.setattr(os, call, unsupported)
    source = write_draft(ext4_directory / f"ways{missing}")
    out = ext4_directory / f"ways{missing}" / "out"
    report = write_safetensors(out, served_names(source))
    assert report.method == ("copy_file_range", "sendfile", "read")[missing]
    holds_exactly(out, renamed(draft_tensors(WIDE)))


def test_a_call_that_answers_nothing_is_not_taken_for_the_end(
    tmp_path: Path, ext4_directory: Path, write_draft: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    source = write_draft(ext4_directory / "nothing")
    out = ext4_directory / "nothing" / "out"
    assert write_safetensors(out, served_names(source)).method == "sendfile"
    holds_exactly(out, renamed(draft_tensors(WIDE)))


def test_shards_become_one_file_whose_tensors_are_aligned(tmp_path: Path) -> None:
    tensors = draft_tensors(WIDE)
    names = list(tensors)
    shards = []
    for index, part in enumerate((names[:3], names[3:])):
        shards.append(tmp_path / f"shard{index}")
        shards[-1].write_bytes(safetensors_bytes({name: tensors[name] for name in reversed(part)}))
    write_safetensors(
        tmp_path / "out", served_names(shards[1]) + served_names(shards[0]), metadata={"format": "pt"}
    )
    holds_exactly(tmp_path / "out", renamed(tensors))
    file = read_safetensors(tmp_path / "out")
    assert all(entry.offset % SIZES[entry.dtype] == 0 for entry in file.tensors.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["F32", "BF16", "U8", "I64"]),
            st.integers(0, 3000),
            st.integers(0, 2),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([None, {"format": "pt"}, {"x": "y" * 4096}]),
)
@settings(max_examples=60)
def test_any_selection_from_any_files_arrives_whole(
    tmp_path_factory: pytest.TempPathFactory, plan: list[Any], metadata: dict[str, str] | None
) -> None:
    directory = tmp_path_factory.mktemp("any")
    files: list[dict[str, Any]] = [{}, {}, {}]
    expected = {}
    for index, (dtype, count, file, keep) in enumerate(plan):
        files[file][f"t{index}"] = (dtype, (count,), os.urandom(count * SIZES[dtype]))
        if keep:
            expected[f"new.{index}"] = files[file][f"t{index}"]
    wanted = []
    for number, tensors in enumerate(files):
        path = directory / str(number)
        path.write_bytes(safetensors_bytes(tensors))
        source = read_safetensors(path)
        wanted += [(f"new.{name[1:]}", TensorSource(source, entry)) for name, entry in source.tensors.items()]
    kept = [(name, source) for name, source in wanted if name in expected]
    write_safetensors(directory / "out", kept, metadata=metadata)
    holds_exactly(directory / "out", expected)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path, write_draft: Write) -> None:
    tensors = served_names(write_draft())
    with pytest.raises(CheckpointError, match=r"'fc\.weight'"):
        write_safetensors(tmp_path / "out", [*tensors, ("fc.weight", tensors[0][1])])
    assert not (tmp_path / "out").exists()


def test_an_existing_file_or_planted_link_is_never_written_through(
    tmp_path: Path, write_draft: Write
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out").symlink_to(victim)
    for destination in (tmp_path / "out", victim):
        with pytest.raises(StorageError, match="File exists"):
            write_safetensors(destination, served_names(write_draft()))
    assert victim.read_text() == "precious"


def test_files_are_not_writable_for_everyone(tmp_path: Path, write_draft: Write) -> None:
    before = os.umask(0)
    try:
        write_safetensors(tmp_path / "out", served_names(write_draft()))
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o664


def test_pinned_sources_outlive_their_names(tmp_path: Path, write_draft: Write) -> None:
    """The trainer may remove or replace the file by name before the copy is done."""
    for number, vanish in enumerate(
        (lambda path: path.unlink(), lambda path: write_draft(name="new", sizes=SMALL).rename(path))
    ):
        source = write_draft(name=f"source{number}")
        tensors = served_names(source)
        with open_sources(tensors) as pinned:
            vanish(source)
            write_safetensors(tmp_path / f"out{number}", tensors, sources=pinned)
        holds_exactly(tmp_path / f"out{number}", renamed(draft_tensors(WIDE)))


def test_a_source_replaced_before_it_is_opened_is_refused(tmp_path: Path, write_draft: Write) -> None:
    tensors = served_names(write_draft())
    write_draft(name="new").rename(tmp_path / "model.safetensors")
    with pytest.raises(StorageError, match=r"model\.safetensors was changed"):
        open_sources(tensors)


def test_a_named_pipe_in_the_place_of_a_source_is_refused(tmp_path: Path, write_draft: Write) -> None:
    """And not waited for."""
    tensors = served_names(write_draft())
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(StorageError, match=r"model\.safetensors failed: it is not a regular file"):
        open_sources(tensors)


def test_a_missing_source_is_refused(tmp_path: Path, write_draft: Write) -> None:
    tensors = served_names(write_draft())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(StorageError, match=r"Opening the source .*model\.safetensors failed: No such file"):
        write_safetensors(tmp_path / "out", tensors)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["rewrite", "truncate", "grow"])
def test_a_source_changed_in_place_under_the_copy_is_refused(
    tmp_path: Path, write_draft: Write, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """In the middle of the copy, as a trainer that rewrites its file in place would."""
    source = write_draft(sizes=WIDE_AND_LONG)
    tensors = served_names(source)
    monkeypatch.setattr(copy, "_STEP_BYTES", 100_000)
    steps = iter(range(10_000))
    copy_file_range = os.copy_file_range

    def changing(*arguments: int) -> int:
        if next(steps) == 3:
            with source.open("r+b") as file:
                if change == "truncate":
                    file.truncate(200_000)
                else:
                    file.seek(0, os.SEEK_SET if change == "rewrite" else os.SEEK_END)
                    file.write(b"\0" * 64)
        return copy_file_range(*arguments)

    monkeypatch.setattr(os, "copy_file_range", changing)
    with pytest.raises(StorageError, match=r"model\.safetensors was (changed|truncated) while"):
        write_safetensors(tmp_path / "out", tensors)
    assert not (tmp_path / "out").exists()


def test_a_private_clone_is_beyond_the_reach_of_the_trainer(
    reflink_directory: Path, write_draft: Write
) -> None:
    directory = reflink_directory / "isolated"
    source = write_draft(directory)
    tensors = served_names(source)
    with open_sources(tensors, clone_beside=directory) as pinned:
        assert pinned.isolated
        with source.open("r+b") as file:
            file.write(b"\0" * source.stat().st_size)
        report = write_safetensors(directory / "out", tensors, sources=pinned)
    assert report.method == "reflink"
    holds_exactly(directory / "out", renamed(draft_tensors(WIDE)))
    assert sorted(path.name for path in directory.iterdir()) == ["model.safetensors", "out"]


def test_without_reflinks_the_descriptor_is_not_isolated(ext4_directory: Path, write_draft: Write) -> None:
    source = write_draft(ext4_directory / "not-isolated")
    with open_sources(served_names(source), clone_beside=ext4_directory) as pinned:
        assert not pinned.isolated


def test_descriptors_are_closed_and_threads_end(tmp_path: Path, write_draft: Write) -> None:
    before, threads = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    tensors = served_names(write_draft())
    write_safetensors(tmp_path / "out", tensors)
    with pytest.raises(StorageError):
        write_safetensors(tmp_path / "out", tensors)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert threading.active_count() == threads


def test_the_copy_holds_no_tensor_in_memory(tmp_path: Path) -> None:
    """A sparse file of 200 MB, in a process of its own: copied, scanned, and not grown by more than 32 MB."""
    source = tmp_path / "big"
    header = b'{"a":{"dtype":"BF16","shape":[100000000],"data_offsets":[0,200000000]}}'
    with source.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 200_000_000)
    program = """
import resource, sys
from pathlib import Path
import numpy
from eagle3_export.storage.safetensors_file import TensorSource, read_safetensors
from eagle3_export.storage.write import write_and_scan
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
file = read_safetensors(Path(sys.argv[1]))
report, found, _ = write_and_scan(Path(sys.argv[2]), [("a", TensorSource(file, file.tensors["a"]))])
assert report.bytes_total == file.size and not found
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program, source, tmp_path / "out"], capture_output=True, text=True, check=True
    )
    assert int(answer.stdout) < 32 * 1024


def test_the_disk_begins_to_write_while_the_copy_goes_on(
    ext4_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen in the system calls: between the steps of the copy, not after the last of them."""
    monkeypatch.setattr(copy, "_STEP_BYTES", 1_000_000)
    monkeypatch.setattr(write_back, "_STEP_BYTES", 1_000_000)
    if not system_calls.AVAILABLE:
        pytest.skip("the system calls are counted on x86-64 only")
    directory = ext4_directory / "write-back"
    directory.mkdir()
    source = directory / "model.safetensors"
    source.write_bytes(safetensors_bytes({"a": ("U8", (2_500_000,), bytes(2_500_000))}))
    tensors = served_names(source)

    def action() -> int:
        write_safetensors(directory / "out", tensors)
        return 0

    try:
        outcome = system_calls.run(action)
    except OSError as error:
        pytest.skip(f"processes may not be traced here: {error}")
    names = {326: "copy", 277: "write back"}
    calls = [names[call] for call in outcome.calls if call in names]
    assert calls == ["copy", "write back", "copy", "write back", "copy"]
    holds_exactly(directory / "out", {"a": ("U8", (2_500_000,), bytes(2_500_000))})


def test_an_export_has_the_modification_time_of_its_source(tmp_path: Path, write_draft: Write) -> None:
    """Told apart from another save by it even if the clock was set back in between."""
    source = write_draft()
    os.utime(source, ns=(0, 1_234_567_890_123_456_789))
    write_safetensors(tmp_path / "out", served_names(source))
    assert (tmp_path / "out").stat().st_mtime_ns == 1_234_567_890_123_456_789
