"""The digest of a draft's weights: the same for every copy of an export, another one as soon as any weight differs.

It covers names, dtypes, shapes and every byte of every tensor, and nothing of the file around them. The search for NaN
has every byte in the processor's cache already, so beside it the digest costs no read and almost no time. It tells
drafts apart; it is no signature against somebody who makes two of them collide.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from eagle3_export.storage.safetensors_file import TensorSource

if TYPE_CHECKING:
    import numpy as np

CHUNK_BYTES = 1024 * 1024
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: multiples of it look random
_DIGEST = re.compile(r"\bdraft-[0-9a-f]{32}\b")


def chunk_sum(chunk: np.ndarray) -> int:
    """Returns a checksum of at most `CHUNK_BYTES` bytes.

    The bytes are taken as 64-bit words, each multiplied by an odd number of its own, and added up modulo 2^64. So a
    change of one word always changes the sum, and an exchange of two nearly always.

    Args:
        chunk: uint8, contiguous.
    """
    import numpy as np

    whole = len(chunk) // 8 * 8
    words = chunk[:whole].view("<u8")
    total = int(np.dot(words, _multipliers()[: len(words)])) if len(words) else 0
    last = int.from_bytes(chunk[whole:].tobytes(), "little")
    return (total + last * (_GOLDEN * (len(words) + 1) | 1)) % (1 << 64)


def weights_digest(tensors: Sequence[tuple[str, TensorSource]], sums: Mapping[int, Mapping[int, int]]) -> str:
    """Returns `draft-` and 32 hexadecimal digits.

    Args:
        tensors: name and source of each tensor, in any order.
        sums: by the tensor's place in `tensors`, the `chunk_sum` of each of its chunks by its offset in the tensor.
    """
    digest = hashlib.sha256()
    for number, (name, source) in sorted(enumerate(tensors), key=lambda item: item[1][0]):
        entry = source.entry
        digest.update(f"{name}\n{entry.dtype}\n{list(entry.shape)}\n".encode())
        for _, chunk in sorted(sums.get(number, {}).items()):
            digest.update(chunk.to_bytes(8, "little"))
    return f"draft-{digest.hexdigest()[:32]}"


def named_digest(text: str | None) -> str | None:
    """Returns the digest that a text names, such as a server's `weight_version`; None where it names none."""
    found = _DIGEST.search(text or "")
    return found[0] if found else None


@functools.cache
def _multipliers() -> np.ndarray:
    import numpy as np

    with np.errstate(over="ignore"):
        multiples = np.arange(1, CHUNK_BYTES // 8 + 1, dtype="<u8") * np.uint64(_GOLDEN)
    odd: np.ndarray = multiples | np.uint64(1)
    return odd
