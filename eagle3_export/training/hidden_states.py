"""Hidden states on disk, refused where they cannot be of the verifier that a draft was trained for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_export.errors import EstimateError
from eagle3_export.storage.faults import shown

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3_export.speculators_format.draft import Draft


class CheckedStates:
    """Reads the hidden states of a row, and refuses those that cannot be of the draft's verifier.

    Attributes:
        row_of: a row of the data set, once that is open.
    """

    def __init__(self, transfer: Any, draft: Draft) -> None:
        """Takes speculators' own reader of the files, and what they must fit."""
        self._transfer, self._draft = transfer, draft
        self.row_of: Callable[[int], Mapping[str, Any]] | None = None

    def file(self, row: int) -> Path:
        """Returns the file of a row."""
        return Path(self._transfer.hidden_states_path) / f"hs_{row}.safetensors"

    def has(self, row: int) -> bool:
        """Whether there is a file of that row."""
        return self.file(row).exists()

    def get_cached(self, row: int) -> dict[str, Tensor] | None:
        """Returns what speculators' data set asks for, None where there is no file.

        Raises:
            EstimateError: the file cannot be read, or does not fit the draft.
        """
        try:
            found: dict[str, Tensor] | None = self._transfer.get_cached(row)
        except Exception as error:  # of safetensors, or of a lock that its writer left
            raise EstimateError(
                f"{shown(self.file(row))} cannot be read: {type(error).__name__}: {error}.",
                why="It was cut short or written over.",
                remedy="Have its row's hidden states written again.",
            ) from error
        if found is not None:
            for problem in self._misfits(found):
                raise EstimateError(
                    f"{shown(self.file(row))} {problem}.",
                    why="It was written for another verifier, or for other layers of it.",
                    remedy="Name data of the verifier that the draft was trained for.",
                )
            for problem in self._damages(row, found):
                raise EstimateError(
                    f"{shown(self.file(row))} {problem}.",
                    why="The draft would be judged by it.",
                    remedy="Have its row's hidden states written again.",
                )
        return found

    def _misfits(self, found: Mapping[str, Tensor]) -> Iterator[str]:
        missing = [name for name in ("token_ids", "hidden_states") if name not in found]
        if missing:
            yield f"holds no {' and no '.join(missing)}"
            return
        ids, states, draft = found["token_ids"], found["hidden_states"], self._draft
        layers = draft.num_aux_layers + 1
        if states.ndim != 3 or ids.ndim != 1 or len(ids) != len(states):
            yield f"holds hidden states {list(states.shape)} for token ids {list(ids.shape)}"
            return
        if states.shape[2] != draft.hidden_size:
            yield f"has hidden size {states.shape[2]}, the draft {draft.hidden_size}"
        if states.shape[1] != layers:
            yield f"holds {states.shape[1]} hidden states a token, the draft reads {layers}"
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < draft.vocab_size:
            yield f"has token {int(ids.max())}, the draft's vocabulary {draft.vocab_size} words"

    def _damages(self, row: int, found: Mapping[str, Tensor]) -> Iterator[str]:
        if not found["hidden_states"].isfinite().all():
            yield "holds NaN or infinity"
        ids = found["token_ids"]
        text = self.row_of(row) if self.row_of is not None else {}
        if text and ids.tolist() != text["input_ids"].tolist():
            yield "holds other tokens than its row of the data set"
        if text and len(ids) != len(text["loss_mask"]):
            yield f"holds {len(ids)} tokens, its row of the data set a loss_mask for {len(text['loss_mask'])}"
