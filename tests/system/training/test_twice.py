"""One trainer that trains twice, as in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_export.callback import SGLangExportCallback
from eagle3_export.config import ExportConfig
from tests.support.training.checks import assert_same_weights, exported_accuracies, exports, metadata
from tests.support.training.recorder import with_trainer
from tests.support.training.tiny_world import TinyWorld

pytestmark = [pytest.mark.slow, pytest.mark.training]


def test_the_second_training_is_exported_too(world: TinyWorld, save_path: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"

    def use(trainer: Any) -> None:
        SGLangExportCallback(ExportConfig(output_dir=str(output))).attach(trainer)
        trainer.run_training()
        first = metadata(output / "0")["global_step"]
        trainer.run_training()
        assert exports(output) == {"0"}
        assert metadata(output / "0")["global_step"] == 2 * first
        assert len(exported_accuracies(output / "0")) > 0
        assert_same_weights(save_path / "0", output / "0")

    with_trainer(world, save_path, use, epochs=1)
