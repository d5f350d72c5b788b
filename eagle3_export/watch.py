"""Exports the checkpoints of a run that cannot be restarted with the callback, from outside, as they are saved.

A checkpoint is exported once the trainer's own last step of saving it is there, never after a quiet period:

==================================  ================================================================================
how it was saved                    what the trainer does last (speculators 0.9.0, `train/trainer.py`)
==================================  ================================================================================
end or middle of an epoch (0.7 on)  `training_state.json`, then the link `epoch<N>_end` or `epoch<N>_step<S>`
`--save-best` (0.5 on)            `val_metrics.json`, then the link `checkpoint_best`
`interrupted`; releases before 0.7  `optimizer_state_dict.pt`, begun when weights and config are complete
==================================  ================================================================================

Each must be no older than weights and config, since the directory may have held an earlier save.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from eagle3_export.config import ExportConfig
from eagle3_export.convert import Conversion
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.errors import CheckpointError, Eagle3ExportError, StorageError
from eagle3_export.export import prepare_export
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.speculators_format.checkpoint import Checkpoint, read_checkpoint
from eagle3_export.speculators_format.run_files import BEST_LINK, INTERRUPTED, find_checkpoints
from eagle3_export.speculators_format.save_point import validation_metrics
from eagle3_export.storage.faults import expanded, shown
from eagle3_export.storage.fingerprint import newest_weights
from eagle3_export.storage.regular_file import read_json_object

logger = logging.getLogger(__name__)

Report = Callable[[Conversion], None]
FilesState = tuple[int | None, ...]


def watch_run(
    save_path: str | Path,
    config: ExportConfig,
    *,
    once: bool = False,
    stop_file: Path | None = None,
    interval: float = 2.0,
    report: Report = lambda conversion: None,
) -> bool:
    """Exports every complete checkpoint below `save_path`, and then each new one until told to end.

    SIGTERM, SIGINT or the appearance of `stop_file` end it, after one last look. What a former watch or callback has
    exported already is left alone; metrics that arrived since are filled in.

    Args:
        save_path: where the run saves its checkpoints.
        config: its `output_dir` says where exports go; default beside `save_path`.
        once: look once and end.
        stop_file: a file that is created when the run is over.
        interval: seconds between two looks.
        report: called with each new export and each failure, once.

    Returns:
        Whether every complete checkpoint has its export.

    Raises:
        UsageError: output directory and `save_path` lie one in the other, or another run's exports are there.
        CheckpointError: with `once`, `save_path` cannot be read.
        StorageError: another process exports to the same directory, or it cannot be made.
    """
    save_path = expanded(save_path)
    output_dir = config.resolve_output_dir(save_path)
    if once:
        find_checkpoints(save_path)
    output = OutputDirectory(output_dir, save_path, keep_last=config.keep_last)
    with output, _stop_on_signals() as stop:
        watcher = RunWatcher(save_path, output, config, report)
        if once:
            return watcher.look()
        while not stop.is_set() and not (stop_file is not None and stop_file.exists()):
            watcher.look()
            stop.wait(interval)
        return watcher.look()


class RunWatcher:
    """Compares a run with its exports."""

    def __init__(
        self, save_path: Path, output: OutputDirectory, config: ExportConfig, report: Report
    ) -> None:
        """Names the run and the directory of its exports.

        Args:
            save_path: where the run saves.
            output: where its exports go, entered.
            config: what to export, for which server.
            report: called with each new export and each failure, once.
        """
        self._save_path = save_path
        self._output = output
        self._config = config
        self._report = report
        # State of each checkpoint's files when it was last found in order, or failed and why.
        self._settled: dict[str, FilesState] = {}
        self._failures: dict[str, tuple[FilesState, Eagle3ExportError]] = {}

    def look(self) -> bool:
        """Exports what is complete and not exported, once; False if something of that failed."""
        well, changed = True, not self._settled
        for checkpoint in self._wanted():
            state = files_state(checkpoint)
            if state == self._settled.get(checkpoint.name) or not is_complete(checkpoint):
                continue
            try:
                changed = self._bring_up_to_date(checkpoint, state) or changed
                self._settled[checkpoint.name] = state
                self._failures.pop(checkpoint.name, None)
            except Eagle3ExportError as error:
                if checkpoint.is_dir():  # else the trainer's sweep was faster
                    self._failed(checkpoint.name, state, error)
                    well = False
        return (self._refresh() if changed else True) and well

    def _wanted(self) -> list[Path]:
        """The run's checkpoints, without those whose exports retention would remove at once."""
        try:
            checkpoints = find_checkpoints(self._save_path)
        except CheckpointError:
            return []  # the run has not saved yet
        old = self._output.outdated(checkpoints) - {_target(self._save_path / BEST_LINK)}
        return [checkpoint for checkpoint in checkpoints if checkpoint.name not in old]

    def _bring_up_to_date(self, checkpoint: Path, state: FilesState) -> bool:
        """Exports the checkpoint or adds its metrics; whether anything was to do."""
        read = read_checkpoint(checkpoint)
        if self._output.holds(checkpoint.name, read):
            return self._add_metrics(read)
        earlier = self._failures.get(checkpoint.name)
        if earlier and earlier[0] == state and not isinstance(earlier[1], StorageError):
            raise earlier[1]  # the same files fail for the same reason
        self._output.require_same_run()
        destination = self._output.path / checkpoint.name
        with prepare_export(read, destination, self._config) as prepared:
            result = prepared.run(self._output, replace=True, latest=False)
        self._report(Conversion(str(checkpoint), destination, result))
        return True

    def _add_metrics(self, checkpoint: Checkpoint) -> bool:
        """The trainer validates after it has saved, and writes the metrics of an epoch only if it becomes the best."""
        metrics, _ = validation_metrics(checkpoint)
        export = self._output.path / checkpoint.directory.name
        if metrics is None or read_metadata(export).full_acc_0 is not None:
            return False
        self._output.add_metrics(export.name, metrics)
        logger.info("%s: the metrics of its validation were filled in", shown(export))
        return True

    def _failed(self, name: str, state: FilesState, error: Eagle3ExportError) -> None:
        earlier = self._failures.get(name)
        self._failures[name] = (state, error)
        if earlier is None or (earlier[0], str(earlier[1])) != (state, str(error)):
            self._report(Conversion(str(self._save_path / name), None, error=error))

    def _refresh(self) -> bool:
        try:
            self._output.refresh()
        except Eagle3ExportError as error:
            logger.warning("%s", error)
            return False
        return True


