"""The `sglang_export:` block of a training config, and where exports go."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from eagle3_export.errors import UsageError
from eagle3_export.sglang.capabilities import DEFAULT_SGLANG_VERSION, parse_version
from eagle3_export.sglang.target import Runtime
from eagle3_export.storage.faults import expanded, require_apart, resolved, shown
from eagle3_export.storage.regular_file import read_regular_file

BLOCK_NAME = "sglang_export"
MAX_CONFIG_BYTES = 16 << 20
Depth = Annotated[int, Field(ge=1, le=64)]


class ExportConfig(BaseModel):
    """What to export, for which server, and what to do when it cannot be done.

    Attributes:
        output_dir: where exports go; `~` is expanded. None: beside the run's save_path, `<save_path>-sglang`.
        sglang_version: the SGLang release that will serve the drafts.
        runtime: which SGLang class an export may need: "auto", "stock" or "exact" (see the README).
        on_incompatible: "error" refuses a draft that cannot be served before the first training step; "warn"
            trains all the same.
        on_failure: what an export that fails during training does: "warn" or "raise".
        embed_tokens: "keep", or "drop" to leave the draft's embedding out; SGLang uses the target's.
        num_steps: draft depths, 1 to 64, for which the acceptance length is estimated.
        keep_last: how many exports stay; the newest and the best always do. None: all.

    Raises:
        pydantic.ValidationError: an unknown key or a wrong value.

    Example:
        >>> ExportConfig(output_dir="output/sglang", num_steps=(3, 5)).sglang_version
        '0.5.23'
        >>> ExportConfig.from_yaml("run.yaml").keep_last
        5
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
    replay_num_steps: Depth | None = Field(
        None, description="Replay validations at depths up to this one too, in passes of their own."
    )
    keep_last: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Exports to keep; the newest and the best always stay."
    )

    @field_validator("num_steps")
    @classmethod
    def _depths_in_order(cls, depths: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(depths)))

    @field_validator("sglang_version")
    @classmethod
    def _is_version(cls, version: str) -> str:
        try:
            parse_version(version)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return version

    @field_validator("output_dir")
    @classmethod
    def _expand_home(cls, output_dir: str | None) -> str | None:
        return None if output_dir is None else os.path.expanduser(output_dir)  # noqa: PTH111 (keeps "./")

    @classmethod
    def from_yaml(cls, path: str | Path) -> ExportConfig:
        """Reads the `sglang_export:` block of a training config; the defaults where there is none.

        Args:
            path: the YAML file that `speculators train --config` takes.

        Raises:
            UsageError: the file cannot be read, the block is wrong, or `sglang_export: false` switches the export
                off.
        """
        block = read_export_block(path)
        if block is False:
            raise UsageError(
                f"{shown(path)} switches the export off ({BLOCK_NAME}: false).",
                remedy="Attach no callback, or write a block.",
            )
        return parse_export_block(block, origin=shown(path))

    def resolve_output_dir(self, save_path: str | Path) -> Path:
        """Returns the output directory for a run, with `~` expanded.

        Args:
            save_path: where the run saves its checkpoints.

        Raises:
            UsageError: nothing can lie beside `save_path`; or one of the two would lie in the other.
        """
        beside = _beside(save_path := expanded(save_path))
        output_dir = beside if self.output_dir is None else expanded(self.output_dir)
        require_apart(
            output_dir,
            save_path,
            named=f"{BLOCK_NAME}.output_dir ({shown(output_dir)})",
            remedy=f"Name an {BLOCK_NAME}.output_dir outside of it, such as {shown(beside)}.",
        )
        return output_dir


def _beside(save_path: Path) -> Path:
    if save_path.name not in ("", ".."):
        return save_path.with_name(save_path.name + "-sglang")
    real = resolved(save_path)
    if not real.name:
        raise UsageError(
            "The root directory is the save_path, so exports cannot lie beside it.",
            remedy="Name an output directory.",
        )
    return real.with_name(real.name + "-sglang")


def parse_export_block(block: Mapping[str, Any] | None, *, origin: str = BLOCK_NAME) -> ExportConfig:
    """Validates one `sglang_export:` block.

    Args:
        block: its keys and values; None takes the defaults.
        origin: where it was written, for messages.

    Raises:
        UsageError: it is no mapping, or has unknown keys or wrong values; all of them are named at once.
    """
    if block is None:
        return ExportConfig()
    if not isinstance(block, Mapping):
        raise UsageError(
            f"{origin}: the block {BLOCK_NAME} must be a mapping, not {reprlib.repr(block)}.",
            remedy=f"Write keys below it, or {BLOCK_NAME}: false in the training config to train without exports.",
        )
    return validated(block, origin=origin, spelling=lambda key: f"{BLOCK_NAME}.{key}")


