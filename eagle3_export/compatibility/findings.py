"""Every finding, worded once. README explains the same ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

Level = Literal["info", "inexact", "incompatible"]

INSTALL_PLUGIN = "Install eagle3-export in the serving environment; its plugin computes it."


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know before serving a draft.

    Attributes:
        id: its name, explained in the README.
        level: "info": served as trained, given the remedy; "inexact": stock SGLang serves it slightly
            differently; "incompatible": not exported.
        cause: what was found and what it does.
        remedy: what to do about it.

    Example:
        >>> for finding in verify_export("output/sglang/latest").findings:
        ...     print(finding.level, finding.id)
        info verifier-unknown
    """

    id: str
    level: Level
    cause: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Wording:
    """Cause and remedy of one id, as `str.format` templates."""

    cause: str
    remedy: str


WORDINGS: Mapping[str, Wording] = MappingProxyType(
    {
        # What stock SGLang computes differently or drops.
        "norm-before-residual": Wording(
            "norm_before_residual is on; no stock SGLang computes it. Measured with speculators' defaults: "
            "acceptance length 1.510 instead of 1.516 (SmolLM2-135M, 3 steps), 4.90 instead of 4.96 (toy verifier, "
            "4 steps).",
            "Train with --no-norm-before-residual, or install eagle3-export in the serving environment{how}.",
        ),
        "norm-before-fc": Wording(
            "norm_before_fc is on; SGLang {version} has no input_norm and drops its tensor (from 0.5.17 it does "
            "not). Measured: acceptance length 4.59 instead of 4.96 (toy verifier, 4 steps).",
            "Serve with SGLang 0.5.17 or later, or train with --no-norm-before-fc.",
        ),
        "fc-norm": Wording(
            "fc_norm is on; SGLang {version} drops its tensors (from 0.5.12 it does not).",
            "Serve with SGLang 0.5.12 or later, or train without --fc-norm.",
        ),
        "norm-output": Wording(
            "norm_output is on; SGLang {version} hands on the hidden state before the norm (from 0.5.12 it does "
            "not). Measured: acceptance length 2.88 instead of 4.96 (toy verifier, 4 steps).",
            "Serve with SGLang 0.5.12 or later, or train with --no-norm-output.",
        ),
        "aux-layer-count": Wording(
            "The draft takes {count} aux hidden states; SGLang {version} always takes 3 (from 0.5.12 any number).",
            "Serve with SGLang 0.5.12 or later, or train with three --target-layer-ids.",
        ),
        "single-aux-layer": Wording(
            "The draft takes one aux hidden state. SGLang tells aux hidden states from its own by their width, "
            "so stock skips fc here.",
            "Install eagle3-export in the serving environment, or train with more than one of --target-layer-ids.",
        ),
        "multiple-layers": Wording(
            "The draft has {count} decoder layers; SGLang {version} takes exactly one (from 0.5.12 any number).",
            "Serve with SGLang 0.5.12 or later, or train with --num-layers 1.",
        ),
        "qk-norm": Wording(
            "The draft has Qwen3 layers; stock SGLang drops their q_norm and k_norm.",
            "Install eagle3-export in the serving environment, or train with --draft-arch llama.",
        ),
        "attention-bias": Wording(
            "The attention projections have biases; stock SGLang drops those of q, k and v.",
            "Install eagle3-export in the serving environment, or train with attention_bias false.",
        ),
        "mlp-bias": Wording(
            "The MLP projections have biases; stock SGLang drops them.",
            "Install eagle3-export in the serving environment, or train with mlp_bias false.",
        ),
        "trained-embeddings": Wording(
            "The draft's embedding was trained (embed_requires_grad); stock SGLang puts the target's in its place.",
            "Install eagle3-export in the serving environment, or train without --embed-requires-grad.",
        ),
        "dropped-trained-embeddings": Wording(
            "The draft's embedding was trained (embed_requires_grad), and embed_tokens: drop leaves it out.",
            "Set embed_tokens: keep.",
        ),
        "missing-trained-embeddings": Wording(
            "The draft's embedding was trained (embed_requires_grad), but the checkpoint does not hold it.",
            "Save the checkpoint again with embed_tokens.weight.",
        ),
        "embeddings-absent": Wording(
            "The checkpoint holds no embed_tokens.weight; SGLang uses the target's embedding.",
            "Nothing, as long as the target is the verifier that the draft was trained for.",
        ),
        "activation": Wording(
            "The draft's MLP uses {activation}; SGLang's draft class raises for anything but silu.",
            "Train with --draft-hidden-act silu.",
        ),
        # Attention windows and positions.
        "sliding-window": Wording(
            "Every draft layer sees {window} keys, the query's own included. SGLang reads no window from a config. "
            "In longer contexts training let TTT step k also see its k drafted tokens on top; serving does not.",
            "Serve with --speculative-draft-window-size {argument}: SGLang does not count the query itself.",
        ),
        "sliding-window-per-layer": Wording(
            "The draft layers see {windows} keys; SGLang's flag gives all of them the same window.",
            "Install eagle3-export in the serving environment, or train with one window or full attention "
            "(--sliding-window, --full-attention-indices).",
        ),
        "sliding-window-of-one": Wording(
            "A draft layer sees one key, the query's own; SGLang takes windows of at least two.",
            "Train with a larger --sliding-window.",
        ),
        "sliding-window-ignored": Wording(
            "Every draft layer sees {window} keys; SGLang {version} has no window for drafts (0.5.12 and later do), "
            "so beyond that context length it computes something else.",
            "Serve with SGLang 0.5.12 or later, or train with --full-attention-indices.",
        ),
        "rope-type": Wording(
            "The draft's rotary embedding is of type {type}, which training and SGLang do not both compute.",
            "Train with a --draft-config whose rope_type is default, linear, dynamic, llama3, yarn or longrope.",
        ),
        "rope-release": Wording(
            "SGLang {version} does not read {what} of the draft's rotary embedding.",
            "Serve with SGLang 0.5.10 or later.",
        ),
        "partial-rotary": Wording(
            "partial_rotary_factor is {factor} for rope_type {type}; which channels training rotated is not recorded.",
            "Train with full rotary embeddings (the default --draft-mrope-full-head-hack, or a --draft-config).",
        ),
        "partial-rotary-ignored": Wording(
            "partial_rotary_factor is {factor}; training ignores it for rope_type {type} and rotates all channels, "
            "so the export leaves it out and SGLang rotates all of them too.",
            "Nothing.",
        ),
        "dynamic-rope": Wording(
            "The draft's rotary embedding is dynamic. Up to {length} positions training computes the default one, "
            "SGLang never does; so the export says default.",
            "Serve with --context-length {length}, or less.",
        ),
        "longrope": Wording(
            "The draft's rotary embedding is longrope. Beyond {length} positions training rotates a whole sequence "
            "by the long factors, SGLang each key by those of the time when it was cached.",
            "Serve with --context-length {length}, up to which both compute the same.",
        ),
        "mrope": Wording(
            "The rotary embedding has mrope_section. Training used plain positions, so the export leaves it out and "
            "SGLang uses plain positions too.",
            "Nothing.",
        ),
        "context-length": Wording(
            "The draft has positions for {draft} tokens, the verifier for {verifier}. SGLang refuses to start with a "
            "draft that has fewer, and would read outside its position table if told to.",
            "Serve with --context-length {draft}, or train a draft with the verifier's max_position_embeddings.",
        ),
        # The target.
        "verifier-unknown": Wording(
            "The verifier's config is not at hand{name}; the aux layer ids are encoded for {assumed}.",
            "Make the verifier's config.json available locally so that its class can be checked.",
        ),
        "verifier-mismatch": Wording(
            "The draft was trained for {what} {draft}, the verifier has {verifier}.",
            "Export for the verifier that the draft was trained with.",
        ),
        "target-class": Wording(
            "The verifier's class {architecture} cannot capture aux hidden states in SGLang {version}.",
            "{advice}",
        ),
        "aux-layers": Wording(
            "No list of ids makes SGLang {version} capture the layers {trained} of {architecture}: {why}.",
            "Train with other --target-layer-ids, in ascending order and below the number of layers.",
        ),
        "aux-layers-not-recorded": Wording(
            "speculators {version} recorded no aux layer ids, and its own data generator counted layer outputs: its "
            "default is the inputs of [3, n // 2 + 1, n - 2]. Exported for the inputs of [2, n // 2, n - 3], as "
            "later releases and vLLM read it.",
            "If that generator made the hidden states, put those ids into eagle_aux_hidden_state_layer_ids in the "
            "checkpoint's config.json and export again.",
        ),
        "draft-quantization": Wording(
            "The verifier is quantised ({method}); SGLang would expect the same of the draft.",
            "Serve with --speculative-draft-model-quantization unquant.",
        ),
        "draft-dtype": Wording(
            "The draft is saved in {dtype}, the verifier in {verifier}; untold, SGLang runs each in its own dtype "
            "(float32 as float16), and the draft fails on the verifier's hidden states.",
            "Serve with --dtype {verifier}, as the launch command does, or with --dtype {dtype}.",
        ),
        # The release and the runtime.
        "release-unknown": Wording(
            "SGLang {version} is newer than {newest}, the newest release that this package knows.",
            "Update eagle3-export, or check the export with eagle3-export verify --numeric.",
        ),
        "release-too-old": Wording(
            "SGLang {version} is older than {oldest}, the oldest release that this package knows.",
            "Serve with SGLang {oldest} or later.",
        ),
        "plugin-required": Wording(
            "The export names a class of the plugin, because stock SGLang would not compute: {reasons}.",
            INSTALL_PLUGIN + " Without it SGLang refuses to load the draft.",
        ),
        "plugin-unproven": Wording(
            "The plugin has not been run on SGLang {version}, only on {proven}.",
            "Serve with one of those releases, or check the export with eagle3-export verify --numeric.",
        ),
        # The training config.
        "not-eagle3": Wording(
            "speculator_type is {kind}.",
            "Train with --speculator-type eagle3, or without the export.",
        ),
        "draft-unknown": Wording(
            "What will be trained is defined by {source}, which cannot be read: {why}",
            "Check that path; each save is checked again.",
        ),
    }
)


def finding(identifier: str, level: Level, **values: Any) -> Finding:
    """One finding with its wording filled in."""
    wording = WORDINGS[identifier]
    return Finding(identifier, level, wording.cause.format(**values), wording.remedy.format(**values))
