"""Short texts between rank 0 and the other ranks, in the process group's own key-value store; never a collective."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from eagle3_export.errors import Eagle3ExportError

_boards = count()
_POLL_SECONDS = 0.05
_READERS_WAIT_SECONDS = 5.0


class RankZeroBoard:
    """A board that global rank 0 writes and every rank reads. Every rank makes its boards in the same order.

    The other ranks can hand texts in, which rank 0 alone collects.

    Attributes:
        rank: the same.
        others: the number of ranks beside rank 0.
    """

    def __init__(self, rank: int) -> None:
        """Joins the board of the default process group.

        Args:
            rank: this process's global rank.

        Raises:
            RuntimeError: there is no process group.
        """
        import torch.distributed as dist

        self.rank = rank
        self.others = dist.get_world_size() - 1
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._prefix = f"eagle3_export/{next(_boards)}/"

    def write(self, topic: str, text: str) -> None:
        """Posts a text. Only rank 0 calls this. Returns at once."""
        self._store.set(self._prefix + topic, text)

    def await_readers(self, topic: str) -> None:
        """Gives the others up to five seconds to read it: this process may serve the store and be about to end."""
        deadline = time.monotonic() + _READERS_WAIT_SECONDS
        while time.monotonic() < deadline and self._readers(topic, 0) < self.others:
            time.sleep(_POLL_SECONDS)

    def read(self, topic: str) -> str | None:
        """The text under that topic, None if there is none yet. Never waits. Read it once: that is counted.

        Raises:
            Eagle3ExportError: rank 0 is gone.
        """
        key = self._prefix + topic
        try:
            if not self._store.check([key]):
                return None
            text = self._store.get(key).decode()
            self._readers(topic, 1)
        except RuntimeError as error:  # torch.distributed.DistNetworkError and its kin
            raise Eagle3ExportError(f"Rank 0 is gone ({error}).") from error
        return str(text)

    def await_text(self, topic: str) -> str:
        """Waits for rank 0's text under that topic.

        Raises:
            Eagle3ExportError: rank 0 is gone.
        """
        while (text := self.read(topic)) is None:
            time.sleep(_POLL_SECONDS)
        return text

    def hand_in(self, topic: str, text: str) -> None:
        """Gives a text to rank 0. The other ranks call this, once per topic. Returns at once."""
        self._store.set(f"{self._prefix}{topic}/{self.rank}", text)

    def collect(self, topic: str) -> dict[int, str]:
        """The texts that were handed in under that topic, by rank; they are gone then. Rank 0 calls this. Never waits.

        Raises:
            Eagle3ExportError: the store cannot be reached.
        """
        found = {}
        try:
            for rank in range(1, self.others + 1):
                key = f"{self._prefix}{topic}/{rank}"
                if self._store.check([key]):
                    found[rank] = self._store.get(key).decode()
                    self._store.delete_key(key)
        except RuntimeError as error:
            raise Eagle3ExportError(f"The store of the process group cannot be reached ({error}).") from error
        return found

    def _readers(self, topic: str, more: int) -> int:
        return int(self._store.add(f"{self._prefix}{topic}/readers", more))


class CommonStop:
    """Lets every rank end with the same error at the same point of the run, though only rank 0 knows of it.

    `check` is called at points that all ranks pass in the same order and between which the trainer itself
    synchronises them (each step's gradients, the barriers around a validation). Before rank 0 passes point n it posts
    "stop at n + 1". The trainer synchronises the ranks between two points, so every rank reads the post before it
    reaches n + 1.
    """

    def __init__(self, board: RankZeroBoard | None, failure: Callable[[], Eagle3ExportError | None]) -> None:
        """Names the board and where failures are told.

        Args:
            board: None in a run of one process.
            failure: rank 0's failure, None while there is none; not asked on other ranks.
        """
        self._board = board
        self._failure = failure
        self._point = 0
        self._last: tuple[int, str] | None = None

    def check(self) -> None:
        """Passes one common point.

        Raises:
            Eagle3ExportError: the run ends here.
        """
        self._point += 1
        if self._board is None:
            if failure := self._failure():
                raise failure
            return
        if self._last is None:
            self._last = self._post() if self._board.rank == 0 else self._look()
        if self._last is not None and self._point >= self._last[0]:
            if self._board.rank == 0:
                self._board.await_readers("stop")
            raise Eagle3ExportError(self._last[1])

    def end_together(self, *, others_wait: bool) -> None:
        """After training: every rank learns whether an export failed after the last common point.

        Args:
            others_wait: the run ended as planned, so that rank 0 will post its verdict.

        Raises:
            Eagle3ExportError: one did.
        """
        if self._board is None or self._board.rank == 0:
            failure = self._failure()
            if self._board is not None:
                self._board.write("end", str(failure or ""))
                self._board.await_readers("end")
            if failure is not None:
                raise failure
        elif others_wait and (text := self._board.await_text("end")):
            raise Eagle3ExportError(text)

    def _post(self) -> tuple[int, str] | None:
        assert self._board is not None
        failure = self._failure()
        if failure is None:
            return None
        last = (self._point + 1, str(failure))
        self._board.write("stop", json.dumps(last))
        return last

    def _look(self) -> tuple[int, str] | None:
        assert self._board is not None
        text = self._board.read("stop")
        if text is None:
            return None
        point, message = json.loads(text)
        return point, message
