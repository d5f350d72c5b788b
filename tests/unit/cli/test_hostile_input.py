"""What nobody does on purpose: pipes in the place of files, texts that cannot be printed, exports tampered with."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3_export import export
from eagle3_export.cli.commands import app
from eagle3_export.config import ExportConfig, parse_export_block
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.errors import CheckpointError, ExportInvalidError, StorageError, UsageError
from eagle3_export.export import export_checkpoint, prepare_export
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.report.page import to_html
from eagle3_export.report.runs import read_runs
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from eagle3_export.train import main as train
from eagle3_export.verify import verify_export
from tests.support.drafts import write_checkpoint

Config = dict[str, Any]


@pytest.fixture
def no_hanging() -> Iterator[None]:
    """A read that never ends fails instead."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("name", ["config.json", "training_state.json", "val_metrics.json"])
def test_a_pipe_in_a_files_place_is_refused(tmp_path: Path, no_hanging: None, name: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "1")
    (checkpoint / name).unlink(missing_ok=True)
    os.mkfifo(checkpoint / name)
    with pytest.raises(CheckpointError, match=f"{name} cannot be read: it is not a regular file"):
        export_checkpoint(checkpoint, tmp_path / "out")


def test_a_pipe_in_the_metadatas_place_is_refused(tmp_path: Path, no_hanging: None) -> None:
    os.mkfifo(tmp_path / "metadata.json")
    with pytest.raises(ExportInvalidError, match="it is not a regular file"):
        read_metadata(tmp_path)


def half_a_pair_as(key: str) -> Callable[[Config], object]:
    return lambda config: config.update({key: "\ud800"})


