"""`metadata.json` of an export: built when it is written, completed when validation or a server has spoken."""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata as installed
from typing import Any

from eagle3_export._version import __version__
from eagle3_export.compatibility.text_rules import OTHER_TEXT_ID, other_text
from eagle3_export.documents.json_files import utc_now
from eagle3_export.documents.measurements import measured_section, measurements_of, with_newest
from eagle3_export.documents.schema import (
    ExportMetadata,
    FindingRecord,
    Measurement,
    RunRecord,
    Serving,
    Source,
    Weights,
)
from eagle3_export.estimates.acceptance import (
    ESTIMATED_DEPTHS,
    NO_REPLAY,
    AccuracySource,
    Coverage,
    estimate_acceptance,
    trained_steps,
)
from eagle3_export.estimates.accuracies import step_accuracies
from eagle3_export.estimates.chain import NO_ACCURACIES
from eagle3_export.estimates.reasons import explained
from eagle3_export.estimates.replay import Replay

NO_RUN = "It was not exported to the output directory of a run."
NOT_VALIDATED = "This checkpoint has not been validated yet."
NOT_MEASURED = "Not measured on a server yet; `eagle3-export measure` does it."


def build_metadata(
    *,
    name: str,
    epoch: int | None,
    global_step: int | None,
    sglang: Serving,
    source: Source,
    weights: Weights,
    metrics: Mapping[str, Any] | None = None,
    metrics_source: AccuracySource = "validation",
    metrics_missing_reason: str | None = None,
    metrics_file: str | None = None,
    num_steps: Sequence[int] = ESTIMATED_DEPTHS,
    coverage: Coverage | None = None,
    replay: Replay | None = None,
    no_replay: str | None = None,
    versions: Mapping[str, str] | None = None,
    run: RunRecord | None = None,
) -> ExportMetadata:
    """Describes one export.

    Args:
        name: the export's directory name.
        epoch: epoch of the checkpoint, or None where it does not say.
        global_step: optimizer steps before the save, or None.
        sglang: how SGLang serves it.
        source: the checkpoint it was made from.
        weights: its tensor file.
        metrics: the trainer's metrics of exactly this checkpoint, or None where there are none (yet).
        metrics_source: validation, or training for the fallback of runs without validation.
        metrics_missing_reason: why there are none; default: not validated yet.
        metrics_file: the log that they were read from, where it was one.
        num_steps: draft depths to estimate for.
        coverage: of the draft vocabulary over the run's text, where known.
        replay: the walk over its validation text, where there was one.
        no_replay: why there was none.
        versions: default: those of `loaded_versions`.
        run: the training run it is of.
    """
    values = {"epoch": epoch, "global_step": global_step, "measured": None, "run": run}
    reasons = explained(
        values,
        {"measured": NOT_MEASURED, "run": NO_RUN},
        "The checkpoint has no readable training_state.json.",
    )
    acceptance = _acceptance_values(
        metrics,
        metrics_source,
        metrics_missing_reason or NOT_VALIDATED,
        num_steps,
        coverage,
        reasons,
        replay,
        no_replay,
    )
    if metrics_file is not None:
        told = [
            f"The accuracies were read from the run's log {metrics_file}.",
            *acceptance["acceptance"].assumptions,
        ]
        acceptance["acceptance"] = replace(acceptance["acceptance"], assumptions=told)
    return ExportMetadata(
        **values,
        name=name,
        created_at=utc_now(),
        sglang=_with_text_finding(sglang, replay),
        source=source,
        weights=weights,
        versions=dict(versions if versions is not None else loaded_versions()),
        **acceptance,
    )


