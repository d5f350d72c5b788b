"""What nobody does on purpose: pipes in the place of files, texts that cannot be printed, exports tampered with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.errors import CheckpointError, ExportInvalidError
from eagle3_export.export import export_checkpoint
from eagle3_export.metadata import read_metadata
from eagle3_export.verify import verify_export
from tests.drafts import write_checkpoint

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
