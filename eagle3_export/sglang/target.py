"""Which server the drafts are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eagle3_export.speculators_format.verifier import Verifier, VerifierSearch

Runtime = Literal["auto", "stock", "exact"]


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """The serving side of an export.

    Attributes:
        sglang_version: the release that will serve ("0.5.23").
        runtime: "auto": stock wherever it loads the draft whole; "stock": only what stock computes exactly;
            "exact": the plugin's class for whatever stock does not compute exactly.
        verifier: the target model, None when its config is not at hand.
        model: what the target model is called, None where nobody named it.
        searched: where its config was looked for in vain, in words.
    """

    sglang_version: str
    runtime: Runtime = "auto"
    verifier: Verifier | None = None
    model: str | None = None
    searched: tuple[str, ...] = ()

    @classmethod
    def found(cls, sglang_version: str, runtime: Runtime, search: VerifierSearch) -> ServingTarget:
        """The target whose model was looked for."""
        return cls(sglang_version, runtime, search.verifier, search.name, search.tried)
