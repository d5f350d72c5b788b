"""Every rule of the house but those on rotary embeddings and on the target, in the order of their findings.

A rule is one row: when it applies, how serious that is, and its words. The README explains the same ids.
"""

from __future__ import annotations

import re
from dataclasses import replace

from eagle3_export.compatibility.case import Case, Rule, Unmet, When
from eagle3_export.compatibility.findings import Finding, Level
from eagle3_export.compatibility.rope_rules import ROPE_RULES
from eagle3_export.compatibility.target_rules import TARGET_RULES
from eagle3_export.sglang.capabilities import NEWEST, OLDEST, PLUGIN_PROVEN_ON, parse_version

RELEASE_RULES: tuple[Rule, ...] = (
    Rule(
        "release-unknown",
        When("info", lambda case: parse_version(case.target.sglang_version) > parse_version(NEWEST)),
        "SGLang {case.target.sglang_version} is newer than {case.newest}, the newest release that this package knows.",
        "Update eagle3-export, or check the export with eagle3-export verify --numeric.",
    ),
    Rule(
        "release-too-old",
        When("incompatible", lambda case: parse_version(case.target.sglang_version) < parse_version(OLDEST)),
        "SGLang {case.target.sglang_version} is older than {case.oldest}, the oldest release that this package knows.",
        "Serve with SGLang {case.oldest} or later.",
    ),
)

# What stock SGLang drops or computes differently. Those that the plugin computes come last.
NEEDS: tuple[Rule, ...] = (
    Rule(
        "multiple-layers",
        Unmet(lambda draft, known: draft.num_layers > 1 and not known.multiple_layers),
        "The draft has {case.draft.num_layers} decoder layers; SGLang {case.version} takes exactly one (from 0.5.12 "
        "any number).",
        "Serve with SGLang 0.5.12 or later, or train with --num-layers 1.",
    ),
    Rule(
        "fc-norm",
        Unmet(lambda draft, known: draft.fc_norm and not known.fc_norm),
        "fc_norm is on; SGLang {case.version} drops its tensors (from 0.5.12 it does not).",
        "Serve with SGLang 0.5.12 or later, or train without --fc-norm.",
    ),
    Rule(
        "norm-output",
        Unmet(lambda draft, known: draft.norm_output and not known.norm_output),
        "norm_output is on; SGLang {case.version} hands on the hidden state before the norm (from 0.5.12 it does "
        "not). Measured: acceptance length 2.88 instead of 4.96 (toy verifier, 4 steps).",
        "Serve with SGLang 0.5.12 or later, or train with --no-norm-output.",
    ),
    Rule(
        "aux-layer-count",
        Unmet(lambda draft, known: draft.num_aux_layers != 3 and not known.aux_count),
        "The draft takes {case.draft.num_aux_layers} aux hidden states; SGLang {case.version} always takes 3 (from "
        "0.5.12 any number).",
        "Serve with SGLang 0.5.12 or later, or train with three --target-layer-ids.",
    ),
    Rule(
        "activation",
        Unmet(lambda draft, known: draft.hidden_act != "silu"),
        "The draft's MLP uses {case.draft.hidden_act}; SGLang's draft class raises for anything but silu.",
        "Train with --draft-hidden-act silu.",
    ),
    Rule(
        "sliding-window-of-one",
        Unmet(lambda draft, known: 1 in draft.sliding_windows),
        "A draft layer sees one key, the query's own; SGLang takes windows of at least two.",
        "Train with a larger --sliding-window.",
    ),
    Rule(
        "norm-before-fc",
        Unmet(lambda draft, known: draft.norm_before_fc and not known.norm_before_fc, by_plugin=True),
        "norm_before_fc is on; SGLang {case.version} has no input_norm and drops its tensor (from 0.5.17 it does "
        "not). Measured: acceptance length 4.59 instead of 4.96 (toy verifier, 4 steps).",
        "Serve with SGLang 0.5.17 or later, or train with --no-norm-before-fc.",
    ),
    Rule(
        "single-aux-layer",
        Unmet(lambda draft, known: draft.num_aux_layers == 1, by_plugin=True),
        "The draft takes one aux hidden state. SGLang tells aux hidden states from its own by their width, so stock "
        "skips fc here.",
        "Install eagle3-export in the serving environment, or train with more than one of --target-layer-ids.",
    ),
    Rule(
        "qk-norm",
        Unmet(lambda draft, known: draft.qk_norm, by_plugin=True),
        "The draft has Qwen3 layers; stock SGLang drops their q_norm and k_norm.",
        "Install eagle3-export in the serving environment, or train with --draft-arch llama.",
    ),
    Rule(
        "attention-bias",
        Unmet(lambda draft, known: draft.attention_bias, by_plugin=True),
        "The attention projections have biases; stock SGLang drops those of q, k and v.",
        "Install eagle3-export in the serving environment, or train with attention_bias false.",
    ),
    Rule(
        "mlp-bias",
        Unmet(lambda draft, known: draft.mlp_bias, by_plugin=True),
        "The MLP projections have biases; stock SGLang drops them.",
        "Install eagle3-export in the serving environment, or train with mlp_bias false.",
    ),
    Rule(
        "trained-embeddings",
        Unmet(lambda draft, known: draft.embed_requires_grad, by_plugin=True),
        "The draft's embedding was trained (embed_requires_grad); stock SGLang puts the target's in its place.",
        "Install eagle3-export in the serving environment, or train without --embed-requires-grad.",
    ),
    Rule(
        "sliding-window-per-layer",
        Unmet(lambda draft, known: known.window_flag and len(set(draft.sliding_windows)) > 1, by_plugin=True),
        "The draft layers see {case.windows} keys; SGLang's flag gives all of them the same window.",
        "Install eagle3-export in the serving environment, or train with one window or full attention "
        "(--sliding-window, --full-attention-indices).",
    ),
)


