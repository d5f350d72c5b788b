"""Publication, pointers, the lock and retention on the local filesystem."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.errors import StorageError
from eagle3_export.speculators_format.run_files import epoch_of
from eagle3_export.storage import leftovers, publish, rename
from eagle3_export.storage.leftovers import clean_leftovers
from eagle3_export.storage.lock import LOCK_NAME, output_lock
from eagle3_export.storage.publish import (
    discard_directory,
    publish_directory,
    remove_staging,
    replace_file,
    set_pointer,
    staging_directory,
)
from eagle3_export.storage.retention import outdated


def put(final: Path, content: str, *, replace: bool = False) -> None:
    staged = staging_directory(final)
    try:
        (staged / "metadata.json").write_text(content)
        publish_directory(staged, final, replace=replace)
    finally:
        remove_staging(staged)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["renameat2", "rename"])
def renaming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the system call that exchanges names, as on filesystems and kernels that lack it."""
    if request.param == "rename":
        monkeypatch.setattr(rename, "renameat2", lambda *_: False)
    return str(request.param)


def test_publishes_what_was_staged(tmp_path: Path, renaming: str) -> None:
    put(tmp_path / "new" / "out" / "0", "a")
    assert (tmp_path / "new" / "out" / "0" / "metadata.json").read_text() == "a"
    assert names(tmp_path / "new" / "out") == ["0"]
    # Nothing of what was staged is kept open, and locked.
    opened = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert [path for path in opened if path.is_relative_to(tmp_path)] == []


def test_replaces_only_on_request(tmp_path: Path, renaming: str) -> None:
    put(tmp_path / "0", "a")
    with pytest.raises(StorageError, match="0 already exists and is a directory"):
        put(tmp_path / "0", "b")
    assert (tmp_path / "0" / "metadata.json").read_text() == "a"
    put(tmp_path / "0", "c", replace=True)
    assert (tmp_path / "0" / "metadata.json").read_text() == "c"
    assert names(tmp_path) == ["0"]


def test_readers_keep_the_files_they_have_open(tmp_path: Path, renaming: str) -> None:
    put(tmp_path / "0", "old")
    with (tmp_path / "0" / "metadata.json").open() as reader:
        put(tmp_path / "0", "new", replace=True)
        assert reader.read() == "old"


def test_the_name_never_vanishes_under_a_reader(tmp_path: Path) -> None:
    put(tmp_path / "0", "old")
    stop, misses, reads = threading.Event(), [], [0]

    def read() -> None:
        while not stop.is_set():
            reads[0] += 1
            try:
                assert (tmp_path / "0" / "metadata.json").read_text() in ("old", "new")
            except FileNotFoundError as error:
                # Between resolving the directory and opening the file the old one may have been removed.
                if not (tmp_path / "0").exists():
                    misses.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for content in ["new", "old"] * 20:
        put(tmp_path / "0", content, replace=True)
    stop.set()
    reader.join()
    assert (misses, reads[0] > 0) == ([], True)


@pytest.mark.parametrize("kind", ["file", "link to a directory", "link to nothing"])
@pytest.mark.parametrize("replace", [False, True])
def test_nothing_but_a_directory_is_ever_replaced(
    tmp_path: Path, renaming: str, kind: str, replace: bool
) -> None:
    outside, final = tmp_path / "outside", tmp_path / "out" / "0"
    outside.mkdir()
    final.parent.mkdir()
    if kind == "file":
        final.write_text("precious")
    else:
        final.symlink_to(outside if kind == "link to a directory" else tmp_path / "nowhere")
    with pytest.raises(StorageError, match=r"0 already exists and is a (file|symbolic link)"):
        put(final, "new", replace=replace)
    assert names(outside) == []
    assert names(final.parent) == ["0"]
    assert final.is_symlink() == (kind != "file")


def test_a_rename_that_fails_halfway_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "0", "old")
    monkeypatch.setattr(rename, "renameat2", lambda *_: False)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(publish, "rename_new", fail)
    with pytest.raises(StorageError, match=r"Publishing .*0 failed: Input/output error"):
        put(tmp_path / "0", "new", replace=True)
    assert (tmp_path / "0" / "metadata.json").read_text() == "old"
    assert names(tmp_path) == ["0"]


