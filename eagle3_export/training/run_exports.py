"""The exports of one training run: one copy in flight, in order, and an account of what failed."""

from __future__ import annotations

import logging
import shlex
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from eagle3_export.config import ExportConfig
from eagle3_export.dashboards import log_export, log_failure, log_validation
from eagle3_export.errors import CheckpointError, Eagle3ExportError, IncompatibleDraftError, StorageError
from eagle3_export.estimates.acceptance import Coverage
from eagle3_export.export import PreparedExport, ValidationMetrics, prepare_export
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.speculators_format.checkpoint import Checkpoint, read_checkpoint
from eagle3_export.speculators_format.run_files import find_checkpoints
from eagle3_export.speculators_format.save_point import SavePoint
from eagle3_export.speculators_format.verifier import Verifier
from eagle3_export.storage.faults import shown
from eagle3_export.training.background import BackgroundQueue

logger = logging.getLogger("eagle3_export")


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint that the trainer has written.

    Attributes:
        name: of its directory: the epoch, or `interrupted`.
        moment: when in the run it was; None for one of an earlier run.
        seconds: what the trainer's own save took.
        whole: the save is known to have finished; else an unreadable checkpoint is no failure of ours.
    """

    name: str
    moment: SavePoint | None = None
    seconds: float | None = None
    whole: bool = True


class RunExports:
    """Exports the checkpoints of one run into one output directory.

    Its methods are for the training thread and return within milliseconds, `finish` and `wait_for` excepted. None
    raises for an export that fails: that is warned about, remembered and told again at the end.

    Attributes:
        failure: the first failure, None while there is none.
        refused: every export will be refused, and the user chose to train nevertheless: refusals are no failures.
        verifier: the target model's facts; None looks them up at each export.
        coverage: of the draft vocabulary over the run's text, None where unknown.
        saves_rewrite_in_place: a save may change the very file that an export of it still reads.
    """

    def __init__(self, config: ExportConfig, save_path: Path, output: OutputDirectory) -> None:
        self._config = config
        self._save_path = save_path
        self._output = output
        self._queue = BackgroundQueue("eagle3-export")
        self._opened = ExitStack()
        self._is_open = False
        self._saves: dict[str, Save] = {}
        self._isolated: set[str] = set()
        self._missing: dict[str, str] = {}
        self._news: deque[Callable[[int], None]] = deque()
        self.failure: Eagle3ExportError | None = None
        self.refused = False
        self.verifier: Verifier | None = None
        self.coverage: Coverage | None = None
        self.saves_rewrite_in_place = _saves_rewrite_in_place()

    def export(self, save: Save, metrics: ValidationMetrics | None = None) -> None:
        """Checks the checkpoint and holds its files open now; copies and publishes it in the background.

        Args:
            save: which checkpoint.
            metrics: of its own validation, or why there are none; None reads them from the checkpoint.
        """
        started = time.perf_counter()
        self._queue.drop(save.name)
        self._saves[save.name] = save
        try:
            prepared = self._prepare(save, read_checkpoint(self._save_path / save.name), metrics)
        except CheckpointError as error:
            self._failed(save.name, error, ours=save.whole and not self.refused)
            return
        except Exception as error:
            self._failed(save.name, error)
            return
        held = time.perf_counter() - started
        (self._isolated.add if prepared.sources.isolated else self._isolated.discard)(save.name)
        self._queue.submit(
            save.name,
            lambda: self._publish(save, prepared, held),
            discard=lambda: self._supersede(save, prepared),
        )

    def add_metrics(self, name: str, metrics: ValidationMetrics) -> None:
        """Writes the metrics of that export's own validation into it, once it is published."""
        self._queue.submit(name, lambda: self._update(name, metrics))

    def latest_save(self, name: str) -> Save | None:
        """The latest save of that name in this run."""
        return self._saves.get(name)

    def catch_up(self) -> None:
        """Exports in the background what an earlier run saved and did not export, and tidies up after it."""
        self._queue.submit("catching up", self._catch_up)

    def make_up(self, save: Save) -> None:
        """Exports in the background a checkpoint that is no longer written to, if it has no export."""
        self._saves[save.name] = save
        self._queue.submit(save.name, lambda: self._make_up(save))

    def show_news(self, step: int) -> None:
        """Sends what happened since the last call to the run's dashboards.

        From the training thread: mlflow knows the active run only in the thread that started it.

        Args:
            step: the trainer's global step now.
        """
        while self._news:
            self._news.popleft()(step)

    def wait_for(self, name: str, timeout: float) -> bool:
        """Block until no export reads the checkpoint of that name any more; False if that took too long.

        With a private clone of its files it does not from the start.
        """
        if name in self._isolated:
            return True
        return self._queue.wait(timeout, label=name)

    def finish(self, timeout: float) -> None:
        """Waits for what is in flight, then names the checkpoints that went without an export."""
        self._queue.submit("unlocking", self._close)
        if not self._queue.wait(timeout):
            reason = f"{shown(self._output.path)} did not take it within {timeout:.0f} s after the end of training."
            for name in self._saves.keys() & set(self._queue.labels()):
                self._failed(name, StorageError(reason))
        if self._missing:
            lines = "".join(f"\n  {name}: {reason}" for name, reason in list(self._missing.items()))
            run = shlex.join([shown(self._save_path), shown(self._output.path)])
            remedy = f"eagle3-export convert --all {run}"
            logger.warning(
                "Checkpoints without an export of their last state:%s\nTo make up for it: %s", lines, remedy
            )

    def _prepare(
        self, save: Save, checkpoint: Checkpoint, metrics: ValidationMetrics | None = None
    ) -> PreparedExport:
        return prepare_export(
            checkpoint,
            self._output.path / save.name,
            self._config,
            verifier=self.verifier,
            coverage=self.coverage,
            moment=save.moment,
            metrics=metrics,
            isolate=self.saves_rewrite_in_place,
        )

    def _publish(self, save: Save, prepared: PreparedExport, held: float) -> None:
        started = time.perf_counter()
        try:
            with prepared:
                self._open()
                result = prepared.run(self._output, replace=True, latest=save.moment is not None)
            self._missing.pop(save.name, None)
            self._news.append(lambda step: log_export(result.metadata, result.directory, step=step))
        except Exception as error:
            self._failed(save.name, error, ours=save.whole)
            return
        own = "" if save.seconds is None else f", the trainer's own save took {save.seconds * 1e3:.1f} ms"
        logger.info(
            "Exported %s: training was held for %.1f ms%s; in the background the weights took %.1f ms (%s) and the"
            " whole export %.1f ms.",
            result.directory,
            held * 1e3,
            own,
            result.written.seconds * 1e3,
            result.written.method,
            (time.perf_counter() - started) * 1e3,
        )

    def _supersede(self, save: Save, prepared: PreparedExport) -> None:
        prepared.close()
        logger.info("%s was saved again before its export began: only the newer is exported.", save.name)

    def _update(self, name: str, metrics: ValidationMetrics) -> None:
        if name in self._missing:
            return
        try:
            self._open()
            metadata = self._output.add_metrics(
                name, metrics.values, replay=metrics.replay, no_replay=metrics.no_replay
            )
            self._news.append(lambda step: log_validation(metadata, step=step))
        except Exception as error:
            self._failed(name, error)

    def _catch_up(self) -> None:
        try:
            checkpoints = find_checkpoints(self._save_path)
        except Eagle3ExportError:
            return  # nothing was saved yet
        try:
            if self._output.path.is_dir():
                self._open()
                self._output.refresh()
        except Exception as error:
            logger.warning("Tidying up %s failed: %s", shown(self._output.path), error)
        old = self._output.outdated(checkpoints)
        for checkpoint in checkpoints:
            if (
                checkpoint.name not in old and checkpoint.name not in self._saves
            ):  # else this run has saved it anew
                self._make_up(Save(checkpoint.name, whole=False))

    def _make_up(self, save: Save) -> None:
        try:
            checkpoint = read_checkpoint(self._save_path / save.name)
            if self._output.holds(save.name, checkpoint):
                return
            logger.info("%s has no export yet: exporting it.", checkpoint.directory)
            prepared = self._prepare(save, checkpoint)
        except Exception as error:
            self._failed(save.name, error, ours=False)
            return
        self._publish(save, prepared, held=0.0)

    def _open(self) -> None:
        """Done by the first job; the directory is held until the run ends."""
        if not self._is_open:
            self._opened.enter_context(self._output)
            self._is_open = True

    def _close(self) -> None:
        self._opened.close()
        self._is_open = False

    def _failed(self, name: str, error: Exception, *, ours: bool = True) -> None:
        self._missing[name] = str(error)
        self._news.append(lambda step: log_failure(f"{name}: {error}", step=step))
        if not ours or (self.refused and isinstance(error, IncompatibleDraftError)):
            logger.warning("%s was not exported: %s", name, error)
            return
        known = isinstance(error, Eagle3ExportError | OSError)
        logger.warning("Exporting %s failed: %s", name, error, exc_info=None if known else error)
        if self.failure is None:
            reason = str(error) if known else repr(error)
            self.failure = StorageError(f"Exporting {self._save_path / name} failed: {reason}")


def _saves_rewrite_in_place() -> bool:
    """safetensors before 0.8 rewrites an existing file in place; from 0.8 on it replaces it by rename."""
    from importlib.metadata import version

    from packaging.version import Version

    return Version(version("safetensors")) < Version("0.8")
