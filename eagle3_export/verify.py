"""Checks an export again: names, shapes, dtypes, finiteness, vocabulary map, config, metadata; and, given its
source, every byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3_export.compatibility.findings import Finding
from eagle3_export.compatibility.plan import check_draft
from eagle3_export.errors import Eagle3ExportError, ExportInvalidError, UsageError
from eagle3_export.export import CONFIG_FILE, METADATA_FILE, MODEL_CARD_FILE, WEIGHTS_FILE
from eagle3_export.sglang.aux_layers import may_encode
from eagle3_export.sglang.config import translate_config
from eagle3_export.sglang.exported import read_exported_draft
from eagle3_export.sglang.names import translate_names
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.checkpoint import Checkpoint, read_checkpoint
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.fields import read_json_object
from eagle3_export.speculators_format.tensors import check_layout, float_dtype
from eagle3_export.speculators_format.verifier import read_verifier
from eagle3_export.speculators_format.vocabulary import check_vocabulary
from eagle3_export.storage.faults import os_errors, shown
from eagle3_export.storage.finite import non_finite_tensors
from eagle3_export.storage.safetensors_file import (
    SafetensorsFile,
    TensorEntry,
    TensorSource,
    read_safetensors,
)

_CHUNK = 4 << 20


@dataclass
class VerifyReport:
    """What a verification found.

    Attributes:
        problems: (name of the check, what is wrong); empty if the export holds what it claims.
        findings: what the serving side should know, as at export.
        checks: names of the checks that ran.
        numeric: what the comparison with speculators' model gave, None where it did not run.
    """

    export: Path
    checks: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    numeric: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "export": str(self.export),
            "ok": self.ok,
            "checks": self.checks,
            "problems": [{"check": check, "problem": problem} for check, problem in self.problems],
            "findings": [finding.as_dict() for finding in self.findings],
            "numeric": self.numeric,
        }


def verify_export(
    export: str | Path, *, source: str | Path | None = None, numeric: bool = False
) -> VerifyReport:
    """Re-checks a published export.

    Args:
        export: its directory, or a pointer such as `latest`.
        source: the checkpoint it came from; then every tensor is compared byte by byte.
        numeric: also run speculators' model and SGLang's class on the same inputs (`numeric.verify_numeric`).

    Raises:
        ExportInvalidError: `export` is no directory.
        StorageError: it may not be read.
        CheckpointError: `source` cannot be read.
        UsageError: `numeric`, and sglang or speculators is not installed, or the source is not known.
    """
    directory = Path(export)
    with os_errors("Reading", directory):
        if not directory.is_dir():
            raise ExportInvalidError(
                f"{directory} is not a directory.", remedy="Name one export, such as output/sglang/latest."
            )
    checkpoint = read_checkpoint(source) if source is not None else None
    report = VerifyReport(directory)
    file = _run(report, "weights", lambda: read_safetensors(directory / WEIGHTS_FILE))
    _run(report, "weights", lambda: _require_no_other_weights(directory))
    config = _run(report, "config", lambda: read_json_object(directory / CONFIG_FILE))
    draft = config and _run(
        report, "config", lambda: read_exported_draft(config, str(directory / CONFIG_FILE))
    )
    metadata = _run(report, "metadata", lambda: _read_metadata(directory))
    _run(report, "model card", lambda: _require_model_card(directory))
    if file and draft:
        _check_weights(report, file, draft)
        if metadata:
            _run(report, "metadata", lambda: _require_matching_metadata(metadata, file, config))
            report.findings = _run(report, "findings", lambda: _findings(draft, metadata)) or []
            report.problems += [
                ("findings", f"[{found.id}] {found.cause} {found.remedy}")
                for found in report.findings
                if found.level == "incompatible"
            ]
    if file and checkpoint:
        _run(report, "source", lambda: _require_same_bytes(checkpoint, file))
    if draft and checkpoint:
        _run(report, "source", lambda: _require_same_config(checkpoint, config, directory / CONFIG_FILE))
    if numeric and metadata:
        _check_numbers(report, metadata, checkpoint)
    return report


def _run(report: VerifyReport, check: str, action: Callable[[], Any]) -> Any:
    """The action's result; our own errors become problems of the report."""
    if check not in report.checks:
        report.checks.append(check)
    try:
        return action()
    except Eagle3ExportError as error:
        report.problems.append((check, str(error)))
        return None


