"""Which server the drafts are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from eagle3_export.speculators_format.verifier import Verifier

Runtime = Literal["auto", "stock", "exact"]


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """The serving side of an export.

    Attributes:
        sglang_version: the release that will serve ("0.5.23").
        runtime: "auto": stock wherever it loads the draft whole; "stock": only what stock computes exactly;
            "exact": the plugin's class for whatever stock does not compute exactly.
        verifier: the target model, None when its config is not at hand.
    """

    sglang_version: str
    runtime: Runtime = "auto"
    verifier: Verifier | None = None