def _residual(case: Case) -> Level | None:
    """norm_before_residual is inexact in stock; any class of the plugin computes it."""
    if not case.draft.norm_before_residual:
        return None
    if case.requires or (case.target.runtime == "exact" and case.known.runs_plugin):
        return "info"
    return "inexact" if case.target.runtime == "auto" else "incompatible"


def _window_ignored(case: Case) -> Level | None:
    if case.smallest_window is None or case.known.window_flag:
        return None
    return "inexact" if case.target.runtime == "auto" else "incompatible"


def _counts_outputs(case: Case) -> bool:
    """speculators 0.3 and 0.4, `data_generation/custom_worker.py:_patched_forward` captures after the layer."""
    version = case.draft.speculators_version or ""
    return case.draft.aux_layer_ids is None and re.match(r"0\.[34]\.", version) is not None


_RESIDUAL_CAUSE = (
    "norm_before_residual is on; no stock SGLang computes it. Measured with speculators' defaults: acceptance length "
    "1.510 instead of 1.516 (SmolLM2-135M, 3 steps), 4.90 instead of 4.96 (toy verifier, 4 steps)."
)
RESIDUAL_RULES: tuple[Rule, ...] = (
    Rule(
        "norm-before-residual",
        lambda case: _residual(case) if case.target.runtime != "stock" else None,
        _RESIDUAL_CAUSE,
        "Train with --no-norm-before-residual, or install eagle3-export in the serving environment.",
    ),
    Rule(
        "norm-before-residual",
        lambda case: _residual(case) if case.target.runtime == "stock" else None,
        _RESIDUAL_CAUSE,
        "Train with --no-norm-before-residual, or install eagle3-export in the serving environment and export with "
        "runtime: auto.",
    ),
)

