"""What a measurement needs of a server, whichever kind it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from eagle3_export.measure.counts import Counts
from eagle3_export.measure.prompt_forms import Prompt
from eagle3_export.measure.workload import Workload

_LARGEST = 1 << 53  # beyond it a float is no longer exact


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself; None where it does not say.

    Attributes:
        kind: sglang or vllm.
        version: its release.
        target: the model it serves.
        algorithm: of speculation, as the server spells it.
        draft: the draft's path, on the server's machine; None without speculation.
        num_steps: draft depth.
        topk: branches per draft step.
        hardware: device.
        settings: those of its settings that decide how the draft runs, under the server's names. Nothing else that
            it says is kept: among it may be keys and passwords.
        weight_version: the name of the weights that it runs now; None for none.
        updated: its weights were replaced since it was started, as far as their names say.
        started_at: when its process began, in seconds since 1970.
    """

    kind: Literal["sglang", "vllm"]
    version: str | None
    target: str | None
    algorithm: str | None
    draft: str | None
    num_steps: int | None
    topk: int
    hardware: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    weight_version: str | None = None
    updated: bool = False
    started_at: float | None = None


class Server(Protocol):
    """A running server."""

    facts: ServerFacts

    def begin(self) -> None:
        """Notes the counters before the requests that count."""

    def answer(self, prompt: Prompt, workload: Workload, max_new_tokens: int) -> Counts:
        """Generates for one prompt; the counters are those of this request as far as the server tells."""

    def end(self, answers: Counts) -> Counts:
        """Returns the counters over all requests since `begin`, given the sum of their answers."""

    def explain_missing(self, counts: Counts) -> str:
        """Returns why there is no acceptance by position among these counters."""


def read_count(value: Any) -> int | None:
    """Returns a counter from a server's answer, or None for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
    return value if is_count else None


def read_text(value: Any) -> str | None:
    """Returns a text from a server's answer as UTF-8 can hold it, or None for anything else."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) and value else None
