"""Where every byte of the new safetensors file comes from, decided before one is moved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.storage.safetensors_file import DTYPE_BITS, SafetensorsFile, TensorSource


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of bytes that moves in one piece.

    Attributes:
        file: where the bytes come from.
        source_offset: of the first byte, from the start of `file`.
        offset: of the first byte, from the start of the new file.
        nbytes: how many bytes there are.
    """

    file: SafetensorsFile
    source_offset: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A new safetensors file.

    Attributes:
        header: the eight length bytes, the JSON and its padding: everything before the first tensor byte.
        segments: in the order of their offsets in the new file.
        whole_file: the one source file that is this file but for the header; None if there is no such file.
        nbytes: size of the new file.
        block_size: the filesystem block that clones are aligned to, in bytes.
    """

    header: bytes
    segments: tuple[Segment, ...]
    whole_file: SafetensorsFile | None
    nbytes: int
    block_size: int


def plan_layout(
    tensors: Sequence[tuple[str, TensorSource]], metadata: Mapping[str, str] | None, block_size: int
) -> Layout:
    """Lays `tensors` out so that as much as possible can be cloned rather than copied.

    The header is padded with spaces, as safetensors allows, so that the longest run of tensors starts at
    the same place in a filesystem block as in its source; for a complete source file, at the same byte if
    it fits.

    Args:
        tensors: new name and source of each tensor; their order does not matter.
        metadata: the new `__metadata__`; None keeps that of the first tensor's file.
        block_size: the filesystem's, in bytes.

    Returns:
        the plan, with the bytes of the new header.

    Raises:
        CheckpointError: two tensors would get the same name.
    """
    ordered = _in_file_order(tensors)
    if metadata is None:
        metadata = tensors[0][1].file.metadata if tensors else {}
    document: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    runs: list[Segment] = []
    at = 0
    for name, source in ordered:
        entry = source.entry
        if name in document:
            raise CheckpointError(
                f"Two tensors would both be exported as {name!r}.",
                why="One of them would be lost.",
                remedy="Remove one of them from the checkpoint.",
            )
        document[name] = {
            "dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [at, at + entry.nbytes]
        }  # fmt: skip
        _append_run(runs, Segment(source.file, entry.offset, at, entry.nbytes))
        at += entry.nbytes
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    data_start = _data_start(8 + len(text), runs, at, block_size)
    header = (data_start - 8).to_bytes(8, "little") + text.ljust(data_start - 8)
    segments = tuple(Segment(r.file, r.source_offset, data_start + r.offset, r.nbytes) for r in runs)
    return Layout(header, segments, _whole_file(segments, data_start + at), data_start + at, block_size)


def _in_file_order(tensors: Sequence[tuple[str, TensorSource]]) -> list[tuple[str, TensorSource]]:
    """Returns the tensors in the order of the new file.

    That is the order of the source file, if all of it is exported: then it moves in one piece. Otherwise wide dtypes
    come first, as safetensors' own writer has them: a reader that maps the file needs each tensor at a multiple of its
    element's size, which a gap or a second file could disturb.
    """
    file_numbers: dict[str, int] = {}
    for _, source in tensors:
        file_numbers.setdefault(str(source.file.path), len(file_numbers))

    def position(item: tuple[str, TensorSource]) -> tuple[int, int, int]:
        source = item[1]
        return file_numbers[str(source.file.path)], source.entry.offset, source.entry.nbytes

    ordered = sorted(tensors, key=position)
    complete = len(file_numbers) == 1 and len(ordered) == len(ordered[0][1].file.tensors)
    return ordered if complete else sorted(ordered, key=lambda item: -DTYPE_BITS[item[1].entry.dtype])


def _append_run(runs: list[Segment], piece: Segment) -> None:
    if not piece.nbytes:
        return
    last = runs[-1] if runs else None
    if last and last.file is piece.file and last.source_offset + last.nbytes == piece.source_offset:
        runs[-1] = Segment(last.file, last.source_offset, last.offset, last.nbytes + piece.nbytes)
    else:
        runs.append(piece)


def _data_start(least: int, runs: list[Segment], nbytes: int, block_size: int) -> int:
    """Returns where tensor data starts.

    That is `least` or more: padded so that the longest run sits at the same offset within a filesystem block as in its
    source, which lets it be cloned.
    """
    if not runs:
        return least
    longest = max(runs, key=lambda run: run.nbytes)
    shift = longest.source_offset - longest.offset
    complete = longest.source_offset == longest.file.data_start and longest.nbytes == nbytes
    if complete and shift >= least and longest.file.size == shift + nbytes:
        return shift
    if shift % 8 or longest.nbytes < block_size:
        return least + -least % 8
    return least + (shift - least) % block_size


def _whole_file(segments: tuple[Segment, ...], nbytes: int) -> SafetensorsFile | None:
    if len(segments) != 1:
        return None
    segment = segments[0]
    same_place = segment.source_offset == segment.offset and segment.offset + segment.nbytes == nbytes
    return segment.file if same_place and segment.file.size == nbytes else None
