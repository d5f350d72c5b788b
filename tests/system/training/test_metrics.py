"""Numbers of a real run: how many positions stand behind them, and what stands in where nothing validates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_export.callback import SGLangExportCallback
from tests.support.training.checks import metadata, output_of
from tests.support.training.recorder import train, with_trainer
from tests.support.training.tiny_world import TinyWorld

pytestmark = [pytest.mark.slow, pytest.mark.training]


def test_the_positions_behind_a_validation_give_intervals(world: TinyWorld, save_path: Path) -> None:
    status, records = train(world, save_path, epochs=1)
    assert status == 0
    assert not [key for key in records.validations[0] if key.endswith("_total_epoch")]
    acceptance = metadata(output_of(save_path) / "0")["acceptance"]
    for step in acceptance["steps"]:
        # 8 of 40 sequences validate; 28 of 32 tokens are trained on, and each TTT step reaches one further
        assert 8 * 24 <= step["positions"] <= 8 * 28
        right = step["full_acc"] * step["positions"]
        assert right == pytest.approx(round(right), abs=1e-2), "a count of positions makes whole numbers"
        assert step["full_acc_interval"]["low"] <= step["full_acc"] <= step["full_acc_interval"]["high"]
    interval = acceptance["interval"]
    assert interval["low"] < acceptance["estimated_acceptance_length"] < interval["high"]


def test_without_validation_the_training_accuracies_stand_in_and_say_so(
    world: TinyWorld, save_path: Path
) -> None:
    def use(trainer: Any) -> None:
        trainer.val_loader = None  # as a trainer that was built without one
        SGLangExportCallback().attach(trainer)
        trainer.run_training()

    with_trainer(world, save_path, use, epochs=1)
    document = metadata(output_of(save_path) / "0")
    assert document["acceptance"]["source"] == "training"
    assert 0 <= document["full_acc_0"] <= 1
    assert "not from held-out data" in document["acceptance"]["assumptions"][0]
