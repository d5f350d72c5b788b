"""What a rule looks at, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from eagle3_export.compatibility.findings import Finding, Level
from eagle3_export.sglang.aux_layer_table import TARGET_CLASSES
from eagle3_export.sglang.aux_layers import AuxEncoding, encode_aux_layer_ids, first_supporting
from eagle3_export.sglang.capabilities import NEWEST, OLDEST, PLUGIN_PROVEN_ON, Capabilities, capabilities
from eagle3_export.sglang.rope import context_length, draft_context_length
from eagle3_export.sglang.server_arguments import window_argument
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.verifier import Verifier


@dataclass(frozen=True)
class Case:
    """One draft on one target. The words of a rule may name any attribute.

    Attributes:
        draft: what was trained.
        target: which server, for which model.
        holds_embeddings: the checkpoint has `embed_tokens.weight`.
        keep_embed_tokens: the export keeps it.
        exported: the aux layer ids of an export that exists; None: they are still to be chosen.
        requires: ids of the findings that only the plugin's class resolves.
    """

    draft: Draft
    target: ServingTarget
    holds_embeddings: bool = True
    keep_embed_tokens: bool = True
    exported: AuxEncoding | None = None
    requires: tuple[str, ...] = ()

    # The release.

    newest, oldest, proven = NEWEST, OLDEST, ", ".join(PLUGIN_PROVEN_ON)

    @cached_property
    def known(self) -> Capabilities:
        """What the release computes."""
        return capabilities(self.target.sglang_version)

    @property
    def version(self) -> str:
        """The known release that stands for the target's."""
        return self.known.version

    @property
    def plugin_allowed(self) -> bool:
        """Whether the export may name a class of the plugin."""
        return self.known.runs_plugin and self.target.runtime != "stock"

    @property
    def required(self) -> str:
        """What the plugin is needed for."""
        return ", ".join(self.requires)

    # The draft.

    @property
    def windows(self) -> str:
        """The attention window of each layer."""
        return ", ".join("all" if window is None else str(window) for window in self.draft.sliding_windows)

    @property
    def smallest_window(self) -> int | None:
        """The smallest attention window, None where every layer sees everything."""
        return min((window for window in self.draft.sliding_windows if window is not None), default=None)

    @property
    def window_argument(self) -> int | None:
        """What the server is told about the window, None where one number cannot say it."""
        return window_argument(self.draft.sliding_windows)

    @property
    def context_length(self) -> int:
        """Tokens that the draft has positions for."""
        return draft_context_length(self.draft)

    @property
    def trained_layers(self) -> str:
        """The layers whose inputs the draft was trained on."""
        return str(list(self.draft.aux_layer_ids)) if self.draft.aux_layer_ids else "[2, n // 2, n - 3]"

    # The target model.

    @property
    def verifier(self) -> Verifier | None:
        """The target model, None when its config is not at hand."""
        return self.target.verifier

    @property
    def verifier_context_length(self) -> int | None:
        """Tokens that the target serves."""
        return context_length(self.verifier.config) if self.verifier is not None else None

    @property
    def architecture(self) -> str | None:
        """The target's class: the first that SGLang knows (0.5.23, `ModelRegistry.resolve_model_cls`)."""
        named = self.verifier.architectures if self.verifier is not None else ()
        candidates = named or self.draft.verifier_architectures
        return next((name for name in candidates if name in TARGET_CLASSES), next(iter(candidates), None))

    @property
    def assumed_class(self) -> str:
        """The class that the aux layer ids are written for, in words."""
        return self.architecture or "most target classes"

    @property
    def first_capturing_release(self) -> str | None:
        """The first release in which the target's class captures aux hidden states."""
        return first_supporting(self.architecture or "")

    @property
    def searched(self) -> str:
        """Which model was looked for, and where."""
        name = self.target.model or self.draft.verifier_name
        places = f"looked in {', '.join(self.target.searched)}" if self.target.searched else ""
        words = "; ".join(part for part in (name, places) if part)
        return f" ({words})" if words else ""

    @property
    def unknown_of_verifier(self) -> str:
        """What the target's config does not say of all that is compared with the draft."""
        compared = ("architectures", "num_hidden_layers", "hidden_size", "vocab_size")
        return ", ".join(key for key in compared if not getattr(self.verifier, key))

    @cached_property
    def encoding(self) -> AuxEncoding:
        """The aux layer ids of the export, written already or to be written."""
        if self.exported is not None:
            return self.exported
        layers = self.verifier.num_hidden_layers if self.verifier is not None else None
        return encode_aux_layer_ids(self.draft.aux_layer_ids, self.architecture, layers, self.version)


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding: when there is one, how serious it is, and its words.

    Attributes:
        id: of the finding; explained in the README.
        level: of a case, None where there is nothing to say.
        cause: what is found and what it does, a `str.format` template over the case.
        remedy: what to do about it, likewise.
    """

    id: str
    level: Callable[[Any], Level | None]
    cause: str
    remedy: str

    def apply(self, case: Any) -> Finding | None:
        """The finding of a case, None where there is nothing to say."""
        level = self.level(case)
        if level is None:
            return None
        return Finding(self.id, level, self.cause.format(case=case), self.remedy.format(case=case))


@dataclass(frozen=True, slots=True)
class When:
    """A level that never varies, where a condition holds."""

    level: Level
    holds: Callable[[Case], object]

    def __call__(self, case: Case) -> Level | None:
        """The level, None where the condition does not hold."""
        return self.level if self.holds(case) else None


@dataclass(frozen=True, slots=True)
class Unmet:
    """The level of what a draft needs and stock SGLang of a release does not compute.

    Attributes:
        needed: of the draft, where the release lacks it.
        by_plugin: the plugin's class computes it.
    """

    needed: Callable[[Draft, Capabilities], object]
    by_plugin: bool = False

    def __call__(self, case: Case) -> Level | None:
        """Info where the export may name the plugin's class, else incompatible; None where nothing is lacking."""
        if not self.needed(case.draft, case.known):
            return None
        return "info" if self.by_plugin and case.plugin_allowed else "incompatible"
