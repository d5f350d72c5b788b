"""The models of `metadata.json` and `index.json`; `schemas/*.json` are generated from them.

Within one `schema_version` keys are only ever added; readers ignore keys they do not know, and rewriting a
document keeps them. In every section a null has its reason in that section's `reasons`, under its own name;
the models refuse a document without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from eagle3_export.estimates.acceptance import AcceptanceEstimate, AccuracySource
from eagle3_export.estimates.accuracies import Depth, Length, Share

SCHEMA_VERSION = 1

CheckpointKind = Literal["end_of_epoch", "mid_epoch", "interrupted", "best", "unknown"]

_REASONS: Any = Field(default_factory=dict, description="Why a value here is null, by its name.")


NOT_RECORDED = "The release of eagle3-export that wrote this did not record it."


class Section(BaseModel):
    """A part of the document in which every null is explained."""

    model_config = ConfigDict(extra="allow", defer_build=True, use_attribute_docstrings=True)

    # Each section declares `reasons` itself: a field of the base class would come first in the document.
    if TYPE_CHECKING:
        reasons: dict[str, str]

    @model_validator(mode="after")
    def _nulls_are_explained(self) -> Section:
        nulls = [name for name in type(self).model_fields if getattr(self, name) is None]
        for name in nulls:
            if name not in self.model_fields_set:  # a key that came later than the document
                self.reasons.setdefault(name, NOT_RECORDED)
        unexplained = [name for name in nulls if not self.reasons.get(name)]
        if unexplained:
            raise ValueError(f"null without a reason: {', '.join(unexplained)}")
        return self


class FindingRecord(BaseModel):
    """What the exporter found about serving this draft."""

    model_config = ConfigDict(extra="allow", defer_build=True, from_attributes=True)

    id: str
    level: Literal["info", "inexact", "incompatible"]
    cause: str
    remedy: str


class Serving(Section):
    """How SGLang serves this export."""

    runtime: Literal["stock", "exact"]
    """stock: SGLang's own class. exact: the class of this package's SGLang plugin."""
    version: str
    """The SGLang release exported for."""
    minimum_version: str | None
    """The oldest SGLang release that computes this draft."""
    architecture: str
    """The class that config.json names."""
    launch_arguments: list[str]
    """Arguments for sglang.launch_server beside --model-path."""
    findings: list[FindingRecord] = Field(default_factory=list)
    """What differs from training when served, each with cause and remedy."""
    reasons: dict[str, str] = _REASONS


class RunRecord(BaseModel):
    """The training run that an export is of. Two runs never share an output directory."""

    model_config = ConfigDict(extra="allow", defer_build=True, use_attribute_docstrings=True)

    id: str
    """Drawn once for an output directory; all exports of a run there have it."""
    save_path: str
    """Where the trainer saved when this was written, links resolved."""


class Fingerprint(BaseModel):
    """What tells the weight files of one save from another's, also after a copy that changed their times."""

    model_config = ConfigDict(
        extra="allow", defer_build=True, from_attributes=True, use_attribute_docstrings=True
    )

    size: int
    """Bytes of the files."""
    modified_ns: int
    """When the newest was written, in ns since 1970."""
    header_digest: str
    """sha256:… of their safetensors headers."""
    sample_digest: str
    """sha256:… of 64 blocks of 4 KiB, evenly spread over each file."""


class Source(Section):
    """The checkpoint that was exported."""

    checkpoint: str
    """Its path when it was read."""
    kind: CheckpointKind
    """Which save it was."""
    local_step: int | None = None
    """Batches into the epoch; 0 at its end."""
    speculators_version: str | None = None
    """The release recorded in the checkpoint's config.json."""
    verifier: str | None = None
    """Name or path of the model the draft was trained for."""
    size: int | None = None
    """Bytes of its tensors, the headers of their files not counted."""
    digest: str | None = None
    """sha256:… of its tensor data, where it was computed. This release does not compute it."""
    fingerprint: Fingerprint | None = None
    """Of its weight files, as they were when they were exported."""
    reasons: dict[str, str] = _REASONS


class Weights(Section):
    """The export's tensor file."""

    tensors: int
    bytes: int
    """Size of model.safetensors."""
    dtype: str
    """Of the floating-point tensors, as config.json spells it, for example bfloat16."""
    copy_method: str
    """reflink, copy_file_range, sendfile or read."""
    bytes_copied: int
    """Bytes that were moved rather than shared with the checkpoint."""
    embed_tokens: Literal["kept", "dropped", "absent"]
    seconds: FiniteFloat
    """Time to write the file."""
    digest: str | None = None
    """draft-…: of the names, dtypes, shapes and every byte of the tensors. The same for every copy, under whatever
    path; a server whose weight_version names it runs this export."""
    reasons: dict[str, str] = _REASONS


