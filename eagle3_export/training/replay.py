"""Replays the trainer's own validation: what a server would accept of its text, from the passes that it makes anyway.

The model that `val_epoch` calls returns what it drafted at every position (speculators 0.8.0, 0.8.1, 0.9.0:
`Eagle3DraftModel.forward`). A hook on the model compares that with the text, on the device; now and then the result
goes to the host and is walked. No collective is entered: a rank hands its counts to rank 0 through the store of the
process group, before the trainer's own reduction at the end of the validation.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3_export.errors import Eagle3ExportError
from eagle3_export.estimates.replay import (
    DEEPEST,
    VALIDATION,
    Replay,
    ReplayCounts,
    ReplayedData,
    replay_record,
)
from eagle3_export.training.chains import (
    ChainReplay,
    first_choices,
    reporting_first_choices,
    take_first_choices,
)
from eagle3_export.training.interrupts import deferred_interrupts
from eagle3_export.training.ranks import RankZeroBoard

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("eagle3_export")

# What the passes deeper than trained may take of one validation.
DEEPER_BATCHES = 64
DEEPER_SECONDS = 60.0

NO_VALIDATION_PASS = "No validation pass was seen."
NO_RESPONSES = "The validation has no response of two tokens or more."
OTHER_TRAINER = (
    "This trainer's model does not return its drafts as speculators 0.8 and 0.9 do: nothing to replay."
)
SHARDED = (
    "A pass deeper than trained would need a collective of every rank, because the model is sharded (FSDP)."
)
RANKS_MISSING = "The counts of some ranks did not reach rank 0."


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a validation's replay counted, or why it did not.

    Attributes:
        counts: None with a `reason`.
        reason: why `counts` is None.
        deeper: counts of chains deeper than trained, of some of the documents; None where none were asked for.
        no_deeper: why `deeper` is None although it was asked for.
    """

    counts: ReplayCounts | None
    reason: str | None = None
    deeper: ReplayCounts | None = None
    no_deeper: str | None = None

    def record(self, data: ReplayedData | None = None) -> Replay | None:
        """Returns the counts as a document holds them.

        Args:
            data: what was walked; None for a validation of the trainer's own.
        """
        if self.counts is None:
            return None
        text = VALIDATION if data is None or data.run_validation else data.path
        return replay_record(self.counts, self.deeper, text=text, data=data, no_deeper=self.no_deeper)


