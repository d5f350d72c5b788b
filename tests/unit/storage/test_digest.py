"""The digest of a draft's weights: equal for copies, different for any change."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from eagle3_export.storage.digest import CHUNK_BYTES, chunk_sum, named_digest
from eagle3_export.storage.finite import digest_of_file

# more than one chunk, and no whole number of 64-bit words at its end
LARGE = CHUNK_BYTES // 2 + 3


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "fc.weight": random.standard_normal(LARGE).astype(np.float16),
        "norm.weight": np.ones(5, np.float32),
        "d2t": np.arange(7, dtype=np.int64),
    }


def digest(tmp_path, tensors, name="model.safetensors", **metadata):
    save_file(tensors, tmp_path / name, metadata or None)
    return digest_of_file(tmp_path / name)


def test_a_copy_and_another_layout_of_the_same_tensors_have_the_same(tmp_path):
    original = digest(tmp_path, weights())
    shutil.copy(tmp_path / "model.safetensors", tmp_path / "copy.safetensors")
    assert digest_of_file(tmp_path / "copy.safetensors") == original
    turned = dict(reversed(weights().items()))
    assert digest(tmp_path, turned, "turned.safetensors", format="pt") == original
    assert named_digest(f"swapped to {original}, second try") == original


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, LARGE - 1), bit=st.integers(0, 14))
def test_any_bit_of_any_weight_counts(tmp_path_factory, at, bit):
    tmp_path = tmp_path_factory.mktemp("bit")
    changed = weights()
    words = changed["fc.weight"].view(np.uint16)
    words[at] ^= 1 << bit
    if not np.isfinite(changed["fc.weight"][at]):
        words[at] ^= 1 << 14
    assert (digest(tmp_path, changed) == digest(tmp_path, weights())) == np.array_equal(
        words, weights()["fc.weight"].view(np.uint16)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w["d2t"].__setitem__(6, 7),
        lambda w: w["norm.weight"].__setitem__(0, 1.0000001),
        lambda w: w.__setitem__("norm.weight", np.ones((1, 5), np.float32)),
        lambda w: w.__setitem__("other.weight", w.pop("norm.weight")),
        lambda w: w.__setitem__("fc.weight", w["fc.weight"][:-1].copy()),
        lambda w: w["fc.weight"].__setitem__([0, 1], w["fc.weight"][[1, 0]]),
        lambda w: w["fc.weight"].__setitem__([0, 4], w["fc.weight"][[4, 0]]),
    ],
    ids=["vocabulary map", "smallest step", "shape", "name", "length", "neighbours", "words exchanged"],
)
def test_what_else_counts(tmp_path, change):
    changed = weights()
    change(changed)
    assert digest(tmp_path, changed, "changed.safetensors") != digest(tmp_path, weights())


def test_the_checksum_is_what_it_says():
    chunk = np.arange(20, dtype=np.uint8)
    golden = 0x9E3779B97F4A7C15
    words = [int.from_bytes(bytes(range(k, min(k + 8, 20))), "little") for k in (0, 8, 16)]
    expected = sum(word * (golden * (n + 1) % 2**64 | 1) for n, word in enumerate(words)) % 2**64
    assert chunk_sum(chunk) == expected


def test_weights_that_are_not_finite_have_none(tmp_path):
    bad = weights()
    bad["norm.weight"][2] = np.nan
    assert digest(tmp_path, bad) is None
