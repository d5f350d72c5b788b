"""A path that leads nowhere, to a file or in a circle is called that, and a checkpoint behind a link is converted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3_export.cli.commands import app
from tests.support.drafts import save_epoch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a run, its exports, and things that are none of these."""
    monkeypatch.chdir(tmp_path)
    save_epoch(tmp_path / "run" / "0")
    assert run("convert", "--all", "run", "out")[0] == 0
    Path("loop").symlink_to("loop")
    Path("out/dangling").symlink_to("nowhere")
    Path("plain.txt").write_text("text")
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, arguments)
    return answer.exit_code, answer.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["verify", "loop"], "loop is a symbolic link that leads back to itself"),
        (["convert", "loop", "new"], "loop is a symbolic link that leads back to itself"),
        (["convert", "out/dangling", "new"], "out/dangling points to nowhere, which is not there"),
        (["convert", "plain.txt", "new"], "plain.txt is a file, not a checkpoint"),
    ],
)
def test_what_leads_to_no_directory_says_where_it_leads(place: Path, arguments: list[str], what: str) -> None:
    status, said = run(*arguments)
    assert (status, what in said, "hf download" in said) == (1, True, False), said
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", ""],
        ["convert", "", "new"],
        ["convert", "run/0", ""],
        ["convert", "--all", "", "new"],
        ["watch", "", "--once"],
        ["report", ""],
        ["launch", "", "--target", "model"],
        ["verify", "out/0", "--source="],
        ["verify", "out/0", "--source", ""],
    ],
)
def test_an_empty_path_is_not_the_working_directory(place: Path, arguments: list[str]) -> None:
    status, said = run(*arguments)
    assert status == 2
    assert "is empty" in said
    assert sorted(os.listdir()) == ["loop", "out", "plain.txt", "run"]  # noqa: PTH208


@pytest.mark.parametrize("elsewhere", ["far/1", "far/epoch-one"])
def test_a_checkpoint_that_was_moved_behind_a_link_is_converted(place: Path, elsewhere: str) -> None:
    save_epoch(place / "run" / "1", seed=1, epoch=1)
    Path("far").mkdir()
    Path("run/1").rename(elsewhere)
    Path("run/1").symlink_to(place / elsewhere)
    assert run("convert", "--all", "run", "out")[0] == 0
    index = json.loads(Path("out/index.json").read_text())
    assert [entry["name"] for entry in index["exports"]] == ["0", "1"]
    assert index["latest"] == "1"
    status, said = run("convert", "--all", "run", "out")
    assert status == 0
    assert said.count("exists, left as it is") == 2


def test_a_second_name_of_one_checkpoint_is_not_a_second_checkpoint(place: Path) -> None:
    Path("run/7").symlink_to("0")
    Path("run/8").symlink_to("8")
    assert run("convert", "--all", "run", "out")[0] == 0
    assert not Path("out/7").exists()


def test_an_export_is_replaced_where_the_index_was_deleted(place: Path) -> None:
    Path("out/index.json").unlink()
    Path("out/thesis").mkdir()
    Path("out/thesis/text").write_text("mine")
    save_epoch(place / "run" / "0", seed=3)
    status, said = run("convert", "run/0", "out/0", "--overwrite")
    assert status == 0, said
    assert json.loads(Path("out/0/metadata.json").read_text())["global_step"] == 103
    assert Path("out/thesis/text").read_text() == "mine"
    index = json.loads(Path("out/index.json").read_text())
    assert [(entry["name"], entry["global_step"]) for entry in index["exports"]] == [("0", 103)]


def test_another_runs_export_is_not_replaced_where_the_index_was_deleted(place: Path) -> None:
    Path("out/index.json").unlink()
    before = Path("out/0/metadata.json").read_bytes()
    save_epoch(place / "other" / "0", seed=5)
    status, said = run("convert", "other/0", "out/0", "--overwrite")
    assert status == 2
    assert str(place / "run") in said
    assert str(place / "other") in said
    assert Path("out/0/metadata.json").read_bytes() == before
    assert sorted(os.listdir("out")) == ["0", "best", "dangling", "latest"]  # noqa: PTH208


def test_exports_of_anything_may_lie_side_by_side(place: Path) -> None:
    """A directory without an index and pointers is no run's output directory."""
    shutil.copytree("out/0", "several/0")
    save_epoch(place / "other" / "0", seed=5)
    assert run("convert", "other/0", "several/1")[0] == 0
    assert not Path("several/index.json").exists()