class ValidationReplay:
    """Replays every validation of one trainer."""

    def __init__(
        self,
        trainer: Any,
        num_steps: Sequence[int],
        *,
        replay_num_steps: int | None = None,
        bounded: bool = True,
        board: RankZeroBoard | None = None,
    ) -> None:
        """Names the trainer and the depths.

        Args:
            trainer: speculators' trainer.
            num_steps: depths to estimate for, beside every depth from 1 to the trained one.
            replay_num_steps: chains of so many drafts are computed too, in passes of their own; None for none.
            bounded: those passes may take a minute and 64 batches of a validation at most.
            board: of a run of several processes.
        """
        self._trainer = trainer
        self._num_steps = tuple(num_steps)
        self._deeper_steps = replay_num_steps
        self._bounded = bounded
        self._board = board
        self._validations = 0
        self._begin()

    def _begin(self) -> None:
        self._batches = 0
        self._main: ChainReplay | None = None
        self._deeper: ChainReplay | None = None
        self._deeper_until: float | None = None
        self._choices: list[Tensor] = []
        self._problem: str | None = None
        self._no_deeper: str | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches one validation of the trainer while the block runs; `result` tells afterwards what it counted."""
        self._begin()
        self._validations += 1
        with contextlib.ExitStack() as watching:
            try:
                handle = self._trainer.model.register_forward_hook(self._after_forward, with_kwargs=True)
                watching.callback(handle.remove)
                watching.enter_context(reporting_first_choices())
            except (
                Exception
            ) as error:  # a trainer that works otherwise loses the replay, never its validation
                self._problem = f"The replay could not begin: {type(error).__name__}: {error}"
                logger.warning("%s Training goes on.", self._problem)
            yield

    def result(self) -> Replayed:
        """What the validation counted, over all ranks. Rank 0 calls this, once, after the validation; never waits."""
        mine = self._mine()
        others = [] if self._board is None else _collected(self._board, self._topic())
        parts = [mine, *others]
        reason = next((part["reason"] for part in parts if part["reason"]), None)
        if self._board is not None and len(others) < self._board.others:
            reason = reason or RANKS_MISSING
        counts = None if reason else _total(part["counts"] for part in parts)
        if counts is not None and not counts.documents:
            reason, counts = NO_RESPONSES, None
        no_deeper = next((part["no_deeper"] for part in parts if part["no_deeper"]), None)
        deeper = None if counts is None or no_deeper else _total(part["deeper"] for part in parts)
        return Replayed(counts, reason, deeper, no_deeper)

    def so_far(self) -> ReplayCounts | None:
        """Walks what this process has seen of the validation; None before its first batch."""
        if self._main is not None:
            self._main.walk()
        return None if self._main is None else self._main.counts

    # In the validation pass -----------------------------------------------------------------------------------

    def _after_forward(self, model: Any, _: Any, batch: Mapping[str, Any], output: Any) -> None:
        choices = take_first_choices(output)  # in any case: the trainer adds up all that it finds there
        with deferred_interrupts():
            self._batches += 1
            if self._problem is None:
                try:
                    self._take(model, batch, output, choices)
                except Exception as error:
                    self._problem = f"The replay failed: {type(error).__name__}: {error}"
                    logger.warning("%s Training goes on.", self._problem, exc_info=error)
            if self._batches == len(self._trainer.val_loader):
                self._hand_in()

    def _take(self, model: Any, batch: Mapping[str, Any], output: Any, choices: Tensor | None) -> None:
        import torch

        drafted = output[0] if isinstance(output, tuple) and output else None
        if not isinstance(drafted, list) or not all(
            _same_shape(step, batch["input_ids"]) for step in drafted
        ):
            self._problem = OTHER_TRAINER
            return
        draft = getattr(model, "module", model)
        offsets, spoken = getattr(draft, "d2t", None), getattr(draft, "t2d", None)
        if self._main is None:
            self._main = ChainReplay(len(drafted), self._depths(len(drafted)))
        self._main.add(drafted, batch, offsets)
        if choices is not None:
            self._choices.append(torch.stack(first_choices(choices[0], batch, offsets, spoken)))
        if self._deeper_steps is not None and self._deeper_steps > len(drafted) and self._no_deeper is None:
            try:
                self._go_deeper(draft, batch, offsets)
            except Exception as error:
                self._no_deeper = f"The pass deeper than trained failed: {type(error).__name__}: {error}"
                logger.warning("%s", self._no_deeper, exc_info=error)

    def _depths(self, steps: int) -> list[int]:
        return sorted({*range(1, max(steps, DEEPEST) + 1), *self._num_steps})

    def _go_deeper(self, draft: Any, batch: Mapping[str, Any], offsets: Tensor | None) -> None:
        """The same batch once more, with longer chains and without a loss."""
        from torch.distributed.fsdp import FSDPModule

        assert self._deeper_steps is not None
        if isinstance(draft, FSDPModule):
            self._no_deeper = SHARDED
            return
        now = time.monotonic()
        if self._deeper_until is None:
            self._deeper_until = now + DEEPER_SECONDS
        if self._bounded and (self._batches > DEEPER_BATCHES or now > self._deeper_until):
            return
        if self._deeper is None:
            self._deeper = ChainReplay(self._deeper_steps, self._depths(self._deeper_steps))
        inputs = {**batch, "verifier_last_hidden_states": None, "ttt_steps": self._deeper_steps}
        self._deeper.add(draft.forward(**inputs), batch, offsets)

    def _hand_in(self) -> None:
        """After the last batch: to the board, which rank 0 reads once the trainer has reduced its own metrics."""
        if self._board is None or self._board.rank == 0:
            return
        try:
            self._board.hand_in(self._topic(), json.dumps(self._mine()))
        except Exception as error:
            logger.warning("The counts of a replay could not be handed to rank 0: %s", error)

    def _mine(self) -> dict[str, Any]:
        """This rank's counts, JSON-ready."""
        reason = self._problem
        if reason is None and self._main is None:
            reason = NO_VALIDATION_PASS
        try:
            for chains in (self._main, self._deeper):
                if chains is not None:
                    chains.walk()
            if self._main is not None and self._choices:
                counts = self._main.counts
                counts.response_tokens, counts.first_choices = (int(n) for n in sum(self._choices).tolist())  # type: ignore[union-attr]
        except Exception as error:
            reason = f"The replay failed: {type(error).__name__}: {error}"
            logger.warning("%s", reason, exc_info=error)
        return {
            "reason": reason,
            "counts": None if reason or self._main is None else self._main.counts.as_dict(),
            "deeper": None if self._deeper is None else self._deeper.counts.as_dict(),
            "no_deeper": self._no_deeper,
        }

    def _topic(self) -> str:
        return f"replay/{self._validations}"


def _collected(board: RankZeroBoard, topic: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(text) for text in board.collect(topic).values()]
    except Eagle3ExportError as error:
        logger.warning("The counts of a replay could not be collected: %s", error)
        return []


def _total(parts: Iterable[Mapping[str, Any] | None]) -> ReplayCounts | None:
    found = [ReplayCounts.from_dict(part) for part in parts if part is not None]
    for counts in found[1:]:
        found[0].add(counts)
    return found[0] if found else None


def _same_shape(step: Any, tokens: Any) -> bool:
    return getattr(step, "shape", None) == getattr(tokens, "shape", ())
