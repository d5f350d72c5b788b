"""Counts and stand-ins for validation, apart from a trainer; tests/training/test_metrics.py runs the real one."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest

from eagle3_export.dashboards import METRIC_LOGGER
from eagle3_export.training.trainer_metrics import (
    NORMALIZE,
    TRAINER_MODULE,
    RecentTraining,
    counted_positions,
)


@pytest.fixture
def trainer_module(monkeypatch):
    module = ModuleType(TRAINER_MODULE)
    setattr(module, NORMALIZE, lambda metrics, world_size=1: {"ranks": world_size})
    monkeypatch.setitem(sys.modules, TRAINER_MODULE, module)
    return module


class TestCountedPositions:
    def test_totals_are_those_over_all_batches(self, trainer_module):
        with counted_positions(4) as positions:
            given = {
                "full_acc_0_sum": 40.0,
                "full_acc_0_total": 56.25,
                "cond_acc_0_total": 1.0,
                "loss_0_total": 1.0,
            }
            assert trainer_module.normalize_counted_metrics(given, 2) == {"ranks": 2}
        assert positions == {"full_acc_0_total": 225}

    def test_the_trainer_is_left_as_it_was_even_after_an_error(self, trainer_module):
        original = trainer_module.normalize_counted_metrics
        with pytest.raises(RuntimeError), counted_positions(1):
            raise RuntimeError
        assert trainer_module.normalize_counted_metrics is original

    def test_a_trainer_that_works_otherwise_is_left_alone(self, monkeypatch):
        monkeypatch.setitem(sys.modules, TRAINER_MODULE, ModuleType(TRAINER_MODULE))
        with counted_positions(4) as positions:
            pass
        assert positions == {}


class TestRecentTraining:
    def log(self, *records):
        for record in records:
            logging.getLogger(METRIC_LOGGER).info(record)

    @pytest.fixture
    def recent(self, monkeypatch):
        monkeypatch.setattr(logging.getLogger(METRIC_LOGGER), "level", logging.INFO)
        return RecentTraining()

    def test_the_mean_of_what_was_logged_meanwhile(self, recent):
        self.log({"train": {"full_acc_0": 0.0}})
        with recent.listening():
            self.log({"train": {"full_acc_0": 0.5, "loss": 3.0}}, {"val": {"full_acc_0": 0.9}}, "text")
            self.log({"train": {"full_acc_0": 0.7, "loss": 2.0}})
        self.log({"train": {"full_acc_0": 1.0}})
        assert recent.average() == {"full_acc_0": pytest.approx(0.6)}
        assert recent.average() is None

    def test_only_the_last_ones_count(self, recent):
        with recent.listening():
            self.log(*({"train": {"full_acc_0": 0.0}} for _ in range(100)))
            self.log(*({"train": {"full_acc_0": 1.0}} for _ in range(50)))
        assert recent.average() == {"full_acc_0": 1.0}
