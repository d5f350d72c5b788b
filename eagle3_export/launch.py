"""An export and the model to serve with it: do they fit, and which command starts the server?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.compatibility.findings import Finding
from eagle3_export.compatibility.plan import check_target, raise_if_incompatible
from eagle3_export.compatibility.target_rules import TARGET_IDS
from eagle3_export.documents.depth import recommend_depth
from eagle3_export.documents.files import CONFIG_FILE
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import UsageError, invalid_export
from eagle3_export.locate import locate_export
from eagle3_export.sglang.server_arguments import launch_arguments, launch_command
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.verifier import find_verifier
from eagle3_export.storage.regular_file import read_json_object


@dataclass(frozen=True)
class DraftAndTarget:
    """An export beside the model that is to be served with it, compared and found to fit.

    Attributes:
        directory: the export's real directory.
        metadata: what its metadata.json says.
        config: its decoded config.json.
        target: what the user calls the model: a path or a hub id.
        serving: the release that serves, and the model's config where it is at hand.
        findings: what to know about the draft, and about this pair: what has to be told to the server, and what
            could not be compared. None is incompatible.
    """

    directory: Path
    metadata: ExportMetadata
    config: Mapping[str, Any]
    target: str
    serving: ServingTarget
    findings: tuple[Finding, ...]

    def arguments(self, num_steps: int) -> list[str]:
        """Arguments of `sglang.launch_server` for this pair, without paths.

        Args:
            num_steps: draft steps per verify step.
        """
        return launch_arguments(self.config, self.serving, num_steps)


def pair_with_target(export: str | Path, target: str) -> DraftAndTarget:
    """Compares an export with the model that is to be served with it.

    Compared are the hidden size, the vocabulary, and whether SGLang captures the trained layers of the model's class.
    For that the model's config.json must be on this machine; where it is not, a finding says so.

    Args:
        export: the export's directory, or a pointer to one such as `best`.
        target: the model to serve: a path or a hub id.

    Raises:
        ExportInvalidError: `export` is no export.
        IncompatibleDraftError: the draft was trained for another model.
        UsageError: `target` names no model.
    """
    if not target.strip() or target.startswith("-"):
        raise UsageError(f"{target!r} names no model to serve.", remedy="Name a path or a hub id.")
    directory = locate_export(export)
    metadata = read_metadata(directory)
    config_path = directory / CONFIG_FILE
    config = read_json_object(config_path, fault=invalid_export)
    serving = ServingTarget.found(metadata.sglang.version, "auto", find_verifier(target))
    found = check_target(config, str(config_path), serving)
    raise_if_incompatible(found)
    # What was said at export about the verifier of that time makes way for what is seen of this one.
    lasting = (record for record in metadata.sglang.findings if record.id not in TARGET_IDS)
    recorded = tuple(Finding(record.id, record.level, record.cause, record.remedy) for record in lasting)
    return DraftAndTarget(directory, metadata, config, target, serving, (*recorded, *found))


@dataclass(frozen=True)
class ServingCommand:
    """A server to start.

    Attributes:
        shell: one line for a POSIX shell.
        num_steps: draft steps per verify step.
        reason: where that number comes from.
        warning: what speaks against serving this draft at that depth; None where nothing does.
        findings: what to know about the draft and about this target.
    """

    shell: str
    num_steps: int
    reason: str
    findings: tuple[Finding, ...]
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "command": self.shell,
            "num_steps": self.num_steps,
            "num_steps_reason": self.reason,
            "warning": self.warning,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def serving_command(
    export: str | Path, target: str, *, num_steps: int | None = None, cost_ratio: float | None = None
) -> ServingCommand:
    """How to serve a target with the draft of an export.

    Args:
        export: the export's directory, or a pointer to one such as `best`.
        target: the model to serve: a path or a hub id.
        num_steps: draft steps per verify step; None takes the recommended depth.
        cost_ratio: time of one draft step / time of one step without a draft, for the recommendation.

    Raises:
        ExportInvalidError: `export` is no export.
        IncompatibleDraftError: the draft was trained for another model than `target`.
        UsageError: both `num_steps` and `cost_ratio` are given, or one of the arguments makes no sense.
    """
    if num_steps is not None and cost_ratio is not None:
        raise UsageError(
            "--num-steps names the depth, and --cost-ratio asks for one to be chosen.",
            remedy="Give one of them.",
        )
    if num_steps is not None and num_steps < 1:
        raise UsageError(f"{num_steps} draft steps cannot be served.", remedy="Give a number from 1 on.")
    pair = pair_with_target(export, target)
    reason, warning = "as asked", None
    if num_steps is None:
        recommended = recommend_depth(pair.metadata, cost_ratio=cost_ratio)
        num_steps, reason, warning = recommended.num_steps, recommended.reason, recommended.warning
    shell = launch_command(pair.directory, target, pair.arguments(num_steps))
    return ServingCommand(shell, num_steps, reason, pair.findings, warning)


def draft_arguments(
    export: str | Path, target: str, num_steps: int, *, served_as: str | None = None
) -> list[str]:
    """Arguments of `sglang.launch_server` that put the draft of an export beside a target.

    Args:
        export: the export's directory, or a pointer to one such as `best`.
        target: the model to serve: a path or a hub id.
        num_steps: draft steps per verify step.
        served_as: the path or hub id under which the server sees the export; None for the export's own path.

    Raises:
        ExportInvalidError: `export` is no export.
        IncompatibleDraftError: the draft was trained for another model than `target`.
        UsageError: `target` names no model.
    """
    pair = pair_with_target(export, target)
    return ["--speculative-draft-model-path", served_as or str(pair.directory), *pair.arguments(num_steps)]
