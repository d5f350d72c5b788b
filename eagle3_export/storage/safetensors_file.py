"""Reads the header of a safetensors file that nobody vouches for.

The rules are those of the safetensors format (its Rust reader, `SafeTensors::read_metadata`): eight bytes
of header length, a JSON object, then the tensors back to back without gap or overlap. Stricter here:
duplicate keys, unknown keys and names that could be mistaken for paths are refused, and the header is
bounded more tightly.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from eagle3_export.errors import CheckpointError
from eagle3_export.storage.faults import shown
from eagle3_export.storage.regular_file import open_regular_file

# The format allows 100 MB. A draft's header has a few kB, one of 100 000 tensors under 16 MiB, and parsed
# JSON takes many times its size in memory.
MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_NAME_LENGTH = 1024
_MAX_ELEMENTS = 2**63 - 1
# JSON can write half of a character, which no text file can hold.
_SURROGATE = re.compile("[\ud800-\udfff]")

# safetensors 0.8 `Dtype`: bits per element.
DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Tells whether a path or descriptor still holds the bytes that were read before.

    Attributes:
        device: number of the filesystem.
        inode: number of the file in it.
        size: in bytes.
        modified_ns: modification time in nanoseconds since 1970.
    """

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Returns the identity in an `os.stat` or `os.fstat` answer."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor inside one safetensors file.

    Attributes:
        name: as the header has it.
        dtype: in safetensors' spelling, such as `BF16`.
        shape: the number of elements along each dimension.
        offset: of its first byte, counted from the start of the file.
        nbytes: how many bytes it has.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A validated header.

    Attributes:
        path: where the file was read.
        size: of the whole file, in bytes.
        data_start: offset of the first tensor byte, counted from the start of the file.
        metadata: the header's `__metadata__`.
        tensors: by name, in the order of their bytes.
        identity: of the file that the header was read from; None for a header made by hand.
    """

    path: Path
    size: int
    data_start: int
    metadata: dict[str, str]
    tensors: dict[str, TensorEntry]
    identity: FileIdentity | None = None


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Where a tensor's bytes come from.

    Attributes:
        file: the file that holds it.
        entry: which of the file's tensors it is.
    """

    file: SafetensorsFile
    entry: TensorEntry

    def chunks(self, most_bytes: int) -> Iterator[bytes]:
        """Reads the tensor's bytes, in pieces of `most_bytes`; the last one may be shorter.

        Raises:
            CheckpointError: the file cannot be read any more, or is shorter than its header said.
        """
        path, at, end = self.file.path, self.entry.offset, self.entry.offset + self.entry.nbytes
        with _opened(path) as descriptor:
            while at < end:
                chunk = os.pread(descriptor, min(most_bytes, end - at), at)
                if not chunk:
                    raise _malformed(
                        path, f"tensor {_quoted(self.entry.name)} was truncated while it was read"
                    )
                at += len(chunk)
                yield chunk

    def read(self) -> bytes:
        """Reads the tensor's bytes at once: for a tensor that is known to be small.

        Raises:
            CheckpointError: as `chunks` does.
        """
        return b"".join(self.chunks(max(self.entry.nbytes, 1)))