def validated(
    values: Mapping[str, Any], *, origin: str, spelling: Callable[[str], str], from_text: bool = False
) -> ExportConfig:
    """Validates the values of some keys; the others have their defaults.

    Args:
        values: by key of the block.
        origin: where they were written, for messages.
        spelling: how the user spells a key there.
        from_text: numbers may be given as text, as on a command line.

    Raises:
        UsageError: unknown keys or wrong values, all of them named at once.
    """
    try:
        return ExportConfig.model_validate(dict(values), strict=False if from_text else None)
    except ValidationError as error:
        problems = [_describe(problem, spelling) for problem in error.errors() if not _follows(problem)]
        raise UsageError(
            f"{origin}: {'; '.join(dict.fromkeys(problems))}.",
            remedy=f"Known: {', '.join(map(spelling, ExportConfig.model_fields))}.",
        ) from None


def _follows(problem: Mapping[str, Any]) -> bool:
    """Whether the problem only follows from another: a list is too short because its items were wrong."""
    return problem["type"] == "too_short" and bool(problem["input"])


def _describe(problem: Mapping[str, Any], spelling: Callable[[str], str]) -> str:
    kind, given = problem["type"], problem["input"]
    key = str(problem["loc"][0])
    if kind == "extra_forbidden":
        near = get_close_matches(key, ExportConfig.model_fields, n=1)
        return f"unknown key {spelling(key)}" + (f" (did you mean {spelling(near[0])}?)" if near else "")
    if kind == "value_error":
        return f"{spelling(key)}: {str(problem['ctx']['error']).rstrip('.')}"
    if kind == "string_type" and isinstance(given, int | float) and not isinstance(given, bool):
        return f'{spelling(key)}: YAML reads {given} as a number; quote it: {key}: "{given}"'
    if kind == "tuple_type" and isinstance(given, int | str):
        return f"{spelling(key)}: it is a list; write {key}: [{reprlib.repr(given).strip(QUOTES)}]"
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{spelling(key)}: {message} (got {reprlib.repr(given)})"


QUOTES = "'\"[]"


def read_export_block(config_path: str | Path) -> Any:
    """Reads the `sglang_export:` block of a YAML training config.

    Returns:
        Its value, not validated: a mapping if the file is right, False where the user switches the export off, an
        empty mapping for a block without keys. None where the file has no such block.

    Raises:
        UsageError: the file cannot be read, is no YAML mapping, or has a block of ours under a wrong name or in a
            wrong place.
    """
    document = _read_yaml(Path(config_path))
    if document is None:
        return None
    if not isinstance(document, dict):
        raise UsageError(
            f"{shown(config_path)} must hold a YAML mapping, not {type(document).__name__}.",
            remedy=f"Write speculators' keys under train: and ours under {BLOCK_NAME}:.",
        )
    for place in _misplaced_blocks(document):
        raise UsageError(
            f"{shown(config_path)}: {place} is not read by anybody.",
            why="speculators ignores what it does not know, and the export would run with its defaults.",
            remedy=f"Call the block {BLOCK_NAME}: and write it at the top level, beside train:.",
        )
    block = document.get(BLOCK_NAME)
    return {} if block is None and BLOCK_NAME in document else block


def _read_yaml(path: Path) -> Any:
    import yaml  # only training configs are YAML

    try:
        # A pipe would be empty when speculators reads it after us.
        text = read_regular_file(path, MAX_CONFIG_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(
            f"The training config {shown(path)} cannot be read: {reason}.", remedy="Name a YAML file."
        ) from error
    if len(text) > MAX_CONFIG_BYTES:
        raise UsageError(f"{shown(path)} has more than {MAX_CONFIG_BYTES} bytes.", remedy="Name a YAML file.")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{shown(path)} is not valid YAML: {error}.") from error
    except (
        Exception
    ) as error:  # PyYAML lets those of its conversions through: ValueError, AttributeError, KeyError ...
        raise UsageError(
            f"{shown(path)} holds a value that YAML cannot read: {error}.",
            remedy="Quote values that look like a date or a number and are none, such as 2026-02-30.",
        ) from error


def _misplaced_blocks(document: Mapping[Any, Any]) -> Iterator[str]:
    """Yields the places of blocks that were meant for us: of nearly our name, or inside of `train:`."""
    for key in document:
        if key != BLOCK_NAME and is_nearly_our_name(key):
            yield f"{key}:"
    groups: list[tuple[str, Any]] = [("train", document.get("train"))]
    for path, group in groups:
        for key, value in group.items() if isinstance(group, dict) else ():
            if is_nearly_our_name(key):
                yield f"{key}: inside of {path}:"
            elif path == "train":
                groups.append((f"train: {key}", value))


def is_nearly_our_name(text: object) -> bool:
    """Whether somebody who wrote this meant `sglang_export`."""
    name = re.sub("[^a-z0-9]", "", str(text).lower())
    alike = SequenceMatcher(None, name, BLOCK_NAME.replace("_", "")).ratio() >= 0.8
    return alike or ("sglang" in name and "export" in name) or name.startswith("eagle3export")
