"""One export: names, bytes, documents, refusals, and that nothing half-written stays behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eagle3_export import output_directory
from eagle3_export.config import ExportConfig
from eagle3_export.errors import CheckpointError, Eagle3ExportError, IncompatibleDraftError, StorageError
from eagle3_export.export import export_checkpoint, prepare_export
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from eagle3_export.storage import publish
from eagle3_export.verify import verify_export
from tests.support.drafts import END_OF_EPOCH, METRICS, RENAMED, draft_tensors, read_tensors, write_checkpoint

KEPT = (
    "d2t",
    "embed_tokens.weight",
    "fc.weight",
    "input_norm.weight",
    "lm_head.weight",
    "norm.weight",
    "t2d",
)


def export(checkpoint: Path, destination: Path, **options: Any) -> dict[str, Any]:
    result = export_checkpoint(checkpoint, destination, ExportConfig(**options))
    assert result.directory == destination
    return json.loads((destination / "metadata.json").read_text())


def test_the_ten_layer_tensors_are_renamed_and_every_byte_stays(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "run" / "1", training_state=END_OF_EPOCH, val_metrics=METRICS)
    export(checkpoint, tmp_path / "out" / "1")
    source, exported = draft_tensors(), read_tensors(tmp_path / "out" / "1" / "model.safetensors")
    assert exported == {RENAMED.get(name, name): tensor for name, tensor in source.items()}
    assert set(exported) == {*RENAMED.values(), *KEPT}
    assert sorted(path.name for path in (tmp_path / "out" / "1").iterdir()) == [
        "README.md",
        "config.json",
        "metadata.json",
        "model.safetensors",
    ]


def test_shards_become_one_file(tmp_path: Path) -> None:
    export(write_checkpoint(tmp_path / "1", shards=3), tmp_path / "out")
    exported = read_tensors(tmp_path / "out" / "model.safetensors")
    assert exported == {RENAMED.get(name, name): tensor for name, tensor in draft_tensors().items()}


def test_the_numbers_of_the_issue_reports(tmp_path: Path) -> None:
    """full_acc [.8, .6, .4] makes 1 + .8 + .6 + .4 = 2.8 tokens per verify step."""
    checkpoint = write_checkpoint(tmp_path / "1", training_state=END_OF_EPOCH, val_metrics=METRICS)
    metadata = export(checkpoint, tmp_path / "out")
    assert metadata["epoch"] == 1
    assert metadata["global_step"] == 200
    assert metadata["full_acc_0"] == 0.8
    assert metadata["estimated_acceptance_length"] == pytest.approx(2.8)
    assert metadata["source"]["kind"] == "end_of_epoch"
    assert metadata["source"]["checkpoint"] == str(checkpoint)


@pytest.mark.parametrize(
    ("state", "metrics", "name", "kind", "reason"),
    [
        (END_OF_EPOCH, None, "1", "end_of_epoch", "val_metrics.json"),
        ({"epoch": 1, "local_step": 7, "global_step": 90}, METRICS, "1", "mid_epoch", "middle of an epoch"),
        (None, METRICS, "interrupted", "interrupted", "interrupted"),
    ],
)
def test_metrics_of_another_moment_are_never_used(
    tmp_path: Path, state: Any, metrics: Any, name: str, kind: str, reason: str
) -> None:
    checkpoint = write_checkpoint(tmp_path / name, training_state=state, val_metrics=metrics)
    metadata = export(checkpoint, tmp_path / "out")
    assert metadata["full_acc_0"] is None
    assert metadata["estimated_acceptance_length"] is None
    assert reason in metadata["reasons"]["full_acc_0"]
    assert metadata["source"]["kind"] == kind


def test_metrics_older_than_the_weights_are_stale(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "1", training_state=END_OF_EPOCH, val_metrics=METRICS)
    os.utime(checkpoint / "val_metrics.json", (1e9, 1e9))
    metadata = export(checkpoint, tmp_path / "out")
    assert metadata["full_acc_0"] is None
    assert "older" in metadata["reasons"]["full_acc_0"]


def test_save_best_writes_no_training_state(tmp_path: Path) -> None:
    metadata = export(write_checkpoint(tmp_path / "4", val_metrics=METRICS), tmp_path / "out")
    assert (metadata["epoch"], metadata["global_step"]) == (4, None)
    assert metadata["source"]["kind"] == "best"
    assert metadata["full_acc_0"] == 0.8


def test_dropping_the_embedding_leaves_its_bytes_out(tmp_path: Path) -> None:
    metadata = export(write_checkpoint(tmp_path / "1"), tmp_path / "out", embed_tokens="drop")
    exported = read_tensors(tmp_path / "out" / "model.safetensors")
    assert "embed_tokens.weight" not in exported
    assert len(exported) == 16
    assert metadata["weights"]["embed_tokens"] == "dropped"


def test_the_training_defaults_export_with_an_inexact_finding(tmp_path: Path) -> None:
    def defaults(config: dict[str, Any]) -> None:
        config["norm_before_residual"] = True

    checkpoint = write_checkpoint(tmp_path / "1", edit_config=defaults)
    metadata = export(checkpoint, tmp_path / "auto")
    levels = {finding["id"]: finding["level"] for finding in metadata["sglang"]["findings"]}
    assert levels["norm-before-residual"] == "inexact"
    assert metadata["sglang"]["runtime"] == "stock"
    config = json.loads((tmp_path / "auto" / "config.json").read_text())
    assert config["norm_before_residual"] is True
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]

    exact = export(checkpoint, tmp_path / "exact", runtime="exact")
    assert exact["sglang"]["architecture"] == "Eagle3ExportLlamaForCausalLM"

    with pytest.raises(IncompatibleDraftError, match="norm_before_residual"):
        export(checkpoint, tmp_path / "stock", runtime="stock")
    assert not (tmp_path / "stock").exists()


def nan_in(name: str) -> Any:
    def edit(tensors: dict[str, Any]) -> None:
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data[:-2] + b"\xc0\x7f")

    return edit


@pytest.mark.parametrize("name", ["fc.weight", "embed_tokens.weight", "layers.0.self_attn.q_proj.weight"])
def test_a_nan_is_refused_by_name_and_nothing_stays_behind(tmp_path: Path, name: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "1", edit_tensors=nan_in(name))
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match=RENAMED.get(name, name)):
        export(checkpoint, tmp_path / "out" / "1")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_nan_in_a_dropped_embedding_does_not_matter(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "1", edit_tensors=nan_in("embed_tokens.weight"))
    export(checkpoint, tmp_path / "out", embed_tokens="drop")


def test_an_existing_export_is_only_replaced_on_request(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path / "1", seed=1)
    second = write_checkpoint(tmp_path / "2", seed=2)
    export_checkpoint(first, tmp_path / "out")
    with pytest.raises(StorageError, match="exists"):
        export_checkpoint(second, tmp_path / "out")
    export_checkpoint(second, tmp_path / "out", overwrite=True)
    exported = read_tensors(tmp_path / "out" / "model.safetensors")
    assert exported["fc.weight"] == draft_tensors(seed=2)["fc.weight"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "out"]


def test_an_export_marked_to_be_kept_stays_marked(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "1")
    export(checkpoint, tmp_path / "out")
    (tmp_path / "out" / ".keep").touch()
    export_checkpoint(checkpoint, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / ".keep").exists()


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 500, 2000, -1])
def test_a_truncated_source_is_an_error_before_anything_is_written(tmp_path: Path, keep: int) -> None:
    checkpoint = write_checkpoint(tmp_path / "1")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        export(checkpoint, tmp_path / "out" / "1")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_replaced_after_the_check_is_still_the_one_exported(tmp_path: Path) -> None:
    """The trainer may replace or delete the checkpoint while the background copy has not started."""
    checkpoint = write_checkpoint(tmp_path / "1", seed=1)
    with prepare_export(read_checkpoint(checkpoint), tmp_path / "out", ExportConfig()) as prepared:
        other = write_checkpoint(tmp_path / "other", seed=2)
        (other / "model.safetensors").replace(checkpoint / "model.safetensors")
        with OutputDirectory.around(tmp_path / "out") as output:
            prepared.run(output, replace=False)
    exported = read_tensors(tmp_path / "out" / "model.safetensors")
    assert exported["fc.weight"] == draft_tensors(seed=1)["fc.weight"]


def test_the_source_is_never_touched(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "1", training_state=END_OF_EPOCH, val_metrics=METRICS)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in checkpoint.iterdir()}
    export(checkpoint, tmp_path / "out")
    assert {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in checkpoint.iterdir()
    } == before


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "1")
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(Eagle3ExportError, match="pickle"):
        export(checkpoint, tmp_path / "out")


def test_the_light_core_imports_no_training_library(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "1")
    code = (
        "import sys\n"
        "from eagle3_export.export import export_checkpoint\n"
        "from eagle3_export.verify import verify_export\n"
        f"export_checkpoint({str(tmp_path / '1')!r}, {str(tmp_path / 'out')!r})\n"
        f"assert verify_export({str(tmp_path / 'out')!r}).ok\n"
        "heavy = {'torch', 'speculators', 'transformers', 'sglang', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@dataclass(frozen=True)
class LargeDraft:
    checkpoint: Path
    header: dict[str, Any]


@pytest.fixture
def kimi_sized(tmp_path: Path) -> LargeDraft:
    """hidden 7168, vocabulary 163840, draft vocabulary 32000, intermediate 18432: a sparse file of 4.6 GB."""
    hidden, inner, vocabulary, draft_vocabulary, heads, head_dim = 7168, 18432, 163840, 32000, 64, 128
    shapes = {
        "embed_tokens.weight": [vocabulary, hidden],
        "fc.weight": [hidden, 3 * hidden],
        "layers.0.hidden_norm.weight": [hidden],
        "layers.0.input_layernorm.weight": [hidden],
        "layers.0.mlp.down_proj.weight": [hidden, inner],
        "layers.0.mlp.gate_proj.weight": [inner, hidden],
        "layers.0.mlp.up_proj.weight": [inner, hidden],
        "layers.0.post_attention_layernorm.weight": [hidden],
        "layers.0.self_attn.k_proj.weight": [heads * head_dim, 2 * hidden],
        "layers.0.self_attn.o_proj.weight": [hidden, heads * head_dim],
        "layers.0.self_attn.q_proj.weight": [heads * head_dim, 2 * hidden],
        "layers.0.self_attn.v_proj.weight": [heads * head_dim, 2 * hidden],
        "lm_head.weight": [draft_vocabulary, hidden],
        "norm.weight": [hidden],
    }

    def as_large(config: dict[str, Any]) -> None:
        config.update(draft_vocab_size=draft_vocabulary, norm_before_fc=False)
        config["transformer_layer_config"].update(
            hidden_size=hidden, intermediate_size=inner, vocab_size=vocabulary, head_dim=head_dim,
            num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=262144,
        )  # fmt: skip

    checkpoint = write_checkpoint(tmp_path / "1", edit_config=as_large)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, width in (
        ("d2t", "I64", [draft_vocabulary], 8),
        *((name, "BF16", shape, 2) for name, shape in shapes.items()),
        ("t2d", "BOOL", [vocabulary], 1),
    ):
        size = width
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with (checkpoint / "model.safetensors").open("wb") as file:  # all zero but for the header and t2d
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
        file.seek(8 + len(text) + header["t2d"]["data_offsets"][0])
        file.write(b"\x01" * draft_vocabulary)
    return LargeDraft(checkpoint, header)


def test_of_the_16_tensors_of_a_kimi_sized_draft_10_are_renamed(
    kimi_sized: LargeDraft, tmp_path: Path
) -> None:
    with prepare_export(read_checkpoint(kimi_sized.checkpoint), tmp_path / "out", ExportConfig()) as prepared:
        names = prepared.plan.names
    assert len(names) == 16
    assert {old: new for old, new in names.items() if old != new} == RENAMED


@pytest.mark.slow
def test_a_kimi_sized_draft_gets_the_right_header(kimi_sized: LargeDraft, tmp_path: Path) -> None:
    export_checkpoint(kimi_sized.checkpoint, tmp_path / "out")
    with (tmp_path / "out" / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert header == {RENAMED.get(name, name): entry for name, entry in kimi_sized.header.items()}
    source_size = (kimi_sized.checkpoint / "model.safetensors").stat().st_size
    assert (tmp_path / "out" / "model.safetensors").stat().st_size == source_size
    assert source_size == pytest.approx(4.6e9, rel=0.05)


def test_verify_finds_out_what_no_export_would_have(tmp_path: Path) -> None:
    export(write_checkpoint(tmp_path / "1"), tmp_path / "out")
    assert verify_export(tmp_path / "out").ok
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "hidden_act": "gelu"}))
    (tmp_path / "out" / "README.md").unlink()
    problems = dict(verify_export(tmp_path / "out").problems)
    assert "silu" in problems["findings"]
    assert "README.md" in problems["model card"]


def test_an_export_that_a_lagging_filesystem_hid_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No local filesystem forgets for a moment that a directory is there; network filesystems do."""
    export_checkpoint(write_checkpoint(tmp_path / "1", seed=1), tmp_path / "out")
    # The name seems free until the rename says otherwise.
    told: list[bool] = []
    rename_new = publish.rename_new
    monkeypatch.setattr(publish, "rename_new", lambda *names: (told.append(True), rename_new(*names))[1])
    for module in (output_directory, publish):
        monkeypatch.setattr(module, "is_directory", lambda path: bool(told) and Path(path).is_dir())
    export_checkpoint(write_checkpoint(tmp_path / "2", seed=2), tmp_path / "out", overwrite=True)
    exported = read_tensors(tmp_path / "out" / "model.safetensors")
    assert exported["fc.weight"] == draft_tensors(seed=2)["fc.weight"]