def _require_no_other_weights(directory: Path) -> None:
    """SGLang's loader reads every safetensors file of a directory, or those that an index names."""
    found = {*directory.glob("*.safetensors"), *directory.glob("*.safetensors.index.json")}
    others = sorted(path.name for path in found - {directory / WEIGHTS_FILE})
    if others:
        raise ExportInvalidError(
            f"{directory} also holds {', '.join(others[:5])}.",
            why="SGLang would load them over or instead of the draft's own weights.",
            remedy="Move them away.",
        )


def _check_weights(report: VerifyReport, file: SafetensorsFile, draft: Draft) -> None:
    where = str(file.path)
    stored = {name: TensorSource(file, entry) for name, entry in file.tensors.items()}
    plain = _run(report, "names, shapes and dtypes", lambda: _training_names(draft, file))
    if plain is None:
        return
    sources = {plain[name]: source for name, source in stored.items()}
    entries = {name: source.entry for name, source in sources.items()}
    _run(report, "names, shapes and dtypes", lambda: _require_layout(draft, entries, where))
    _run(report, "vocabulary map", lambda: check_vocabulary(draft, sources, where))
    _run(report, "finite values", lambda: _require_finite(list(stored.items()), where))


def _require_layout(draft: Draft, entries: dict[str, TensorEntry], where: str) -> None:
    check_layout(draft, entries, where)
    if draft.dtype != float_dtype(entries):
        raise ExportInvalidError(
            f"{where} holds {float_dtype(entries)}, its config says {draft.dtype}.",
            why="SGLang would convert every tensor.",
            remedy="Export the checkpoint again.",
        )


def _training_names(draft: Draft, file: SafetensorsFile) -> dict[str, str]:
    """Exported name -> speculators' name, for every tensor of the file."""
    from eagle3_export.speculators_format.tensors import expected_shapes

    known = translate_names([*expected_shapes(draft), "d2t", "t2d"])
    back = {new: old for old, new in known.items()}
    unknown = [name for name in file.tensors if name not in back]
    if unknown:
        raise ExportInvalidError(
            f"{file.path} holds {', '.join(unknown[:5])}, which SGLang would drop without a word.",
            remedy="Export the checkpoint again.",
        )
    return {name: back[name] for name in file.tensors}


def _require_finite(tensors: list[tuple[str, TensorSource]], where: str) -> None:
    names = non_finite_tensors(tensors)
    if names:
        raise ExportInvalidError(
            f"{where}: NaN or infinite values in {', '.join(names)}.",
            remedy="Export an earlier checkpoint.",
        )


def _require_model_card(directory: Path) -> None:
    with os_errors("Reading", directory):
        if not (directory / MODEL_CARD_FILE).is_file():
            raise ExportInvalidError(
                f"{shown(directory)} has no {MODEL_CARD_FILE}.", remedy="Export the checkpoint again."
            )


def _read_metadata(directory: Path) -> Any:
    from eagle3_export.documents.json_files import read_metadata

    return read_metadata(directory / METADATA_FILE)


def _check_numbers(report: VerifyReport, metadata: Any, checkpoint: Checkpoint | None) -> None:
    from eagle3_export.numeric.compare import TOLERANCE, verify_numeric

    source = checkpoint.directory if checkpoint else Path(metadata.source.checkpoint)
    if not source.is_dir():
        raise UsageError(f"{source} is gone.", remedy="Name the checkpoint with --source.")
    arguments = metadata.sglang.launch_arguments
    flag = "--speculative-draft-window-size"
    window = int(arguments[arguments.index(flag) + 1]) if flag in arguments else None
    result = verify_numeric(report.export, source, draft_window=window)
    report.checks.append("numbers")
    report.numeric = {**asdict(result), "max_relative_error": result.max_relative_error, "ok": result.ok}
    if not result.ok:
        error = result.max_relative_error
        found = result.problem or f"logits differ by {error:.2e} relative, more than {TOLERANCE:.0e}"
        report.problems.append(("numbers", f"speculators and SGLang do not compute the same: {found}."))