@pytest.mark.parametrize("key", ["speculators_version", "unknown"])
def test_text_that_cannot_be_written_again_is_refused(tmp_path: Path, key: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "1", edit_config=half_a_pair_as(key))
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON: .*surrogates"):
        export_checkpoint(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_text_beyond_the_basic_plane_is_not(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "1", edit_config=lambda config: config.update(speculators_version="0.9.0\U0001f600")
    )
    export_checkpoint(checkpoint, tmp_path / "out")


@pytest.mark.parametrize("key", ["layer_types", "model_type"])
def test_messages_stay_short(tmp_path: Path, key: str) -> None:
    def edit(config: Config) -> None:
        config["transformer_layer_config"][key] = [0] * 5000

    checkpoint = write_checkpoint(tmp_path / "1", edit_config=edit)
    with pytest.raises(CheckpointError) as raised:
        export_checkpoint(checkpoint, tmp_path / "out")
    assert len(str(raised.value)) < 1000


TAMPERED: dict[str, Callable[[Config], object]] = {
    "rope_theta": lambda c: (c.update(rope_theta=2e4), c["rope_parameters"].update(rope_theta=2e4)),
    "rms_norm_eps": lambda c: c.update(rms_norm_eps=0.01),
    "norm_before_residual": lambda c: c.update(norm_before_residual=True),
    "norm_output": lambda c: c.update(norm_output=False),
    "hidden_act": lambda c: c.update(hidden_act="gelu"),
    "sliding_window": lambda c: c.update(sliding_window=7),
    "max_position_embeddings": lambda c: c.update(max_position_embeddings=4096),
    "eagle_aux_hidden_state_layer_ids": lambda c: c["eagle_config"].update(
        eagle_aux_hidden_state_layer_ids=[0, 1, 2]
    ),
    "eagle3_export": lambda c: c["eagle3_export"].update(requires=7),
}


@pytest.mark.parametrize("key", TAMPERED)
def test_a_config_that_is_not_the_sources_is_found(tmp_path: Path, key: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "1")
    path = export_checkpoint(checkpoint, tmp_path / "out").directory / "config.json"
    assert verify_export(tmp_path / "out", source=checkpoint).ok
    config = json.loads(path.read_text())
    TAMPERED[key](config)
    path.write_text(json.dumps(config))
    problems = verify_export(tmp_path / "out", source=checkpoint).problems
    assert any(check == "source" and key in problem for check, problem in problems), problems


def test_a_dtype_that_is_not_the_files_is_found(tmp_path: Path) -> None:
    path = export_checkpoint(write_checkpoint(tmp_path / "1"), tmp_path / "out").directory / "config.json"
    path.write_text(path.read_text().replace("bfloat16", "float16"))
    problems = dict(verify_export(tmp_path / "out").problems)
    assert "holds bfloat16, its config says float16" in problems["names, shapes and dtypes"]


def test_weights_that_would_be_loaded_beside_the_drafts_own_are_found(tmp_path: Path) -> None:
    export_checkpoint(write_checkpoint(tmp_path / "1"), tmp_path / "out")
    (tmp_path / "out" / "model-2.safetensors").write_bytes(b"")
    assert "also holds model-2.safetensors" in dict(verify_export(tmp_path / "out").problems)["weights"]


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_only_an_export_is_ever_overwritten(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "1")
    other = write_checkpoint(tmp_path / "models" / "base")
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "thesis.tex").write_text("years of work")
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "repository" / ".git" / "HEAD").write_text("ref: refs/heads/main")
    export_checkpoint(checkpoint, tmp_path / "noted")
    (tmp_path / "noted" / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    for directory in (*(tmp_path / name for name in ("user", "models", "noted", "repository")), other):
        with pytest.raises(
            StorageError, match=r"(holds .*|is no export)\. Only an export of the same run is ever"
        ):
            export_checkpoint(checkpoint, directory, overwrite=True)
    prepared = prepare_export(read_checkpoint(checkpoint), tmp_path / "user", ExportConfig())
    around = OutputDirectory.around(tmp_path / "user")
    with prepared, around as output, pytest.raises(StorageError, match=r"holds thesis\.tex"):
        prepared.run(output, replace=True)
    assert snapshot(tmp_path) == before


def test_an_empty_directory_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_checkpoint(write_checkpoint(tmp_path / "1"), tmp_path / "out", overwrite=True)
    assert verify_export(tmp_path / "out").ok


@pytest.mark.parametrize("where", ["run/1", "run/1/out", "run", "link/out"])
def test_an_export_never_touches_its_checkpoint(tmp_path: Path, where: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "run" / "1")
    (tmp_path / "link").symlink_to(checkpoint)
    before = snapshot(tmp_path)
    for overwrite in (False, True):
        with pytest.raises((StorageError, UsageError)):
            export_checkpoint(checkpoint, tmp_path / where, overwrite=overwrite)
    assert snapshot(tmp_path) == before
    assert not (checkpoint / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "--all", "run", "loop"),
        ("convert", "--all", "loop", "out"),
        ("convert", "run/1", "loop/out"),
        ("watch", "--once", "run", "loop/x"),
        ("launch", "loop", "--target", "t"),
        ("report", "loop"),
    ],
)
def test_a_loop_of_links_has_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    write_checkpoint(tmp_path / "run" / "1")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, arguments)
    assert isinstance(answer.exception, SystemExit), answer.exception
    assert answer.exit_code in (1, 2)


def test_launch_names_a_config_that_is_no_exports(tmp_path: Path) -> None:
    path = export_checkpoint(write_checkpoint(tmp_path / "1"), tmp_path / "out").directory / "config.json"
    config = json.loads(path.read_text())
    del config["eagle3_export"]
    path.write_text(json.dumps(config))
    answer = CliRunner().invoke(app, ["launch", str(tmp_path / "out"), "--target", "t"])
    assert answer.exit_code == 1
    assert "eagle3_export is missing" in answer.stderr


def test_a_gate_that_nothing_fails_is_refused(tmp_path: Path) -> None:
    export_checkpoint(write_checkpoint(tmp_path / "1"), tmp_path / "out")
    answer = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--fail-below", "nan"])
    assert answer.exit_code == 2
    assert "--fail-below nan" in answer.stderr


def test_a_page_of_a_run_whose_name_is_not_utf8(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"caf\xe9")
    export_checkpoint(write_checkpoint(tmp_path / "1"), directory)
    assert b"caf\\xe9" in to_html(read_runs([directory])).encode()


