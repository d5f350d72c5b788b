"""Can the chosen SGLang serve this draft as trained? Findings, and the plan that an export follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from eagle3_export.compatibility.case import Case, Unmet
from eagle3_export.compatibility.findings import Finding, incompatible
from eagle3_export.compatibility.rope_rules import ROPE_RULES
from eagle3_export.compatibility.rules import NEEDS, RULES, TRAINING_RULES, apply_rules, with_requirements
from eagle3_export.compatibility.target_rules import TARGET_RULES
from eagle3_export.errors import IncompatibleDraftError
from eagle3_export.estimates.depth import USUAL_DEPTH
from eagle3_export.sglang.aux_layers import exported_encoding
from eagle3_export.sglang.capabilities import capabilities, releases_up_to
from eagle3_export.sglang.config import (
    PLUGIN_ARCHITECTURE,
    STOCK_ARCHITECTURE,
    encoded_aux_layer_ids,
    read_exported_draft,
    translate_config,
)
from eagle3_export.sglang.names import translate_names
from eagle3_export.sglang.server_arguments import launch_arguments
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.checkpoint import Checkpoint
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.tensors import EMBEDDING
from eagle3_export.speculators_format.training_config import draft_from_training


def raise_if_incompatible(findings: Iterable[Finding]) -> None:
    """Raises IncompatibleDraftError, naming them, where findings forbid an export."""
    obstacles = incompatible(findings)
    if obstacles:
        raise IncompatibleDraftError(obstacles)


@dataclass(frozen=True)
class ServingPlan:
    """All that an export needs to know besides the bytes.

    Attributes:
        findings: what there is to know, in a fixed order.
        names: speculators' tensor name -> exported name, in the checkpoint's order.
        config: the exported config.json.
        architecture: the class that it names.
        runtime: "exact" where that class is the plugin's.
        minimum_sglang_version: oldest release from which on this very export is served as planned, None where the
            plan has incompatible findings.
        launch_arguments: of `sglang.launch_server`, without paths.
    """

    findings: tuple[Finding, ...]
    names: dict[str, str]
    config: dict[str, Any]
    architecture: str
    runtime: Literal["stock", "exact"]
    minimum_sglang_version: str | None
    launch_arguments: list[str]

    @property
    def incompatible(self) -> tuple[Finding, ...]:
        """The findings that forbid the export."""
        return incompatible(self.findings)

    def raise_if_incompatible(self) -> None:
        """Raises IncompatibleDraftError where a finding forbids the export."""
        raise_if_incompatible(self.findings)


def check_draft(draft: Draft, target: ServingTarget) -> list[Finding]:
    """The findings that follow from what the draft computes, without its tensors.

    Args:
        draft: what was trained.
        target: which server, for which model.

    Raises:
        UsageError: `target.sglang_version` is no version.
    """
    return list(apply_rules(RULES, with_requirements(Case(draft, target))))


def check_training(train_config: Mapping[str, Any], target: ServingTarget) -> list[Finding]:
    """The findings for the draft that a training run is about to train.

    Args:
        train_config: speculators' flat arguments, named as in speculators 0.9.0 `train/config/schema.py`
            (`TrainConfig.flatten()`); missing ones take its defaults.
        target: which server, for which model.
    """
    planned = draft_from_training(train_config, target.verifier)
    if planned.draft is None:
        return list(apply_rules(TRAINING_RULES, planned))
    return check_draft(planned.draft, target)


def check_target(config: Mapping[str, Any], where: str, target: ServingTarget) -> tuple[Finding, ...]:
    """Compares an export with the model that is to be served with it.

    Args:
        config: the export's decoded config.json.
        where: what messages call it, usually its path.
        target: the release that serves, and the model: its verifier is None where no config was found.

    Returns:
        What differs (incompatible), what has to be told to the server, and what could not be compared (info).

    Raises:
        ExportInvalidError: the config is none of an export.
    """
    draft = read_exported_draft(config, where)
    case = Case(draft, target)
    layers = target.verifier.num_hidden_layers if target.verifier is not None else None
    ids = encoded_aux_layer_ids(config, where)
    encoding = exported_encoding(ids, draft.aux_layer_ids, case.architecture, layers, case.version)
    return apply_rules(TARGET_RULES, replace(case, exported=encoding))


def plan_serving(
    checkpoint: Checkpoint, target: ServingTarget, *, keep_embed_tokens: bool = True
) -> ServingPlan:
    """How a checkpoint is exported for a target: names, config, class, launch arguments and every finding.

    Args:
        checkpoint: the draft, read but not loaded.
        target: which server, for which model.
        keep_embed_tokens: False leaves the embedding out (SGLang uses the target's).

    Raises:
        CheckpointError: a tensor that no rule knows.
        UsageError: `target.sglang_version` is no version.
    """
    draft, names = checkpoint.draft, list(checkpoint.tensors)
    case = with_requirements(
        Case(draft, target, holds_embeddings=EMBEDDING in names, keep_embed_tokens=keep_embed_tokens)
    )
    config = translate_config(
        draft,
        dtype=draft.dtype or "bfloat16",
        encoded_aux_layer_ids=case.encoding.ids,
        requires=case.requires,
    )
    arguments = launch_arguments(config, target, draft.ttt_steps or USUAL_DEPTH)
    plan = ServingPlan(
        findings=apply_rules(RULES, case),
        names=translate_names(names, keep_embed_tokens=keep_embed_tokens),
        config=config,
        architecture=PLUGIN_ARCHITECTURE if case.requires else STOCK_ARCHITECTURE,
        runtime="exact" if case.requires else "stock",
        minimum_sglang_version=None,
        launch_arguments=arguments,
    )
    return (
        plan if plan.incompatible else replace(plan, minimum_sglang_version=_minimum_version(case, arguments))
    )


def _minimum_version(case: Case, arguments: list[str]) -> str | None:
    """The oldest known release such that it and all later ones up to the target serve this very export."""
    minimum = None
    for release in reversed(releases_up_to(case.target.sglang_version)):
        if not _same_export(case, arguments, release):
            break
        minimum = release
    return minimum


def _same_export(case: Case, arguments: list[str], release: str) -> bool:
    """Whether another release takes the same launch arguments and computes the same."""
    known = capabilities(release)
    if not all(known.knows(flag) for flag in arguments if flag.startswith("--")):
        return False
    if case.requires and not known.runs_plugin:
        return False
    unmet = [rule.level for rule in NEEDS if isinstance(rule.level, Unmet)]
    if any(need.needed(case.draft, known) and not (need.by_plugin and case.requires) for need in unmet):
        return False
    if set(case.draft.sliding_windows) != {None} and not known.window_flag:
        return False
    there = replace(case, target=replace(case.target, sglang_version=release))
    if incompatible(apply_rules(ROPE_RULES, there)):
        return False
    return case.encoding.works_in(release)
