"""What chains of drafts accept of a text: from the ids that speculators' model drafted, on whatever device they are.

Batches are packed as the trainer packs them (speculators 0.8.0, 0.8.1, 0.9.0: `shift_batch`): position i has the inputs
token i + 1 and the verifier's state i of a document, and step k drafts token i + 2 + k. So in the arrays here, which
begin with token 1, step k of position i drafts entry i + 1 + k.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from eagle3_export.estimates.replay import ReplayCounts, Span, replay

if TYPE_CHECKING:
    from torch import Tensor

MODEL_MODULE = "speculators.models.eagle3.core"
METRICS_FUNCTION = "compute_metrics"
METRICS_ARGUMENTS = ("logits", "targets", "loss_mask", "prev_correct", "ttt_step")
FIRST_CHOICES = "_eagle3_export_first_choices"

# Positions that wait on the device, 13 bytes each, before they are fetched and walked.
PENDING_POSITIONS = 1 << 19


@dataclass
class ChainReplay:
    """Collects what chains of one length accept of the text, batch by batch, and walks it.

    Attributes:
        steps: drafts per chain.
        depths: depths to walk at.
        counts: of what was walked so far; `walk` completes them.
    """

    steps: int
    depths: Sequence[int]
    counts: ReplayCounts = field(init=False)
    _pending: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    _positions: int = 0
    _documents: int = 0

    def __post_init__(self) -> None:
        self.counts = ReplayCounts(self.steps)

    def add(self, drafted: Sequence[Tensor], batch: Mapping[str, Any], offsets: Tensor | None) -> None:
        """Takes one packed batch, on its device.

        Args:
            drafted: for each step the drafted ids [1, positions], of the draft vocabulary.
            batch: `input_ids`, `document_ids` (-1 is padding) and `loss_mask`, each [1, positions].
            offsets: `d2t`; None where the draft has the target's vocabulary.
        """
        import torch

        tokens, documents = batch["input_ids"][0], batch["document_ids"][0]
        responses = response_numbers(batch["loss_mask"][0], documents)
        ids = in_target_vocabulary(torch.stack([step[0] for step in drafted]), offsets)
        accepted = accepted_in_a_row(ids, tokens, responses)
        self._pending.append((accepted, responses.int(), documents.int(), tokens.int()))
        self._positions += len(tokens)
        if self._positions >= PENDING_POSITIONS:
            self.walk()

    def walk(self) -> None:
        """Walks what was collected since the last call."""
        spans: list[Span] = []
        identities: dict[int, str] = {}
        for batch in self._pending:
            accepted, responses, documents, tokens = (part.cpu().numpy() for part in batch)
            numbers = np.where(documents < 0, -1, documents + self._documents)
            spans += response_spans(accepted, responses, numbers)
            identities |= document_digests(tokens, responses, numbers)
            self._documents += int(documents.max(initial=-1)) + 1
        self._pending, self._positions = [], 0
        self.counts.add(replay(spans, self.steps, self.depths, identities))


def in_target_vocabulary(drafted: Tensor, offsets: Tensor | None) -> Tensor:
    """Drafted ids as ids of the target's vocabulary: i + d2t[i]."""
    return drafted if offsets is None else drafted + offsets[drafted]


def response_numbers(loss_mask: Tensor, documents: Tensor) -> Tensor:
    """The number of the response that each position belongs to, -1 outside of one.

    Args:
        loss_mask: [positions]; nonzero for the tokens of a response.
        documents: [positions]; the document of each position, -1 for padding.
    """
    inside = loss_mask.bool() & (documents >= 0)
    begins = inside.clone()
    begins[1:] &= ~inside[:-1] | (documents[1:] != documents[:-1])
    return (begins.cumsum(0) - 1).masked_fill(~inside, -1)


def accepted_in_a_row(drafted: Tensor, tokens: Tensor, responses: Tensor) -> Tensor:
    """For the chain of every position, how many drafts in a row equal the text of its response, as uint8 [positions].

    Args:
        drafted: [steps, positions], ids of the target's vocabulary.
        tokens: [positions], the text; step k of position i drafts entry i + 1 + k.
        responses: from `response_numbers`. A chain ends with its response.
    """
    import torch

    holds = responses >= 0
    accepted = torch.zeros_like(responses, dtype=torch.uint8)
    for k in range(min(len(drafted), len(tokens) - 1)):
        right = torch.zeros_like(holds)
        right[: -1 - k] = (drafted[k, : -1 - k] == tokens[1 + k :]) & (
            responses[: -1 - k] == responses[1 + k :]
        )
        holds = holds & right
        accepted += holds
    return accepted


