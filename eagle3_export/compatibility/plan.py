"""Can the chosen SGLang serve this draft as trained? Findings, and the plan that an export follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from eagle3_export.compatibility.findings import Finding, finding
from eagle3_export.compatibility.rules import Assessment, assess, unmet_needs
from eagle3_export.errors import IncompatibleDraftError
from eagle3_export.sglang.capabilities import capabilities, releases_up_to
from eagle3_export.sglang.config import PLUGIN_ARCHITECTURE, STOCK_ARCHITECTURE, translate_config
from eagle3_export.sglang.names import dropped_names, translate_names
from eagle3_export.sglang.rope import rope_findings
from eagle3_export.sglang.server_arguments import launch_arguments
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.checkpoint import Checkpoint
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.training_config import DraftSource, draft_from_training
from eagle3_export.speculators_format.verifier import Verifier

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
    return assess(draft, target).findings


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
    assessed = assess(
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


def _minimum_version(draft: Draft, target: ServingTarget, assessed: Assessment) -> str | None:
    """The oldest known release such that it and all later ones up to the target serve this very export."""
    if any(found.level == "incompatible" for found in assessed.findings):
        return None
    minimum = None
    for release in reversed(releases_up_to(target.sglang_version)):
        if not _same_export(draft, target, assessed, release):
            break
        minimum = release
    return minimum


def _same_export(draft: Draft, target: ServingTarget, assessed: Assessment, release: str) -> bool:
    known = capabilities(release)
    if any(
        not (by_plugin and known.runs_plugin and assessed.requires)
        for _, by_plugin in unmet_needs(draft, known)
    ):
        return False
    if assessed.requires and not known.runs_plugin:
        return False
    if set(draft.sliding_windows) != {None} and not known.window_flag:
        return False
    if any(found.level == "incompatible" for found in rope_findings(draft, known, stock_only=False)):
        return False
    return assessed.encoding.works_in(release)
