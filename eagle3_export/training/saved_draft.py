"""Loads a saved draft into speculators' own model (0.8.0, 0.8.1, 0.9.0), and validates it as the trainer does.

The weights are safetensors; no pickle is opened and no code of a checkpoint or a verifier is run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from eagle3_export.dashboards import METRIC_LOGGER
from eagle3_export.errors import CheckpointError, EstimateError, UsageError
from eagle3_export.numeric.trained_model import trained_model
from eagle3_export.speculators_format.run_files import is_hub_id
from eagle3_export.speculators_format.verifier import find_verifier
from eagle3_export.storage.faults import shown
from eagle3_export.training.replay import Replayed, ValidationReplay
from eagle3_export.training.trainer_metrics import counted_positions

if TYPE_CHECKING:
    from torch import device as Device  # noqa: N812

    from eagle3_export.speculators_format.checkpoint import Checkpoint

# The settings that matter here, and what speculators takes for them.
_FITTING: Mapping[str, Callable[[Any], bool]] = {
    "data_path": lambda value: isinstance(value, str),
    "total_seq_len": lambda value: type(value) is int and value > 1,
    "ttt_steps": lambda value: type(value) is int and value > 0,
    "train_data_ratio": lambda value: isinstance(value, float) and 0 < value < 1,
    "hidden_states_dtype": lambda value: value in ("float32", "bfloat16", "float64"),
}
# Flex attention keeps no mask in memory, but outside of CUDA it is not compiled. `eager` is never used: up to
# speculators 0.8.1 its mask shows a draft step the answers of later positions.
FLEX, SDPA = "simple_flex_attention", "sdpa"


def require_trainer() -> None:
    """Refuses to go on without speculators' trainer.

    Raises:
        UsageError: it cannot be imported.
    """
    try:
        import_module("speculators.train.trainer")
    except ImportError as error:
        raise UsageError(
            f"speculators' trainer cannot be imported: {error}.",
            why="The draft is run as the trainer runs it.",
            remedy="pip install 'eagle3-export[train]' (speculators 0.8 or 0.9).",
        ) from error


def chosen_device() -> Device:
    """Returns the accelerator that torch has, or the CPU."""
    import torch

    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def attention_on(device: Device) -> str:
    """Returns the attention that the draft computes there, as speculators calls it."""
    return FLEX if device.type == "cuda" else SDPA


def trainers_settings(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's settings by name, with the trainer's own defaults for what its run.yaml leaves out.

    Args:
        recorded: what the run.yaml says; empty where there is none.

    Raises:
        UsageError: one that matters here has a value that no trainer takes.
    """
    from speculators.train.config import TrainConfig

    settings = {**TrainConfig().flatten(), **recorded}
    for name, fits in _FITTING.items():
        if not fits(settings[name]):
            raise UsageError(
                f"The run.yaml beside the checkpoint has {name}: {settings[name]!r:.80}.",
                why="The text is packed and split as the run did it.",
                remedy="Restore the file, or move it away and name the data with --data.",
            )
    return settings


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps what the libraries say about their own work off the terminal, and off dashboards, while the block runs."""
    import transformers
    from loguru import logger as loguru

    loguru.disable("speculators")
    loggers = [logging.getLogger(name) for name in ("speculators", METRIC_LOGGER)]
    before = [logger.disabled for logger in loggers]
    verbosity = transformers.utils.logging.get_verbosity()
    bars = transformers.utils.logging.is_progress_bar_enabled()
    for logger in loggers:
        logger.disabled = True
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        loguru.enable("speculators")
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
        transformers.utils.logging.set_verbosity(verbosity)
        if bars:
            transformers.utils.logging.enable_progress_bar()


def load_draft(checkpoint: Checkpoint, device: Device, settings: Mapping[str, Any]) -> Any:
    """Returns speculators' model with the checkpoint's weights in float32, as the trainer holds them.

    Args:
        checkpoint: that was read and checked.
        device: where it will run.
        settings: of its run, from `trainers_settings`.

    Raises:
        CheckpointError: it cannot be loaded, or the verifier's embedding, head and norm cannot.
    """
    from speculators.models.eagle3.rotary_partial import install_partial_neox_rotary

    if not settings["draft_mrope_full_head_hack"]:
        install_partial_neox_rotary()
    verifier = _verifier_of(checkpoint)
    try:
        with _no_remote_code():
            model = trained_model(checkpoint, attention_on(device), verifier=verifier)
        model.to(device)
    except Exception as error:  # of many libraries
        raise CheckpointError(
            f"{shown(checkpoint.directory)} cannot be loaded by speculators, with the verifier {verifier}:"
            f" {type(error).__name__}: {error}",
            remedy="Check that the verifier's config and weights are complete.",
        ) from error
    unset = [name for name, weight in model.named_parameters() if weight.isnan().any()]
    if unset:
        raise CheckpointError(
            f"{shown(checkpoint.directory)}: NaN in {', '.join(unset)}.",
            why="The training has diverged, or these weights were never loaded.",
        )
    return model


def _verifier_of(checkpoint: Checkpoint) -> str:
    """What speculators loads the verifier's embedding, head and norm from: a directory or a hub id."""
    search = find_verifier(checkpoint.draft.verifier_name, checkpoint=checkpoint.directory)
    if search.name is None:
        raise CheckpointError(
            f"{shown(checkpoint.directory)} names no verifier.",
            why="The replay needs its output head and norm.",
            remedy="Write its path or hub id into config.json: speculators_config.verifier.name_or_path.",
        )
    if search.directory is None and not is_hub_id(search.name):
        raise CheckpointError(
            f"The verifier {search.name} is not there; tried {', '.join(search.tried)}.",
            why="The replay needs its output head and norm.",
            remedy="Bring it there, or set speculators_config.verifier.name_or_path in the checkpoint's config.json.",
        )
    in_cache = search.directory is not None and search.directory.parent.name == "snapshots"
    return search.name if search.directory is None or in_cache else os.fspath(search.directory.absolute())