def _findings(draft: Draft, metadata: Any) -> list[Finding]:
    verifier = read_verifier(metadata.source.verifier)
    return check_draft(
        replace(draft, verifier_name=metadata.source.verifier),
        ServingTarget(metadata.sglang.version, verifier=verifier),
    )


def _require_matching_metadata(metadata: Any, file: SafetensorsFile, config: dict[str, Any]) -> None:
    claims = {
        "weights.bytes": (metadata.weights.bytes, file.size),
        "weights.tensors": (metadata.weights.tensors, len(file.tensors)),
        "weights.dtype": (metadata.weights.dtype, config["dtype"]),
        "sglang.architecture": ([metadata.sglang.architecture], config["architectures"]),
    }
    wrong = [f"{key} is {said}, found {found}" for key, (said, found) in claims.items() if said != found]
    if wrong:
        raise ExportInvalidError(f"metadata.json does not describe this export: {'; '.join(wrong)}.")


def _require_same_bytes(checkpoint: Checkpoint, file: SafetensorsFile) -> None:
    names = translate_names(checkpoint.tensors)
    expected = {new: checkpoint.tensors[old] for old, new in names.items()}
    missing = sorted(set(expected) - set(file.tensors) - {"embed_tokens.weight"})
    extra = sorted(set(file.tensors) - set(expected))
    if missing or extra:
        raise ExportInvalidError(
            f"{file.path} and {checkpoint.directory} hold different tensors: "
            f"missing {missing or 'none'}, not in the source {extra or 'none'}."
        )
    different = [
        name
        for name in file.tensors
        if not _same_tensor(expected[name], TensorSource(file, file.tensors[name]))
    ]
    if different:
        raise ExportInvalidError(
            f"{file.path} differs from {checkpoint.directory} in {', '.join(different)}.",
            why="It is an export of another save, or damaged.",
            remedy="Export the checkpoint again.",
        )


def _require_same_config(checkpoint: Checkpoint, config: dict[str, Any], path: Path) -> None:
    """All but how the aux layer ids are encoded and which class serves, which the target decides too."""
    ids = config["eagle_config"].get("eagle_aux_hidden_state_layer_ids")
    ids = ids if isinstance(ids, list) else None
    requires = config["eagle3_export"].get("requires")
    translated = translate_config(
        checkpoint.draft,
        dtype=checkpoint.draft.dtype or "",
        encoded_aux_layer_ids=ids,
        requires=requires if isinstance(requires, list) else (),
    )
    expected = json.loads(json.dumps(translated))
    different = [key for key in sorted({*expected, *config}) if expected.get(key) != config.get(key)]
    if not may_encode(ids, checkpoint.draft.aux_layer_ids):
        different.append("eagle_config.eagle_aux_hidden_state_layer_ids")
    if different:
        raise ExportInvalidError(
            f"{path} differs from what {checkpoint.directory} makes it in {', '.join(different)}.",
            why="SGLang would not compute the trained draft.",
            remedy="Export the checkpoint again.",
        )


def _same_tensor(a: TensorSource, b: TensorSource) -> bool:
    if (a.entry.dtype, a.entry.shape, a.entry.nbytes) != (b.entry.dtype, b.entry.shape, b.entry.nbytes):
        return False
    return all(left == right for left, right in zip(_chunks(a), _chunks(b), strict=True))


def _chunks(source: TensorSource) -> Iterator[bytes]:
    try:
        with source.file.path.open("rb") as stream:
            stream.seek(source.entry.offset)
            left = source.entry.nbytes
            while left:
                chunk = stream.read(min(_CHUNK, left))
                if not chunk:
                    raise ExportInvalidError(f"{source.file.path} ends early.")
                left -= len(chunk)
                yield chunk
    except OSError as error:
        raise ExportInvalidError(f"{source.file.path} cannot be read: {error.strerror or error}.") from error
