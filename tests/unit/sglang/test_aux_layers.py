"""The layers that SGLang captures are those trained on: proven with the target classes' own code."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_export.sglang.aux_layer_table import TARGET_CLASSES
from eagle3_export.sglang.aux_layers import BEHAVIOURS, behaviour, encode_aux_layer_ids
from eagle3_export.sglang.capabilities import RELEASES
from tests.support.wheels import derive_target_classes, target_classes

ARCHITECTURES = sorted(TARGET_CLASSES)


# What public reports and the releases themselves say; (class, layers, trained ids, release) -> configured ids.
@pytest.mark.parametrize(
    ("architecture", "num_layers", "trained", "release", "configured"),
    [
        ("LlamaForCausalLM", 32, (2, 16, 29), "0.4.10", (1, 15, 28)),
        ("LlamaForCausalLM", 32, (2, 16, 29), "0.5.23", (1, 15, 28)),
        ("Qwen3ForCausalLM", 36, (0, 18, 33), "0.5.23", (-1, 17, 32)),
        ("LlamaForCausalLM", 32, (0, 16, 29), "0.5.11", None),  # adds a residual that is not there yet
        ("LlamaForCausalLM", 32, (2, 16, 32), "0.5.23", None),  # the final hidden state
        ("Gemma3ForCausalLM", 26, (2, 13, 26), "0.5.23", (1, 12, 25)),
        # +1 only if the first id is 1: with a 2 among the trained ids one encoding serves every release.
        ("DeepseekV3ForCausalLM", 61, (2, 30, 58), "0.5.23", (1, 29, 57)),
        ("DeepseekV3ForCausalLM", 61, (2, 30, 58), "0.5.12", (1, 29, 57)),
        ("KimiK25ForConditionalGeneration", 61, (2, 30, 58), "0.5.23", (1, 29, 57)),
        ("DeepseekV3ForCausalLM", 61, (3, 30, 58), "0.5.23", (3, 30, 58)),
        ("DeepseekV3ForCausalLM", 61, (3, 30, 58), "0.5.12", (2, 29, 57)),
        ("DeepseekV3ForCausalLM", 61, (1, 30, 58), "0.5.23", (30, 1, 58)),  # a leading 1 would be shifted
        ("DeepseekV3ForCausalLM", 61, (1, 2, 58), "0.5.23", (1, 0, 57)),
        ("GptOssForCausalLM", 24, (2, 12, 21), "0.5.23", (1, 11, 20)),
        ("GptOssForCausalLM", 24, (2, 12, 24), "0.5.23", (1, 11, 23)),  # (2, 12, 24) would do as well
        ("GptOssForCausalLM", 24, (2, 12, 24), "0.5.16", None),
        ("LlamaForCausalLM", 4, (1, 2, 3), "0.5.23", (0, 1, 2)),
        ("LlamaForCausalLM", 32, (16, 2, 29), "0.5.23", None),  # captured in layer order only
        ("LlamaForCausalLM", 32, (2, 16, 40), "0.5.23", None),
        (None, None, (2, 16, 29), "0.5.23", (1, 15, 28)),
        (None, None, (0, 16, 29), "0.5.23", None),
    ],
)
def test_known_cases(
    architecture: str | None,
    num_layers: int | None,
    trained: tuple[int, ...],
    release: str,
    configured: tuple[int, ...] | None,
) -> None:
    encoding = encode_aux_layer_ids(trained, architecture, num_layers, release)
    assert encoding.ids == configured
    assert encoding.exact == (configured is not None)
    assert encoding.class_supported
    assert bool(encoding.problem) == (configured is None)


def test_no_ids_leave_the_default_in_place_where_it_is_the_same() -> None:
    assert encode_aux_layer_ids(None, "LlamaForCausalLM", 32, "0.5.23").ids is None
    assert encode_aux_layer_ids(None, "LlamaForCausalLM", None, "0.5.23").exact
    # This class adds one to the default as well, so the default must be spelled out.
    shifted = encode_aux_layer_ids(None, "MiniMaxM3SparseForConditionalGeneration", 32, "0.5.23")
    assert shifted.ids == (1, 15, 28)
    # Too few layers for three different ones: [2, 2, 1] and [2, 3, 3].
    assert not encode_aux_layer_ids(None, "LlamaForCausalLM", 4, "0.5.23").exact
    assert not encode_aux_layer_ids(None, "LlamaForCausalLM", 6, "0.5.23").exact


def test_a_class_that_cannot_capture_is_not_supported() -> None:
    assert not encode_aux_layer_ids((2, 4, 5), "MambaForCausalLM", 8, "0.5.23").class_supported
    assert not encode_aux_layer_ids((2, 4, 5), "Qwen2ForCausalLM", 8, "0.4.10").class_supported


def test_the_table_names_known_behaviours_in_order() -> None:
    assert len(TARGET_CLASSES) >= 40
    for changes in TARGET_CLASSES.values():
        releases = [RELEASES.index(since) for since, _ in changes]
        assert releases == sorted(set(releases))
        assert {name for _, name in changes if name is not None} <= set(BEHAVIOURS)


TRAINED = st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True)


@given(TRAINED, st.sampled_from(ARCHITECTURES), st.integers(4, 12), st.sampled_from(RELEASES))
def test_an_encoding_is_exact_or_there_is_none(
    trained: list[int], architecture: str, num_layers: int, release: str
) -> None:
    encoding = encode_aux_layer_ids(tuple(trained), architecture, num_layers, release)
    found = behaviour(architecture, release)
    if encoding.ids is not None:
        assert found is not None
        assert found.captured(encoding.ids, num_layers) == tuple(trained)
        assert encoding.works_in(release)
    else:
        assert not encoding.exact


# Releases around every change of rule that the table knows.
PROVEN = ["0.4.10", "0.5.12", "0.5.13", "0.5.17", "0.5.23"]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("release", PROVEN)
def test_the_table_is_what_the_classes_own_code_does(release: str) -> None:
    derived = derive_target_classes(target_classes(release))
    known = {}
    for name, changes in TARGET_CLASSES.items():
        for since, found in changes:
            if RELEASES.index(since) <= RELEASES.index(release):
                known[name] = found
    assert {name: found for name, found in known.items() if found is not None} == derived


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("release", ["0.5.12", "0.5.13", "0.5.23"])
def test_the_real_classes_capture_the_trained_layers(release: str) -> None:
    classes = target_classes(release)
    names = [name for name in ARCHITECTURES if name in classes.architectures and behaviour(name, release)]
    assert len(names) >= 30

    @settings(max_examples=200)
    @given(TRAINED, st.sampled_from(names), st.integers(4, 12))
    def capture(trained: list[int], architecture: str, num_layers: int) -> None:
        encoding = encode_aux_layer_ids(tuple(trained), architecture, num_layers, release)
        if encoding.ids is not None:
            assert classes.capture(architecture, encoding.ids, num_layers).layers == tuple(trained)

    capture()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("release", ["0.5.12", "0.5.23"])
def test_nothing_is_refused_that_could_be_encoded(release: str) -> None:
    """Every list of ids there is, tried on the real code, for each behaviour's first class."""
    classes = target_classes(release)
    first: dict[str, str] = {}
    for name in ARCHITECTURES:
        found = behaviour(name, release)
        if found is not None and name in classes.architectures:
            first.setdefault(repr(found), name)
    num_layers = 5
    for architecture in first.values():
        lists = [ids for size in (1, 2, 3) for ids in itertools.permutations(range(-1, num_layers + 1), size)]
        seen = [(ids, classes.capture(architecture, ids, num_layers).layers) for ids in lists]
        possible = {layers for ids, layers in seen if layers is not None and len(layers) == len(ids)}
        for size in (1, 2, 3):
            for trained in itertools.combinations(range(num_layers + 1), size):
                encoding = encode_aux_layer_ids(trained, architecture, num_layers, release)
                assert encoding.exact == (trained in possible), (architecture, trained)
