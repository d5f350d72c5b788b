"""The rules: what a draft needs, what a release computes, and the findings that follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eagle3_export.compatibility.findings import Finding, Level, finding
from eagle3_export.sglang.aux_layer_table import TARGET_CLASSES
from eagle3_export.sglang.aux_layers import AuxEncoding, encode_aux_layer_ids, first_supporting
from eagle3_export.sglang.capabilities import (
    NEWEST,
    OLDEST,
    PLUGIN_PROVEN_ON,
    Capabilities,
    capabilities,
    parse_version,
)
from eagle3_export.sglang.rope import SHARED_TYPES, context_length, rope_fields, rope_findings
from eagle3_export.sglang.server_arguments import window_argument
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.draft import Draft


@dataclass(frozen=True)
class Assessment:
    """Everything decided about one draft on one target.

    Attributes:
        requires: ids of the findings that only the plugin's class resolves; empty: stock serves the export.
        encoding: the aux layer ids to write.
    """

    findings: list[Finding]
    requires: list[str]
    encoding: AuxEncoding


def assess(
    draft: Draft, target: ServingTarget, *, holds_embeddings: bool = True, keep_embed_tokens: bool = True
) -> Assessment:
    """Applies every rule.

    Args:
        holds_embeddings: the checkpoint has `embed_tokens.weight`; keep_embed_tokens: the export will.

    Raises:
        UsageError: `target.sglang_version` is no version.
    """
    known = capabilities(target.sglang_version)
    findings = list(_release_findings(target.sglang_version))
    requires: list[str] = []
    for identifier, by_plugin in unmet_needs(draft, known):
        resolved = by_plugin and known.runs_plugin and target.runtime != "stock"
        findings.append(finding(identifier, "info" if resolved else "incompatible", **_values(draft, known)))
        requires += [identifier] if resolved else []
    findings += _residual_findings(draft, target, known, requires)
    findings += _embedding_findings(draft, holds_embeddings, keep_embed_tokens)
    findings += _window_findings(draft, target, known)
    findings += rope_findings(draft, known, stock_only=target.runtime == "stock")
    findings += _context_findings(draft, target)
    encoding = encode_aux_layer_ids(
        draft.aux_layer_ids, _architecture(draft, target), _layers(target), known.version
    )
    findings += _verifier_findings(draft, target, known, encoding)
    if requires:
        findings.append(finding("plugin-required", "info", reasons=", ".join(requires)))
        if known.version not in PLUGIN_PROVEN_ON:
            proven = ", ".join(PLUGIN_PROVEN_ON)
            findings.append(finding("plugin-unproven", "info", version=target.sglang_version, proven=proven))
    return Assessment(findings, requires, encoding)


def _release_findings(version: str) -> Iterator[Finding]:
    if parse_version(version) > parse_version(NEWEST):
        yield finding("release-unknown", "info", version=version, newest=NEWEST)
    if parse_version(version) < parse_version(OLDEST):
        yield finding("release-too-old", "incompatible", version=version, oldest=OLDEST)


def unmet_needs(draft: Draft, known: Capabilities) -> Iterator[tuple[str, bool]]:
    """(finding, whether the plugin computes it) for all that stock of this release does not compute."""
    windows = set(draft.sliding_windows)
    table: tuple[tuple[str, bool, bool], ...] = (
        ("multiple-layers", draft.num_layers > 1 and not known.multiple_layers, False),
        ("fc-norm", draft.fc_norm and not known.fc_norm, False),
        ("norm-output", draft.norm_output and not known.norm_output, False),
        ("aux-layer-count", draft.num_aux_layers != 3 and not known.aux_count, False),
        ("activation", draft.hidden_act != "silu", False),
        ("sliding-window-of-one", 1 in windows, False),
        ("norm-before-fc", draft.norm_before_fc and not known.norm_before_fc, True),
        ("single-aux-layer", draft.num_aux_layers == 1, True),
        ("qk-norm", draft.qk_norm, True),
        ("attention-bias", draft.attention_bias, True),
        ("mlp-bias", draft.mlp_bias, True),
        ("trained-embeddings", draft.embed_requires_grad, True),
        ("sliding-window-per-layer", known.window_flag and len(windows) > 1, True),
    )
    for identifier, unmet, by_plugin in table:
        if unmet:
            yield identifier, by_plugin


def _values(draft: Draft, known: Capabilities) -> dict[str, Any]:
    """What the wordings of unmet needs may name."""
    count = draft.num_layers if draft.num_layers > 1 else draft.num_aux_layers
    windows = ", ".join("all" if window is None else str(window) for window in draft.sliding_windows)
    return {"version": known.version, "count": count, "activation": draft.hidden_act, "windows": windows}


def _residual_findings(
    draft: Draft, target: ServingTarget, known: Capabilities, requires: list[str]
) -> list[Finding]:
    """norm_before_residual: inexact in stock; any class of the plugin computes it."""
    if not draft.norm_before_residual:
        return []
    level: Level = "inexact"
    if requires or (target.runtime == "exact" and known.runs_plugin):
        level = "info"
        requires.append("norm-before-residual")
    elif target.runtime != "auto":
        level = "incompatible"
    how = " and export with runtime: auto" if target.runtime == "stock" else ""
    return [finding("norm-before-residual", level, how=how)]


def _embedding_findings(draft: Draft, held: bool, kept: bool) -> Iterator[Finding]:
    if draft.embed_requires_grad and not held:
        yield finding("missing-trained-embeddings", "incompatible")
    elif draft.embed_requires_grad and not kept:
        yield finding("dropped-trained-embeddings", "incompatible")
    elif not held:
        yield finding("embeddings-absent", "info")


def _window_findings(draft: Draft, target: ServingTarget, known: Capabilities) -> Iterator[Finding]:
    windows = set(draft.sliding_windows)
    if windows == {None}:
        return
    if not known.window_flag:
        level: Level = "inexact" if target.runtime == "auto" else "incompatible"
        window = min(window for window in windows if window is not None)
        yield finding("sliding-window-ignored", level, window=window, version=known.version)
    elif (argument := window_argument(draft.sliding_windows)) is not None:
        yield finding("sliding-window", "info", window=draft.sliding_windows[0], argument=argument)


def draft_context_length(draft: Draft) -> int:
    """The context length that SGLang derives from the exported config."""
    length = context_length({"max_position_embeddings": draft.max_position_embeddings, **rope_fields(draft)})
    return length if length is not None else draft.max_position_embeddings


def _context_findings(draft: Draft, target: ServingTarget) -> Iterator[Finding]:
    theirs = context_length(target.verifier.config) if target.verifier is not None else None
    if draft.rope.type in SHARED_TYPES and theirs is not None and draft_context_length(draft) < theirs:
        yield finding("context-length", "info", draft=draft_context_length(draft), verifier=theirs)


def _class_advice(architecture: str) -> str:
    since = first_supporting(architecture)
    if since is None:
        return f"Serve a target class that can; up to SGLang {NEWEST} {architecture} cannot."
    return f"Serve with a release in which it can; the first is SGLang {since}."


def _architecture(draft: Draft, target: ServingTarget) -> str | None:
    known = target.verifier.architectures if target.verifier is not None else ()
    candidates = known or draft.verifier_architectures
    # SGLang takes the first class that it knows (0.5.23, `ModelRegistry.resolve_model_cls`).
    return next((name for name in candidates if name in TARGET_CLASSES), next(iter(candidates), None))


def _layers(target: ServingTarget) -> int | None:
    return target.verifier.num_hidden_layers if target.verifier is not None else None


def _verifier_findings(
    draft: Draft, target: ServingTarget, known: Capabilities, encoding: AuxEncoding
) -> Iterator[Finding]:
    architecture, verifier = _architecture(draft, target), target.verifier
    if not encoding.class_supported:
        yield finding(
            "target-class",
            "incompatible",
            architecture=architecture,
            version=known.version,
            advice=_class_advice(architecture or ""),
        )
    elif not encoding.exact:
        yield finding(
            "aux-layers",
            "incompatible",
            version=known.version,
            trained=list(draft.aux_layer_ids) if draft.aux_layer_ids else "[2, n // 2, n - 3]",
            architecture=architecture or "most target classes",
            why=encoding.problem,
        )
    if draft.aux_layer_ids is None and _generator_counts_outputs(draft.speculators_version):
        yield finding("aux-layers-not-recorded", "inexact", version=draft.speculators_version)
    if verifier is None:
        name = f" ({draft.verifier_name})" if draft.verifier_name else ""
        yield finding("verifier-unknown", "info", name=name, assumed=architecture or "most target classes")
        return
    pairs = (
        ("hidden_size", draft.hidden_size, verifier.hidden_size),
        ("vocab_size", draft.vocab_size, verifier.vocab_size),
    )
    for what, mine, theirs in pairs:
        if theirs is not None and mine != theirs:
            yield finding("verifier-mismatch", "incompatible", what=what, draft=mine, verifier=theirs)
    if None not in (draft.dtype, verifier.dtype) and draft.dtype != verifier.dtype:
        yield finding("draft-dtype", "info", dtype=draft.dtype, verifier=verifier.dtype)
    if verifier.quantization is not None and known.draft_quantization_flag:
        yield finding("draft-quantization", "info", method=verifier.quantization)


def _generator_counts_outputs(speculators_version: str | None) -> bool:
    """speculators 0.3 and 0.4, `data_generation/custom_worker.py:_patched_forward` captures after the layer."""
    return speculators_version is not None and re.match(r"0\.[34]\.", speculators_version) is not None
