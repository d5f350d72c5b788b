"""The names on disk of a speculators run: its files, its checkpoint directories, and the hub's cache."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.storage.faults import leads_to, shown

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_INDEX_FILE = "model.safetensors.index.json"
TRAINING_STATE_FILE = "training_state.json"
VAL_METRICS_FILE = "val_metrics.json"
OPTIMIZER_FILE = "optimizer_state_dict.pt"
RUN_FILE = "run.yaml"

TRAIN_COMMAND_FILE = "train_command.txt"

INTERRUPTED = "interrupted"
BEST_LINK = "checkpoint_best"
_EPOCH_LINK = re.compile(r"epoch[0-9]+_(end|step[0-9]+)")

_MAX_RUN_FILE_BYTES = 1 << 20

logger = logging.getLogger(__name__)


def epoch_of(name: str) -> int | None:
    """The epoch that a checkpoint directory of this name holds, or None if the name is no number."""
    return int(name) if re.fullmatch(r"[0-9]{1,18}", name) else None


def find_checkpoints(save_path: str | Path) -> list[Path]:
    """All checkpoint directories of a run: the numbered ones in order, then `interrupted`.

    One that was moved elsewhere and left a link behind is one of them; a second name of one that is listed is not.

    Raises:
        CheckpointError: `save_path` is not a readable directory.
    """
    save_path = Path(save_path)
    try:
        children = [child for child in save_path.iterdir() if _is_own_directory(child)]
        numbered = [child for child in children if epoch_of(child.name) is not None]
        numbered.sort(key=lambda child: (epoch_of(child.name), child.name))
        interrupted = [child for child in children if child.name == INTERRUPTED]
        ordered = numbered + interrupted
        return [directory for directory in ordered if _has_weights(directory)]
    except OSError as error:
        raise CheckpointError(
            f"{save_path} cannot be listed: {error.strerror or error}.",
            remedy="Name the save_path of a training run.",
        ) from error


def _is_own_directory(child: Path) -> bool:
    """A directory, or a link to one that lies elsewhere."""
    if not child.is_symlink():
        return child.is_dir()
    return child.is_dir() and child.resolve().parent != child.parent.resolve()


def _has_weights(directory: Path) -> bool:
    return (directory / WEIGHTS_FILE).exists() or (directory / WEIGHTS_INDEX_FILE).exists()


def locate_checkpoint(path: str | Path) -> Path:
    """Returns the real directory of a checkpoint, symlinks resolved.

    Args:
        path: a checkpoint directory, a symlink to one, a file in one, or a hub id in the local cache.

    Raises:
        CheckpointError: there is nothing, or nothing that says what the weights are.
    """
    directory = _directory_of(path)
    try:
        described = (directory / CONFIG_FILE).exists()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not described:
        raise CheckpointError(
            f"{directory} has no {CONFIG_FILE}.",
            why="It says what the weights are.",
            remedy=_no_config_remedy(directory),
        )
    return directory


def _directory_of(path: str | Path) -> Path:
    local = Path(path)
    try:
        if local.is_file():
            if not (local.parent / CONFIG_FILE).exists():
                raise CheckpointError(
                    f"{shown(path)} is a file, not a checkpoint.",
                    remedy="Name a checkpoint directory that `speculators train` wrote.",
                )
            local = local.parent
        if local.is_dir():
            return local.resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    if local.is_symlink():
        raise CheckpointError(f"{shown(path)} {leads_to(local)}.", remedy="Name a checkpoint directory.")
    cached = cached_snapshot(str(path))
    if cached is not None:
        return cached
    raise CheckpointError(
        f"{path} is neither a directory nor in the local Hugging Face cache.",
        remedy=f"Check the path, or fetch it first: hf download {path}"
        if is_hub_id(str(path))
        else "Check the path.",
    )


def _unreadable(path: str | Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{str(path)[:200]} cannot be read: {error}.")


def _no_config_remedy(directory: Path) -> str:
    try:
        below = find_checkpoints(directory)
    except CheckpointError:
        below = []
    if below:
        return f"Name one of its checkpoints, such as {below[-1]}; `convert --all` takes all of them."
    return "Name a checkpoint directory that `speculators train` wrote."


def is_save_path(directory: Path) -> bool:
    """Whether a trainer saves there: what it writes beside the checkpoints of a run lies there."""
    try:
        names = {child.name for child in directory.iterdir()}
    except OSError:
        return False
    return not names.isdisjoint((RUN_FILE, TRAIN_COMMAND_FILE, BEST_LINK)) or any(
        map(_EPOCH_LINK.fullmatch, names)
    )


def run_settings(save_path: str | Path) -> dict[str, Any]:
    """The trainer's arguments from the `run.yaml` that it writes to `save_path`, without their sections.

    Returns:
        Nothing where there is no such file, or one that cannot be read; the log says why.
    """
    written = Path(save_path) / RUN_FILE
    try:
        if not written.is_file():
            return {}
        import yaml  # costs import time, so only here

        with written.open("rb") as stream:
            sections = yaml.safe_load(stream.read(_MAX_RUN_FILE_BYTES))["train"].values()
        return {
            key: value for section in sections if isinstance(section, dict) for key, value in section.items()
        }
    except Exception as error:  # PyYAML also raises ValueError, for 2026-02-30. No run stops for this file.
        logger.info("%s cannot be used: %s: %s", written, type(error).__name__, error)
        return {}


def places_of(name: str, save_path: str | Path) -> list[Path]:
    """Where a path that the trainer was given may lie, likeliest first.

    A relative path counted from the trainer's working directory, which is recorded nowhere. So it is tried from the
    current directory, from `save_path`, and from the directory in which the run's own relative `save_path` lies.

    Args:
        name: the path as the trainer was given it.
        save_path: where the run saved its checkpoints, as it is reached from here.
    """
    if Path(name).is_absolute():
        return [Path(name)]
    run = Path(save_path).absolute()
    starts = [Path(), run]
    own = run_settings(run).get("save_path")
    if isinstance(own, str) and not Path(own).is_absolute():
        parts = Path(own).parts
        if parts and run.parts[-len(parts) :] == parts:
            starts.append(Path(*run.parts[: -len(parts)]))
    return [start / name for start in starts]


def frequencies_file(save_path: str | Path) -> Path | None:
    """`token_freq.pt` of a run: `token_freq_path` of its run.yaml, else the one below its `data_path`.

    Args:
        save_path: the trainer's.

    Returns:
        The first of the places where it may lie that exists (`places_of`), None where the run names none.
    """
    settings = run_settings(save_path)
    named, data = settings.get("token_freq_path"), settings.get("data_path")
    try:
        if isinstance(named, str):
            places = places_of(named, save_path)
            return next((place for place in places if place.is_file()), places[0])
        if isinstance(data, str):
            below = (place / "token_freq.pt" for place in places_of(data, save_path))
            return next((place for place in below if place.is_file()), None)
    except OSError as error:  # in a private directory of another user
        logger.info("The token frequencies of the run cannot be looked for: %s", error)
    return None


def is_hub_id(name: str) -> bool:
    """Whether a name has the form `organisation/model`; a relative path of two parts has it too."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def cached_snapshot(name: str) -> Path | None:
    """The directory of a hub model in the local cache, or None. Never the network."""
    if not is_hub_id(name):
        return None
    from huggingface_hub import try_to_load_from_cache  # costs import time, so only here
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(name, CONFIG_FILE)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None
