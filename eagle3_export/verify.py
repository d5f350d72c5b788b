"""Checks an export again: names, shapes, dtypes, finiteness, vocabulary map, config, metadata; and, given its
source, every byte."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3_export.compatibility.findings import Finding, incompatible
from eagle3_export.compatibility.plan import check_draft
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import ExportInvalidError, UsageError, invalid_export
from eagle3_export.export import CONFIG_FILE, METADATA_FILE, MODEL_CARD_FILE, WEIGHTS_FILE
from eagle3_export.numeric.compare import TOLERANCE, NumericReport, verify_numeric
from eagle3_export.output_directory import locate_export
from eagle3_export.sglang.aux_layers import may_encode
from eagle3_export.sglang.config import read_exported_draft, translate_config
from eagle3_export.sglang.names import translate_names
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.checkpoint import Checkpoint, read_checkpoint
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.tensors import check_layout, expected_shapes, float_dtype
from eagle3_export.speculators_format.verifier import find_verifier
from eagle3_export.speculators_format.vocabulary import check_vocabulary
from eagle3_export.storage.faults import os_errors, shown
from eagle3_export.storage.finite import scan_tensors
from eagle3_export.storage.regular_file import read_json_object
from eagle3_export.storage.safetensors_file import SafetensorsFile, TensorSource, read_safetensors
from eagle3_export.verify_report import Outcome, VerifyReport

_CHUNK = 4 << 20
WINDOW_FLAG = "--speculative-draft-window-size"


def verify_export(
    export: str | Path, *, source: str | Path | None = None, numeric: bool = False
) -> VerifyReport:
    """Checks a published export again.

    A pointer is followed once, at the start: all checks are of one export, also where a run moves the pointer on.

    Args:
        export: its directory, or a pointer such as `latest`.
        source: the checkpoint it came from; then every tensor is compared byte by byte.
        numeric: also runs speculators' model and SGLang's class on the same inputs (`numeric.verify_numeric`).

    Returns:
        The report; `report.ok` is true if every check ran and found nothing wrong.

    Raises:
        ExportInvalidError: `export` is no export; the message says what it is.
        StorageError: `export` or `source` may not be read.
        CheckpointError: `source` is missing, malformed or contradicts itself.
        UsageError: `numeric`, and sglang or speculators is not installed, or the source is not known.

    Example:
        >>> report = verify_export("output/sglang/latest", source="output/checkpoints/3")
        >>> report.ok, report.problems
        (True, [])
    """
    directory = locate_export(export)
    report = VerifyReport(directory)
    checkpoint = None if source is None else _read_source(source)
    file = report.run("weights", lambda: read_safetensors(directory / WEIGHTS_FILE))
    report.run("weights", lambda: _require_no_other_weights(directory))
    config = report.run("config", lambda: _read_config(directory / CONFIG_FILE))
    metadata = report.run("metadata", lambda: read_metadata(directory / METADATA_FILE))
    report.run("model card", lambda: _require_model_card(directory))
    _check_weights(report, file, config)
    report.run("metadata", lambda: _require_matching_metadata(metadata.value, file.value, config.value))
    report.run("metadata", lambda: _require_digest(metadata.value, report.digest))
    _check_findings(report, config, metadata)
    if checkpoint is not None:
        report.run("source", lambda: _require_same_bytes(checkpoint, file.value))
        report.run("source", lambda: _require_same_config(checkpoint, config.value))
    if numeric:
        _check_numbers(report, metadata, checkpoint)
    return report


@dataclass(frozen=True)
class _ExportedConfig:
    """The config.json of an export, and the draft that it describes."""

    path: Path
    content: Mapping[str, Any]
    draft: Draft


def _read_config(path: Path) -> _ExportedConfig:
    content = read_json_object(path, fault=invalid_export)
    return _ExportedConfig(path, content, read_exported_draft(content, str(path)))


def _read_source(source: str | Path) -> Checkpoint:
    with os_errors("Reading", Path(source)):
        return read_checkpoint(source)


def _check_findings(
    report: VerifyReport, config: Outcome[_ExportedConfig], metadata: Outcome[ExportMetadata]
) -> None:
    findings = report.run("findings", lambda: _findings(config.value.draft, metadata.value))
    report.findings = [found for several in findings.found for found in several]
    report.problems += [
        ("findings", f"[{found.id}] {found.cause} {found.remedy}") for found in incompatible(report.findings)
    ]


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


def _check_weights(
    report: VerifyReport, file: Outcome[SafetensorsFile], config: Outcome[_ExportedConfig]
) -> None:
    names = report.run("names, shapes and dtypes", lambda: _training_names(config.value.draft, file.value))

    def sources() -> dict[str, TensorSource]:
        return {names.value[name]: source for name, source in _stored(file.value)}

    report.run(
        "names, shapes and dtypes",
        lambda: _require_layout(config.value.draft, sources(), file.value.path),
    )
    report.run(
        "vocabulary map",
        lambda: check_vocabulary(config.value.draft, sources(), str(file.value.path), invalid_export),
    )
    digest = report.run("finite values", lambda: _require_finite(_stored(file.value), file.value.path))
    report.digest = next(iter(digest.found), None)


def _stored(file: SafetensorsFile) -> list[tuple[str, TensorSource]]:
    return [(name, TensorSource(file, entry)) for name, entry in file.tensors.items()]


def _require_layout(draft: Draft, sources: Mapping[str, TensorSource], path: Path) -> None:
    entries = {name: source.entry for name, source in sources.items()}
    check_layout(draft, entries, str(path), invalid_export)
    if draft.dtype != float_dtype(entries):
        raise ExportInvalidError(
            f"{path} holds {float_dtype(entries)}, its config says {draft.dtype}.",
            why="SGLang would convert every tensor.",
            remedy="Export the checkpoint again.",
        )


def _training_names(draft: Draft, file: SafetensorsFile) -> dict[str, str]:
    """Returns speculators' name of every tensor in the file, by its exported name."""
    known = translate_names([*expected_shapes(draft), "d2t", "t2d"])
    back = {new: old for old, new in known.items()}
    unknown = [name for name in file.tensors if name not in back]
    if unknown:
        raise ExportInvalidError(
            f"{file.path} holds {', '.join(unknown[:5])}, which SGLang would drop without a word.",
            remedy="Export the checkpoint again.",
        )
    return {name: back[name] for name in file.tensors}