def with_metrics(
    metadata: ExportMetadata,
    metrics: Mapping[str, Any] | None,
    *,
    source: AccuracySource = "validation",
    missing_reason: str = NOT_VALIDATED,
    replay: Replay | None = None,
    no_replay: str | None = None,
) -> ExportMetadata:
    """Returns the same export with the accuracies that its own validation, or its training, measured.

    Args:
        metadata: of the export; it stays as it is.
        metrics: the trainer's, None if it turned out that there are none.
        source: where they come from.
        missing_reason: why there are none.
        replay: the walk over the same text; None keeps the one that the export has, and if that is of `estimate`, the
            metrics of the same pass with it.
        no_replay: why there is none.
    """
    acceptance = metadata.acceptance
    if replay is None and acceptance.replay is not None and acceptance.replay.data is not None:
        return metadata
    replay = replay or acceptance.replay
    values = _acceptance_values(
        metrics,
        source,
        missing_reason,
        acceptance.requested_num_steps,
        acceptance.coverage,
        metadata.reasons,
        replay,
        no_replay,
    )
    values["sglang"] = _with_text_finding(metadata.sglang, replay)
    if metadata.measured is not None:
        trained = trained_steps(values["acceptance"])
        values["measured"] = measured_section(metadata.measured.measurements, trained) or metadata.measured
    return _changed(metadata, values)


def with_measurement(metadata: ExportMetadata, measurement: Measurement) -> ExportMetadata:
    """Returns the same export with one more measurement; an older one at that depth under equal conditions is replaced.

    Args:
        metadata: of the export; it stays as it is.
        measurement: the new one.
    """
    measurements = with_newest(measurements_of(metadata), measurement)
    measured = measured_section(measurements, trained_steps(metadata.acceptance))
    reasons = {name: why for name, why in metadata.reasons.items() if name != "measured"}
    return _changed(metadata, {"measured": measured, "reasons": reasons})


def _changed(metadata: ExportMetadata, values: Mapping[str, Any]) -> ExportMetadata:
    """Returns a validated copy with these values; keys of newer releases, which this one does not know, are kept."""
    return ExportMetadata.model_validate({**dict(metadata), **values})


def _acceptance_values(
    metrics: Mapping[str, Any] | None,
    source: AccuracySource,
    missing_reason: str,
    num_steps: Sequence[int],
    coverage: Coverage | None,
    reasons: Mapping[str, str],
    replay: Replay | None,
    no_replay: str | None,
) -> dict[str, Any]:
    """Returns the leading numbers, their reasons and the `acceptance` section."""
    accuracies = step_accuracies(metrics or {})
    no_accuracies = missing_reason if metrics is None else NO_ACCURACIES
    estimate = estimate_acceptance(
        accuracies,
        num_steps,
        source=source,
        coverage=coverage,
        replay=replay,
        missing_reason=no_accuracies,
        no_replay=no_replay or NO_REPLAY,
    )
    leading = {
        "full_acc_0": accuracies.full_acc_0,
        "estimated_acceptance_length": estimate.estimated_acceptance_length,
    }
    kept = {name: why for name, why in reasons.items() if name not in leading}
    # An accuracy that was not reported at all is missing for the same reason as the estimate.
    why = explained(
        leading, estimate.reasons, estimate.reasons.get("estimated_acceptance_length", no_accuracies)
    )
    return {**leading, "acceptance": estimate, "reasons": {**kept, **why}}


def _with_text_finding(sglang: Serving, replay: Replay | None) -> Serving:
    """Returns the section with the finding that the replayed text is not the verifier's own, or without it."""
    findings = [known for known in sglang.findings if known.id != OTHER_TEXT_ID]
    found = other_text(replay.first_choice_share if replay is not None else None)
    if found is not None:
        findings.append(FindingRecord.model_validate(found))
    return sglang.model_copy(update={"findings": findings})


def loaded_versions() -> dict[str, str]:
    """Returns the releases of this package, of Python, and of the training libraries that this process has loaded."""
    versions = {"eagle3_export": __version__, "python": platform.python_version()}
    for name in ("speculators", "torch", "transformers", "accelerate"):
        # A module from a bare source tree has no recorded release.
        with contextlib.suppress(installed.PackageNotFoundError):
            if name in sys.modules:
                versions[name] = installed.version(name)
    return versions
