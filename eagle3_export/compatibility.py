"""Can the chosen SGLang serve this draft as trained? Findings, and the plan that an export follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from eagle3_export.checkpoint import Checkpoint
from eagle3_export.draft import Draft
from eagle3_export.errors import IncompatibleDraftError
from eagle3_export.findings import Finding, Level, finding
from eagle3_export.sglang.aux_layers import AuxEncoding, encode_aux_layer_ids, first_supporting
from eagle3_export.sglang.capabilities import (
    NEWEST,
    OLDEST,
    PLUGIN_PROVEN_ON,
    Capabilities,
    capabilities,
    parse_version,
    releases_up_to,
)
from eagle3_export.sglang.config import PLUGIN_ARCHITECTURE, STOCK_ARCHITECTURE, translate_config
from eagle3_export.sglang.launch import launch_arguments, window_argument
from eagle3_export.sglang.names import dropped_names, translate_names
from eagle3_export.sglang.rope import rope_findings
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.training_config import DraftSource, draft_from_training
from eagle3_export.verifier import Verifier

__all__ = ["Finding", "ServingPlan", "check", "check_draft", "check_training", "plan_serving"]


@dataclass(frozen=True)
class ServingPlan:
    """All that an export needs to know besides the bytes.

    Attributes:
        names: speculators' tensor name -> exported name, in the checkpoint's order; dropped: name -> reason.
        config: the exported config.json.
        architecture: its class; runtime: "exact" where that is the plugin's.
        minimum_sglang_version: oldest release from which on this very export is served as planned, None where the
            plan has incompatible findings.
        launch_arguments: of `sglang.launch_server`, without paths.
    """

    target: ServingTarget
    findings: tuple[Finding, ...]
    names: dict[str, str]
    dropped: dict[str, str]
    config: dict[str, Any]
    architecture: str
    runtime: Literal["stock", "exact"]
    minimum_sglang_version: str | None
    launch_arguments: list[str]

    @property
    def incompatible(self) -> tuple[Finding, ...]:
        return tuple(found for found in self.findings if found.level == "incompatible")

    def raise_if_incompatible(self) -> None:
        """Raises IncompatibleDraftError where a finding forbids the export."""
        if self.incompatible:
            raise IncompatibleDraftError(self.incompatible)


def check(checkpoint: Checkpoint, target: ServingTarget) -> list[Finding]:
    """All findings for serving `checkpoint` on `target`."""
    return list(plan_serving(checkpoint, target).findings)


def check_draft(draft: Draft, target: ServingTarget) -> list[Finding]:
    """The findings that follow from what the draft computes, without its tensors."""
    return _assess(draft, target).findings


def check_training(
    train_config: Mapping[str, Any], verifier: Verifier | None, target: ServingTarget
) -> list[Finding]:
    """The findings for the draft that a training run is about to train.

    Args:
        train_config: speculators' flat arguments, named as in speculators 0.9.0 `train/config/schema.py`
            (`TrainConfig.flatten()`); missing ones take its defaults.
        verifier: the target model, None where its config is not at hand.
    """
    target = replace(target, verifier=verifier)
    source: DraftSource = draft_from_training(train_config, verifier)
    if source.draft is None:
        return [finding(source.problem, source.level, **source.values)]
    return check_draft(source.draft, target)


def plan_serving(
    checkpoint: Checkpoint, target: ServingTarget, *, keep_embed_tokens: bool = True, num_steps: int = 3
) -> ServingPlan:
    """How `checkpoint` is exported for `target`: names, config, class, launch arguments and every finding.

    Args:
        keep_embed_tokens: False leaves the embedding out (SGLang uses the target's).
        num_steps: drafts per verify step in the launch arguments.

    Raises:
        CheckpointError: a tensor that no rule knows.
        UsageError: `target.sglang_version` is no version.
    """
    draft, names = checkpoint.draft, list(checkpoint.tensors)
    assessed = _assess(
        draft, target, holds_embeddings="embed_tokens.weight" in names, keep_embed_tokens=keep_embed_tokens
    )
    config = translate_config(
        draft,
        dtype=draft.dtype or "bfloat16",
        encoded_aux_layer_ids=assessed.encoding.ids,
        requires=assessed.requires,
    )
    return ServingPlan(
        target=target,
        findings=tuple(assessed.findings),
        names=translate_names(names, keep_embed_tokens=keep_embed_tokens),
        dropped=dropped_names(names, keep_embed_tokens=keep_embed_tokens),
        config=config,
        architecture=PLUGIN_ARCHITECTURE if assessed.requires else STOCK_ARCHITECTURE,
        runtime="exact" if assessed.requires else "stock",
        minimum_sglang_version=_minimum_version(draft, target, assessed),
        launch_arguments=launch_arguments(config, target, num_steps),
    )


@dataclass(frozen=True)
class _Assessment:
    findings: list[Finding]
    requires: list[str]
    encoding: AuxEncoding


def _assess(
    draft: Draft, target: ServingTarget, *, holds_embeddings: bool = True, keep_embed_tokens: bool = True
) -> _Assessment:
    known = capabilities(target.sglang_version)
    findings = list(_release_findings(target.sglang_version))
    requires: list[str] = []
    for identifier, by_plugin in _unmet_needs(draft, known):
        resolved = by_plugin and known.runs_plugin and target.runtime != "stock"
        findings.append(finding(identifier, "info" if resolved else "incompatible", **_values(draft, known)))
        requires += [identifier] if resolved else []
    findings += _residual_findings(draft, target, known, requires)
    findings += _embedding_findings(draft, holds_embeddings, keep_embed_tokens)
    findings += _window_findings(draft, target, known)
    findings += rope_findings(draft, known)
    encoding = encode_aux_layer_ids(
        draft.aux_layer_ids, _architecture(draft, target), _layers(target), known.version
    )
    findings += _verifier_findings(draft, target, known, encoding)
    if requires:
        findings.append(finding("plugin-required", "info", reasons=", ".join(requires)))
        if known.version not in PLUGIN_PROVEN_ON:
            proven = ", ".join(PLUGIN_PROVEN_ON)
            findings.append(finding("plugin-unproven", "info", version=target.sglang_version, proven=proven))
    return _Assessment(findings, requires, encoding)


def _release_findings(version: str) -> Iterator[Finding]:
    if parse_version(version) > parse_version(NEWEST):
        yield finding("release-unknown", "info", version=version, newest=NEWEST)
    if parse_version(version) < parse_version(OLDEST):
        yield finding("release-too-old", "incompatible", version=version, oldest=OLDEST)


def _unmet_needs(draft: Draft, known: Capabilities) -> Iterator[tuple[str, bool]]:
    """(finding, whether the plugin computes it) for all that stock of this release does not compute."""
    single_window = len(set(draft.sliding_windows)) == 1 and draft.sliding_windows[0] != 1
    table: tuple[tuple[str, bool, bool], ...] = (
        ("multiple-layers", draft.num_layers > 1 and not known.multiple_layers, False),
        ("fc-norm", draft.fc_norm and not known.fc_norm, False),
        ("norm-output", draft.norm_output and not known.norm_output, False),
        ("aux-layer-count", draft.num_aux_layers != 3 and not known.aux_count, False),
        ("activation", draft.hidden_act != "silu", False),
        ("norm-before-fc", draft.norm_before_fc and not known.norm_before_fc, True),
        ("single-aux-layer", draft.num_aux_layers == 1, True),
        ("qk-norm", draft.qk_norm, True),
        ("attention-bias", draft.attention_bias, True),
        ("mlp-bias", draft.mlp_bias, True),
        ("trained-embeddings", draft.embed_requires_grad, True),
        ("sliding-window-per-layer", known.window_flag and not single_window, True),
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
    return [finding("norm-before-residual", level)]


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


def _class_advice(architecture: str) -> str:
    since = first_supporting(architecture)
    if since is None:
        return f"Serve a target class that can; up to SGLang {NEWEST} {architecture} cannot."
    return f"Serve with a release in which it can; the first is SGLang {since}."


def _architecture(draft: Draft, target: ServingTarget) -> str | None:
    known = target.verifier.architectures if target.verifier is not None else ()
    candidates = known or draft.verifier_architectures
    return candidates[0] if candidates else None


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
    theirs = verifier.max_position_embeddings
    if theirs is not None and draft.max_position_embeddings < theirs:
        yield finding("context-length", "info", draft=draft.max_position_embeddings, verifier=theirs)
    if verifier.quantization is not None and known.draft_quantization_flag:
        yield finding("draft-quantization", "info", method=verifier.quantization)


def _minimum_version(draft: Draft, target: ServingTarget, assessed: _Assessment) -> str | None:
    """The oldest known release such that it and all later ones up to the target serve this very export."""
    if any(found.level == "incompatible" for found in assessed.findings):
        return None
    minimum = None
    for release in reversed(releases_up_to(target.sglang_version)):
        if not _same_export(draft, target, assessed, release):
            break
        minimum = release
    return minimum


def _same_export(draft: Draft, target: ServingTarget, assessed: _Assessment, release: str) -> bool:
    known = capabilities(release)
    if any(
        not (by_plugin and known.runs_plugin and assessed.requires)
        for _, by_plugin in _unmet_needs(draft, known)
    ):
        return False
    if assessed.requires and not known.runs_plugin:
        return False
    if set(draft.sliding_windows) != {None} and not known.window_flag:
        return False
    if rope_findings(draft, known) != rope_findings(draft, capabilities(target.sglang_version)):
        return False
    return assessed.encoding.works_in(release)
