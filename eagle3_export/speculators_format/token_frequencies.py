"""The token frequencies of a run's training data, and what share of them the draft vocabulary covers.

speculators chooses the draft vocabulary by the token frequencies of the training data, kept in `token_freq.pt`
(`speculators.train.vocab_mapping.save_token_frequency_distribution`): `torch.save` of a
dict from token id to count. Such a file is a pickle. It is never unpickled here: its opcodes are read as data,
and only those that make up a dict of integers are accepted, so that nothing in the file can be run.
"""

from __future__ import annotations

import logging
import pickletools
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.estimates.acceptance import Coverage
from eagle3_export.estimates.coverage import draft_vocabulary_coverage

MAX_PICKLE_BYTES = 64 << 20  # a million ids take about 12 MB

logger = logging.getLogger(__name__)

_IGNORED_OPCODES = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}
_INTEGER_OPCODES = {"BININT", "BININT1", "BININT2", "LONG1"}
_MARK = object()


def read_token_frequencies(path: str | Path) -> dict[int, int]:
    """Reads `token_freq.pt`: how often each token id occurs in the training data.

    Raises:
        CheckpointError: the file is missing, or holds anything but a dict from ids to counts, none negative.
    """
    path = Path(path)
    remedy = "Point to the token_freq.pt that speculators' data preparation wrote."
    try:
        if not path.is_file():
            raise ValueError("there is no such file")
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise ValueError("it is no file of torch.save")
            if archive.getinfo(names[0]).file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"its dict takes more than {MAX_PICKLE_BYTES} bytes")
            with archive.open(names[0]) as stream:
                frequencies = _dict_of_integers(stream.read(MAX_PICKLE_BYTES + 1))
    except (
        Exception
    ) as error:  # a damaged archive raises what its decompressor raises: zlib.error, LZMAError, …
        raise CheckpointError(
            f"{path} cannot be read as token frequencies: {error}.", remedy=remedy
        ) from error
    return frequencies


def _dict_of_integers(pickled: bytes) -> dict[int, int]:
    """The dict that a pickle of a plain `dict[int, int]` spells; ValueError for any other pickle."""
    stack: list[Any] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in _IGNORED_OPCODES:
            continue
        if opcode.name in _INTEGER_OPCODES:
            stack.append(argument)
        elif opcode.name == "EMPTY_DICT":
            stack.append({})
        elif opcode.name == "MARK":
            stack.append(_MARK)
        elif opcode.name == "SETITEM":
            _set_items(stack, len(stack) - 2, len(stack) - 2)
        elif opcode.name == "SETITEMS":
            mark = max((i for i, item in enumerate(stack) if item is _MARK), default=-1)
            _set_items(stack, mark, mark + 1)
        else:
            raise ValueError(f"it holds more than integers (pickle opcode {opcode.name})")
    if len(stack) != 1 or not isinstance(stack[0], dict):
        raise ValueError("it holds no dict")
    return stack[0]


def _set_items(stack: list[Any], end: int, first: int) -> None:
    """Moves the key-value pairs from `first` on into the dict that lies below `end`."""
    items = stack[first:]
    if end < 1 or not isinstance(stack[end - 1], dict) or len(items) % 2:
        raise ValueError("its dict is malformed")
    for token, count in zip(items[::2], items[1::2], strict=True):
        if not isinstance(token, int) or not isinstance(count, int) or token < 0 or count < 0:
            raise ValueError(f"token {token!r} has the count {count!r}")
        stack[end - 1][token] = count
    del stack[end:]


def run_coverage(path: Path | None, draft_to_target: Iterable[int] | None) -> Coverage | None:
    """Coverage over the training data of a run.

    Args:
        path: the run's `token_freq.pt`, from `frequencies_file`; None where it has none.
        draft_to_target: d2t, the offset of every draft id; None where the draft vocabulary is the full one.

    Returns:
        None where the run has no readable frequencies; the log says why.
    """
    if path is None:
        return None
    try:
        frequencies = read_token_frequencies(path)
        targets = (
            frequencies if draft_to_target is None else (i + int(d) for i, d in enumerate(draft_to_target))
        )
        return draft_vocabulary_coverage(frequencies, targets, source=path.name)
    except Exception as error:  # one number more or less must not stop a training run or a conversion
        logger.info("The coverage of the draft vocabulary stays unknown: %s", error)
        return None