def test_a_mistyped_run_leaves_no_directory_behind(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["watch", "--once", str(tmp_path / "rnu")])
    assert answer.exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [("report", "."), ("watch", "--once", "."), ("convert", "--all", ".", "out")]
)
def test_a_removed_working_directory_has_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    answer = CliRunner().invoke(app, arguments)
    assert isinstance(answer.exception, SystemExit), answer.exception
    assert answer.exit_code in (1, 2)


def test_beside_the_root_there_is_nothing() -> None:
    with pytest.raises(UsageError, match="The root directory is the save_path"):
        ExportConfig().resolve_output_dir("/")


def test_beside_the_parent_is_not_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run" / "0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run" / "0")
    assert ExportConfig().resolve_output_dir("..") == tmp_path / "run-sglang"


def test_sigterm_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write_checkpoint(tmp_path / "run" / "1")
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(export, "write_and_scan", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    answer = CliRunner().invoke(app, ["convert", str(checkpoint), str(tmp_path / "exports" / "1")])
    assert answer.exit_code == 143
    assert list((tmp_path / "exports").iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_empty_version_is_no_version(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "1")
    answer = CliRunner().invoke(
        app, ["convert", str(checkpoint), str(tmp_path / "out"), "--sglang-version", ""]
    )
    assert answer.exit_code == 2
    assert "sglang_version '' is not a version" in answer.stderr


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sglang_export\.output_dir: "):
        parse_export_block({"output_dir": "a\0b"})


def test_the_working_directory_is_no_output_directory_by_oversight() -> None:
    with pytest.raises(
        UsageError, match=r"sglang_export\.output_dir: .* at least 1 character \(got ''\)\. Known"
    ):
        parse_export_block({"output_dir": ""})


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that may not be entered, also for root: lost+found, another user's."""
    directory = tmp_path / "beside" / "private"
    directory.mkdir(parents=True)
    stat = Path.stat

    def refuse(path: Path, **options: bool) -> os.stat_result:
        if directory in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    return directory


def test_a_private_directory_beside_the_export_does_not_matter(tmp_path: Path, private: Path) -> None:
    run, out = write_checkpoint(tmp_path / "elsewhere" / "run" / "1").parent, private.parent
    for arguments in (
        ("convert", str(run / "1"), str(out / "1")),
        ("convert", "--all", str(run), str(out)),
    ):
        answer = CliRunner().invoke(app, arguments)
        assert answer.exit_code == 0, answer.output
    assert (out / "index.json").is_file()


@pytest.mark.parametrize(
    "command", [("verify",), ("report",), ("launch", "--target", "t"), ("convert", "out")]
)
def test_what_may_not_be_read_has_no_traceback(private: Path, command: tuple[str, ...]) -> None:
    for path in (private, private / "1"):
        answer = CliRunner().invoke(app, [command[0], str(path), *command[1:]])
        assert isinstance(answer.exception, SystemExit), answer.exception
        assert answer.exit_code == 1


def test_a_checkpoint_that_may_not_be_read_has_no_traceback(private: Path, tmp_path: Path) -> None:
    (private / "1").mkdir()
    answer = CliRunner().invoke(app, ["convert", "--all", str(private), str(tmp_path / "out")])
    assert answer.exit_code == 1
    assert "cannot be listed: Permission denied" in answer.stderr


@pytest.mark.parametrize(
    "options", [("--base-url", "http://[::1"), ("--sweep", "3", "--target", "t", "--launch-template", "'")]
)
def test_measure_names_what_it_cannot_take(tmp_path: Path, options: tuple[str, ...]) -> None:
    export_checkpoint(write_checkpoint(tmp_path / "1"), tmp_path / "out")
    (tmp_path / "prompts.txt").write_text("Hello\n")
    answer = CliRunner().invoke(
        app, ["measure", str(tmp_path / "out"), "--prompts", str(tmp_path / "prompts.txt"), *options]
    )
    assert answer.exit_code == 2, answer.exception


@pytest.mark.parametrize("value", ["{", "[1,", "a", "[1, }]"])
def test_flags_that_are_no_numbers_are_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("num-steps", "keep-last"):
        assert train([f"--sglang-export.{flag}", value]) == 2
        assert f"--sglang-export.{flag}: input should be a valid integer" in capsys.readouterr().err
