"""What a measurement needs of a server, whichever kind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from eagle3_export.measure.counts import Counts
from eagle3_export.measure.workload import Prompt, Workload


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself; None where it does not say.

    Args:
        kind: sglang or vllm.
        target: the model it serves.
        draft: the draft's path, on the server's machine; None without speculation.
        num_steps: draft depth.
        topk: branches per draft step.
        hardware: device.
        algorithm: of speculation, as the server spells it.
    """

    kind: Literal["sglang", "vllm"]
    version: str | None
    target: str | None
    algorithm: str | None
    draft: str | None
    num_steps: int | None
    topk: int
    hardware: str | None


class Server(Protocol):
    """A running server."""

    facts: ServerFacts

    def begin(self) -> None:
        """Note the counters before the requests that count."""

    def answer(self, prompt: Prompt, workload: Workload, max_new_tokens: int) -> Counts:
        """Generate for one prompt; the counters are those of this request as far as the server tells."""

    def end(self, answers: Counts) -> Counts:
        """Counters over all requests since :meth:`begin`, given the sum of their answers."""


def integer(value: Any) -> int | None:
    """A counter from a server's answer, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
