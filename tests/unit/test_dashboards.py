"""Exports on the real dashboards of a real training run, each backend read back by its own reader."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_export.dashboards import METRIC_LOGGER, export_series, log_export, log_failure
from tests.support.documents import GOOD, export, replayed_depths

REPOSITORY = Path(__file__).resolve().parents[2]
MEASURED_ONCE = ("full_acc_0", "estimated_acceptance_length")  # known only after the epoch's validation
TOLD_TWICE = ("epoch", "global_step")


def test_unknown_numbers_are_left_out():
    series = export_series(export(metrics=None))
    assert "full_acc_0" not in series
    assert "estimated_acceptance_length" not in series
    assert all(value is not None for value in series.values())


def test_every_depth_is_a_series_of_its_own():
    series = export_series(export(metrics=GOOD))
    assert series["acceptance_length/depth_1"] == pytest.approx(1.8)
    assert series["acceptance_length/depth_3"] == series["estimated_acceptance_length"] == pytest.approx(2.8)


def test_a_replay_is_the_headline_and_the_mean_over_positions_a_series_of_its_own():
    replay = replayed_depths({1: 1.5, 3: 1.75, 5: 1.8}, computed=3, first_choice_share=0.75)
    series = export_series(export(metrics=GOOD, replay=replay, num_steps=(1, 3, 5)))
    assert (
        series["estimated_acceptance_length"]
        == series["acceptance_length/depth_3"]
        == pytest.approx(1.75, abs=1e-2)
    )
    assert series["acceptance_length/depth_5"] == pytest.approx(1.8, abs=1e-2)
    assert series["position_mean_acceptance_length"] == pytest.approx(2.8)
    assert series["first_choice_share"] == 0.75
    assert "adjusted_acceptance_length" not in series


def test_the_records_are_shaped_as_the_trainers_own(caplog):
    with caplog.at_level(logging.INFO, logger=METRIC_LOGGER):
        log_export(export(metrics=GOOD), "somewhere/0")
        log_failure("The disk is full.", step=300)
    first, second = caplog.records
    assert (first.step, first.msg["export"]["status"], first.msg["export"]["path"]) == (100, 1, "somewhere/0")
    assert (second.step, second.msg) == (300, {"export": {"status": 0, "message": "The disk is full."}})


def test_a_dashboard_that_fails_does_no_harm(caplog):
    class Unreachable(logging.Handler):
        def emit(self, record):
            raise ConnectionError("The tracking server is gone.")

    metrics, handler = logging.getLogger(METRIC_LOGGER), Unreachable(level=logging.INFO)
    metrics.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO):
            log_export(export(metrics=GOOD), "somewhere/0")
            log_failure("The disk is full.", step=300)
    finally:
        metrics.removeHandler(handler)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert all("The tracking server is gone." in warning for warning in warnings)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A real training run of two epochs that logs to everything."""
    pytest.importorskip("speculators")
    directory = tmp_path_factory.mktemp("dashboards")
    environment = os.environ | {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(directory / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{directory}/mlflow.db",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.support.dashboard_worker", str(directory)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    return directory


def expected(run) -> dict[str, list[float]]:
    """Every series in order, from the documents that the run published."""
    documents = [json.loads((run / "run-sglang" / name / "metadata.json").read_text()) for name in ("0", "1")]
    series: dict[str, list[float]] = {
        f"export/{name}": [document[name] for document in documents] for name in MEASURED_ONCE
    }
    for number, row in enumerate(documents[0]["acceptance"]["per_depth"]):
        lengths = [document["acceptance"]["per_depth"][number]["acceptance_length"] for document in documents]
        series[f"export/acceptance_length/depth_{row['num_steps']}"] = lengths
    for name in TOLD_TWICE:
        series[f"export/{name}"] = [document[name] for document in documents for _ in range(2)]
    series["export/status"] = [1, 1]
    series["export/bytes"] = [document["weights"]["bytes"] for document in documents]
    assert all(value is not None for values in series.values() for value in values)
    return series


def tensorboard_events(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def once_per_step(pairs):
    """What a backend that folds the records of one step into one row keeps."""
    return list(dict(pairs).values())


@pytest.mark.slow
@pytest.mark.training
class TestBackends:
    def test_tensorboard(self, run):
        events = tensorboard_events(run / "logs" / "demo")
        for name, values in expected(run).items():
            assert [event.value for event in events.Scalars(name)] == pytest.approx(values, rel=1e-6), name
        assert len(events.Scalars("export/seconds")) == 2
        paths = [
            event.tensor_proto.string_val[0].decode() for event in events.Tensors("export/path/text_summary")
        ]
        assert Path(paths[-1]) == run / "run-sglang" / "1"

    def test_wandb(self, run):
        (log,) = (run / "logs" / "wandb").glob("offline-run-*/*.wandb")
        command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", log]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        records = [json.loads(line) for line in printed.splitlines()]
        rows = [record["history"]["item"] for record in records if record["type"] == "history"]
        events = tensorboard_events(run / "logs" / "demo")
        for name in expected(run):
            kept = once_per_step((event.step, event.value) for event in events.Scalars(name))
            assert [row[name] for row in rows if name in row] == pytest.approx(kept, rel=1e-6), name
        assert (
            Path([row["export/path"] for row in rows if "export/path" in row][-1]) == run / "run-sglang" / "1"
        )

    def test_trackio(self, run):
        values = expected(run)
        for name in (
            "export/full_acc_0",
            "export/acceptance_length/depth_1",
            "export/bytes",
        ):  # a process for each
            assert trackio_values(run, name) == pytest.approx(values[name]), name
        assert Path(trackio_values(run, "export/path")[-1]) == run / "run-sglang" / "1"

    def test_mlflow(self, run):
        import mlflow

        client = mlflow.MlflowClient(f"sqlite:///{run}/mlflow.db")
        experiment = client.get_experiment_by_name("speculators")
        (logged,) = client.search_runs([experiment.experiment_id])
        for name, values in expected(run).items():
            history = client.get_metric_history(logged.info.run_id, name)
            assert sorted(metric.value for metric in history) == pytest.approx(sorted(values)), name
        assert Path(logged.data.tags["export/path"]) == run / "run-sglang" / "1"

    def test_accelerate_trackers(self, run):
        events = tensorboard_events(run / "accelerate" / "drafts")
        (first,) = events.Scalars("export/estimated_acceptance_length")
        assert first.value == pytest.approx(expected(run)["export/estimated_acceptance_length"][0], rel=1e-6)

    def test_the_runs_own_coverage_is_in_the_documents(self, run):
        document = json.loads((run / "run-sglang" / "1" / "metadata.json").read_text())
        coverage = document["acceptance"]["coverage"]
        assert 0 < coverage["covered"] <= coverage["tokens"] == 40 * 32  # the tiny world's tokens
        assert document["acceptance"]["method"] == "replay"  # which counts such words and is not adjusted


def trackio_values(run, name):
    command = [
        Path(sys.executable).with_name("trackio"),
        "get",
        "metric",
        "--project",
        "speculators",
        "--run",
        "demo",
    ]
    printed = subprocess.run(
        [*command, "--metric", name, "--json"],
        env=os.environ | {"TRACKIO_DIR": str(run / "trackio")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    return [row["value"] for row in json.loads(printed)["values"]]
