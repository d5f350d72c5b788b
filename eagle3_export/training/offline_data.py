"""The data that a draft is replayed on, as speculators' trainer reads them offline (0.8.0, 0.8.1, 0.9.0).

A directory of `datasets` (Arrow files) with `input_ids`, `loss_mask` and `seq_len`, and beside it one
`hidden_states/hs_<row>.safetensors` a row. Nothing of that is pickled. Reading, packing and collating are
speculators' own; what does not fit the draft is refused here, with the file's name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_export.errors import EstimateError, UsageError
from eagle3_export.estimates.replay import ReplayedData
from eagle3_export.speculators_format.run_files import places_of
from eagle3_export.storage.faults import resolved, shown
from eagle3_export.training.hidden_states import CheckedStates

if TYPE_CHECKING:
    from eagle3_export.speculators_format.draft import Draft

# Positions in a batch where attention has dense masks, if no document is longer.
DENSE_LENGTH = 1024

COLUMNS = ("input_ids", "loss_mask", "seq_len")
# Written by `datasets` beside the Arrow files of one data set.
DATASET_FILES = ("state.json", "dataset_info.json")


@dataclass(frozen=True)
class ChosenData:
    """Which rows of which data set are walked.

    Attributes:
        path: directory of the data set.
        held_out: only the rows that the trainer holds out for validation; else all rows.
        of_the_run: the run trained on this data set.
        why: of the choice, as a sentence.
    """

    path: Path
    held_out: bool
    of_the_run: bool
    why: str


def choose_data(
    given: str | os.PathLike[str] | None,
    save_path: Path,
    recorded: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> ChosenData:
    """Chooses the data to walk.

    The run's own data: their validation part, by the trainer's own rule. Other data than the run's: all of them. Where
    no run is recorded beside the checkpoint, the part that the trainer would hold out, since the draft may have been
    trained on the rest.

    Args:
        given: what the user named, None for the run's own.
        save_path: where the run saved its checkpoints.
        recorded: what its run.yaml says; empty where there is none.
        settings: the same, with the trainer's defaults.

    Raises:
        UsageError: none were named and none are recorded or there, or there is no data set.
    """
    places = places_of(str(settings["data_path"]), save_path) if recorded else []
    if given is None:
        own = next((place for place in places if place.is_dir()), None)
        if own is None:
            raise _no_data(places)
        given = own
    path = Path(given)
    _require_dataset(path)
    share = settings["train_data_ratio"]
    if any(resolved(place) == resolved(path) for place in places):
        return ChosenData(path, True, True, "the run's own validation")
    if recorded:
        return ChosenData(path, False, False, "all of them, since the run was trained on other data")
    return ChosenData(
        path,
        True,
        False,
        f"what the trainer holds out by default, the rows after the first {share:.0%}: no run.yaml says whether the"
        " draft was trained on them",
    )


def _no_data(tried: list[Path]) -> UsageError:
    if tried:
        return UsageError(
            f"The run's data are not where its run.yaml has them: {', '.join(shown(place) for place in tried)}.",
            remedy="Name them: --data DIR.",
        )
    return UsageError(
        "No data were named, and no run.yaml beside the checkpoint names them.",
        remedy="Name them: --data DIR.",
    )


def _require_dataset(path: Path) -> None:
    remedy = "Name a directory that speculators prepared for offline training (its --data-path)."
    if not path.is_dir():
        raise UsageError(
            f"{shown(path)} is {'no directory' if path.exists() else 'not there'}.", remedy=remedy
        )
    missing = [name for name in DATASET_FILES if not (path / name).is_file()]
    if missing:
        raise UsageError(
            f"{shown(path)} holds no data set: there is no {' and no '.join(missing)}.", remedy=remedy
        )


class OfflineData:
    """The rows to walk, in speculators' own data set, packed by its own sampler."""

    def __init__(
        self, chosen: ChosenData, draft: Draft, settings: Mapping[str, Any], limit: int | None
    ) -> None:
        """Opens the data set.

        Args:
            chosen: from `choose_data`.
            draft: what the data must fit.
            settings: the run's, with the trainer's defaults.
            limit: how many rows are walked at most.

        Raises:
            EstimateError: there are no rows, they lack a column, or no hidden states lie beside them.
        """
        import torch
        from speculators.train.data import ArrowDataset

        self.chosen, self._draft, self._limit = chosen, draft, limit
        self._sequence = int(settings["total_seq_len"])
        self._transfer = CheckedStates(hidden_states_of(chosen, settings), draft)
        transfer: Any = self._transfer
        share = float(settings["train_data_ratio"])
        self._require_rows(share)
        self.dataset = ArrowDataset(
            max_len=self._sequence,
            datapath=os.fspath(chosen.path),
            transfer=transfer,
            on_missing="skip",
            train_ratio=share if chosen.held_out else 1.0,
            split="val" if chosen.held_out else "train",
            hidden_states_dtype=getattr(torch, settings["hidden_states_dtype"]),
        )
        rows = self.dataset.data.with_format("torch")
        self.dataset.data = rows.select(range(min(limit or len(rows), len(rows))))
        self.dataset.approx_lengths = self.dataset._compute_approx_lengths()
        self._transfer.row_of = lambda row: self.dataset.data[row - self._numbers()[0]]
        self._missing = [n for n in self._numbers() if not self._transfer.has(n)]
        if len(self._missing) == len(self.dataset.data):
            raise EstimateError(
                f"There are no hidden states for {row_range(self.dataset.start_file_idx, len(self.dataset.data))}:"
                f" {shown(self._transfer.file(self._missing[0]))} is missing, and so are those of the other rows.",
                why="The replay runs the draft on the verifier's hidden states.",
                remedy="Have speculators write them for offline training, and name that directory.",
            )
        # A run that generated what was missing has validated on it.
        complete = not self._missing or settings["on_missing"] in ("skip", "warn")
        self._run_validation = chosen.of_the_run and len(self.dataset.data) == len(rows) and complete

    def _require_rows(self, share: float) -> None:
        from datasets import Dataset, load_from_disk

        try:
            rows = load_from_disk(os.fspath(self.chosen.path))
        except Exception as error:  # of pyarrow, fsspec or json
            raise EstimateError(
                f"{shown(self.chosen.path)} cannot be read: {type(error).__name__}: {error}.",
                remedy="Prepare the data again, or copy them again.",
            ) from error
        missing = [name for name in COLUMNS if name not in rows.column_names]
        if not isinstance(rows, Dataset) or missing:
            raise EstimateError(
                f"{shown(self.chosen.path)} has no column {', no column '.join(missing)}.",
                why="It is no data set that speculators prepared for training.",
                remedy="Name its --data-path.",
            )
        if len(rows) == 0 or (self.chosen.held_out and int(len(rows) * share) >= len(rows)):
            held_out = f" to validate on: {share:.0%} of {len(rows)} are for training" if len(rows) else ""
            raise EstimateError(
                f"{shown(self.chosen.path)} holds no rows{held_out}.", remedy="Name other data."
            )

    def _numbers(self) -> range:
        first = int(self.dataset.start_file_idx)
        return range(first, first + len(self.dataset.data))

    def loader(self, *, dense_masks: bool) -> Any:
        """Returns speculators' own loader over the rows.

        Args:
            dense_masks: attention costs time and memory by the square of a batch's length.
        """
        from speculators.models.eagle3.data import shift_batch
        from speculators.train import dataloader

        # As the run packed it, so that every number comes out as in its own validation. Otherwise a batch, which is
        # padded to its full length, is no longer than all of the text. No document is cut that the run does not cut.
        lengths = self.dataset.approx_lengths
        length = self._sequence if self._run_validation else min(self._sequence, sum(lengths))
        if dense_masks:
            length = min(length, max(DENSE_LENGTH, *lengths))
        return dataloader._setup_dataloader(
            self.dataset,
            length,
            self._draft.hidden_size,
            num_workers=0,
            num_target_layers=self._draft.num_aux_layers,
            preprocess=shift_batch,
        )

    @cached_property
    def record(self) -> ReplayedData:
        """What a document says of these data."""
        return ReplayedData(
            path=shown(resolved(self.chosen.path)),
            first_row=self._numbers()[0],
            documents=len(self.dataset.data) - len(self._missing),
            left_out=len(self._missing),
            limit=self._limit,
            run_validation=self._run_validation,
            digest=self._digest(),
        )

    def _digest(self) -> str:
        digest, missing = hashlib.sha256(), set(self._missing)
        for number, row in zip(self._numbers(), self.dataset.data.with_format("numpy"), strict=True):
            if number not in missing:
                ids, mask = (row[name][: self._sequence] for name in ("input_ids", "loss_mask"))
                digest.update(f"{len(ids)} ".encode() + ids.astype("<i8").tobytes() + (mask != 0).tobytes())
        return f"sha256:{digest.hexdigest()}"


