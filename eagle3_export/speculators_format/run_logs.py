"""What a run's own tensorboard log says of a checkpoint's validation, where the checkpoint itself does not.

speculators writes val_metrics.json only for an epoch that becomes the best, and logs every validation: `val/<name>` and
then `epoch`, all at the step of the save (speculators 0.8.0 to 0.9.0: `Trainer.val_epoch`, `TensorBoardHandler`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from eagle3_export.speculators_format.run_files import places_of, run_settings
from eagle3_export.storage.faults import shown

_EVENTS = "events.out.tfevents.*"
_MAX_FILES = 200
_MAX_BYTES = 512 << 20
NO_TENSORBOARD = "The run's tensorboard log may hold them; to have it read: pip install tensorboard."


@dataclass(frozen=True)
class LoggedValidation:
    """One validation in a log.

    Attributes:
        step: optimizer steps before it.
        epoch: whose validation it was.
        values: the trainer's metrics, by the names of val_metrics.json.
        file: the log.
    """

    step: int
    epoch: int
    values: Mapping[str, float]
    file: Path


def logged_validation(
    save_path: Path, epoch: int | None, global_step: int | None
) -> tuple[LoggedValidation | None, str | None]:
    """Returns the validation that a run logged of one of its epochs, or None and, where logs were there, why.

    Step and epoch have to be the checkpoint's. Where logs of several runs hold different numbers for them, none is
    taken.

    Args:
        save_path: where the run saved the checkpoint.
        epoch: of the checkpoint.
        global_step: of the checkpoint.
    """
    files = _log_files(save_path)
    if epoch is None or global_step is None or not files:
        return None, None
    try:
        found = [v for file in files for v in _validations(file) if (v.step, v.epoch) == (global_step, epoch)]
    except ImportError:
        return None, NO_TENSORBOARD
    if not found:
        return (
            None,
            f"The run's log {shown(files[0].parent)} holds no validation of epoch {epoch} at step {global_step}.",
        )
    if any(validation.values != found[0].values for validation in found):
        names = " and ".join(sorted({shown(validation.file) for validation in found}))
        return None, f"The logs of several runs hold different validations of step {global_step}: {names}."
    return found[0], None


def _log_files(save_path: Path) -> list[Path]:
    settings = run_settings(save_path)
    if "tensorboard" not in str(settings.get("logger", "")):
        return []
    name = settings.get("run_name")
    for place in places_of(str(settings.get("log_dir", "./logs")), save_path):
        below = place / name if isinstance(name, str) and "{" not in name else place
        try:
            files = sorted(below.rglob(_EVENTS))[:_MAX_FILES]
            files = [file for file in files if file.stat().st_size <= _MAX_BYTES]
        except OSError:
            continue
        if files:
            return files
    return []


def _validations(file: Path) -> tuple[LoggedValidation, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    return _read(os.fspath(file), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=_MAX_FILES)
def _read(file: str, size: int, modified: int) -> tuple[LoggedValidation, ...]:
    """Reads a log once for all checkpoints of a run, as it is now."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found, values, at = [], dict[str, float](), -1
    try:
        for tag, step, value in _scalars(EventFileLoader(file).Load()):
            if tag.startswith("val/"):
                values = values if step == at else {}
                at = step
                values[tag.removeprefix("val/")] = value
            elif tag == "epoch" and values and step == at:  # the last that a validation logs: it is all there
                found.append(LoggedValidation(step, int(value), values, Path(file)))
                values = {}
            else:
                values = {}
    except Exception:  # a log that is cut short or damaged; what stands before that is whole
        return tuple(found)
    return tuple(found)


def _scalars(events: Iterable[Any]) -> Iterable[tuple[str, int, float]]:
    for event in events:
        for value in event.summary.value:
            if value.HasField("tensor") and value.tensor.float_val:
                yield value.tag, event.step, value.tensor.float_val[0]
            elif value.HasField("simple_value"):
                yield value.tag, event.step, value.simple_value