DRAFT_RULES: tuple[Rule, ...] = (
    *RESIDUAL_RULES,
    Rule(
        "missing-trained-embeddings",
        When("incompatible", lambda case: case.draft.embed_requires_grad and not case.holds_embeddings),
        "The draft's embedding was trained (embed_requires_grad), but the checkpoint does not hold it.",
        "Save the checkpoint again with embed_tokens.weight.",
    ),
    Rule(
        "dropped-trained-embeddings",
        When(
            "incompatible",
            lambda case: (
                case.draft.embed_requires_grad and case.holds_embeddings and not case.keep_embed_tokens
            ),
        ),
        "The draft's embedding was trained (embed_requires_grad), and embed_tokens: drop leaves it out.",
        "Set embed_tokens: keep.",
    ),
    Rule(
        "embeddings-absent",
        When("info", lambda case: not case.draft.embed_requires_grad and not case.holds_embeddings),
        "The checkpoint holds no embed_tokens.weight; SGLang uses the target's embedding.",
        "Nothing, as long as the target is the verifier that the draft was trained for.",
    ),
    Rule(
        "sliding-window",
        When("info", lambda case: case.known.window_flag and case.window_argument is not None),
        "Every draft layer sees {case.smallest_window} keys, the query's own included. SGLang reads no window from a "
        "config. In longer contexts training let TTT step k also see its k drafted tokens on top; serving does not.",
        "Serve with --speculative-draft-window-size {case.window_argument}: SGLang does not count the query itself.",
    ),
    Rule(
        "sliding-window-ignored",
        _window_ignored,
        "Every draft layer sees {case.smallest_window} keys; SGLang {case.version} has no window for drafts (0.5.12 "
        "and later do), so beyond that context length it computes something else.",
        "Serve with SGLang 0.5.12 or later, or train with --full-attention-indices.",
    ),
    Rule(
        "aux-layers-not-recorded",
        When("inexact", _counts_outputs),
        "speculators {case.draft.speculators_version} recorded no aux layer ids, and its own data generator counted "
        "layer outputs: its default is the inputs of [3, n // 2 + 1, n - 2]. Exported for the inputs of "
        "[2, n // 2, n - 3], as later releases and vLLM read it.",
        "If that generator made the hidden states, put those ids into eagle_aux_hidden_state_layer_ids in the "
        "checkpoint's config.json and export again.",
    ),
)

PLUGIN_RULES: tuple[Rule, ...] = (
    Rule(
        "plugin-required",
        When("info", lambda case: case.requires),
        "The export names a class of the plugin, because stock SGLang would not compute: {case.required}.",
        "Install eagle3-export in the serving environment; its plugin computes it. Without it SGLang refuses to load "
        "the draft.",
    ),
    Rule(
        "plugin-unproven",
        When("info", lambda case: case.requires and case.version not in PLUGIN_PROVEN_ON),
        "The plugin has not been run on SGLang {case.target.sglang_version}, only on {case.proven}.",
        "Serve with one of those releases, or check the export with eagle3-export verify --numeric.",
    ),
)

# What a training config may say, seen as `speculators_format.training_config.PlannedDraft`.
TRAINING_RULES: tuple[Rule, ...] = (
    Rule(
        "not-eagle3",
        lambda planned: "incompatible" if planned.kind != "eagle3" else None,
        "speculator_type is {case.kind}.",
        "Train with --speculator-type eagle3, or without the export.",
    ),
    Rule(
        "draft-unknown",
        lambda planned: "info" if planned.problem is not None else None,
        "What will be trained is defined by {case.source}, which cannot be read: {case.problem}",
        "Check that path; each save is checked again.",
    ),
)

RULES: tuple[Rule, ...] = (
    *RELEASE_RULES,
    *NEEDS,
    *DRAFT_RULES,
    *ROPE_RULES,
    *TARGET_RULES,
    *PLUGIN_RULES,
)
FINDING_IDS: tuple[str, ...] = tuple(dict.fromkeys(rule.id for rule in (*RULES, *TRAINING_RULES)))


def with_requirements(case: Case) -> Case:
    """The case with the ids of the findings that only the plugin's class resolves; none: stock serves the export."""
    needed = tuple(rule.id for rule in NEEDS if rule.level(case) == "info")
    case = replace(case, requires=needed)
    return replace(case, requires=(*needed, "norm-before-residual")) if _residual(case) == "info" else case


def apply_rules(rules: tuple[Rule, ...], case: object) -> tuple[Finding, ...]:
    """The findings of a case, in the order of the rules."""
    return tuple(found for rule in rules if (found := rule.apply(case)) is not None)
