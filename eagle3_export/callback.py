"""The trainer's life: notices each save and each validation of a speculators trainer and has it exported."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_export.compatibility.plan import raise_if_incompatible
from eagle3_export.config import ExportConfig
from eagle3_export.errors import (
    CheckpointError,
    Eagle3ExportError,
    IncompatibleDraftError,
    UsageError,
)
from eagle3_export.export import ValidationMetrics
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.speculators_format.run_files import INTERRUPTED, frequencies_file
from eagle3_export.speculators_format.save_point import INTERRUPTED_RUN, MID_EPOCH, SavePoint
from eagle3_export.speculators_format.token_frequencies import run_coverage
from eagle3_export.training.hollow_checkpoint import check_before_training
from eagle3_export.training.hooks import require_hooks, wrap
from eagle3_export.training.interrupts import deferred_interrupts
from eagle3_export.training.ranks import CommonStop, RankZeroBoard
from eagle3_export.training.replay import ValidationReplay
from eagle3_export.training.run_exports import RunExports, Save
from eagle3_export.training.trainer_metrics import RecentTraining, counted_positions

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("eagle3_export")

MARK = "_sglang_export_callback"

NOT_YET = "The validation of this epoch has not finished."
NO_VALIDATION = "The run has no validation data."

# How long the end of a run waits for the exports in flight.
END_OF_RUN_SECONDS = 600.0
INTERRUPTED_SECONDS = 100.0  # counted from the trainer's last save, whose budget is 120 s (graceful_shutdown)
CRASHED_SECONDS = 30.0
# How long the start of a run waits for the output directory to say whose exports it holds.
SAME_RUN_SECONDS = 10.0
# How long a save waits for an export that reads the very file it is about to rewrite in place.
REWRITE_SECONDS = 60.0


class SGLangExportCallback:
    """Exports every checkpoint that a speculators trainer saves.

    Attach it on every rank. Only global rank 0 reads checkpoints, writes exports and logs; no rank enters a collective
    for it. A save holds the training thread for a few milliseconds and the copy runs in the background. `run_training`
    returns once the last export is done; nothing is to be called at the end.

    Attributes:
        attached: whether it watches a trainer, or has watched one.

    Example:
        The `sglang_export:` block of a YAML file becomes a config with `ExportConfig.from_yaml`.

        ```python
        callback = SGLangExportCallback(ExportConfig.from_yaml("run.yaml"))
        callback.attach(trainer)  # a speculators.train.trainer.Trainer; raises if no draft could be served
        trainer.run_training()
        ```
    """

    def __init__(self, config: ExportConfig | None = None) -> None:
        """Takes the `sglang_export:` block, or its defaults where `config` is None."""
        self._config = config or ExportConfig()
        self.attached = False
        self._trainer_reference: Callable[[], Any] = lambda: None
        self._exports: RunExports | None = None
        self._board: RankZeroBoard | None = None
        self._stop: CommonStop | None = None
        self._unexported: dict[str, Save] = {}
        self._epoch: int | None = None
        self._replay: ValidationReplay | None = None
        self._validation = ValidationMetrics(None, NOT_YET)
        self._recent = RecentTraining()
        self._last_step = 0
        self._interrupted_at: float | None = None

    @property
    def _trainer(self) -> Any:
        return self._trainer_reference()

    def attach(self, trainer: Any, *, finish_after_training: bool = True) -> Self:
        """Watches this trainer from now on. Every rank calls it, before `run_training`.

        Args:
            trainer: a `speculators.train.trainer.Trainer` of speculators 0.8 or 0.9.
            finish_after_training: `run_training` waits for the last exports before it returns. If False, call
                `finish` yourself, best once the process group is gone.

        Raises:
            UsageError: not such a trainer, attached already, a release without these hooks, or an output directory
                inside the trainer's save path.
            IncompatibleDraftError: `on_incompatible: error`, and no draft of this trainer could be served as
                trained. Other ranks than 0 raise Eagle3ExportError with the same text.
        """
        require_hooks(trainer)
        if self.attached or getattr(trainer, MARK, None) is not None:
            raise UsageError(
                "The export is attached already.", remedy="Attach one callback to one trainer, once."
            )
        if trainer.is_distributed:
            self._board = RankZeroBoard(trainer.rank)
        self._prepare_together(trainer)
        self.attached = True
        # Speculators frees the trainer while exports are still in flight.
        self._trainer_reference = weakref.ref(trainer)
        setattr(trainer, MARK, self)
        self._replay = ValidationReplay(
            trainer,
            self._config.num_steps,
            replay_num_steps=self._config.replay_num_steps,
            board=self._board,
        )
        if self._exports is not None:
            self._watch_saves(trainer)
        else:
            wrap(trainer, "val_epoch", self._around_others_val_epoch)
        if self._config.on_failure == "raise":
            self._stop = CommonStop(self._board, lambda: self._exports.failure if self._exports else None)
            self._watch_for_stop(trainer, self._stop)
        self._watch_end(trainer, finish_after_training)
        return self

    def finish(self) -> None:
        """Waits for the exports in flight and says which are missing. `run_training` calls it.

        Raises:
            Eagle3ExportError: `on_failure: raise`, and an export failed; on every rank, with the same text.
        """
        if self._exports is not None:
            self._export()
            self._exports.finish(self._patience())
            self._exports.show_news(self._last_step)
        if self._stop is not None:
            self._stop.end_together(others_wait=self._interrupted_at is None)

    def _patience(self) -> float:
        """Seconds that the end of the run may wait for exports."""
        if self._interrupted_at is None:
            return END_OF_RUN_SECONDS
        return max(1.0, self._interrupted_at + INTERRUPTED_SECONDS - time.monotonic())

    # Before the first step ------------------------------------------------------------------------------------

    def _prepare_together(self, trainer: Any) -> None:
        """Rank 0 decides whether the run starts; the others hear its verdict."""
        if trainer.rank != 0:
            if self._board is not None and (refusal := self._board.await_text("start")):
                raise Eagle3ExportError(refusal)
            return
        verdict = "Rank 0 could not prepare the export."
        try:
            self._exports = self._prepare(trainer)
            verdict = ""
        except Eagle3ExportError as error:
            verdict = str(error)
            raise
        finally:
            if self._board is not None:
                self._board.write("start", verdict)
                if verdict:
                    self._board.await_readers("start")

    def _prepare(self, trainer: Any) -> RunExports:
        save_path = Path(trainer.checkpointer.path).absolute()  # the trainer takes a `~` for a name
        resumed = trainer.resume_from_checkpoint and getattr(trainer.checkpointer, "previous_epoch", -1) != -1
        output = OutputDirectory(
            self._config.resolve_output_dir(save_path),
            save_path,
            keep_last=self._config.keep_last,
            fresh=not resumed and trainer.global_step == 0,
        )
        _require_same_run(output)
        exports = RunExports(self._config, save_path, output)
        try:
            findings, exports.verifier = check_before_training(trainer.model, self._config)
            offsets = getattr(getattr(trainer.model, "module", trainer.model), "d2t", None)
            exports.coverage = run_coverage(
                frequencies_file(save_path), None if offsets is None else offsets.tolist()
            )
            for finding in findings:
                if finding.level != "incompatible":
                    level = logging.INFO if finding.level == "info" else logging.WARNING
                    logger.log(
                        level, "%s [%s]: %s %s", finding.id, finding.level, finding.cause, finding.remedy
                    )
            raise_if_incompatible(findings)
        except (IncompatibleDraftError, CheckpointError) as error:
            if self._config.on_incompatible == "error":
                raise
            exports.refused = True
            logger.warning("Training goes on although nothing can be exported: %s", error)
        return exports

    # Saves and validations, rank 0 only -----------------------------------------------------------------------

    def _watch_saves(self, trainer: Any) -> None:
        wrap(trainer.checkpointer, "save_checkpoint", self._around_save)
        wrap(trainer, "train_epoch", self._around_train_epoch)
        wrap(trainer, "maybe_save_checkpoint", self._around_maybe_save)
        wrap(trainer, "val_epoch", self._around_val_epoch)
        wrap(trainer, "maybe_update_best", self._around_maybe_update_best)
        if trainer.resume_from_checkpoint and self._exports is not None:
            self._exports.catch_up()

    def _around_train_epoch(self, original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        assert self._exports is not None
        self._epoch = arguments["epoch"]
        with _without_harm_to_training():
            self._exports.show_news(self._trainer.global_step)
        if self._trainer.val_loader is not None:
            return original()
        with self._recent.listening():
            return original()

    def _around_save(self, original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """Every save passes here, whoever asked for it; scheduler and training state are written after it."""
        assert self._exports is not None
        name = str(arguments["epoch"])
        if self._exports.saves_rewrite_in_place:
            self._exports.wait_for(name, REWRITE_SECONDS)
        # An interrupt may leave the checkpoint on disk, whole or not, and of an unknown step.
        self._unexported[name] = Save(name, SavePoint("unknown", self._epoch, None, None), whole=False)
        started = time.perf_counter()
        result = original()
        moment = SavePoint("unknown", self._epoch, None, self._trainer.global_step)
        self._unexported[name] = Save(name, moment, time.perf_counter() - started)
        return result

    def _around_maybe_save(self, original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        assert self._exports is not None
        name, local_step = str(arguments["epoch"]), arguments.get("local_step", 0)
        if name == INTERRUPTED:
            self._interrupted_at = time.monotonic()
        result = original()
        with _without_harm_to_training():
            self._exports.show_news(self._trainer.global_step)
            if name == INTERRUPTED:
                self._export(name, "interrupted", None, metrics=ValidationMetrics(None, INTERRUPTED_RUN))
            elif local_step:
                self._export(name, "mid_epoch", local_step, metrics=ValidationMetrics(None, MID_EPOCH))
            else:
                metrics = ValidationMetrics(None, NOT_YET)
                if self._trainer.val_loader is None:
                    metrics = ValidationMetrics(self._recent.average(), NO_VALIDATION, "training")
                self._export(name, "end_of_epoch", 0, metrics=metrics)
        return result

    def _around_val_epoch(self, original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        assert self._replay is not None
        loader = self._trainer.val_loader
        self._validation = ValidationMetrics(None, NOT_YET)
        with (
            counted_positions(0 if loader is None else len(loader)) as positions,
            self._replay.watching(),
        ):
            metrics = original()
        with _without_harm_to_training():
            if metrics:
                replayed = self._replay.result()
                self._validation = ValidationMetrics(
                    {**metrics, **positions}, replay=replayed.record(), no_replay=replayed.reason
                )
                self._validated(str(arguments["epoch"]))
        return metrics

    def _around_others_val_epoch(self, original: Callable[..., Any], _: Mapping[str, Any]) -> Any:
        """On the other ranks, which hand their counts to rank 0."""
        assert self._replay is not None
        with self._replay.watching():
            return original()

    def _validated(self, name: str) -> None:
        """Keeps the metrics only if the weights have not changed since the save: `global_step` is still the same."""
        assert self._exports is not None
        save = self._exports.latest_save(name)
        if save and save.moment and save.moment.global_step == self._trainer.global_step:
            self._exports.add_metrics(name, self._validation)

    def _around_maybe_update_best(self, original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        """With `--save-best` the save happens in here, after its validation and before the trainer's sweep."""
        result = original()
        metrics = self._validation if arguments["val_metrics"] else ValidationMetrics(None, NOT_YET)
        with _without_harm_to_training():
            self._export(str(arguments["epoch"]), "best", 0, metrics=metrics)
        return result

    def _export(
        self, name: str | None = None, kind: Any = None, local_step: int | None = None, **how: Any
    ) -> None:
        """Exports every save that has not been exported yet.

        Normally that is the save called `name`; a save whose hook was cut off by an interrupt is made up for here.
        """
        assert self._exports is not None
        while self._unexported:
            save = self._unexported.pop(next(iter(self._unexported)))
            if save.name == name and save.whole and save.moment is not None:
                moment = replace(save.moment, kind=kind, local_step=local_step)
                self._exports.export(replace(save, moment=moment), **how)
            elif save.whole:
                self._exports.export(save, metrics=ValidationMetrics(None, INTERRUPTED_RUN))
            else:
                self._exports.make_up(save)

    # The end --------------------------------------------------------------------------------------------------

    def _watch_for_stop(self, trainer: Any, stop: CommonStop) -> None:
        """Places that every rank passes in the same order, with a synchronisation of the trainer's own between."""

        def around(original: Callable[..., Any], _: Mapping[str, Any]) -> Any:
            stop.check()
            return original()

        trainer.optimizers[-1].register_step_post_hook(lambda *_: stop.check())
        wrap(trainer, "val_epoch", around)
        wrap(trainer, "maybe_update_best", around)
        wrap(trainer, "maybe_save_checkpoint", self._around_maybe_interrupted)

    def _around_maybe_interrupted(self, original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        if arguments["epoch"] == INTERRUPTED:
            self._interrupted_at = time.monotonic()
        return original()

    def _watch_end(self, trainer: Any, finish_after_training: bool) -> None:
        def around(original: Callable[..., Any], _: Mapping[str, Any]) -> Any:
            self._interrupted_at = None
            try:
                result = original()
            except Exception:
                if self._exports is not None:
                    with _without_harm_to_training():
                        self._export()
                    self._exports.finish(CRASHED_SECONDS)
                raise
            finally:
                self._last_step = trainer.global_step
            if finish_after_training:
                self.finish()
            return result

        wrap(trainer, "run_training", around)


def _require_same_run(output: OutputDirectory) -> None:
    """Refuses an output directory that holds another run's exports.

    On a thread of its own: a filesystem that hangs does not keep the run from its first step, and a directory that
    cannot be read fails the exports, not the run. The first export asks again.

    Raises:
        UsageError: another run's exports are there.
    """
    refusals: list[UsageError] = []

    def check() -> None:
        try:
            output.require_same_run()
        except UsageError as error:
            refusals.append(error)
        except Exception as error:
            logger.debug("Whose exports are in %s could not be told: %s", output.path, error)

    thread = threading.Thread(target=check, name="eagle3-export-same-run", daemon=True)
    thread.start()
    thread.join(SAME_RUN_SECONDS)
    if refusals:
        raise refusals[0]
    if thread.is_alive():
        logger.warning("%s does not answer; training starts, and the exports wait for it.", output.path)


@contextmanager
def _without_harm_to_training() -> Iterator[None]:
    """Our own code inside a hook: interrupts come after it, and an error of ours ends in the log."""
    with deferred_interrupts():
        try:
            yield
        except Exception:
            logger.exception("The export hook failed; training goes on.")