@contextlib.contextmanager
def _no_remote_code() -> Iterator[None]:
    """Has transformers refuse a verifier that brings its own code, where it would ask on a terminal."""
    from transformers import dynamic_module_utils as theirs

    patience = theirs.TIME_OUT_REMOTE_CODE
    theirs.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        theirs.TIME_OUT_REMOTE_CODE = patience


class Validation:
    """One validation pass of the trainer's own, over any loader, without an optimizer."""

    def __init__(
        self, model: Any, loader: Any, device: Device, settings: Mapping[str, Any], trained_steps: int
    ) -> None:
        """Takes what the pass needs.

        Args:
            model: from `load_draft`.
            loader: of packed batches.
            device: where the model is.
            settings: of its run.
            trained_steps: how many steps a chain has.
        """
        # What `val_epoch` reads; with a rank other than 0 it shows no bar of its own.
        self._trainer = _empty_trainer()
        self._trainer.model, self._trainer.val_loader = model, loader
        self._trainer.local_rank, self._trainer.device_type = device, device.type
        self._trainer.rank, self._trainer.is_distributed, self._trainer.global_step = -1, False, 0
        self._trainer.config = _PassConfig(settings, trained_steps)

    def run(
        self, epoch: int, num_steps: int | None, tell: Callable[[ValidationReplay], None]
    ) -> tuple[dict[str, float], Replayed]:
        """Validates and replays.

        Args:
            epoch: decides how the trainer packs the text.
            num_steps: chains of so many drafts are computed too; None for none.
            tell: called after each batch.

        Returns:
            the metrics as the callback records them, and what the replay counted.

        Raises:
            EstimateError: the pass failed.
        """
        loader = self._trainer.val_loader
        replay = ValidationReplay(
            self._trainer,
            () if num_steps is None else (num_steps,),
            replay_num_steps=num_steps,
            bounded=False,
        )
        self._trainer.val_loader = _Telling(loader, lambda: tell(replay))
        try:
            with counted_positions(len(loader)) as positions, replay.watching():
                metrics = self._trainer.val_epoch(epoch)
        except EstimateError:
            raise
        except Exception as error:  # of torch, for want of memory say
            raise EstimateError(f"The draft could not be run: {type(error).__name__}: {error}") from error
        return {**metrics, **positions}, replay.result()


def _empty_trainer() -> Any:
    """A trainer of speculators' without its `__init__`, which would make an optimizer and look for checkpoints."""
    from speculators.train.trainer import Trainer

    return object.__new__(Trainer)


class _PassConfig:
    """The part of `TrainerConfig` that a validation reads. Its loss is not asked for, so it costs nothing."""

    def __init__(self, settings: Mapping[str, Any], trained_steps: int) -> None:
        import torch

        self.hidden_states_dtype = getattr(torch, settings["hidden_states_dtype"])
        self.val_call_kwargs = {
            "ttt_steps": trained_steps,
            "loss_config": {"none": (lambda logits, targets: logits.new_zeros(logits.shape[:2]), 1.0)},
        }


class _Telling:
    """A loader that says when a batch is done with."""

    def __init__(self, loader: Any, tell: Callable[[], None]) -> None:
        self._loader, self._tell = loader, tell
        self.batch_sampler = loader.batch_sampler

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield batch
            self._tell()
