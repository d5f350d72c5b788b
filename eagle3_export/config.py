"""The `sglang_export:` block of a training config, and where exports go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from eagle3_export.errors import UsageError
from eagle3_export.storage.faults import resolved

BLOCK_NAME = "sglang_export"
DEFAULT_SGLANG_VERSION = "0.5.23"

Runtime = Literal["auto", "stock", "exact"]
Depth = Annotated[int, Field(ge=1, le=64)]


class ExportConfig(BaseModel):
    """What to export, for which server, and what to do when it cannot be done.

    Raises:
        pydantic.ValidationError: on unknown keys or wrong types (`parse_export_block`: UsageError).
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    output_dir: Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")] | None = Field(
        None, description="Where exports go. Default: <save_path>-sglang."
    )
    sglang_version: str = Field(
        DEFAULT_SGLANG_VERSION, description="The SGLang release that will serve the drafts."
    )
    runtime: Runtime = Field("auto", description="auto | stock | exact: which SGLang class may be needed.")
    on_incompatible: Literal["error", "warn"] = Field(
        "error", description="Decided before the first training step."
    )
    on_failure: Literal["warn", "raise"] = Field(
        "warn", description="For an export that fails during training."
    )
    embed_tokens: Literal["keep", "drop"] = Field(
        "keep", description="drop: SGLang uses the target's embedding anyway."
    )
    num_steps: Annotated[tuple[Depth, ...], Field(min_length=1)] = Field(
        (1, 3, 5, 10, 16), description="Draft depths to estimate the acceptance length for.", strict=False
    )
    keep_last: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Exports to keep; the newest and the best always stay."
    )

    @field_validator("num_steps")
    @classmethod
    def _depths_in_order(cls, depths: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(depths)))

    def resolve_output_dir(self, save_path: str | Path) -> Path:
        """The output directory for a run that saves its checkpoints to `save_path`.

        Raises:
            UsageError: nothing can lie beside `save_path`, or exports would lie inside it: the trainer sweeps
                that directory (speculators 0.9.0, `BaseCheckpointer.cleanup_keep_only_best`) and resumes from
                any directory there that has a number for a name.
        """
        save_path = Path(save_path)
        if self.output_dir is None:
            return (
                save_path.with_name(save_path.name + "-sglang")
                if save_path.name not in ("", "..")
                else _default_beside(save_path)
            )
        output_dir = Path(self.output_dir)
        real_output, real_save = resolved(output_dir), resolved(save_path)
        if real_output == real_save or real_save in real_output.parents:
            raise UsageError(
                f"{BLOCK_NAME}.output_dir ({output_dir}) lies in the trainer's save_path ({save_path}).",
                why="The trainer deletes what it does not know there and resumes from numbered directories.",
                remedy=f"Leave {BLOCK_NAME}.output_dir out (then {save_path}-sglang) or name another one.",
            )
        return output_dir


def _default_beside(save_path: Path) -> Path:
    real = resolved(save_path)
    if not real.name:
        raise UsageError(f"Nothing can lie beside {real}.", remedy="Name an output directory.")
    return real.with_name(real.name + "-sglang")


def parse_export_block(block: Mapping[str, Any] | None, *, origin: str = BLOCK_NAME) -> ExportConfig:
    """Validate one `sglang_export:` block.

    Raises:
        UsageError: names every unknown key and wrong value at once.
    """
    if block is None:
        return ExportConfig()
    if not isinstance(block, Mapping):
        raise UsageError(f"{origin}: the block {BLOCK_NAME} must be a mapping, not {type(block).__name__}.")
    try:
        return ExportConfig.model_validate(dict(block))
    except ValidationError as error:
        raise UsageError(
            f"{origin}: " + "; ".join(_describe(problem) for problem in error.errors()) + ".",
            remedy="Known keys: " + ", ".join(ExportConfig.model_fields) + ".",
        ) from None


def _describe(problem: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in (BLOCK_NAME, *problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key}"
    return f"{key}: {problem['msg']} (got {problem['input']!r})"


def read_export_block(config_path: str | Path) -> dict[str, Any] | None:
    """The raw `sglang_export:` block of a YAML training config, None where it has none.

    Raises:
        UsageError: the file cannot be read or is no YAML mapping.
    """
    import yaml  # only training configs are YAML

    path = Path(config_path)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read the training config {path}: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from error
    if document is None:
        return None
    if not isinstance(document, dict):
        raise UsageError(f"{path} must hold a YAML mapping, not {type(document).__name__}.")
    if BLOCK_NAME not in document:
        return None
    block = document[BLOCK_NAME]
    return {} if block is None else block