def is_complete(checkpoint: Path) -> bool:
    """Whether the trainer has finished saving this checkpoint directory; see the table above."""
    weights, config = newest_weights(checkpoint), _modified(checkpoint / "config.json")
    if weights is None or config is None:
        return False
    model = max(weights, config)

    def follows(name: str) -> bool:
        modified = _modified(checkpoint / name)
        return modified is not None and modified >= model

    name, run = checkpoint.name, checkpoint.parent
    if name != INTERRUPTED:
        if follows("training_state.json"):
            marker = _epoch_marker(checkpoint)
            return marker is not None and _target(run / marker) == name
        if follows("val_metrics.json") and _target(run / BEST_LINK) == name:
            return True
        if _writes_training_state(checkpoint):
            return False
    return follows("optimizer_state_dict.pt")


def files_state(checkpoint: Path) -> FilesState:
    """Modification times of what an export is made from; None for a file that is missing."""
    documents = ("config.json", "training_state.json", "val_metrics.json", "optimizer_state_dict.pt")
    return (newest_weights(checkpoint), *(_modified(checkpoint / name) for name in documents))


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _target(link: Path) -> str | None:
    try:
        return link.readlink().name
    except OSError:
        return None


def _epoch_marker(checkpoint: Path) -> str | None:
    """The link that the trainer makes after this training state (speculators 0.9.0, `maybe_save_checkpoint`)."""
    try:
        state = read_json_object(checkpoint / "training_state.json")
    except CheckpointError:
        return None  # half-written
    local_step = state.get("local_step")
    return f"epoch{checkpoint.name}_step{local_step}" if local_step else f"epoch{checkpoint.name}_end"


def _writes_training_state(checkpoint: Path) -> bool:
    """Whether the release that saves here does: speculators 0.7.0 and later."""
    try:
        version = read_json_object(checkpoint / "config.json").get("speculators_version")
    except CheckpointError:
        return True  # half-written
    if not isinstance(version, str):
        return False
    major, minor, *_ = (*re.findall(r"\d+", version)[:2], "0", "0")
    return (int(major), int(minor)) >= (0, 7)


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, so that the export in hand is finished first."""
    stop = threading.Event()

    def request(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
