"""Rules about the target model: is it the one that the draft was trained for, and what does the pair need?"""

from __future__ import annotations

from collections.abc import Callable

from eagle3_export.compatibility.case import Case, Rule, When
from eagle3_export.sglang.rope import SHARED_TYPES
from eagle3_export.speculators_format.verifier import Verifier


def _known(holds: Callable[[Case, Verifier], object]) -> Callable[[Case], object]:
    """A condition on the target's config, which does not hold where there is none."""
    return lambda case: case.verifier is not None and holds(case, case.verifier)


def _fewer_positions(case: Case) -> bool:
    theirs = case.verifier_context_length
    return case.draft.rope.type in SHARED_TYPES and theirs is not None and case.context_length < theirs


def _wrong_layers(case: Case) -> bool:
    return case.encoding.class_supported and not case.encoding.exact


def _captures_later(case: Case) -> bool:
    return not case.encoding.class_supported and case.first_capturing_release is not None


def _never_captures(case: Case) -> bool:
    return not case.encoding.class_supported and case.first_capturing_release is None


TARGET_RULES: tuple[Rule, ...] = (
    Rule(
        "context-length",
        When("info", _fewer_positions),
        "The draft has positions for {case.context_length} tokens, the verifier for {case.verifier_context_length}. "
        "SGLang refuses to start with a draft that has fewer, and would read outside its position table if told to.",
        "Serve with --context-length {case.context_length}, or train a draft with the verifier's "
        "max_position_embeddings.",
    ),
    Rule(
        "target-class",
        When("incompatible", _captures_later),
        "The verifier's class {case.architecture} cannot capture aux hidden states in SGLang {case.version}.",
        "Serve with a release in which it can; the first is SGLang {case.first_capturing_release}.",
    ),
    Rule(
        "target-class",
        When("incompatible", _never_captures),
        "The verifier's class {case.architecture} cannot capture aux hidden states in SGLang {case.version}.",
        "Serve a target class that can; up to SGLang {case.newest} {case.architecture} cannot.",
    ),
    Rule(
        "aux-layers",
        When("incompatible", lambda case: _wrong_layers(case) and case.exported is None),
        "No list of ids makes SGLang {case.version} capture the layers {case.trained_layers} of {case.assumed_class}: "
        "{case.encoding.problem}.",
        "Train with other --target-layer-ids, in ascending order and below the number of layers.",
    ),
    Rule(
        "verifier-mismatch",
        When("incompatible", lambda case: _wrong_layers(case) and case.exported is not None),
        "The draft was trained on the layers {case.trained_layers}, and the export's aux layer ids "
        "{case.encoding.ids} do not make SGLang {case.version} capture them of {case.assumed_class}: "
        "{case.encoding.problem}.",
        "Serve the target that the draft was exported for, or export the checkpoint again where this target's "
        "config is at hand.",
    ),
    Rule(
        "verifier-unknown",
        When("info", lambda case: case.verifier is None),
        "The verifier's config is not at hand{case.searched}, so its hidden size, its vocabulary and its layers were "
        "not compared with the draft's; the aux layer ids are encoded for {case.assumed_class}.",
        "Make the verifier's config.json available on this machine so that it can be checked.",
    ),
    Rule(
        "verifier-unknown",
        When("info", _known(lambda case, _: case.unknown_of_verifier)),
        "The verifier's config does not say its {case.unknown_of_verifier}, which could not be compared with the "
        "draft.",
        "Check that it is the model that the draft was trained for.",
    ),
    Rule(
        "verifier-mismatch",
        When(
            "incompatible",
            _known(lambda case, theirs: theirs.hidden_size not in (None, case.draft.hidden_size)),
        ),
        "The draft was trained for hidden_size {case.draft.hidden_size}, the verifier has "
        "{case.verifier.hidden_size}.",
        "Name the verifier that the draft was trained with.",
    ),
    Rule(
        "verifier-mismatch",
        When(
            "incompatible",
            _known(lambda case, theirs: theirs.vocab_size not in (None, case.draft.vocab_size)),
        ),
        "The draft was trained for vocab_size {case.draft.vocab_size}, the verifier has {case.verifier.vocab_size}.",
        "Name the verifier that the draft was trained with.",
    ),
    Rule(
        "draft-dtype",
        When(
            "info",
            _known(
                lambda case, theirs: (
                    None not in (case.draft.dtype, theirs.dtype) and case.draft.dtype != theirs.dtype
                )
            ),
        ),
        "The draft is saved in {case.draft.dtype}, the verifier in {case.verifier.dtype}; untold, SGLang runs each in "
        "its own dtype (float32 as float16), and the draft fails on the verifier's hidden states.",
        "Serve with --dtype {case.verifier.dtype}, as the launch command does, or with --dtype {case.draft.dtype}.",
    ),
    Rule(
        "draft-quantization",
        When(
            "info",
            _known(lambda case, theirs: theirs.quantization and case.known.draft_quantization_flag),
        ),
        "The verifier is quantised ({case.verifier.quantization}); SGLang would expect the same of the draft.",
        "Serve with --speculative-draft-model-quantization unquant, as the launch command does.",
    ),
)
TARGET_IDS = frozenset(rule.id for rule in TARGET_RULES)
