"""Which data a checkpoint is replayed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_export.errors import UsageError
from eagle3_export.training.offline_data import ChosenData, choose_data, hidden_states_of

DEFAULTS = {"data_path": "./output", "train_data_ratio": 0.9}


def dataset(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("state.json", "dataset_info.json"):
        (directory / name).write_text("{}")
    return directory


def choose(given: Path | None, save_path: Path, recorded: dict[str, Any]) -> Any:
    return choose_data(given, save_path, recorded, {**DEFAULTS, **recorded})


@pytest.fixture
def save_path(tmp_path: Path) -> Path:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return tmp_path / "run" / "checkpoints"


@pytest.mark.parametrize("named", [True, False])
def test_of_the_runs_own_data_the_validation_part(tmp_path: Path, save_path: Path, named: bool) -> None:
    data = dataset(tmp_path / "data")
    chosen = choose(data if named else None, save_path, {"data_path": str(data)})
    assert (chosen.path, chosen.held_out, chosen.of_the_run) == (data, True, True)


def test_another_spelling_is_the_same_data(tmp_path: Path, save_path: Path) -> None:
    data = dataset(tmp_path / "data")
    (tmp_path / "link").symlink_to(data)
    assert choose(tmp_path / "link", save_path, {"data_path": str(data)}).of_the_run


def test_a_relative_path_of_the_run_is_found_from_where_it_was_started(
    tmp_path: Path, save_path: Path
) -> None:
    """The trainer's working directory is the one in which its relative save_path lies."""
    data = dataset(tmp_path / "run" / "data")
    recorded = {"data_path": "data", "save_path": "checkpoints"}
    (save_path / "run.yaml").write_text("train: {trainer: {save_path: checkpoints}}")
    chosen = choose(None, save_path, recorded)
    assert chosen.path.resolve() == data
    assert chosen.of_the_run


def test_of_other_data_all(tmp_path: Path, save_path: Path) -> None:
    own, other = dataset(tmp_path / "own"), dataset(tmp_path / "other")
    chosen = choose(other, save_path, {"data_path": str(own)})
    assert (chosen.path, chosen.held_out, chosen.of_the_run) == (other, False, False)


def test_without_a_recorded_run_the_part_that_may_not_have_been_trained_on(
    tmp_path: Path, save_path: Path
) -> None:
    chosen = choose(dataset(tmp_path / "data"), save_path, {})
    assert (chosen.held_out, chosen.of_the_run) == (True, False)
    assert "no run.yaml" in chosen.why


@pytest.mark.parametrize(
    ("given", "recorded", "said"),
    [
        (None, {}, "no run.yaml beside the checkpoint names them"),
        (None, {"data_path": "/gone"}, "not where its run.yaml has them: /gone"),
        ("gone", {}, "is not there"),
        ("file", {}, "is no directory"),
        ("empty", {}, "no state.json and no dataset_info.json"),
    ],
)
def test_no_data(
    tmp_path: Path, save_path: Path, given: str | None, recorded: dict[str, Any], said: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=said):
        choose(None if given is None else tmp_path / given, save_path, recorded)


@pytest.mark.training
@pytest.mark.parametrize("path", [5, ["a"], {"a": 1}, True])
def test_hidden_states_that_a_run_yaml_names_oddly_are_refused_by_name(tmp_path: Path, path: Any) -> None:
    pytest.importorskip("hs_connectors")
    chosen = ChosenData(tmp_path, held_out=True, of_the_run=True, why="")
    settings = {"hidden_states_backend": "file", "hidden_states_path": path, 1: "no name of an option"}
    with pytest.raises(UsageError, match="options for hidden states"):
        hidden_states_of(chosen, settings)
    assert hidden_states_of(chosen, {**settings, "hidden_states_path": None}) is not None