def row_range(first: int, count: int) -> str:
    """Returns in words the rows of a data set from one on, counted from 0."""
    return f"row {first}" if count == 1 else f"rows {first} to {first + count - 1}"


def hidden_states_of(chosen: ChosenData, settings: Mapping[str, Any]) -> Any:
    """Returns how the run read its hidden states from disk; for other data, the directory beside them.

    Args:
        chosen: the data.
        settings: the run's, with the trainer's defaults.

    Raises:
        UsageError: run.yaml names hidden states in a way that cannot be used.
    """
    import argparse

    from hs_connectors import FileTransfer, HiddenStatesBackend

    backend = HiddenStatesBackend.registry.get(str(settings.get("hidden_states_backend")))
    if chosen.of_the_run and backend is not None:
        parser = argparse.ArgumentParser()
        backend.add_train_args(parser)
        arguments = argparse.Namespace()
        vars(arguments).update({**vars(parser.parse_args([])), **settings})
        try:
            transfer = backend.from_train_args(arguments, os.fspath(chosen.path))
        except Exception as error:  # run.yaml may hold anything where the backend expects a path or a number
            raise UsageError(
                f"The run.yaml beside the checkpoint has options for hidden states that cannot be used: {error}.",
                why="The hidden states are read from where the run had them.",
                remedy="Restore the file, or move it away and name the data with --data.",
            ) from error
        if isinstance(transfer, FileTransfer):
            return transfer
    return FileTransfer(chosen.path / "hidden_states")