class Measurement(Section):
    """What a server did with this export, on one set of prompts at one depth."""

    acceptance_length: Length
    """Tokens per verify step, bonus token included: 1 + accepted draft tokens / verify steps."""
    includes_bonus_token: Literal[True] = True
    num_steps: Depth
    """Draft depth the server ran."""
    topk: int
    """Branches per draft step; 1 is a chain, which the estimate is for."""
    verify_steps: int
    accepted_per_position: list[Share] | None
    """Share of verify steps in which at least k + 1 drafts were accepted, k < num_steps."""
    reported_acceptance_length: FiniteFloat | None
    """The server's own figure, completion tokens / verify steps; short outputs bias it."""
    prompts: int
    prompt_source: str
    """The file or data set the prompts came from."""
    prompts_digest: str = ""
    """sha256:… of the prompts themselves; empty where it was not recorded."""
    completion_tokens: int
    sampling: dict[str, Any]
    tokens_per_second: FiniteFloat | None
    """Completion tokens / wall time, at the concurrency below."""
    concurrency: int
    speedup: FiniteFloat | None
    """tokens_per_second against a server without a draft, on the same prompts."""
    server: Literal["sglang", "vllm"]
    server_version: str | None
    target: str | None
    """The model the server serves."""
    hardware: str | None
    measured_at: str
    """UTC, ISO 8601."""
    differences: list[str] = Field(default_factory=list)
    """Where the server ran the draft otherwise than this export asks, a sentence each; with any, the measurement is
    comparable with no other."""
    identified_by: Literal["digest", "path", "user"] | None = None
    """How it is known that the server ran this export: it named the weights' digest, it was started with this path, or
    the user said so (--served-as)."""
    served_as: str | None = None
    """The draft as the server named it."""
    reasons: dict[str, str] = _REASONS


class Measured(Section):
    """Measurements on servers, the newest first, and one of them as the headline: the one at the trained depth, else
    the one nearest to it, under the newest conditions."""

    acceptance_length: Length
    """Of the headline, in tokens per verify step."""
    num_steps: Depth
    """Draft depth of the headline."""
    includes_bonus_token: Literal[True] = True
    cost_ratio: FiniteFloat | None
    """Time of one draft step / time of one step without a draft, from the newest speed-ups under equal conditions."""
    measurements: list[Measurement]
    reasons: dict[str, str] = _REASONS


class ExportMetadata(Section):
    """metadata.json: what an export is and how good it should be."""

    schema_version: Literal[1] = 1
    epoch: int | None
    """Epoch of the checkpoint, counted from 0 as speculators does."""
    global_step: int | None
    """Optimizer steps before the save."""
    full_acc_0: Share | None
    """Share of positions where the first drafted token is right, in [0, 1]."""
    estimated_acceptance_length: FiniteFloat | None
    """Expected tokens per verify step; acceptance says how, at what depth and with or without bonus token."""
    reasons: dict[str, str] = _REASONS
    run: RunRecord | None = None
    """The training run it is of."""
    name: str
    """The export's directory name."""
    created_at: str
    """UTC, ISO 8601."""
    acceptance: AcceptanceEstimate
    measured: Measured | None
    sglang: Serving
    source: Source
    weights: Weights
    versions: dict[str, str]
    """Releases of what took part: eagle3_export, python, and those of torch and the like that were loaded."""


class IndexEntry(Section):
    """One export in the index."""

    name: str
    epoch: int | None
    global_step: int | None
    full_acc_0: Share | None
    estimated_acceptance_length: FiniteFloat | None
    measured_acceptance_length: FiniteFloat | None
    """The headline of the measurements, bonus token included."""
    measured_num_steps: int | None
    """Draft depth of the measured length."""
    acceptance_source: AccuracySource | None
    acceptance_method: str | None
    acceptance_num_steps: int | None
    """Draft depth of the estimate."""
    includes_bonus_token: bool | None
    """Of the estimate; a measured length always does."""
    per_depth: dict[str, FiniteFloat]
    """Estimated acceptance length, bonus token included, by draft depth."""
    kind: CheckpointKind
    created_at: str
    bytes: int
    seconds: FiniteFloat
    reasons: dict[str, str] = _REASONS


class ExportIndex(Section):
    """index.json: every export of a run, in order of training."""

    schema_version: Literal[1] = 1
    run: RunRecord | None = None
    """The training run whose exports these are."""
    latest: str | None
    best: str | None
    best_why: str | None = None
    """How it was chosen, and which exports could not be compared with it."""
    updated_at: str
    exports: list[IndexEntry]
    reasons: dict[str, str] = _REASONS
