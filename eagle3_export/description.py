"""What metadata.json says of the server that a draft is for, and of the checkpoint that it was made from."""

from __future__ import annotations

from eagle3_export.compatibility.plan import ServingPlan
from eagle3_export.documents.schema import FindingRecord, Fingerprint, Serving, Source
from eagle3_export.estimates.reasons import explained
from eagle3_export.speculators_format.checkpoint import Checkpoint
from eagle3_export.speculators_format.save_point import SavePoint
from eagle3_export.storage.faults import shown
from eagle3_export.storage.fingerprint import WeightsFingerprint

# Why the metadata may not say these things of the checkpoint.
_UNKNOWN_SOURCE = {
    "local_step": "The checkpoint has no training_state.json.",
    "speculators_version": "The checkpoint's config.json does not say.",
    "verifier": "The checkpoint's config.json names no verifier.",
    "digest": "Not computed: it would cost more than the copy.",
}


def described_serving(plan: ServingPlan, version: str) -> Serving:
    """Returns the section `sglang`.

    Args:
        plan: how the draft is served.
        version: the SGLang release that it was checked for.
    """
    return Serving(
        runtime=plan.runtime,
        version=version,
        minimum_version=plan.minimum_sglang_version,
        architecture=plan.architecture,
        launch_arguments=list(plan.launch_arguments),
        findings=[FindingRecord.model_validate(finding) for finding in plan.findings],
        reasons=explained(
            {"minimum_version": plan.minimum_sglang_version}, {}, "No known release computes it."
        ),
    )


def described_source(checkpoint: Checkpoint, point: SavePoint, fingerprint: WeightsFingerprint) -> Source:
    """Returns the section `source`.

    Args:
        checkpoint: what was exported.
        point: which save of the trainer it is.
        fingerprint: of its weight files.
    """
    known = {
        "local_step": point.local_step,
        "speculators_version": checkpoint.speculators_version,
        "verifier": checkpoint.draft.verifier_name,
        "digest": None,
    }
    return Source(
        checkpoint=shown(checkpoint.directory),
        kind=point.kind,
        size=sum(source.entry.nbytes for source in checkpoint.tensors.values()),
        fingerprint=Fingerprint.model_validate(fingerprint),
        reasons=explained(known, _UNKNOWN_SOURCE),
        **known,
    )