def test_a_rename_answered_twice_counts_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: the reply was lost, the repeated request finds nothing to rename any more."""
    real = rename.renameat2

    def lossy(source: Path, target: Path, flags: int) -> bool:
        real(source, target, flags)
        return real(source, target, flags)

    monkeypatch.setattr(rename, "renameat2", lossy)
    put(tmp_path / "0", "new")
    assert (tmp_path / "0" / "metadata.json").read_text() == "new"


def test_names_of_255_bytes_and_names_that_are_not_utf8(tmp_path: Path, renaming: str) -> None:
    for name in ("x" * 255, "ü" * 127, os.fsdecode(b"caf\xe9")):
        for content in ("a", "b"):
            put(tmp_path / name, content, replace=True)
        replace_file(tmp_path / name / "metadata.json", b"c")
        set_pointer(tmp_path, "latest", name)
        assert (tmp_path / "latest" / "metadata.json").read_text() == "c"
        with pytest.raises(StorageError) as caught:
            put(tmp_path / name, "d")
        str(caught.value).encode()
    with pytest.raises(StorageError, match="File name too long"):
        put(tmp_path / ("x" * 256), "a")


def test_replace_file_never_writes_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "index.json").symlink_to(victim)
    replace_file(tmp_path / "index.json", b"{}")
    assert (victim.read_text(), (tmp_path / "index.json").read_text()) == ("precious", "{}")
    (tmp_path / "directory").mkdir()
    with pytest.raises(StorageError, match="Is a directory"):
        replace_file(tmp_path / "directory", b"{}")
    assert names(tmp_path) == ["directory", "index.json", "victim"]


def test_pointers(tmp_path: Path) -> None:
    set_pointer(tmp_path, "latest", "0")
    set_pointer(tmp_path, "latest", "1")
    assert (tmp_path / "latest").readlink() == Path("1")
    for target in ("../0", "/etc", "..", "", "a/b"):
        with pytest.raises(StorageError, match="neighbour"):
            set_pointer(tmp_path, "latest", target)
    for kind in ("file", "directory"):
        (tmp_path / kind).mkdir() if kind == "directory" else (tmp_path / kind).touch()
        with pytest.raises(StorageError, match=f"{kind} exists and is not a symbolic link"):
            set_pointer(tmp_path, kind, "1")
    assert names(tmp_path) == ["directory", "file", "latest"]


def test_leftovers_of_a_dead_process_go_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from eagle3_export.storage.publish import staging_directory;"
        "staging_directory(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    )
    put(tmp_path / "0", "a")
    process = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    mine = staging_directory(tmp_path / "2")
    (tmp_path / "0" / ".eagle3-export-file-0").touch()
    (tmp_path / ".eagle3-export-pointer-0").symlink_to("nowhere")
    assert len(clean_leftovers(tmp_path, [tmp_path / "0"])) == 2
    assert len(names(tmp_path)) == 3
    process.kill()
    process.wait()
    assert len(clean_leftovers(tmp_path)) == 1
    assert names(tmp_path) == sorted(["0", mine.name])
    remove_staging(mine)
    assert clean_leftovers(tmp_path / "missing") == []


def test_what_was_moved_aside_comes_back(tmp_path: Path) -> None:
    """Killed between the two renames of a filesystem without exchange."""
    aside = tmp_path / ".eagle3-export-replaced-0"
    put(aside / "7", "old")
    put(tmp_path / ".eagle3-export-replaced-1" / "8", "old")
    put(tmp_path / "8", "new")
    clean_leftovers(tmp_path)
    assert names(tmp_path) == ["7", "8"]
    assert [(tmp_path / name / "metadata.json").read_text() for name in ("7", "8")] == ["old", "new"]


def test_cleaning_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    put(outside, "precious")
    (outside / ".eagle3-export-file-0").touch()
    (tmp_path / "out").mkdir()
    for name in (".eagle3-export-staging-0", ".eagle3-export-replaced-0", "0"):
        (tmp_path / "out" / name).symlink_to(outside)
    clean_leftovers(tmp_path / "out")
    assert names(tmp_path / "out") == ["0"]
    assert names(outside) == [".eagle3-export-file-0", "metadata.json"]


def test_one_exporter_per_directory(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from eagle3_export.storage.lock import output_lock\n"
        "with output_lock(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    with (
        pytest.raises(StorageError, match=rf"running in {tmp_path} \(process {process.pid} on "),
        output_lock(tmp_path),
    ):
        pass
    process.kill()
    process.wait()
    with (
        output_lock(tmp_path),
        pytest.raises(StorageError, match=f"process {os.getpid()}"),
        output_lock(tmp_path),
    ):
        pass
    assert names(tmp_path) == []


def test_a_group_may_share_the_output_directory_and_nobody_else_write_there(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with output_lock(tmp_path / "out"):
            modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "out", tmp_path / "out" / LOCK_NAME)]
    finally:
        os.umask(before)
    assert modes == [0o775, 0o664]


def test_the_lock_is_no_way_out_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError, match="symbolic link"), output_lock(tmp_path):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


def test_two_threads_that_race_for_the_lock_never_both_hold_it(tmp_path: Path) -> None:
    """Also while the holder removes the file that the other has just opened."""
    inside, worst, wins = [0], [0], [0]

    def race() -> None:
        for _ in range(200):
            try:
                with output_lock(tmp_path):
                    inside[0] += 1
                    worst[0] = max(worst[0], inside[0])
                    wins[0] += 1
                    inside[0] -= 1
            except StorageError:
                pass

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst[0] == 1
    assert wins[0] > 0


NAMES = ("0", "1", "01", "2", "10", "9", "009", "interrupted", "latest", "7x", "²")


@given(st.sets(st.sampled_from(NAMES)), st.integers(1, 4), st.sets(st.sampled_from(NAMES), max_size=3))
def test_retention_keeps_the_highest_epochs_and_what_is_protected(
    names: set[str], keep_last: int, protected: set[str]
) -> None:
    order = ["0", "01", "1", "2", "009", "9", "10"]
    there = [name for name in order if name in names]
    assert outdated({name: epoch_of(name) for name in names}, keep_last, protected) == [
        name for name in there[:-keep_last] if name not in protected
    ]
    assert outdated({name: epoch_of(name) for name in names}, None) == []


def test_a_directory_is_removed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is gone before the first file of it is."""
    put(tmp_path / "0", "x")
    seen: list[list[str]] = []
    rmtree: Callable[..., None] = leftovers.shutil.rmtree
    monkeypatch.setattr(leftovers.shutil, "rmtree", lambda path: (seen.append(names(tmp_path)), rmtree(path)))
    discard_directory(tmp_path / "0")
    assert ["0" in listing for listing in seen] == [False]
    assert names(tmp_path) == []
