"""What a training run is about to train, from speculators' arguments and the verifier's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.draft import Draft, parse_draft
from eagle3_export.speculators_format.run_files import CONFIG_FILE, cached_snapshot
from eagle3_export.speculators_format.verifier import Verifier
from eagle3_export.storage.regular_file import read_json_object

# Defaults for eagle3 (speculators 0.9.0, `train/config/schema.py:DraftArgs` and `resolution.py`).
_DEFAULTS: Mapping[str, Any] = {
    "speculator_type": "eagle3",
    "num_layers": 1,
    "draft_arch": "llama",
    "draft_hidden_act": "silu",
    "norm_before_residual": True,
    "norm_before_fc": True,
    "norm_output": True,
    "fc_norm": False,
    "embed_requires_grad": False,
    "sliding_window": 2048,
    "full_attention_indices": (),
}

_TRAINING_CONFIG = "the training config"


@dataclass(frozen=True, slots=True)
class PlannedDraft:
    """What a run is about to train, as far as its arguments tell.

    Attributes:
        draft: None where it is no EAGLE-3 draft, or not known before it is built.
        kind: speculators' `--speculator-type`.
        source: what defines the draft: a path, a hub id or "the training config".
        problem: why an EAGLE-3 draft is not known, None where it is.
    """

    draft: Draft | None
    kind: str = "eagle3"
    source: str = _TRAINING_CONFIG
    problem: str | None = None


def draft_from_training(arguments: Mapping[str, Any], verifier: Verifier | None) -> PlannedDraft:
    """The draft that speculators would build (0.9.0, `train/cli.py:build_draft_model`).

    Args:
        arguments: speculators' flat arguments, as `TrainConfig.flatten` names them; missing ones take its defaults.
        verifier: the target model, None where its config is not at hand.
    """
    values = {**_DEFAULTS, **{key: value for key, value in arguments.items() if value is not None}}
    if values["speculator_type"] != "eagle3":
        return PlannedDraft(None, str(values["speculator_type"]))
    source = str(values.get("from_pretrained") or values.get("draft_config") or _TRAINING_CONFIG)
    try:
        if values.get("from_pretrained"):
            config, where = _config_of(values["from_pretrained"]), source
        else:
            config, where = _synthesised(values, verifier), _TRAINING_CONFIG
        return PlannedDraft(parse_draft(config, where), source=source)
    except CheckpointError as error:
        return PlannedDraft(None, source=source, problem=str(error))


def _config_of(name: str) -> dict[str, Any]:
    path = Path(name)
    if path.is_file():
        return read_json_object(path)
    directory = path if path.is_dir() else cached_snapshot(name)
    if directory is None:
        raise CheckpointError(f"{name} is neither a path nor in the local Hugging Face cache.")
    return read_json_object(directory / CONFIG_FILE)


def _synthesised(values: Mapping[str, Any], verifier: Verifier | None) -> dict[str, Any]:
    """A config as speculators would save it; sizes are the verifier's (`create_transformer_layer_config`)."""
    theirs: Mapping[str, Any] = verifier.config if verifier is not None else {}
    if values.get("draft_config"):
        layer = dict(_config_of(values["draft_config"]))
        layer = dict(layer.get("transformer_layer_config", layer))
    else:
        layer = _decoder(values, theirs)
    vocab_size = theirs.get("vocab_size") or layer.get("vocab_size") or 32000
    layer["vocab_size"] = vocab_size
    return {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": min(values.get("draft_vocab_size") or vocab_size, vocab_size),
        "eagle_aux_hidden_state_layer_ids": _ids(values.get("target_layer_ids")),
        **{
            key: bool(values[key])
            for key in (
                "norm_before_residual",
                "norm_before_fc",
                "fc_norm",
                "norm_output",
                "embed_requires_grad",
            )
        },
        "speculators_config": {
            "proposal_methods": [{"speculative_tokens": values.get("ttt_steps")}],
            "verifier": {
                "name_or_path": values.get("verifier_name_or_path"),
                "architectures": list(verifier.architectures) if verifier is not None else [],
            },
        },
    }


def _ids(value: Any) -> list[int] | None:
    return list(value) if value else None


def _decoder(values: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    num_layers = values["num_layers"]
    full = set(values["full_attention_indices"] or ())
    copied = (
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    )
    rope = {key: theirs[key] for key in ("rope_parameters", "rope_scaling", "rope_theta") if theirs.get(key)}
    return {
        "model_type": values["draft_arch"],
        **{key: theirs[key] for key in copied if theirs.get(key)},
        **rope,
        "num_hidden_layers": num_layers,
        "hidden_act": values["draft_hidden_act"],
        "sliding_window": values["sliding_window"],
        "layer_types": ["full_attention" if i in full else "sliding_attention" for i in range(num_layers)],
    }