def _require_finite(tensors: list[tuple[str, TensorSource]], path: Path) -> str | None:
    """Returns the weights' digest, had from the same reading."""
    names, digest = scan_tensors(tensors)
    if names:
        raise ExportInvalidError(
            f"{path}: NaN or infinite values in {', '.join(names)}.",
            remedy="Export an earlier checkpoint.",
        )
    return digest


def _require_digest(metadata: ExportMetadata, found: str | None) -> None:
    recorded = metadata.weights.digest  # not recorded before there was one
    if recorded is not None and found is not None and recorded != found:
        raise ExportInvalidError(
            f"The weights are not those that were exported: their digest is {found}, metadata.json says {recorded}.",
            why="They were damaged or replaced, so no number in metadata.json is of them.",
            remedy="Export the checkpoint again, or copy the export again.",
        )


def _require_model_card(directory: Path) -> None:
    with os_errors("Reading", directory):
        if not (directory / MODEL_CARD_FILE).is_file():
            raise ExportInvalidError(
                f"{shown(directory)} has no {MODEL_CARD_FILE}.", remedy="Export the checkpoint again."
            )


def _check_numbers(
    report: VerifyReport, metadata: Outcome[ExportMetadata], checkpoint: Checkpoint | None
) -> None:
    result = report.run("numbers", lambda: _compare_numbers(report.export, metadata.value, checkpoint))
    for compared in result.found:
        report.numeric = {
            **asdict(compared),
            "max_relative_error": compared.max_relative_error,
            "ok": compared.ok,
        }
        if not compared.ok:
            error = compared.max_relative_error
            found = compared.problem or f"logits differ by {error:.2e} relative, more than {TOLERANCE:.0e}"
            report.problems.append(("numbers", f"speculators and SGLang do not compute the same: {found}."))


def _compare_numbers(
    directory: Path, metadata: ExportMetadata, checkpoint: Checkpoint | None
) -> NumericReport:
    source = checkpoint.directory if checkpoint else Path(metadata.source.checkpoint)
    if not source.is_dir():
        raise UsageError(f"{shown(source)} is gone.", remedy="Name the checkpoint with --source.")
    window = _draft_window(metadata.sglang.launch_arguments)
    return verify_numeric(directory, source, draft_window=window)


def _draft_window(launch_arguments: Sequence[str]) -> int | None:
    """Returns the value of `--speculative-draft-window-size` in the arguments, or None without that flag."""
    if WINDOW_FLAG not in launch_arguments:
        return None
    value = "".join(launch_arguments[launch_arguments.index(WINDOW_FLAG) + 1 :][:1])
    if not re.fullmatch("[0-9]{1,18}", value):
        raise ExportInvalidError(
            f"metadata.json gives {WINDOW_FLAG} the value {value!r}, which is no number of tokens.",
            remedy="Export the checkpoint again.",
        )
    return int(value)


def _findings(draft: Draft, metadata: ExportMetadata) -> list[Finding]:
    search = find_verifier(metadata.source.verifier, checkpoint=Path(metadata.source.checkpoint))
    return check_draft(draft, ServingTarget.found(metadata.sglang.version, "auto", search))


def _require_matching_metadata(
    metadata: ExportMetadata, file: SafetensorsFile, config: _ExportedConfig
) -> None:
    claims = {
        "weights.bytes": (metadata.weights.bytes, file.size),
        "weights.tensors": (metadata.weights.tensors, len(file.tensors)),
        "weights.dtype": (metadata.weights.dtype, config.draft.dtype),
        "sglang.architecture": ([metadata.sglang.architecture], config.content["architectures"]),
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


def _require_same_config(checkpoint: Checkpoint, config: _ExportedConfig) -> None:
    """Compares all but how the aux layer ids are encoded and which class serves, which the target decides too."""
    content = config.content
    ids = content["eagle_config"].get("eagle_aux_hidden_state_layer_ids")
    ids = ids if isinstance(ids, list) else None
    requires = content["eagle3_export"].get("requires")
    translated = translate_config(
        checkpoint.draft,
        dtype=checkpoint.draft.dtype or "",
        encoded_aux_layer_ids=ids,
        requires=requires if isinstance(requires, list) else (),
    )
    expected = json.loads(json.dumps(translated))
    different = [key for key in sorted({*expected, *content}) if expected.get(key) != content.get(key)]
    if not may_encode(ids, checkpoint.draft.aux_layer_ids):
        different.append("eagle_config.eagle_aux_hidden_state_layer_ids")
    if different:
        raise ExportInvalidError(
            f"{config.path} differs from what {checkpoint.directory} makes it in {', '.join(different)}.",
            why="SGLang would not compute the trained draft.",
            remedy="Export the checkpoint again.",
        )


def _same_tensor(a: TensorSource, b: TensorSource) -> bool:
    if (a.entry.dtype, a.entry.shape, a.entry.nbytes) != (b.entry.dtype, b.entry.shape, b.entry.nbytes):
        return False
    return all(left == right for left, right in zip(a.chunks(_CHUNK), b.chunks(_CHUNK), strict=True))