def first_choices(
    choices: Tensor, batch: Mapping[str, Any], offsets: Tensor | None, spoken: Tensor | None
) -> tuple[Tensor, Tensor]:
    """How many tokens of the responses are in the draft vocabulary, and how many of those the verifier would choose.

    Args:
        choices: [positions], the verifier's first choice within the draft vocabulary, for the token after each.
        batch: see `ChainReplay.add`.
        offsets: `d2t` or None.
        spoken: `t2d` [target vocabulary], true for ids of the draft vocabulary, or None.
    """
    tokens, documents = batch["input_ids"][0], batch["document_ids"][0]
    counted = (response_numbers(batch["loss_mask"][0], documents)[1:] >= 0) & (
        documents[1:] == documents[:-1]
    )
    if spoken is not None and offsets is not None:
        counted &= spoken.bool()[tokens[1:]]
    chosen = in_target_vocabulary(choices, offsets)[:-1] == tokens[1:]
    return counted.sum(), (counted & chosen).sum()


def response_spans(
    accepted: np.ndarray[Any, Any], responses: np.ndarray[Any, Any], documents: np.ndarray[Any, Any]
) -> list[Span]:
    """The responses of one packed batch, each with what its chains accept; all arrays are [positions]."""
    inside = np.flatnonzero(responses >= 0)
    edges = np.flatnonzero(np.diff(responses[inside])) + 1
    return [
        Span(int(documents[positions[0]]), accepted[positions].astype(np.int64))
        for positions in np.split(inside, edges)
        if len(positions)
    ]


def document_digests(
    tokens: np.ndarray[Any, Any], responses: np.ndarray[Any, Any], documents: np.ndarray[Any, Any]
) -> dict[int, str]:
    """A digest of the text of each document of a packed batch and of what of it are responses, by its number.

    It is the same wherever the document stands in whichever batch. All arrays are [positions].
    """
    edges = np.flatnonzero(np.diff(documents)) + 1
    found = {}
    for begin, end in zip([0, *edges], [*edges, len(documents)], strict=True):
        if end > begin and documents[begin] >= 0:
            text = tokens[begin:end].astype("<i4").tobytes() + (responses[begin:end] >= 0).tobytes()
            found[int(documents[begin])] = hashlib.blake2b(text, digest_size=8).hexdigest()
    return found


_compute_metrics: Callable[..., tuple[Any, dict[str, Any]]] | None = None


def _metrics_with_first_choices(
    logits: Any, targets: Any, loss_mask: Any, prev_correct: Any, ttt_step: int, *args: Any, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """The trainer's `compute_metrics`; its first step reports what the verifier would have said too.

    One function for the whole run: a compiled forward pass is compiled again for every other one.
    """
    assert _compute_metrics is not None
    loss, metrics = _compute_metrics(logits, targets, loss_mask, prev_correct, ttt_step, *args, **options)
    if ttt_step == 0:
        metrics = {**metrics, FIRST_CHOICES: targets.argmax(-1)}
    return loss, metrics


@contextlib.contextmanager
def reporting_first_choices() -> Iterator[None]:
    """Has the model's forward pass return the verifier's first choices among its metrics; unknown trainers stay."""
    global _compute_metrics
    module = sys.modules.get(MODEL_MODULE)
    original = getattr(module, METRICS_FUNCTION, None)
    if original is None or not _takes_what_it_should(original):
        yield
        return
    _compute_metrics = original
    setattr(module, METRICS_FUNCTION, _metrics_with_first_choices)
    try:
        yield
    finally:
        setattr(module, METRICS_FUNCTION, original)


def _takes_what_it_should(function: Callable[..., Any]) -> bool:
    names = tuple(inspect.signature(function).parameters)
    return names[: len(METRICS_ARGUMENTS)] == METRICS_ARGUMENTS


def take_first_choices(output: Any) -> Tensor | None:
    """Takes the replay's own entry out of what the draft's `forward` returned, so that the trainer never sees it."""
    metrics = output[2] if isinstance(output, tuple) and len(output) > 2 else None
    return metrics.pop(FIRST_CHOICES, None) if isinstance(metrics, dict) else None
