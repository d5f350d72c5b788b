"""A server that runs the draft otherwise than its export asks: refused, or recorded with the difference named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_export.documents.json_files import read_metadata
from eagle3_export.documents.schema import Measurement, Serving
from eagle3_export.errors import MeasurementError
from eagle3_export.measure.draft_settings import SGLANG_SETTINGS
from eagle3_export.measure.measurement import measure, record
from tests.support.measuring import files_of, make_export, workload
from tests.support.stand_in_server import running, sglang


def serving(*arguments: str) -> Serving:
    return Serving(
        runtime="stock",
        version="0.5.23",
        minimum_version="0.5.12",
        architecture="LlamaForCausalLMEagle3",
        launch_arguments=["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3", *arguments],
    )


def measured(export: Path, **changes: Any) -> Measurement:
    with running(sglang(str(export), **changes)) as server:
        return measure(export, server.url, workload())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"speculative_adaptive": True}, "--speculative-adaptive"),
        ({"speculative_accept_threshold_single": 0.9}, "--speculative-accept-threshold-single 0.9"),
        ({"speculative_accept_threshold_acc": 0.3}, "--speculative-accept-threshold-acc 0.3"),
        ({"internal_states": [{"speculative_accept_threshold_acc": 0.3}]}, "threshold-acc 0.3"),
    ],
)
def test_a_setting_that_makes_it_another_quantity_is_refused(
    draft: Path, change: dict[str, Any], named: str
) -> None:
    before = files_of(draft)
    with running(sglang(str(draft), **change)) as server:
        with pytest.raises(MeasurementError, match=named):
            record(draft, measure(draft, server.url, workload()))
        assert not [path for path, _ in server.requests if path == "/generate"]
    assert files_of(draft) == before


@pytest.mark.parametrize(
    ("asked", "change", "difference"),
    [
        ([], {"speculative_eagle_topk": 4}, "drafts a tree (4 branches per step)"),
        ([], {"speculative_draft_model_quantization": "fp8"}, "quantises the draft (fp8)"),
        ([], {"speculative_draft_window_size": 63}, "an attention window of 63, the export asks for none"),
        (["--speculative-draft-window-size", "63"], {}, "window of any length, the export asks for 63"),
        (["--dtype", "float16"], {"dtype": "bfloat16"}, "in bfloat16, the export asks for float16"),
        ([], {"dtype": "half"}, "in half, the export asks for BF16"),
    ],
)
def test_a_difference_is_recorded(
    tmp_path: Path, asked: list[str], change: dict[str, Any], difference: str
) -> None:
    export = make_export(tmp_path / "out", "0", sglang=serving(*asked))
    record(export, measured(export, **change))
    written = read_metadata(export).measured
    assert written is not None
    (found,) = written.measurements[0].differences
    assert difference in found


@pytest.mark.parametrize(
    ("asked", "change"),
    [
        ([], {}),
        ([], {"dtype": "bfloat16"}),
        ([], {"quantization": "fp8", "speculative_draft_model_quantization": None}),
        ([], {"quantization": "fp8", "speculative_draft_model_quantization": "unquant"}),
        (["--speculative-draft-window-size", "63"], {"speculative_draft_window_size": 63}),
        (["--dtype", "float16"], {"dtype": "half"}),
        ([], {"num_steps": 5, "histogram": (2, 1, 3, 4, 0, 0)}),
    ],
)
def test_a_server_as_asked_has_none(tmp_path: Path, asked: list[str], change: dict[str, Any]) -> None:
    export = make_export(tmp_path / "out", "0", sglang=serving(*asked))
    assert measured(export, **change).differences == []


def test_before_0_5_7_the_draft_is_quantised_as_the_target(draft: Path) -> None:
    answers = sglang(str(draft), release="0.5.5", quantization="fp8")
    del answers["/server_info"]["speculative_draft_model_quantization"]
    with running(answers) as server:
        assert "quantises the draft (fp8)" in measure(draft, server.url, workload()).differences[0]


def test_no_key_of_the_server_is_kept(draft: Path) -> None:
    state = {"api_key": "secret-of-the-state", "speculative_adaptive": False}
    record(draft, measured(draft, internal_states=[state], dtype="half", admin_api_key="secret-of-the-admin"))
    assert "secret" not in "".join(str(content) for content in files_of(draft).values())


@pytest.mark.parametrize("value", [[1], {"a": 1}, "x\ud800", 10**400, float("inf"), True, -1])
def test_settings_of_any_kind_do_no_harm(draft: Path, value: Any) -> None:
    keys = (*SGLANG_SETTINGS, "version", "model_path", "device", "speculative_eagle_topk", "internal_states")
    for key in keys:
        try:
            record(draft, measured(draft, **{key: value}))
        except MeasurementError as error:
            assert key.startswith("speculative")
            assert str(error)