def read_safetensors(path: Path) -> SafetensorsFile:
    """Reads and validates a safetensors header; no tensor byte is read.

    Raises:
        CheckpointError: the file is missing, unreadable, truncated, too long, or its header breaks any rule.
    """
    path = Path(path)
    with _opened(path) as descriptor:
        status = os.fstat(descriptor)
        header = _read_header(path, descriptor, status.st_size)
    metadata, tensors = _parse_header(path, header, status.st_size)
    return SafetensorsFile(path, status.st_size, 8 + len(header), metadata, tensors, FileIdentity.of(status))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Opens a file, and raises every `OSError` of the block as `CheckpointError`."""
    try:
        descriptor = open_regular_file(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise CheckpointError(
            f"{shown(path)} is missing.",
            remedy="Check the path; a checkpoint still being written has it later.",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{shown(path)} cannot be read: {reason}.") from error


def _malformed(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{shown(path)} is not a valid safetensors file: {problem}.",
        why="A damaged or half-written checkpoint would be served as if it were whole.",
        remedy="Save or copy the checkpoint again.",
    )


def _quoted(name: str) -> str:
    return ascii(name if len(name) <= 120 else name[:117] + "...")


def _read_header(path: Path, descriptor: int, size: int) -> bytes:
    prefix = os.pread(descriptor, 8, 0)
    if len(prefix) < 8:
        raise _malformed(path, f"it has {size} bytes, fewer than the eight that give the header's length")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise _malformed(path, f"its header claims {length} bytes, above the limit of {MAX_HEADER_BYTES}")
    if length > size - 8:
        raise _malformed(path, f"its header claims {length} bytes, but the file has {size}: it is truncated")
    chunks, at = [], 8
    while at < 8 + length:
        chunk = os.pread(descriptor, 8 + length - at, at)
        if not chunk:
            raise _malformed(path, "it was truncated while its header was read")
        chunks.append(chunk)
        at += len(chunk)
    return b"".join(chunks)


def _parse_header(path: Path, header: bytes, size: int) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    if not header.startswith(b"{"):
        raise _malformed(path, "its header is not a JSON object")
    try:
        document = json.loads(
            header.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"its header cannot be parsed: {str(error)[:200]}") from None
    metadata = _parse_metadata(path, document.pop("__metadata__", {}))
    data_start = 8 + len(header)
    entries = [_parse_entry(path, name, value, data_start, size) for name, value in document.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    _require_contiguous(path, entries, data_start, size)
    return metadata, {entry.name: entry for entry in entries}


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {_quoted(twice)} occurs twice")
    return result


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _parse_metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _malformed(path, "__metadata__ is not a map from strings to strings")
    if any(_SURROGATE.search(text) for pair in value.items() for text in pair):
        raise _malformed(path, "__metadata__ holds text that is not valid Unicode")
    return value


def _name_problem(name: str) -> str | None:
    if not name or len(name) > MAX_NAME_LENGTH:
        return f"has {len(name)} characters (1 to {MAX_NAME_LENGTH} are allowed)"
    if not name.isprintable():
        return "holds characters that cannot be printed"
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        return "looks like a path that leaves its directory"
    return None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_ELEMENTS


def _parse_entry(path: Path, name: str, value: Any, data_start: int, size: int) -> TensorEntry:
    def refuse(problem: str) -> CheckpointError:
        return _malformed(path, f"tensor {_quoted(name)} {problem}")

    if problem := _name_problem(name):
        raise refuse(problem)
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise refuse("is not described by exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise refuse(f"has the unknown dtype {_quoted(str(dtype))}")
    if not isinstance(shape, list) or not all(_is_count(dimension) for dimension in shape):
        raise refuse("has a shape that is not a list of counts")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(at) for at in offsets):
        raise refuse("has data_offsets that are not a begin and an end")
    begin, end = offsets
    if begin > end or data_start + end > size:
        raise refuse(
            f"claims bytes {begin} to {end}, but the file holds {size - data_start}: it is truncated"
        )
    bits = DTYPE_BITS[dtype]
    for dimension in shape:
        bits *= dimension
        if bits > _MAX_ELEMENTS:
            raise refuse("has a shape whose size overflows")
    if bits != (end - begin) * 8:
        raise refuse(f"has shape {str(shape)[:120]} of {dtype}, which does not fill its {end - begin} bytes")
    return TensorEntry(name, dtype, tuple(shape), data_start + begin, end - begin)


def _require_contiguous(path: Path, entries: list[TensorEntry], data_start: int, size: int) -> None:
    at = data_start
    for entry in entries:
        if entry.offset != at:
            relation = "overlaps the tensor before it" if entry.offset < at else "leaves a gap before it"
            raise _malformed(path, f"tensor {_quoted(entry.name)} {relation}")
        at += entry.nbytes
    if at != size:
        raise _malformed(path, f"{size - at} bytes follow the last tensor")
