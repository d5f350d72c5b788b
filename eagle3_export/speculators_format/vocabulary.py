"""The map between the draft's vocabulary and the verifier's: read, and proven to add up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eagle3_export.errors import CheckpointError, Eagle3ExportError, Fault
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.tensors import INTEGER_DTYPES, MASK_DTYPES
from eagle3_export.storage.safetensors_file import TensorSource

_NUMPY_DTYPES: Mapping[str, str] = {"I64": "<i8", "I32": "<i4", "BOOL": "|u1", "U8": "|u1"}


def check_vocabulary(
    draft: Draft, tensors: Mapping[str, TensorSource], where: str, fault: Fault = CheckpointError
) -> None:
    """Checks d2t (offsets: target id = i + d2t[i], int64 [draft_vocab_size]) and t2d (bool [vocab_size]).

    SGLang computes `d2t + arange` (0.5.23, `LlamaForCausalLMEagle3.load_weights`), so absolute ids in d2t
    would be served as other tokens. Neither tensor exists for a full vocabulary.

    Args:
        draft: what the config says.
        tensors: by speculators' name.
        where: what messages call the file or directory.
        fault: the error to raise.

    Raises:
        CheckpointError: a map is missing, has the wrong shape or dtype, or does not add up; `fault` may name
            another error.
    """

    def broken(problem: str) -> Eagle3ExportError:
        return fault(
            f"{where}: {problem}.",
            why="The server would propose other tokens than the draft means.",
            remedy="Save the checkpoint again; train with matching d2t and t2d.",
        )

    d2t, t2d = tensors.get("d2t"), tensors.get("t2d")
    if d2t is None and t2d is None:
        if draft.reduced_vocabulary:
            raise broken(
                f"the draft vocabulary has {draft.draft_vocab_size} of {draft.vocab_size} tokens, but d2t is missing",
            )
        return
    if d2t is None or t2d is None:
        raise broken(f"{'d2t' if d2t is None else 't2d'} is missing although the other one is there")
    for name, source, length, dtypes in (
        ("d2t", d2t, draft.draft_vocab_size, INTEGER_DTYPES),
        ("t2d", t2d, draft.vocab_size, MASK_DTYPES),
    ):
        entry = source.entry
        if entry.shape != (length,) or entry.dtype not in dtypes:
            raise broken(f"{name} is {entry.dtype} {list(entry.shape)}, not {' or '.join(dtypes)} [{length}]")
    offsets = _read(d2t).astype(np.int64)
    mask = _read(t2d)
    if mask.size and int(mask.max()) > 1:
        raise broken("t2d holds values other than 0 and 1")
    if bool((np.abs(offsets) > draft.vocab_size).any()):
        raise broken("d2t holds offsets larger than the vocabulary")
    ids = offsets + np.arange(offsets.size, dtype=np.int64)
    if ids.min() < 0 or ids.max() >= draft.vocab_size:
        hint = (
            " (absolute ids instead of offsets?)"
            if 0 <= offsets.min() <= offsets.max() < draft.vocab_size
            else ""
        )
        raise broken(f"i + d2t[i] leaves the verifier's vocabulary of {draft.vocab_size}{hint}")
    if bool((np.diff(ids) <= 0).any()):
        raise broken("i + d2t[i] is not strictly increasing, so draft tokens share or swap target tokens")
    if not np.array_equal(ids, np.flatnonzero(mask)):
        raise broken("i + d2t[i] names other tokens than those set in t2d")


def vocabulary_offsets(tensors: Mapping[str, TensorSource]) -> np.ndarray | None:
    """d2t of a checked checkpoint, int64 or int32 [draft vocabulary]; None for a full vocabulary, which has none."""
    return _read(tensors["d2t"]) if "d2t" in tensors else None


def _read(source: TensorSource) -> np.ndarray:
    """Returns the values of a small tensor; its size has been checked against the config."""
    return np.frombuffer(source.read(), dtype=_NUMPY_DTYPES[source.entry.dtype])
