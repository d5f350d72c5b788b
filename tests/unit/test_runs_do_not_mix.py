"""Two runs never share an output directory, and nothing that is not an export of the run is ever touched."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_export import published
from eagle3_export.config import ExportConfig
from eagle3_export.convert import convert_checkpoint, convert_run
from eagle3_export.errors import Eagle3ExportError, StorageError, UsageError
from eagle3_export.output_directory import OutputDirectory, read_exports
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from eagle3_export.training.run_exports import RunExports, Save
from eagle3_export.watch import watch_run
from tests.support.drafts import save_epoch


def write_run(save_path: Path, *epochs: int, seed: int = 0) -> Path:
    for epoch in epochs:
        save_epoch(save_path / str(epoch), seed=seed + epoch, epoch=epoch)
    return save_path


def document(path: Path) -> Any:
    return json.loads(path.read_text())


def snapshot(directory: Path) -> dict[str, Any]:
    """All of a tree but for the times: kinds, contents and where links point."""
    found: dict[str, Any] = {}
    for parent, directories, files in os.walk(directory):
        for name in [*directories, *files]:
            path = Path(parent, name)
            found[str(path.relative_to(directory))] = (
                str(path.readlink())
                if path.is_symlink()
                else path.read_bytes()
                if path.is_file()
                else "directory"
            )
    return found


def with_convert(run: Path, out: Path, keep_last: int | None = None) -> None:
    convert_run(run, out, ExportConfig(keep_last=keep_last))


def with_watch(run: Path, out: Path, keep_last: int | None = None) -> None:
    watch_run(run, ExportConfig(output_dir=str(out), keep_last=keep_last), once=True)


def with_callback(run: Path, out: Path, keep_last: int | None = None) -> None:
    """What the callback does with each save, without a trainer."""
    config = ExportConfig(output_dir=str(out), keep_last=keep_last)
    output = OutputDirectory(config.resolve_output_dir(run), run, keep_last=keep_last)
    output.require_same_run()
    exports = RunExports(config, run, output)
    for checkpoint in sorted(run.glob("[0-9]*")):
        exports.export(Save(checkpoint.name))
    exports.finish(60)


WAYS = [with_convert, with_watch, with_callback]
Way = Callable[..., None]


@pytest.mark.parametrize("way", WAYS)
def test_another_run_is_refused_with_both_names(tmp_path: Path, way: Way) -> None:
    one, other = write_run(tmp_path / "a", 0, 1), write_run(tmp_path / "b", 0, 1, 2, seed=50)
    with_convert(one, tmp_path / "out")
    before = snapshot(tmp_path)
    with pytest.raises(UsageError) as caught:
        way(other, tmp_path / "out")
    assert str(one) in str(caught.value)
    assert str(other) in str(caught.value)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_went_on_is_the_same(tmp_path: Path, way: Way) -> None:
    run = write_run(tmp_path / "a", 0, 1)
    with_convert(run, tmp_path / "out")
    identity = document(tmp_path / "out" / "index.json")["run"]
    write_run(run, 2)
    way(run, tmp_path / "out")
    assert document(tmp_path / "out" / "index.json")["run"] == identity
    runs = [document(tmp_path / "out" / str(epoch) / "metadata.json")["run"] for epoch in range(3)]
    assert runs == [identity] * 3
    assert identity["save_path"] == str(run)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keep_times", [True, False])
@pytest.mark.parametrize("how", ["moved", "mirrored"])
def test_a_run_in_another_place_is_the_same_and_is_not_exported_again(
    tmp_path: Path, way: Way, keep_times: bool, how: str
) -> None:
    run = write_run(tmp_path / "a", 0, 1)
    with_convert(run, tmp_path / "out")
    identity = document(tmp_path / "out" / "index.json")["run"]
    inodes = {name: (tmp_path / "out" / name / "model.safetensors").stat().st_ino for name in "01"}
    copy = shutil.copy2 if keep_times else shutil.copy
    there = shutil.copytree(run, tmp_path / "b", symlinks=True, copy_function=copy)
    if how == "moved":
        shutil.rmtree(run)
    write_run(there, 2)
    if way is with_callback:
        shutil.rmtree(there / "0")
        shutil.rmtree(there / "1")  # the callback exports each save; these two were another process's
        write_run(there, 1)
    way(there, tmp_path / "out")
    now = document(tmp_path / "out" / "index.json")["run"]
    assert (now["id"], now["save_path"]) == (identity["id"], str(there))
    assert (tmp_path / "out" / "2").is_dir()
    if way is not with_callback:
        assert inodes == {
            name: (tmp_path / "out" / name / "model.safetensors").stat().st_ino for name in "01"
        }


def test_a_save_path_used_again_for_a_fresh_run_is_another_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0, 1, 2)
    with_convert(run, tmp_path / "out")
    shutil.rmtree(run)
    write_run(run, 0, 1, seed=0)
    shutil.rmtree(run)
    for epoch in (0, 1):
        checkpoint = save_epoch(run / str(epoch), seed=90 + epoch, epoch=epoch)
        state = {"epoch": epoch, "local_step": 0, "global_step": 50 * (epoch + 1)}
        (checkpoint / "training_state.json").write_text(json.dumps(state))
    for way in WAYS:
        with pytest.raises(UsageError, match="an earlier run of"):
            way(run, tmp_path / "out")


def test_a_trainer_that_starts_anew_is_refused_before_it_saves(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0)
    with_convert(run, tmp_path / "out")
    OutputDirectory(tmp_path / "out", run, fresh=False).require_same_run()
    with pytest.raises(UsageError, match="an earlier run of"):
        OutputDirectory(tmp_path / "out", run, fresh=True).require_same_run()


def test_a_trainer_that_begins_again_after_an_interrupt_is_not_refused(tmp_path: Path) -> None:
    """It saved `interrupted` only, from which speculators does not resume."""
    run = tmp_path / "a"
    (save_epoch(run / "interrupted") / "training_state.json").unlink()
    with_convert(run, tmp_path / "out")
    OutputDirectory(tmp_path / "out", run, fresh=True).require_same_run()


def test_a_single_checkpoint_among_another_runs_exports(tmp_path: Path) -> None:
    run, other = write_run(tmp_path / "a", 0, 1), write_run(tmp_path / "b", 5, seed=50)
    convert_checkpoint(run / "0", tmp_path / "out" / "0", ExportConfig())
    convert_checkpoint(other / "5", tmp_path / "out" / "free", ExportConfig())  # not a run's directory yet
    shutil.rmtree(tmp_path / "out" / "free")
    with_convert(run, tmp_path / "out")
    with pytest.raises(UsageError, match=str(run)):
        convert_checkpoint(other / "5", tmp_path / "out" / "5", ExportConfig())
    with pytest.raises(UsageError, match=str(run)):
        convert_checkpoint(other / "5", tmp_path / "out" / "0", ExportConfig(), overwrite=True)
    convert_checkpoint(write_run(run, 2) / "2", tmp_path / "out" / "2", ExportConfig())
    index = document(tmp_path / "out" / "index.json")
    assert [entry["name"] for entry in index["exports"]] == ["0", "1", "2"]
    assert document(tmp_path / "out" / "2" / "metadata.json")["run"] == index["run"]


def as_of_0_1_0(out: Path) -> None:
    """Takes out what release 0.1.0 did not write."""
    for path in [*out.glob("*/metadata.json"), out / "index.json"]:
        if path.parent.is_symlink():
            continue
        content = document(path)
        content.pop("run")
        content["reasons"].pop("run", None)
        if "source" in content:
            content["source"].pop("fingerprint")
        path.write_text(json.dumps(content))


@pytest.mark.parametrize("way", [with_convert, with_watch])
def test_a_directory_without_identity_is_taken_over_once_and_that_is_said(
    tmp_path: Path, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_run(tmp_path / "a", 0, 1)
    with_convert(run, tmp_path / "out")
    as_of_0_1_0(tmp_path / "out")
    for said in (1, 1):
        way(run, tmp_path / "out")
        assert sum("Taken over" in record.message for record in caplog.records) == said
    identity = document(tmp_path / "out" / "index.json")["run"]
    assert document(tmp_path / "out" / "0" / "metadata.json")["run"] == identity
    as_of_0_1_0(tmp_path / "out")
    with pytest.raises(UsageError, match=str(run)):
        way(write_run(tmp_path / "b", 0, 1, seed=50), tmp_path / "out")


def test_an_export_of_another_run_that_was_put_there_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, other = write_run(tmp_path / "a", 0, 1, 2), write_run(tmp_path / "b", 1, seed=50)
    convert_checkpoint(other / "1", tmp_path / "out" / "1", ExportConfig())
    foreign = snapshot(tmp_path / "out" / "1")
    write_run(tmp_path / "a", 3)
    with OutputDirectory(tmp_path / "out2", run, keep_last=1):
        pass
    shutil.copytree(tmp_path / "out" / "1", tmp_path / "out2" / "1")
    with pytest.raises(Eagle3ExportError):
        watch_run(run, ExportConfig(output_dir=str(tmp_path / "out"), keep_last=1), once=True)
    assert not watch_run(run, ExportConfig(output_dir=str(tmp_path / "out2"), keep_last=4), once=True)
    assert snapshot(tmp_path / "out2" / "1") == foreign
    assert [entry["name"] for entry in document(tmp_path / "out2" / "index.json")["exports"]] == [
        "0",
        "2",
        "3",
    ]
    assert "is of another run" in caplog.text


# Nothing foreign ever changes ---------------------------------------------------------------------------------

NAMES = (
    "0",
    "1",
    "2",
    "7",
    "01",
    "2024",
    "interrupted",
    "notes",
    "latest",
    "best",
    "index.json",
    ".hidden",
    "caf\udce9",
)
KINDS = (
    "file",
    "empty file",
    "user directory",
    "bare weights",
    "foreign metadata",
    "link out",
    "dangling",
    "checkpoint",
    "marked",
)


def put(path: Path, kind: str, outside: Path) -> None:
    if kind in ("file", "empty file"):
        path.write_text("mine" if kind == "file" else "")
    elif kind == "link out":
        path.symlink_to(outside)
    elif kind == "dangling":
        path.symlink_to(outside / "nowhere")
    elif kind == "checkpoint":
        save_epoch(path, seed=77, epoch=7)
    else:
        path.mkdir()
        (path / "thesis.tex").write_text("years of work")
        if kind == "bare weights":
            (path / "model.safetensors").write_text("somebody's")
        if kind == "foreign metadata":
            (path / "model.safetensors").write_text("somebody's")
            (path / "metadata.json").write_text('{"schema_version": 1}')
        if kind == "marked":
            (path / ".keep").touch()


def the_same(before: dict[str, Any], after: dict[str, Any], names: set[str]) -> bool:
    def of(tree: dict[str, Any]) -> dict[str, Any]:
        return {path: content for path, content in tree.items() if path.partition("/")[0] in names}

    return of(before) == of(after)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    way=st.sampled_from(WAYS),
    foreign=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(KINDS), max_size=6),
    noted=st.sets(st.sampled_from("0124"), max_size=2),
    keep_last=st.sampled_from([None, 1, 2]),
)
def test_nothing_foreign_ever_changes(
    tmp_path_factory: pytest.TempPathFactory,
    way: Way,
    foreign: dict[str, str],
    noted: set[str],
    keep_last: int | None,
) -> None:
    base = tmp_path_factory.mktemp("mixed")
    run, out, outside = write_run(base / "run", 0, 1, 2), base / "out", base / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    with_convert(run, out)
    for name in noted & {"0", "1", "2"}:
        (out / name / "notes.txt").write_text("mine")
    for name, kind in foreign.items():
        path = out / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        put(path, kind, outside)
    # An index is replaced, not followed, where a link stands in its place.
    ours = {"index.json"} if foreign.get("index.json") in ("empty file", "link out", "dangling") else set()
    kept = (set(foreign) | (noted & {"0", "1", "2"})) - ours
    write_run(run, 3, 4)
    before, outside_before, run_before = snapshot(out), snapshot(outside), snapshot(run)
    with suppress(Eagle3ExportError):
        way(run, out, keep_last)
    assert the_same(before, snapshot(out), kept)
    assert snapshot(outside) == outside_before
    assert snapshot(run) == run_before


def test_an_export_with_a_users_file_is_neither_pruned_nor_replaced_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, out = write_run(tmp_path / "run", 0, 1, 2), tmp_path / "out"
    with_convert(run, out)
    (out / "1" / "notes.txt").write_text("mine")
    for epoch in (3, 4):
        write_run(run, epoch)
    with OutputDirectory(out, run, keep_last=1) as output:
        output.refresh()
        output.refresh()
        assert {export.name for export in output.exports()} <= {"0", "1", "2"}
    assert (out / "1" / "notes.txt").read_text() == "mine"
    assert sum("notes.txt" in record.message for record in caplog.records) == 1
    with pytest.raises(StorageError, match=r"notes\.txt"):
        convert_checkpoint(run / "1", out / "1", ExportConfig(), overwrite=True)


@pytest.mark.parametrize(
    ("save_path", "output_dir"),
    [
        ("runs/0", "runs"),
        ("runs/0", "alias"),
        ("alias/0", "runs"),
        ("runs/0", "runs/0"),
        ("runs/0", "runs/0/out"),
        ("runs/0", "."),
    ],
)
def test_neither_tree_may_hold_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_path: str, output_dir: str
) -> None:
    write_run(tmp_path / "runs" / "0", 0)
    (tmp_path / "alias").symlink_to("runs")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="lies in"):
        ExportConfig(output_dir=output_dir).resolve_output_dir(save_path)


def test_the_default_beside_the_save_path_may_be_a_link_into_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 0)
    (tmp_path / "run-sglang").symlink_to("run")
    with pytest.raises(UsageError, match="lies in"):
        ExportConfig().resolve_output_dir(tmp_path / "run")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ExportConfig(output_dir="~/out").resolve_output_dir("~/run") == tmp_path / "out"
    assert ExportConfig().resolve_output_dir("~/run") == tmp_path / "run-sglang"
    write_run(tmp_path / "run", 0)
    convert_run("~/run", Path("~/out"), ExportConfig())
    assert read_exports(tmp_path / "out")[0].name == "0"


def test_an_export_into_the_trainers_save_path_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0)
    with pytest.raises(UsageError, match="save_path"):
        convert_checkpoint(run / "0", run / "7", ExportConfig())


def test_the_log_is_quiet_where_nothing_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = write_run(tmp_path / "run", 0, 1)
    with caplog.at_level(logging.WARNING):
        for way in WAYS:
            way(run, tmp_path / "out", 1)
    assert caplog.records == []


def test_a_filesystem_without_links_loses_no_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """exFAT and some network filesystems answer EPERM."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    run = write_run(tmp_path / "run", 0, 1)
    monkeypatch.setattr(Path, "symlink_to", refuse)
    for way in WAYS:
        way(run, tmp_path / way.__name__)
        index = document(tmp_path / way.__name__ / "index.json")
        assert (index["latest"], [entry["name"] for entry in index["exports"]]) == ("1", ["0", "1"])
    assert "There is no pointer" in caplog.text


