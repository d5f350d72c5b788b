"""`README.md` of an export: front matter that the Hugging Face hub reads, then what a person asks first."""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from eagle3_export.documents.json_files import printable
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.estimates.acceptance import (
    AcceptanceEstimate,
    DepthEstimate,
    estimate_origin,
    estimate_terms,
    other_data,
    run_text,
)

_TAGS = ["eagle3", "speculative-decoding", "draft-model", "sglang", "speculators"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # owner/name, as the hub allows it
_DRAFT_PATH = "--speculative-draft-model-path"


def render_model_card(metadata: ExportMetadata) -> str:
    """Returns the model card of one export: Markdown with YAML front matter.

    Args:
        metadata: of the export.
    """
    sections = [
        _front_matter(metadata),
        _introduction(metadata),
        _serving(metadata),
        _estimate(metadata),
        _measured(metadata),
        _findings(metadata),
        _origin(metadata),
    ]
    return printable("\n\n".join(section for section in sections if section) + "\n")


def _front_matter(metadata: ExportMetadata) -> str:
    """Returns the keys that the hub documents: https://huggingface.co/docs/hub/model-cards."""
    data: dict[str, Any] = {}
    verifier = metadata.source.verifier
    if verifier and _HUB_ID.fullmatch(verifier):
        data["base_model"] = verifier
    data["library_name"] = "sglang"
    data["pipeline_tag"] = "text-generation"
    data["tags"] = _TAGS
    if metrics := _eval_metrics(metadata):
        data["metrics"] = [metric["type"] for metric in metrics]
        dataset = {"name": _dataset_name(metadata.acceptance), "type": "private"}
        task = {"type": "text-generation", "name": "Speculative decoding"}
        result = {"task": task, "dataset": dataset, "metrics": metrics}
        data["model-index"] = [{"name": _model_name(metadata), "results": [result]}]
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---"


def _dataset_name(acceptance: AcceptanceEstimate) -> str:
    data = other_data(acceptance)
    return data.path if data is not None else f"{run_text(acceptance)} data of the run"


def _eval_metrics(metadata: ExportMetadata) -> list[dict[str, Any]]:
    named = {
        "full_acc_0": ("First-step accuracy", metadata.full_acc_0),
        "estimated_acceptance_length": (
            f"Estimated acceptance length ({estimate_terms(metadata.acceptance)})",
            metadata.estimated_acceptance_length,
        ),
    }
    return [
        {"type": kind, "name": name, "value": round(value, 6)}
        for kind, (name, value) in named.items()
        if value is not None
    ]


def _model_name(metadata: ExportMetadata) -> str:
    verifier = metadata.source.verifier
    return f"EAGLE-3 draft for {verifier.rstrip('/').rsplit('/', 1)[-1]}" if verifier else "EAGLE-3 draft"


def _introduction(metadata: ExportMetadata) -> str:
    verifier = metadata.source.verifier
    target = f"`{_inline(verifier)}`" if verifier else "its verifier (not named in the checkpoint)"
    when = [
        f"epoch {metadata.epoch}" if metadata.epoch is not None else "",
        f"step {metadata.global_step}" if metadata.global_step is not None else "",
        metadata.source.kind.replace("_", " "),
    ]
    return (
        f"# {_inline(_model_name(metadata))}\n\n"
        f"An EAGLE-3 draft for {target}, trained with speculators ({', '.join(filter(None, when))}) and"
        f" exported for SGLang {metadata.sglang.version} by eagle3-export."
    )


def _serving(metadata: ExportMetadata) -> str:
    sglang = metadata.sglang
    arguments = [] if _DRAFT_PATH in sglang.launch_arguments else [_DRAFT_PATH, "PATH_OF_THIS_DIRECTORY"]
    verifier = metadata.source.verifier or ""
    target = verifier if verifier.isprintable() and "`" not in verifier and verifier else "TARGET_MODEL"
    command = ["python", "-m", "sglang.launch_server", "--model-path", target, *arguments]
    lines = " \\\n    ".join([shlex.join(command), *_options(sglang.launch_arguments)])
    oldest = f"SGLang {sglang.minimum_version} or newer" if sglang.minimum_version else "SGLang"
    plugin = (
        " and `pip install eagle3-export` in the serving environment" if sglang.runtime == "exact" else ""
    )
    return f"## Serve\n\nNeeds {oldest}{plugin}.\n\n```bash\n{lines}\n```"


def _options(arguments: list[str]) -> list[str]:
    """Returns one shell-quoted option with its values per line."""
    options: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not options:
            options.append([])
        options[-1].append(argument)
    return [shlex.join(option) for option in options]


def _estimate(metadata: ExportMetadata) -> str:
    acceptance = metadata.acceptance
    if metadata.estimated_acceptance_length is None:
        why = metadata.reasons.get("estimated_acceptance_length", "")
        return f"## Expected acceptance\n\nNo estimate: {_inline(why)}"
    text = [
        "## Expected acceptance",
        f"**{metadata.estimated_acceptance_length:.2f}** tokens per verify step ({estimate_terms(metadata.acceptance)};"
        f" from {_inline(estimate_origin(acceptance))}). An estimate, not a measurement on a server.",
        _table(
            ["TTT step", "full_acc (cumulative)", "cond_acc"],
            [[str(s.step), _share(s.full_acc), _share(s.cond_acc)] for s in acceptance.steps],
        ),
        _table(["Draft steps", "Acceptance length", ""], [_depth_row(row) for row in acceptance.per_depth]),
        "\n".join(f"- {_inline(text)}" for text in acceptance.assumptions),
    ]
    if acceptance.coverage is not None and acceptance.adjusted_acceptance_length is not None:
        text.append(
            f"The draft vocabulary holds {acceptance.coverage.ratio:.2%} of the run's tokens"
            f" ({_inline(acceptance.coverage.source)}); adjusted for that, the estimate is"
            f" {acceptance.adjusted_acceptance_length:.2f}."
        )
    return "\n\n".join(part for part in text if part)


def _depth_row(row: DepthEstimate) -> list[str]:
    interval = f" ({row.interval.low:.2f} to {row.interval.high:.2f})" if row.interval else ""
    return [
        str(row.num_steps),
        f"{row.acceptance_length:.2f}{interval}",
        "extrapolated" if row.extrapolated else "",
    ]


def _measured(metadata: ExportMetadata) -> str:
    if metadata.measured is None:
        return f"## Measured\n\n{_inline(metadata.reasons['measured'])}"
    header = ["Draft steps", "Acceptance length", "Tokens/s", "Concurrency", "Prompts", "Server", "Hardware"]
    rows = [_measurement_row(measurement) for measurement in metadata.measured.measurements]
    differences = [
        f"- At {measurement.num_steps} draft steps: {_inline(difference)}"
        for measurement in metadata.measured.measurements
        for difference in measurement.differences
    ]
    text = [
        "## Measured",
        "Bonus token included. Only rows under the same conditions can be compared.",
        _table(header, rows),
        "\n".join(differences),
    ]
    return "\n\n".join(part for part in text if part)


def _measurement_row(measurement: Measurement) -> list[str]:
    speed = measurement.tokens_per_second
    return [
        str(measurement.num_steps),
        f"{measurement.acceptance_length:.2f}",
        "-" if speed is None else f"{speed:.1f}",
        f"{measurement.concurrency}",
        f"{measurement.prompts} from {_inline(measurement.prompt_source)}",
        f"{measurement.server} {_inline(measurement.server_version or '')}".strip(),
        _inline(measurement.hardware or "-"),
    ]


def _findings(metadata: ExportMetadata) -> str:
    if not metadata.sglang.findings:
        return ""
    rows = [
        f"- **{_inline(finding.id)}** ({finding.level}): {_inline(finding.cause)} {_inline(finding.remedy)}"
        for finding in metadata.sglang.findings
    ]
    return "## Served against trained\n\n" + "\n".join(rows)


def _origin(metadata: ExportMetadata) -> str:
    weights, versions = metadata.weights, metadata.versions
    return (
        f"## Origin\n\n{weights.tensors} tensors, {weights.bytes:,} bytes, {_inline(weights.dtype)}, copied"
        f" unchanged from `{_inline(metadata.source.checkpoint)}` on {metadata.created_at}. Versions: "
        + ", ".join(f"{_inline(name)} {_inline(version)}" for name, version in versions.items())
        + ". All numbers and their reasons are in `metadata.json`."
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _inline(text: str) -> str:
    """Returns text from a checkpoint as one harmless line of Markdown."""
    return re.sub(r"[\s`|<>]+", " ", text).strip()
