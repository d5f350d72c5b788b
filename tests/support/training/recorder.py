"""Runs the training command in this process and keeps what the trainer sent to ``speculators.metrics``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.training.tiny_world import TinyWorld, train_arguments


@dataclass(eq=False)
class Records(logging.Handler):
    """Validations by epoch, and the exporter's records, in order."""

    validations: dict[int, dict[str, float]] = field(default_factory=dict)
    exports: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def emit(self, record: logging.LogRecord) -> None:
        if not isinstance(record.msg, dict):
            if record.name.startswith("eagle3_export"):
                self.messages.append(record.getMessage())
            return
        if "val" in record.msg:
            self.validations[record.msg["epoch"]] = dict(record.msg["val"])
        if "export" in record.msg:
            self.exports.append((record.step, record.msg["export"]))  # type: ignore[attr-defined]


@contextlib.contextmanager
def recording() -> Iterator[Records]:
    """Listen to the trainer's metrics and to the exporter's own log.

    At the root: speculators replaces the handlers of its own loggers when a run begins.
    """
    records = Records()
    root, ours = logging.getLogger(), logging.getLogger("eagle3_export")
    level = ours.level
    root.addHandler(records)
    ours.setLevel(logging.INFO)
    try:
        yield records
    finally:
        root.removeHandler(records)
        ours.setLevel(level)


def train(
    world: TinyWorld, save_path: Path, extra: Sequence[str] = (), **changes: Any
) -> tuple[int, Records]:
    """``eagle3-export train`` with the real trainer; returns its exit status and what it reported."""
    from eagle3_export.train import main

    with recording() as records:
        status = main([*train_arguments(world, save_path, **changes), *extra])
    return status, records


class NotTrainedError(Exception):
    """Raised in place of training, to get hold of a trainer that was built and not run."""


def with_trainer(world: TinyWorld, save_path: Path, use: Callable[[Any], None], **changes: Any) -> None:
    """Have speculators' own ``main`` build a trainer, and hand it to `use` instead of running it."""
    from speculators.train import cli
    from speculators.train.config import TrainConfig

    from eagle3_export.training.cpu_rehearsal import enable_cpu_rehearsal

    enable_cpu_rehearsal()
    original = cli.Trainer

    def build(*args: Any, **kwargs: Any) -> Any:
        use(original(*args, **kwargs))
        raise NotTrainedError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(NotTrainedError):
        patch.setattr(cli, "Trainer", build)
        cli.main(TrainConfig.resolve(train_arguments(world, save_path, **changes)))
