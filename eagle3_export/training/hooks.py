"""What the callback wraps on speculators' trainer, and the refusal of trainers that lack it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from eagle3_export.errors import UsageError

# What is wrapped, with the arguments it must take (speculators 0.8.0, 0.8.1, 0.9.0: train/trainer.py).
TRAINER_HOOKS: Mapping[str, tuple[str, ...]] = {
    "train_epoch": ("epoch",),
    "maybe_save_checkpoint": ("epoch", "local_step"),
    "val_epoch": ("epoch",),
    "maybe_update_best": ("epoch", "val_metrics"),
    "run_training": (),
}
CHECKPOINTER_HOOKS: Mapping[str, tuple[str, ...]] = {"save_checkpoint": ("model", "optimizer", "epoch")}


def wrap(owner: Any, name: str, around: Callable[[Callable[[], Any], Mapping[str, Any]], Any]) -> None:
    """Replaces a bound method on its instance.

    Args:
        owner: the instance.
        name: of the method.
        around: called in place of it with the original call, ready to be made, and the arguments by name.
    """
    method = getattr(owner, name)
    signature = inspect.signature(method)

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        return around(lambda: method(*args, **kwargs), arguments)

    setattr(owner, name, wrapper)


def require_hooks(trainer: Any) -> None:
    """Checks that `trainer` is a speculators trainer with all that is wrapped.

    Raises:
        UsageError: it is not, or speculators is not installed.
    """
    try:
        from speculators.train.trainer import Trainer
    except ImportError as error:
        raise UsageError(
            f"speculators.train.trainer cannot be imported: {error}.",
            remedy="pip install 'eagle3-export[train]'",
        ) from error
    if not isinstance(trainer, Trainer):
        raise UsageError(
            f"attach() needs a speculators.train.trainer.Trainer, not {type(trainer).__name__}.",
            remedy="Build the trainer first, then attach to it.",
        )
    lacking = [name for name, names in TRAINER_HOOKS.items() if not _takes(trainer, name, names)]
    lacking += [
        name for name, names in CHECKPOINTER_HOOKS.items() if not _takes(trainer.checkpointer, name, names)
    ]
    if lacking:
        from importlib.metadata import version

        raise UsageError(
            f"The trainer of speculators {version('speculators')} lacks what the export hooks into: "
            f"{', '.join(lacking)}.",
            remedy="Install speculators 0.8 or 0.9, or export its checkpoints with `eagle3-export watch`.",
        )


def _takes(owner: Any, name: str, arguments: tuple[str, ...]) -> bool:
    method = getattr(owner, name, None)
    return callable(method) and set(arguments) <= set(inspect.signature(method).parameters)
