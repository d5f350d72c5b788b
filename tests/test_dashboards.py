"""Exports on the real dashboards, through speculators' handlers; each backend read back by its own reader."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_export.dashboards import METRIC_LOGGER, export_series, log_export
from tests.test_metadata import GOOD, export

REPOSITORY = Path(__file__).resolve().parent.parent
EXPECTED = {  # by hand from the worker's accuracies; (step, value) in the order logged
    "export/full_acc_0": [(100, 0.8), (220, 0.85)],
    "export/estimated_acceptance_length": [(100, 2.8), (220, 3.05)],
    "export/acceptance_length/depth_1": [(100, 1.8), (220, 1.85)],
    "export/bytes": [(100, 1234), (100, 1234), (220, 1234)],
    "export/seconds": [(100, 0.5), (100, 0.5), (220, 0.5)],
    "export/status": [(100, 1), (100, 1), (220, 1), (300, 0)],
}


def test_unknown_numbers_are_left_out():
    series = export_series(export(metrics=None))
    assert "full_acc_0" not in series
    assert "estimated_acceptance_length" not in series
    assert all(value is not None for value in series.values())


def test_the_record_is_shaped_as_the_trainers_own(caplog):
    with caplog.at_level(logging.INFO, logger=METRIC_LOGGER):
        log_export(export(metrics=GOOD), "somewhere/0")
    (record,) = caplog.records
    assert record.msg["export"]["full_acc_0"] == 0.8
    assert record.msg["export"]["path"] == "somewhere/0"
    assert record.step == 100


@pytest.fixture(scope="module")
def dashboards(tmp_path_factory):
    pytest.importorskip("speculators")
    output = tmp_path_factory.mktemp("dashboards")
    environment = os.environ | {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(output / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{output}/mlflow.db",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.dashboard_worker", str(output)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return output


def tensorboard_events(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def approximately(pairs):
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in pairs]


@pytest.mark.slow
class TestBackends:
    def test_tensorboard(self, dashboards):
        events = tensorboard_events(dashboards / "logs" / "demo")
        for name, expected in EXPECTED.items():
            assert [(event.step, event.value) for event in events.Scalars(name)] == approximately(expected), (
                name
            )
        paths = [
            event.tensor_proto.string_val[0].decode() for event in events.Tensors("export/path/text_summary")
        ]
        assert paths[-1] == str(dashboards / "1")
        (failure,) = events.Tensors("export/message/text_summary")
        assert failure.tensor_proto.string_val[0] == b"The disk is full."

    def test_wandb(self, dashboards):
        (log,) = (dashboards / "logs" / "wandb").glob("offline-run-*/*.wandb")
        printed = subprocess.run(
            [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", log],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        records = [json.loads(line) for line in printed.splitlines()]
        rows = [record["history"]["item"] for record in records if record["type"] == "history"]
        last_of_step = {  # wandb folds what is logged at one step into one row
            name: list(dict(pairs).items()) for name, pairs in EXPECTED.items()
        }
        for name, expected in last_of_step.items():
            seen = [(row["_step"], row[name]) for row in rows if name in row]
            assert seen == approximately(expected), name
        assert [row["export/path"] for row in rows if "export/path" in row][-1] == str(dashboards / "1")

    def test_trackio(self, dashboards):
        for name, expected in EXPECTED.items():
            assert trackio_values(dashboards, name) == approximately(expected), name
        assert trackio_values(dashboards, "export/path")[-1] == (220, str(dashboards / "1"))

    def test_mlflow(self, dashboards):
        import mlflow

        client = mlflow.MlflowClient(f"sqlite:///{dashboards}/mlflow.db")
        experiment = client.get_experiment_by_name("speculators")
        (run,) = client.search_runs([experiment.experiment_id])
        for name, expected in EXPECTED.items():
            seen = [
                (metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)
            ]
            assert sorted(seen) == approximately(sorted(expected)), name
        assert run.data.tags["export/path"] == str(dashboards / "1")

    def test_accelerate_trackers(self, dashboards):
        events = tensorboard_events(dashboards / "accelerate" / "drafts")
        (first,) = events.Scalars("export/estimated_acceptance_length")
        assert (first.step, first.value) == (100, pytest.approx(2.8))


def trackio_values(dashboards, name):
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
        env=os.environ | {"TRACKIO_DIR": str(dashboards / "trackio")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    return [(row["step"], row["value"]) for row in json.loads(printed)["values"]]
