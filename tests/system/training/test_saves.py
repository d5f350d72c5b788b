"""Every way the trainer saves: an export exists exactly when a checkpoint does, and is that checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.training.checks import (
    accuracies,
    assert_mirrors,
    assert_same_weights,
    checkpoints,
    exported_accuracies,
    exports,
    metadata,
    output_of,
)
from tests.support.training.recorder import train
from tests.support.training.tiny_world import TinyWorld, train_flags

pytestmark = [pytest.mark.slow, pytest.mark.training]


def test_switched_off_it_trains_as_speculators_does(
    world: TinyWorld, save_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from speculators.train.config.schema import nest_flat

    from eagle3_export.train import main

    config = save_path.with_name("run.yaml")
    nested = nest_flat(train_flags(world, save_path, epochs=1))
    config.write_text(yaml.safe_dump({"train": nested, "sglang_export": False}))
    assert main(["--config", str(config)]) == 0
    assert checkpoints(save_path) == {"0"}
    assert [path.name for path in save_path.parent.iterdir() if "sglang" in path.name] == []
    assert f"nothing will be exported; {config} has sglang_export: false" in capfd.readouterr().err
    assert yaml.safe_load((save_path / "run.yaml").read_text())["sglang_export"] is False


def test_end_of_epoch_then_resume_from_run_yaml(
    world: TinyWorld, save_path: Path, speculators_release: str
) -> None:
    config = save_path.with_name("run.yaml")
    flags = train_flags(world, save_path, norm_before_residual=None)
    block = {"num_steps": [1, 2], "runtime": "exact"}
    nested = {"speculator_type": flags.pop("speculator_type"), "trainer": {"epochs": flags.pop("epochs")}}
    from speculators.train.config.schema import nest_flat

    nested |= {k: {**nested.get(k, {}), **v} for k, v in nest_flat(flags).items()}
    config.write_text(yaml.safe_dump({"train": nested, "sglang_export": block}))

    from eagle3_export.train import main
    from tests.support.training.recorder import recording

    with recording() as first:
        assert main(["--config", str(config), "--sglang-export.num-steps", "1", "3"]) == 0
    output = assert_mirrors(save_path, {"0", "1"})
    for epoch in (0, 1):
        described = metadata(output / str(epoch))
        assert exported_accuracies(output / str(epoch)) == accuracies(first.validations[epoch])
        assert described["full_acc_0"] == accuracies(first.validations[epoch])[0]
        assert described["acceptance"]["position_mean_acceptance_length"] == pytest.approx(
            1 + sum(accuracies(first.validations[epoch]))
        )
        assert described["acceptance"]["method"] == "replay"
        state = json.loads((save_path / str(epoch) / "training_state.json").read_text())
        assert described["versions"]["speculators"] == speculators_release
        assert (described["epoch"], described["global_step"]) == (epoch, state["global_step"])
        assert [row["num_steps"] for row in described["acceptance"]["per_depth"]] == [1, 3]
    assert (output / "latest").readlink() == Path("1")
    index = json.loads((output / "index.json").read_text())
    assert [entry["name"] for entry in index["exports"]] == ["0", "1"]
    # First without numbers, then with those of its own validation.
    told = [(step, export.get("full_acc_0")) for step, export in first.exports if "full_acc_0" in export]
    untold = [export for _, export in first.exports if "full_acc_0" not in export]
    assert [value for _, value in told] == [accuracies(first.validations[epoch])[0] for epoch in (0, 1)]
    assert [export["epoch"] for export in untold] == [0, 1]

    # run.yaml repeats the run, our block included; the earlier exports are left alone.
    repeated = yaml.safe_load((save_path / "run.yaml").read_text())
    assert repeated["sglang_export"] == {"num_steps": [1, 3], "runtime": "exact"}
    before = {name: (output / name / "model.safetensors").stat().st_ino for name in ("0", "1")}
    with recording() as second:
        assert main(["--config", str(save_path / "run.yaml"), "--epochs", "3"]) == 0
    assert_mirrors(save_path, {"0", "1", "2"})
    assert before == {name: (output / name / "model.safetensors").stat().st_ino for name in ("0", "1")}
    assert list(second.validations) == [2]
    assert exported_accuracies(output / "2") == accuracies(second.validations[2])


def test_the_same_file_serves_speculators_alone(
    world: TinyWorld, save_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """speculators takes no notice of our block, and we change nothing of its own settings."""
    from speculators.train.config import TrainConfig

    from eagle3_export.train import main

    config = save_path.with_name("run.yaml")
    trainer = {"epochs": 3, "save_path": str(save_path)}
    verifier = {"verifier_name_or_path": str(world.verifier)}
    block = {"keep_last": 2}
    config.write_text(
        yaml.safe_dump({"train": {"verifier": verifier, "trainer": trainer}, "sglang_export": block})
    )
    alone = TrainConfig.resolve(["--config", str(config), "--lr", "0.5"])
    assert not [warning for warning in recwarn if "unrecognised" in str(warning.message)]
    assert (alone.trainer.epochs, alone.optimizer.lr) == (3, 0.5)

    arguments = ["--config", str(config), "--lr", "0.5", "--sglang-export.runtime", "exact", "--dump-config"]
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 0
    dumped = yaml.safe_load(capsys.readouterr().out)
    assert dumped == {
        **yaml.safe_load(alone.dump_yaml()),
        "sglang_export": {"keep_last": 2, "runtime": "exact"},
    }
    with pytest.raises(SystemExit) as exit:
        main(["--help"])
    assert exit.value.code == 0
    assert {"--sglang-export.output-dir", "--save-best"} <= set(
        capsys.readouterr().out.replace(":", " ").split()
    )

    inside = ["--config", str(config), "--sglang-export.output-dir", str(save_path / "sglang")]
    assert main(inside) == 2
    assert str(save_path / "sglang") in capsys.readouterr().err
    assert not save_path.exists()


def test_every_second_epoch(world: TinyWorld, save_path: Path) -> None:
    status, records = train(world, save_path, epochs=4, checkpoint_freq=2)
    assert status == 0
    output = assert_mirrors(save_path, {"0", "1", "3"})
    for epoch in (0, 1, 3):
        assert exported_accuracies(output / str(epoch)) == accuracies(records.validations[epoch])


def test_fractions_of_an_epoch_then_max_steps(world: TinyWorld, save_path: Path) -> None:
    status, records = train(world, save_path, epochs=2, checkpoint_freq=0.5)
    assert status == 0
    output = assert_mirrors(save_path, {"0", "1"})
    kinds = [metadata(output / name)["source"]["kind"] for name in ("0", "1")]
    assert kinds == ["end_of_epoch", "end_of_epoch"]
    for epoch in (0, 1):
        assert exported_accuracies(output / str(epoch)) == accuracies(records.validations[epoch])
        steps = [
            e["global_step"] for _, e in records.exports if e["epoch"] == epoch and "full_acc_0" not in e
        ]
        assert steps == [4 * epoch + 2, 4 * epoch + 4]

    # max_steps stops the third epoch in its middle; the trainer saves and validates that state.
    status, records = train(world, save_path, epochs=3, checkpoint_freq=0.5, max_steps=11)
    assert status == 0
    assert_mirrors(save_path, {"0", "1", "2"})
    assert metadata(output / "2")["global_step"] == 11
    assert exported_accuracies(output / "2") == accuracies(records.validations[2])


def test_save_best_sweeps_and_resumes(world: TinyWorld, save_path: Path) -> None:
    status, records = train(world, save_path, epochs=3, save_best=True)
    assert status == 0
    output = output_of(save_path)
    best = [e for e in records.validations if (save_path / str(e)).is_dir()]
    assert checkpoints(save_path) == {str(best[-1])}
    improved, lowest = [], float("inf")
    for epoch, validation in records.validations.items():
        if validation["loss_epoch"] < lowest:
            improved, lowest = [*improved, str(epoch)], validation["loss_epoch"]
    assert exports(output) == set(improved)
    assert_same_weights(save_path / improved[-1], output / improved[-1])
    for name in improved:
        assert exported_accuracies(output / name) == accuracies(records.validations[int(name)])
        assert metadata(output / name)["source"]["kind"] == "best"

    inode = (output / improved[-1] / "model.safetensors").stat().st_ino
    # A loss that weighs later steps a hundredfold: the next epoch cannot become the best.
    status, records = train(world, save_path, epochs=4, save_best=True, ttt_step_loss_decay=100.0)
    assert status == 0
    assert list(records.validations) == [3]
    assert exports(output) == set(improved)
    assert (output / improved[-1] / "model.safetensors").stat().st_ino == inode