def test_convert_all_makes_up_for_an_export_of_an_earlier_save(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", 0, 1), tmp_path / "out"
    first = convert_run(run, out, ExportConfig())
    save_epoch(run / "1", seed=30, epoch=1)
    second = convert_run(run, out, ExportConfig())
    assert [c.result is None for c in first] == [False, False]
    assert [c.result is None for c in second] == [True, False]
    assert document(out / "1" / "metadata.json")["global_step"] == 230


@pytest.mark.parametrize(
    "change", ["export copied", "export rounded", "checkpoint copied", "checkpoint rounded"]
)
def test_a_restart_exports_nothing_again_after_a_copy(tmp_path: Path, change: str) -> None:
    run, out = write_run(tmp_path / "run", 0, 1), tmp_path / "out"
    with_watch(run, out)
    which = out if change.startswith("export") else run
    if change.endswith("copied"):
        shutil.copytree(which, tmp_path / "copy", symlinks=True, copy_function=shutil.copy)
        shutil.rmtree(which)
        (tmp_path / "copy").rename(which)
    else:
        for weights in which.glob("*/model.safetensors"):
            rounded = weights.stat().st_mtime_ns // 1000 * 1000
            os.utime(weights, ns=(rounded, rounded))
    conversions = convert_run(run, out, ExportConfig())
    assert [conversion.result for conversion in conversions] == [None, None]


def test_another_save_is_told_from_one_of_the_same_size_time_and_step(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", 0), tmp_path / "out"
    with_watch(run, out)
    weights = run / "0" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-400_0:-100_0] = bytes(3000)
    weights.write_bytes(content)
    with OutputDirectory(out, run) as output:
        assert not output.holds("0", read_checkpoint(run / "0"))


def test_two_names_of_one_epoch_are_two_exports(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", 1), tmp_path / "out"
    save_epoch(run / "01", seed=9, epoch=1)
    with_convert(run, out)
    assert [export.name for export in read_exports(out)] == ["01", "1"]
    for name in ("01", "1"):
        assert document(out / name / "metadata.json")["source"]["checkpoint"] == str(run / name)


def test_an_export_whose_name_is_not_utf8_does_not_stop_the_others(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", 0), tmp_path / "out"
    convert_checkpoint(run / "0", out / os.fsdecode(b"caf\xe9"), ExportConfig())
    with_convert(run, out)
    names = [entry["name"] for entry in document(out / "index.json")["exports"]]
    assert sorted(names) == ["0", "caf\\xe9"]


def test_nothing_in_the_index_is_stale(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", 0, 1, 2), tmp_path / "out"
    with_convert(run, out)
    shutil.rmtree(out / "1")
    content = document(out / "0" / "metadata.json")
    (out / "0" / "metadata.json").write_text(json.dumps({**content, "global_step": 777}))
    with OutputDirectory(out, run) as output:
        output.refresh()
    entries = document(out / "index.json")["exports"]
    assert [(entry["name"], entry["global_step"]) for entry in entries] == [("2", 302), ("0", 777)]


def test_one_new_export_costs_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = write_run(tmp_path / "run", 0, 1, 2), tmp_path / "out"
    with_convert(run, out)
    read: list[Path] = []
    real = published.read_metadata
    monkeypatch.setattr(published, "read_metadata", lambda path: (read.append(path), real(path))[1])
    write_run(run, 3)
    with_convert(run, out)
    assert read == [out / "3" / "metadata.json"]


def test_files_of_a_live_export_are_left_alone_by_a_conversion_beside_it(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", 0), tmp_path / "out"
    with OutputDirectory(out, run, indexed=False):
        being_written = out / ".eagle3-export-file-000000000000"
        being_written.touch()
        convert_checkpoint(run / "0", out / "0", ExportConfig())
        assert being_written.exists()
    convert_checkpoint(run / "0", out / "1", ExportConfig())
    assert not being_written.exists()


@pytest.mark.parametrize("steps", [50, 150])
def test_a_fresh_run_of_other_length_in_the_same_save_path_is_another_run(tmp_path: Path, steps: int) -> None:
    """Its epochs end at other steps, later or earlier; an epoch of one run ends once."""
    run = write_run(tmp_path / "a", 0, 1)
    with_convert(run, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    shutil.rmtree(run)
    for epoch in (0, 1):
        checkpoint = save_epoch(run / str(epoch), seed=90 + epoch, epoch=epoch)
        state = {"epoch": epoch, "local_step": 0, "global_step": steps * 10 * (epoch + 1)}
        (checkpoint / "training_state.json").write_text(json.dumps(state))
    for way in WAYS:
        with pytest.raises(UsageError, match="an earlier run of"):
            way(run, tmp_path / "out")
    assert snapshot(tmp_path / "out") == before


def test_a_copied_run_that_went_on_by_itself_is_another_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 0, 1)
    with_convert(run, tmp_path / "out")
    shutil.copytree(run, tmp_path / "b")
    with_convert(write_run(run, 2), tmp_path / "out")
    before = snapshot(tmp_path / "out")
    checkpoint = save_epoch(tmp_path / "b" / "2", seed=99, epoch=2)
    state = json.loads((checkpoint / "training_state.json").read_text())
    (checkpoint / "training_state.json").write_text(
        json.dumps({**state, "global_step": state["global_step"] + 1})
    )
    for way in WAYS:
        with pytest.raises(UsageError, match=str(run)):
            way(tmp_path / "b", tmp_path / "out")
    assert snapshot(tmp_path / "out") == before


@pytest.mark.parametrize("index", [True, False])
def test_exports_that_cannot_be_read_are_not_taken_for_ones_own(tmp_path: Path, index: bool) -> None:
    run, other = write_run(tmp_path / "a", 0, 1), write_run(tmp_path / "b", 0, 1, seed=50)
    with_convert(run, tmp_path / "out")
    for name in "01":
        (tmp_path / "out" / name / "metadata.json").write_text("{")
    if not index:
        (tmp_path / "out" / "index.json").unlink()
    before = {name: snapshot(tmp_path / "out" / name) for name in "01"}
    for way in WAYS:
        with suppress(UsageError):
            way(other, tmp_path / "out")
        assert {name: snapshot(tmp_path / "out" / name) for name in "01"} == before
    if index:
        with_convert(run, tmp_path / "out")  # its own run makes up for them
        assert [export.name for export in read_exports(tmp_path / "out")] == ["0", "1"]


def test_an_export_is_not_replaced_under_whoever_exports_there(tmp_path: Path) -> None:
    run, other, out = write_run(tmp_path / "a", 0), write_run(tmp_path / "b", 0, seed=50), tmp_path / "out"
    out.mkdir()
    (out / "index.json").write_text('{"mine": 1}')
    with_convert(run, out)
    before = snapshot(out / "0")
    with OutputDirectory(out, run), pytest.raises(StorageError, match="Another export is running"):
        convert_checkpoint(other / "0", out / "0", ExportConfig(), overwrite=True)
    assert snapshot(out / "0") == before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_run_whose_path_is_not_utf8_is_exported(tmp_path: Path) -> None:
    run = write_run(tmp_path / os.fsdecode(b"r\xe9"), 0)
    for way in WAYS:
        way(run, tmp_path / way.__name__)
        (export,) = read_exports(tmp_path / way.__name__)
        assert export.source.checkpoint.endswith("r\\xe9/0")


def test_what_a_user_wrote_into_keep_stays(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "a", 0), tmp_path / "out"
    with_convert(run, out)
    (out / "0" / ".keep").write_text("for the paper")
    convert_run(run, out, ExportConfig(), overwrite=True)
    assert (out / "0" / ".keep").read_text() == "for the paper"
