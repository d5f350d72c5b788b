"""Where the verifier's config.json is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from eagle3_export.export import export_checkpoint
from eagle3_export.speculators_format.run_files import places_of, run_settings
from eagle3_export.speculators_format.verifier import find_verifier, read_verifier
from tests.support.drafts import write_checkpoint

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 8,
    "hidden_size": 16,
    "vocab_size": 40,
    "max_position_embeddings": 512,
}


def write_config(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The commands run from another directory than the training did."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


# Relative to the training's working directory, which is `project`: its own verifier, and three places to find it.
@pytest.mark.parametrize(
    "place", ["project/models/v", "project/runs/a/models/v", "project/runs/a/3/models/v"]
)
def test_a_relative_path_is_tried_from_the_checkpoint_and_its_run(elsewhere: Path, place: str) -> None:
    checkpoint = elsewhere / "project" / "runs" / "a" / "3"
    checkpoint.mkdir(parents=True)
    (checkpoint.parent / "run.yaml").write_text(
        yaml.safe_dump({"train": {"trainer": {"save_path": "./runs/a"}}})
    )
    write_config(elsewhere / place)
    verifier = read_verifier("models/v", checkpoint=checkpoint)
    assert verifier is not None and verifier.hidden_size == 16
    assert read_verifier("./models/v", checkpoint=checkpoint) == verifier
    assert read_verifier("models/v") is None


def test_the_current_directory_comes_first(elsewhere: Path) -> None:
    write_config(elsewhere / "elsewhere" / "v")
    (elsewhere / "run" / "1" / "v").mkdir(parents=True)
    (elsewhere / "run" / "1" / "v" / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 17}))
    verifier = read_verifier("v", checkpoint=elsewhere / "run" / "1")
    assert verifier is not None and verifier.hidden_size == 16


def test_the_finding_names_the_places_that_were_tried(elsewhere: Path) -> None:
    checkpoint = write_checkpoint(
        elsewhere / "run" / "1",
        edit_config=lambda config: config["speculators_config"]["verifier"].update(name_or_path="models/v"),
    )
    (found,) = export_checkpoint(checkpoint, elsewhere / "out").findings
    assert found.id == "verifier-unknown"
    for place in (elsewhere / "elsewhere", checkpoint, checkpoint.parent):
        assert str(place / "models" / "v") in found.cause
    write_config(elsewhere / "run" / "models" / "v")
    assert export_checkpoint(checkpoint, elsewhere / "out2").findings == ()


def test_an_absolute_path_is_one_place(elsewhere: Path) -> None:
    search = find_verifier(str(elsewhere / "v"), checkpoint=elsewhere / "run" / "1")
    assert (search.verifier, search.tried) == (None, (str(elsewhere / "v"),))
    assert places_of(str(elsewhere / "v"), elsewhere) == [elsewhere / "v"]


def test_nobody_named_one() -> None:
    assert find_verifier(None).tried == find_verifier("").tried == ()


@pytest.mark.parametrize("name", ["\x00", "a/" * 3000, "~", "..", "a\nb/c"])
def test_odd_names_are_not_found(tmp_path: Path, name: str) -> None:
    assert find_verifier(name, checkpoint=tmp_path / "1").verifier is None


@pytest.mark.parametrize(
    "content",
    [
        "train:\n  trainer:\n    run_name: 2026-02-30\n",
        "train: !!python/object/apply:os.system [true]\n",
        "train: [1, 2]\n",
        "{",
        "- " * 5000,
        "[" * 5000,
        "\x00",
        "train:\n  trainer: 3\n",
    ],
)
def test_a_run_file_that_cannot_be_read_says_nothing_and_stops_nothing(tmp_path: Path, content: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "run" / "1")
    (tmp_path / "run" / "run.yaml").write_text(content)
    assert run_settings(tmp_path / "run") == {}
    assert export_checkpoint(checkpoint, tmp_path / "out").metadata.acceptance.coverage is None
