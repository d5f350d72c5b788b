"""The header reader against safetensors' own reader, and against everything that is not a safetensors file."""

from __future__ import annotations

import json
import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_export.errors import CheckpointError
from eagle3_export.storage.byte_plan import plan_layout
from eagle3_export.storage.safetensors_file import (
    DTYPE_BITS,
    SafetensorsFile,
    TensorSource,
    read_safetensors,
)
from tests.support.drafts import SIZES, draft_tensors, safetensors_bytes

TWO = {"a": ("BF16", (2, 3), bytes(range(12))), "b": ("I64", (1,), bytes(range(8)))}


def with_header(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def agrees_with_safetensors(file: SafetensorsFile, content: bytes) -> None:
    """safetensors' own (Rust) reader finds the same tensors in `content`."""
    theirs = dict(safetensors.deserialize(content))
    assert theirs.keys() == file.tensors.keys()
    for name, ours in file.tensors.items():
        assert theirs[name]["dtype"] == ours.dtype
        assert tuple(theirs[name]["shape"]) == ours.shape
        assert bytes(theirs[name]["data"]) == content[ours.offset : ours.offset + ours.nbytes]


def test_reads_what_safetensors_reads(tmp_path: Path) -> None:
    content = safetensors_bytes(draft_tensors(), {"format": "pt"})
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    file = read_safetensors(path)
    agrees_with_safetensors(file, content)
    assert file.metadata == {"format": "pt"}
    assert file.size == len(content)
    assert list(file.tensors) == list(draft_tensors())


@given(
    st.dictionaries(
        st.text(
            st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1
        ).filter(lambda name: name not in ("__metadata__", "..")),
        st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 4), max_size=4)),
        max_size=8,
    ),
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=8), st.text(max_size=8), max_size=3),
    st.sampled_from([1, 8, 64]),
)
@settings(max_examples=60)
def test_every_valid_file_reads_as_safetensors_reads_it(
    tmp_path_factory: pytest.TempPathFactory, shapes: dict[str, Any], metadata: dict[str, str], pad: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "valid.safetensors"
    tensors = {}
    for name, (dtype, shape) in shapes.items():
        count = SIZES[dtype]
        for dimension in shape:
            count *= dimension
        tensors[name] = (dtype, tuple(shape), os.urandom(count))
    content = safetensors_bytes(tensors, metadata, pad)
    path.write_bytes(content)
    file = read_safetensors(path)
    agrees_with_safetensors(file, content)
    assert file.metadata == metadata


def test_the_dtype_table_is_safetensors_own(tmp_path: Path) -> None:
    for dtype, bits in DTYPE_BITS.items():
        content = safetensors_bytes({"x": (dtype, (8,), bytes(bits))})
        assert dict(safetensors.deserialize(content))["x"]["dtype"] == dtype
        path = tmp_path / dtype
        path.write_bytes(content)
        assert read_safetensors(path).tensors["x"].nbytes == bits
    with pytest.raises(safetensors.SafetensorError, match="unknown variant") as unknown:
        safetensors.deserialize(with_header({"x": entry("NO_SUCH")}, bytes(4)))
    listed = set(
        str(unknown.value).split("expected one of ")[1].replace("`", "").split(" at line")[0].split(", ")
    )
    assert listed == set(DTYPE_BITS)


MALFORMED = {
    "empty file": (b"", "fewer than the eight"),
    "seven bytes": (b"\2\0\0\0\0\0\0", "fewer than the eight"),
    "header longer than the file": (with_header({}, length=1000), "truncated"),
    "header length of 2^63": (with_header({}, length=2**63), "above the limit"),
    "header length of 2^64 - 1": (b"\xff" * 8, "above the limit"),
    "header above the limit": (with_header({}, length=100_000_001), "above the limit"),
    "no header": (with_header(b""), "not a JSON object"),
    "header is a list": (with_header([]), "not a JSON object"),
    "space before the brace": (with_header(b" {}"), "not a JSON object"),
    "half an object": (with_header(b'{"a":'), "cannot be parsed"),
    "two objects": (with_header(b"{}{}"), "cannot be parsed"),
    "not UTF-8": (with_header(b'{"\xff":{}}'), "cannot be parsed"),
    "UTF-16": (with_header(b"{\0}\0"), "cannot be parsed"),
    "NaN": (with_header(b'{"a":NaN}'), "cannot be parsed"),
    "nested a million deep": (with_header(b'{"a":' + b"[" * 1_000_000), "cannot be parsed"),
    "an integer of 5000 digits": (with_header(b'{"a":' + b"9" * 5000 + b"}"), "cannot be parsed"),
    "tensor twice": (with_header(b'{"a":{},"a":{}}'), "'a' occurs twice"),
    "dtype twice": (with_header(b'{"a":{"dtype":"U8","dtype":"I8"}}'), "'dtype' occurs twice"),
    "metadata is a list": (with_header({"__metadata__": []}), "__metadata__"),
    "metadata value is a number": (with_header({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata with half a character": (with_header(b'{"__metadata__":{"a":"\\ud800"}}'), "not valid Unicode"),
    "entry is a list": (with_header({"a": []}), "exactly dtype"),
    "no offsets": (with_header({"a": {"dtype": "U8", "shape": [4]}}, bytes(4)), "exactly dtype"),
    "key too many": (with_header({"a": {**entry(), "code": "x"}}, bytes(4)), "exactly dtype"),
    "unknown dtype": (with_header({"a": entry("BF17")}, bytes(4)), "unknown dtype 'BF17'"),
    "dtype is a list": (with_header({"a": entry(["U8"])}, bytes(4)), "unknown dtype"),
    "negative dimension": (with_header({"a": entry(shape=[-2, -2])}, bytes(4)), "list of counts"),
    "dimension is a float": (with_header({"a": entry(shape=[4.0])}, bytes(4)), "list of counts"),
    "dimension is true": (with_header({"a": entry(shape=[True, 4])}, bytes(4)), "list of counts"),
    "shape is a number": (with_header({"a": entry(shape=4)}, bytes(4)), "list of counts"),
    "shape overflows": (with_header({"a": entry(shape=[2**33, 2**33])}, bytes(4)), "overflows"),
    "shape overflows before its zero": (
        with_header({"a": entry(shape=[2**62, 2**62, 0])}, bytes(4)),
        "overflows",
    ),
    "one offset": (with_header({"a": entry(offsets=[0])}, bytes(4)), "begin and an end"),
    "offset is negative": (with_header({"a": entry(offsets=[-4, 0])}, bytes(4)), "begin and an end"),
    "offset is a string": (with_header({"a": entry(offsets=["0", "4"])}, bytes(4)), "begin and an end"),
    "end before begin": (with_header({"a": entry(offsets=[4, 0])}, bytes(4)), "truncated"),
    "data cut short": (with_header({"a": entry()}, bytes(3)), "truncated"),
    "data too long": (with_header({"a": entry()}, bytes(5)), "1 bytes follow"),
    "bytes do not fit the shape": (
        with_header({"a": entry(shape=[3])}, bytes(4)),
        "does not fill its 4 bytes",
    ),
    "bytes do not fit the dtype": (with_header({"a": entry("F32")}, bytes(4)), "does not fill its 4 bytes"),
    "half a byte": (with_header({"a": entry("F4", [7])}, bytes(4)), "does not fill its 4 bytes"),
    "overlap": (with_header({"a": entry(), "b": entry(offsets=[2, 6])}, bytes(6)), "overlaps"),
    "the same bytes twice": (with_header({"a": entry(), "b": entry()}, bytes(4)), "overlaps"),
    "gap": (with_header({"a": entry(), "b": entry(offsets=[6, 10])}, bytes(10)), "gap"),
    "gap at the start": (with_header({"a": entry(offsets=[4, 8])}, bytes(8)), "gap"),
    "empty name": (with_header({"": entry()}, bytes(4)), "has 0 characters"),
    "endless name": (with_header({"a" * 5000: entry()}, bytes(4)), "has 5000 characters"),
    "NUL in the name": (with_header({"a\0b": entry()}, bytes(4)), "cannot be printed"),
    "terminal escape in the name": (with_header({"a\x1b[2J": entry()}, bytes(4)), "cannot be printed"),
    "half a character in the name": (with_header(b'{"\\udc80":{"dtype":"U8"}}'), "cannot be printed"),
    "climbing name": (with_header({"a/../../b": entry()}, bytes(4)), "leaves its directory"),
    "climbing name, other slash": (with_header({"..\\a": entry()}, bytes(4)), "leaves its directory"),
    "absolute name": (with_header({"/etc/passwd": entry()}, bytes(4)), "leaves its directory"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_refused_with_its_reason(tmp_path: Path, case: str) -> None:
    content, reason = MALFORMED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in [
        ("missing", "is missing"), (".", "Is a directory"), ("pipe", "not a regular file"),
        ("loop", "cannot be read"), ("a\0b", "cannot be read"), ("x" * 300, "cannot be read"),
    ]:  # fmt: skip
        with pytest.raises(CheckpointError, match=reason):
            read_safetensors(tmp_path / name)


def test_a_path_that_is_not_utf8_can_be_shown(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(CheckpointError, match=r"caf\\xe9 is missing") as caught:
        read_safetensors(path)
    str(caught.value).encode()


def test_a_header_with_very_many_names(tmp_path: Path) -> None:
    """One of them twice; work that grew with the square of their number would show in the duration of the tests."""
    count = 20_000
    header = {f"{number:x}": entry(shape=[1], offsets=[number, number + 1]) for number in range(count)}
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(header, bytes(count)))
    file = read_safetensors(path)
    assert list(file.tensors) == list(header)
    tensors = [(name, TensorSource(file, tensor)) for name, tensor in file.tensors.items()]
    assert plan_layout(tensors, None, 4096).whole_file is file
    assert len(plan_layout(tensors[::2], None, 4096).segments) == count // 2
    with pytest.raises(CheckpointError, match="exported as '0'"):
        plan_layout([*tensors, tensors[0]], None, 4096)
    twice = json.dumps(header).encode()[:-1] + b',"0":{}}'
    path.write_bytes(with_header(twice, bytes(count)))
    with pytest.raises(CheckpointError, match="the key '0' occurs twice"):
        read_safetensors(path)


@given(data=st.binary(min_size=1, max_size=300), most=st.integers(1, 400))
def test_a_tensor_is_read_in_pieces_or_at_once(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, most: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "pieces.safetensors"
    path.write_bytes(safetensors_bytes({**TWO, "c": ("U8", (len(data),), data), "d": ("U8", (0,), b"")}))
    file = read_safetensors(path)
    source = TensorSource(file, file.tensors["c"])
    chunks = list(source.chunks(most))
    assert b"".join(chunks) == source.read() == data
    assert {len(chunk) for chunk in chunks[:-1]} <= {most}
    assert TensorSource(file, file.tensors["d"]).read() == b""


def test_a_tensor_of_a_file_that_is_no_longer_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(TWO))
    file = read_safetensors(path)
    source = TensorSource(file, file.tensors["b"])
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="tensor 'b' was truncated"):
        source.read()
    path.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        source.read()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        source.read()


def test_a_hostile_header_costs_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write((90_000_000).to_bytes(8, "little") + b"{")
        file.truncate(10**12)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="above the limit"):
        read_safetensors(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


INTERESTING = [
    0,
    1,
    -1,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    0.5,
    None,
    "",
    "..",
    [],
    {},
    True,
    "BF16",
]


def mutate(content: bytes, rng: random.Random) -> bytes:
    """One small fault: in the bytes, in the header's text, or in the header's structure."""
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    kind = rng.randrange(6)
    if kind == 0:
        at = rng.randrange(len(content))
        return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    if kind == 1:
        return content[: rng.randrange(len(content))]
    if kind == 2:
        at = rng.randrange(len(header))
        header = (
            header[:at]
            + rng.choice([b"", b'"', b"{", b"}", b"[", b"]", b",", b"\0", b"\xff", b"9"])
            + header[at:]
        )
        return with_header(header, data)
    document = json.loads(header)
    name = rng.choice(list(document))
    if kind == 3:
        key = rng.choice(["dtype", "shape", "data_offsets", "more"])
        document[name] = {**document[name], key: rng.choice([*INTERESTING, [rng.choice(INTERESTING)] * 2])}
    elif kind == 4:
        field = document[name].get(rng.choice(["shape", "data_offsets"]), [0])
        if field:
            field[rng.randrange(len(field))] = rng.choice([*INTERESTING, rng.randrange(40)])
    else:
        document[rng.choice(["..", "a\0", "é", "__metadata__", name + "x"])] = document.pop(name)
    return with_header(document, data)


def check_mutants(seed: int, count: int) -> None:
    """Only our own error comes out; what is accepted, safetensors accepts and reads alike."""
    rng = random.Random(seed)
    valid = [safetensors_bytes(TWO, {"format": "pt"}), safetensors_bytes({**TWO, "c": ("BOOL", (0, 7), b"")})]
    descriptor = os.memfd_create("fuzz")
    try:
        path = Path(f"/proc/self/fd/{descriptor}")
        for _ in range(count):
            content = rng.choice(valid)
            for _ in range(rng.choice([1, 1, 2])):
                try:
                    content = mutate(content, rng)
                except (ValueError, TypeError, AttributeError, IndexError):
                    break  # the first fault left nothing that the second could change
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
            try:
                file = read_safetensors(path)
            except CheckpointError as error:
                str(error).encode()
            else:
                agrees_with_safetensors(file, content)
    finally:
        os.close(descriptor)


@given(st.binary(max_size=200))
def test_random_bytes_never_escape_the_error_type(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.safetensors"
    path.write_bytes(content)
    try:
        file = read_safetensors(path)
    except CheckpointError:
        return
    agrees_with_safetensors(file, content)


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_damaged_files(seed: int) -> None:
    check_mutants(seed, 50)


@pytest.mark.slow
@pytest.mark.nightly
@given(st.integers(0, 2**64))
@settings(max_examples=200)
def test_damaged_files_100_000(seed: int) -> None:
    check_mutants(seed, 500)
