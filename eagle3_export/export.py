"""One export, start to finish. Each step calls one package or module (its room):

=========  ======================  =============================================
read       `speculators_format/`   config and tensor index; no tensor is loaded
check      `compatibility/`        findings; what cannot be served is refused
translate  `sglang/`               names and config, decided by `compatibility.plan`
write      `storage/`              the bytes, in a directory beside the final one
describe   `documents/`            metadata.json and the model card
publish    `output_directory`      one rename, then index and pointers
=========  ======================  =============================================

The callback, `convert` and `watch` all go through here. `prepare_export` reads, checks and translates, and holds the
source files open; the training thread waits for it. `PreparedExport.run` does the rest and may run in a background
thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from eagle3_export.compatibility.findings import Finding
from eagle3_export.compatibility.plan import ServingPlan, plan_serving
from eagle3_export.config import ExportConfig
from eagle3_export.description import described_serving, described_source
from eagle3_export.documents.files import (
    CONFIG_FILE,
    METADATA_FILE,
    MODEL_CARD_FILE,
    WEIGHTS_FILE,
)
from eagle3_export.documents.json_files import to_json
from eagle3_export.documents.metadata import build_metadata
from eagle3_export.documents.model_card import render_model_card
from eagle3_export.documents.schema import ExportMetadata, RunRecord, Weights
from eagle3_export.errors import CheckpointError, StorageError, UsageError
from eagle3_export.estimates.acceptance import AccuracySource, Coverage
from eagle3_export.estimates.replay import Replay
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.checkpoint import Checkpoint, read_checkpoint
from eagle3_export.speculators_format.run_files import frequencies_file, is_save_path
from eagle3_export.speculators_format.run_logs import logged_validation
from eagle3_export.speculators_format.save_point import NOT_WRITTEN, SavePoint, save_point, validation_metrics
from eagle3_export.speculators_format.token_frequencies import run_coverage
from eagle3_export.speculators_format.verifier import Verifier, VerifierSearch, find_verifier
from eagle3_export.speculators_format.vocabulary import vocabulary_offsets
from eagle3_export.storage.copy import WriteReport
from eagle3_export.storage.faults import os_errors, resolved, shown
from eagle3_export.storage.fingerprint import WeightsFingerprint, weights_fingerprint
from eagle3_export.storage.safetensors_file import TensorSource
from eagle3_export.storage.sources import PinnedSources, open_sources
from eagle3_export.storage.write import write_and_scan


@dataclass(frozen=True)
class ExportResult:
    """One published export.

    Attributes:
        directory: where it is.
        metadata: what its metadata.json says.
        findings: what the checks found, *incompatible* never among them.
        written: how its weights were written.

    Example:
        >>> result = export_checkpoint("output/checkpoints/3", "exports/3")
        >>> print(result.directory, [finding.id for finding in result.findings])
        exports/3 ['verifier-unknown']
    """

    directory: Path
    metadata: ExportMetadata
    findings: tuple[Finding, ...]
    written: WriteReport


@dataclass(frozen=True)
class ValidationMetrics:
    """The trainer's metrics of exactly this checkpoint, or why there are none.

    Attributes:
        values: as the trainer returns them (`full_acc_0`, `cond_acc_0` ...), in [0, 1]; None where there are none.
        missing_reason: why there are none.
        source: "validation", or "training" for the training metrics that stand in where a run has no validation.
        replay: what a replay of that validation counted, or None.
        no_replay: why `replay` is None.
        file: the log that they were read from; None where the trainer or the checkpoint has them.

    Example:
        >>> ValidationMetrics({"full_acc_0": 0.8, "full_acc_1": 0.6}).source
        'validation'
        >>> ValidationMetrics(None, "The run has no validation data.").values
    """

    values: Mapping[str, Any] | None
    missing_reason: str | None = None
    source: AccuracySource = "validation"
    replay: Replay | None = None
    no_replay: str | None = None
    file: str | None = None


@dataclass
class PreparedExport:
    """An export that has been checked and whose source files are held open. A context manager."""

    checkpoint: Checkpoint
    plan: ServingPlan
    destination: Path
    config: ExportConfig
    save_point: SavePoint
    metrics: ValidationMetrics
    coverage: Coverage | None
    tensors: list[tuple[str, TensorSource]]
    sources: PinnedSources

    def run(self, output: OutputDirectory, *, replace: bool, latest: bool = True) -> ExportResult:
        """Writes, scans, describes and publishes; the sources are let go of in any case.

        Args:
            output: the directory of the destination, entered.
            replace: an export that stands at the destination is replaced by it, in one rename.
            latest: it is the newest of its run.

        Raises:
            StorageError: the bytes could not be read, written or published, or what stands at the destination
                is no export of this run; nothing is left behind.
            CheckpointError: a tensor that SGLang would read holds NaN or infinity.
            UsageError: the destination lies in the checkpoint or its run, or the other way round.
        """
        name = self.destination.name
        with os_errors("Exporting to", self.destination), self.sources:
            _require_apart(self.destination, self.checkpoint.directory)
            fingerprint = weights_fingerprint(
                (source.file for source in self.checkpoint.tensors.values()), self.sources
            )
            with output.staging(name, replace=replace) as staged:
                written, digest = self._write(staged)
                metadata = self._describe(written, digest, fingerprint, output.run)
                _write_documents(staged, self.plan.config, metadata)
                output.publish(staged, name, replace=replace, latest=latest)
        return ExportResult(self.destination, metadata, tuple(self.plan.findings), written)

    def _write(self, staged: Path) -> tuple[WriteReport, str | None]:
        written, non_finite, digest = write_and_scan(
            staged / WEIGHTS_FILE, self.tensors, metadata={"format": "pt"}, sources=self.sources
        )
        _require_finite(non_finite, self.checkpoint.directory)
        return written, digest

    def close(self) -> None:
        """Lets the source files go without exporting."""
        self.sources.close()

    def __enter__(self) -> PreparedExport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _describe(
        self,
        written: WriteReport,
        digest: str | None,
        fingerprint: WeightsFingerprint,
        run: RunRecord | None,
    ) -> ExportMetadata:
        plan = self.plan
        return build_metadata(
            name=shown(self.destination.name),
            epoch=self.save_point.epoch,
            global_step=self.save_point.global_step,
            sglang=described_serving(plan, self.config.sglang_version),
            source=described_source(self.checkpoint, self.save_point, fingerprint),
            weights=Weights(
                tensors=len(self.tensors),
                bytes=written.bytes_total,
                dtype=plan.config["dtype"],
                copy_method=written.method,
                bytes_copied=written.bytes_copied,
                embed_tokens=self._embedding(),
                seconds=written.seconds,
                digest=digest,
            ),
            metrics=self.metrics.values,
            metrics_source=self.metrics.source,
            metrics_missing_reason=self.metrics.missing_reason,
            metrics_file=self.metrics.file,
            replay=self.metrics.replay,
            no_replay=self.metrics.no_replay,
            num_steps=self.config.num_steps,
            coverage=self.coverage,
            run=run,
        )

    def _embedding(self) -> Any:
        if "embed_tokens.weight" in self.plan.names:
            return "kept"
        return "dropped" if "embed_tokens.weight" in self.checkpoint.tensors else "absent"


def prepare_export(
    checkpoint: Checkpoint,
    destination: str | Path,
    config: ExportConfig,
    *,
    verifier: Verifier | None = None,
    moment: SavePoint | None = None,
    metrics: ValidationMetrics | None = None,
    coverage: Coverage | None = None,
    isolate: bool = False,
) -> PreparedExport:
    """Reads, checks and translates a checkpoint and holds its files open; no tensor is loaded, nothing is written.

    Args:
        checkpoint: as `read_checkpoint` read it.
        destination: the directory that the export becomes.
        config: what to export, for which server.
        verifier: the target model's facts; None looks them up where the checkpoint points to.
        moment: the save point, where the trainer is at hand to tell it; None reads it from the checkpoint.
        metrics: its own validation's metrics; None reads them from the checkpoint.
        coverage: of the draft vocabulary over the run's text. None, and no `moment` either: read from the run's files.
        isolate: works on private clones of the checkpoint's files where the export's filesystem can make them, for a
            trainer that rewrites its files in place. They have no name and vanish with the process.

    Raises:
        IncompatibleDraftError: the chosen SGLang release and runtime cannot serve it as trained.
        StorageError: its files cannot be held open, or have changed since they were read.
    """
    destination = Path(destination)
    plan = _checked(checkpoint, config, verifier)
    if coverage is None and moment is None:
        frequencies = frequencies_file(checkpoint.directory.parent)
        coverage = run_coverage(frequencies, vocabulary_offsets(checkpoint.tensors))
    return PreparedExport(
        checkpoint=checkpoint,
        plan=plan,
        destination=destination,
        config=config,
        save_point=moment or save_point(checkpoint),
        metrics=metrics or _recorded_metrics(checkpoint),
        coverage=coverage,
        tensors=[(new, checkpoint.tensors[old]) for old, new in plan.names.items()],
        sources=open_sources(
            list(checkpoint.tensors.items()), clone_beside=destination.parent if isolate else None
        ),
    )


def _recorded_metrics(checkpoint: Checkpoint) -> ValidationMetrics:
    """Those of val_metrics.json, else those that the run logged of exactly this save."""
    values, reason = validation_metrics(checkpoint)
    if values is not None or reason != NOT_WRITTEN:
        return ValidationMetrics(values, reason)
    point = save_point(checkpoint)
    logged, no_log = logged_validation(checkpoint.directory.parent, point.epoch, point.global_step)
    if logged is None:
        return ValidationMetrics(None, " ".join(filter(None, (reason, no_log))))
    return ValidationMetrics(logged.values, file=shown(logged.file))


def _checked(checkpoint: Checkpoint, config: ExportConfig, verifier: Verifier | None) -> ServingPlan:
    """How SGLang serves the draft: the findings, and its names and config translated."""
    name = checkpoint.draft.verifier_name
    search = (
        VerifierSearch(name, verifier) if verifier else find_verifier(name, checkpoint=checkpoint.directory)
    )
    target = ServingTarget.found(config.sglang_version, config.runtime, search)
    plan = plan_serving(checkpoint, target, keep_embed_tokens=config.embed_tokens == "keep")
    plan.raise_if_incompatible()
    return plan


def export_checkpoint(
    checkpoint_path: str | Path,
    destination: str | Path,
    config: ExportConfig | None = None,
    *,
    overwrite: bool = False,
) -> ExportResult:
    """Exports one checkpoint to the directory `destination`, in one rename: all of it or none.

    It needs neither torch nor speculators. The checkpoint's own val_metrics.json and training_state.json say how good
    the draft is and when it was saved.

    Where `destination` lies in the output directory of a run, the checkpoint has to be of the same run, and index and
    pointers follow.

    Args:
        checkpoint_path: the directory of a speculators checkpoint, a link to one, or the id of one in the hub's cache.
        destination: the directory that the export becomes. It must lie outside of the checkpoint.
        config: the `sglang_export:` block; its defaults where None. `output_dir` and `keep_last` have no effect here.
        overwrite: an export that stands at the destination is replaced.

    Returns:
        The published export: where it is, what its metadata.json says, and what to know before serving it.

    Raises:
        CheckpointError: the checkpoint is missing, malformed or contradicts itself, or holds NaN or infinity.
        IncompatibleDraftError: the chosen SGLang release and runtime cannot serve it as trained.
        StorageError: something is in the way at the destination, somebody exports to its directory now, or the bytes
            could not be read or written.
        UsageError: the destination lies in the checkpoint or its run, or among another run's exports, or `config` names
            no SGLang release.

    Example:
        >>> result = export_checkpoint("output/checkpoints/3", "exports/3", ExportConfig(num_steps=(3,)))
        >>> result.metadata.estimated_acceptance_length
        2.9
    """
    destination = Path(destination)
    if not overwrite and os.path.lexists(destination):
        raise StorageError(
            f"{shown(destination)} exists.",
            why="A published export never changes.",
            remedy="Choose another directory, or pass --overwrite to replace it.",
        )
    checkpoint = read_checkpoint(checkpoint_path)
    with prepare_export(checkpoint, destination, config or ExportConfig()) as prepared:
        _require_apart(destination, checkpoint.directory)
        with OutputDirectory.around(destination, checkpoint.directory) as output:
            return prepared.run(output, replace=overwrite, latest=False)


def _require_apart(destination: Path, checkpoint: Path) -> None:
    """Keeps an export out of the checkpoint that it is made from, and out of the trainer's save_path."""
    real = resolved(destination)
    if real == checkpoint or checkpoint in real.parents or real in checkpoint.parents:
        raise UsageError(
            f"{shown(destination)} and the checkpoint {shown(checkpoint)} lie one in the other.",
            why="A checkpoint is never touched.",
            remedy="Choose a directory outside of it.",
        )
    if checkpoint.parent in real.parents and is_save_path(checkpoint.parent):
        raise UsageError(
            f"{shown(destination)} lies in the trainer's save_path {shown(checkpoint.parent)}.",
            why="The trainer deletes what it does not know there and resumes from numbered directories.",
            remedy="Choose a directory outside of it.",
        )


def _require_finite(names: list[str], directory: Path) -> None:
    if not names:
        return
    remedy = "Resume from an earlier checkpoint; the training has diverged or never loaded these weights."
    if names == ["embed_tokens.weight"]:
        remedy = (
            "Export with embed_tokens: drop (SGLang uses the target's embedding), or check the verifier path."
        )
    raise CheckpointError(
        f"{directory}: NaN or infinite values in {', '.join(names)}.",
        why="SGLang would load them and accept nothing.",
        remedy=remedy,
    )


def _write_documents(staged: Path, config: Mapping[str, Any], metadata: ExportMetadata) -> None:
    content = json.dumps(config, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    with os_errors("Writing the documents to", staged):
        (staged / CONFIG_FILE).write_text(content, encoding="utf-8")
        (staged / METADATA_FILE).write_bytes(to_json(metadata))
        (staged / MODEL_CARD_FILE).write_text(render_model_card(metadata), encoding="utf-8")
