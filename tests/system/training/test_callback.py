"""Attaching by hand, refusals, failures and interrupts, with the real trainer in this process."""

from __future__ import annotations

import functools
import itertools
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_export.callback import SGLangExportCallback
from eagle3_export.config import ExportConfig
from eagle3_export.errors import Eagle3ExportError, UsageError
from eagle3_export.storage.lock import output_lock
from eagle3_export.training import hollow_checkpoint, run_exports
from tests.support.training.checks import (
    assert_mirrors,
    assert_same_weights,
    checkpoints,
    exports,
    metadata,
    output_of,
    published,
    read_tensors,
)
from tests.support.training.recorder import Records, train, with_trainer
from tests.support.training.tiny_world import TinyWorld

pytestmark = [pytest.mark.slow, pytest.mark.training]


def test_attach_by_hand(world: TinyWorld, save_path: Path, tmp_path: Path) -> None:
    output = tmp_path / "elsewhere"

    def use(trainer: Any) -> None:
        callback = SGLangExportCallback(ExportConfig(output_dir=str(output), keep_last=1)).attach(trainer)
        with pytest.raises(UsageError, match="attached already"):
            SGLangExportCallback().attach(trainer)
        trainer.run_training()
        # The exports are there when run_training returns, and nothing of the callback keeps the trainer alive.
        assert exports(output) >= {"2"}
        assert_same_weights(save_path / "2", output / "2")
        kept = exports(output)
        assert len(kept) <= 2  # the newest and the best
        with pytest.raises(UsageError, match="attached already"):
            callback.attach(trainer)

        # What the check before the first step saw is what the trainer then saved, weights apart.
        hollow = tmp_path / "hollow"
        hollow.mkdir()
        hollow_checkpoint.write_hollow_checkpoint(trainer.model, hollow)
        seen, saved = (read_tensors(d / "model.safetensors") for d in (hollow, save_path / "2"))
        assert {n: t[:2] for n, t in seen.items()} == {n: t[:2] for n, t in saved.items()}
        assert {n: seen[n] for n in ("d2t", "t2d")} == {n: saved[n] for n in ("d2t", "t2d")}

        # Pruned exports are not made again by the next run.
        del trainer._sglang_export_callback
        again = SGLangExportCallback(ExportConfig(output_dir=str(output), keep_last=1)).attach(trainer)
        again.finish()
        assert exports(output) == kept

        inside = ExportConfig(output_dir=str(save_path / "sglang"))
        del trainer._sglang_export_callback
        with pytest.raises(UsageError, match="save_path"):
            SGLangExportCallback(inside).attach(trainer)

    with_trainer(world, save_path, use, epochs=3)


@pytest.mark.parametrize("lacking", ["maybe_update_best", "save_checkpoint"])
def test_attach_needs_a_trainer_with_the_hooks(lacking: str) -> None:
    from speculators.train.trainer import Trainer

    with pytest.raises(UsageError, match="SimpleNamespace"):
        SGLangExportCallback().attach(SimpleNamespace())

    class OtherRelease(Trainer):
        def __init__(self) -> None:
            self.checkpointer = SimpleNamespace(save_checkpoint=lambda model, optimizer, epoch: None)

    trainer = OtherRelease()
    setattr(trainer.checkpointer if lacking == "save_checkpoint" else trainer, lacking, None)
    with pytest.raises(UsageError, match=f"lacks what the export hooks into: {lacking}"):
        SGLangExportCallback().attach(trainer)


def test_refusal_before_the_first_step(
    world: TinyWorld, save_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"norm_before_residual": True, "epochs": 1}
    status, records = train(world, save_path, ["--sglang-export.runtime", "stock"], **flags)
    assert status == 1
    assert "--no-norm-before-residual" in capsys.readouterr().err
    assert not records.validations
    assert not save_path.exists()
    assert exports(output_of(save_path)) == set()

    # The same, but the user wants to train all the same, and failures to stop the run: a refusal is not one.
    options = ["--sglang-export.runtime=stock", "--sglang-export.on-incompatible=warn"]
    status, records = train(world, save_path, [*options, "--sglang-export.on-failure=raise"], **flags)
    assert status == 0
    assert checkpoints(save_path) == {"0"}
    assert exports(output_of(save_path)) == set()
    assert any("0 was not exported" in message for message in records.messages)

    # Said, and exported: the default for this flag.
    status, records = train(world, save_path, norm_before_residual=True, epochs=2)
    assert status == 0
    assert any("norm-before-residual [inexact]" in message for message in records.messages)
    output = assert_mirrors(save_path, {"0", "1"})
    levels = {f["id"]: f["level"] for f in metadata(output / "1")["sglang"]["findings"]}
    assert levels["norm-before-residual"] == "inexact"


def test_failures_warn_or_raise(
    world: TinyWorld, save_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("a file where a directory should be")
    options = ["--sglang-export.output-dir", str(in_the_way / "sglang")]
    status, records = train(world, save_path, options)
    assert status == 0
    assert checkpoints(save_path) == {"0", "1"}
    (summary,) = [message for message in records.messages if "without an export" in message]
    assert "\n  0: " in summary
    assert "\n  1: " in summary
    assert str(in_the_way) in summary

    status, _ = train(world, save_path, [*options, "--sglang-export.on-failure", "raise"], epochs=5)
    assert status == 1
    assert str(in_the_way) in capsys.readouterr().err
    assert checkpoints(save_path) <= {"0", "1", "2"}

    # Once the obstacle is gone, the next run exports what was missed.
    in_the_way.unlink()
    status, _ = train(world, save_path, options, epochs=3)
    assert status == 0
    assert exports(in_the_way / "sglang") == checkpoints(save_path)


def test_another_run_exports_there(world: TinyWorld, save_path: Path) -> None:
    output = output_of(save_path)
    output.mkdir(parents=True)
    with output_lock(output):
        status, records = train(world, save_path, epochs=1)
    assert status == 0
    assert published(output) == set()
    (summary,) = [message for message in records.messages if "without an export" in message]
    assert str(output) in summary


def interrupted(
    world: TinyWorld, save_path: Path, patch: pytest.MonkeyPatch, where: str, **changes: Any
) -> Records:
    """Train, and send this process SIGINT or SIGTERM the first time that `where` is reached."""
    sent: list[int] = []

    def send(signum: signal.Signals) -> None:
        if not sent:
            sent.append(signum)
            os.kill(os.getpid(), signum)

    if where == "step":
        from torch.optim import AdamW

        step, steps = AdamW.step, itertools.count(1)
        patch.setattr(
            AdamW, "step", lambda self: (step(self), send(signal.SIGTERM) if next(steps) == 6 else None)[0]
        )
    elif where == "save":
        from speculators.train.checkpointer import BaseCheckpointer

        # The last thing before save_checkpoint returns; training state and link are written later.
        patch.setattr(BaseCheckpointer, "_copy_train_command", lambda self, epoch: send(signal.SIGTERM))
    else:
        prepare = run_exports.prepare_export

        def prepare_and_send(*args: Any, **kwargs: Any) -> Any:
            prepared = prepare(*args, **kwargs)
            send(signal.SIGINT)
            return prepared

        patch.setattr(run_exports, "prepare_export", prepare_and_send)
    status, records = train(world, save_path, **changes)
    assert sent
    assert status == 0
    return records


def test_interrupted_in_an_epoch_then_resumed(
    world: TinyWorld, save_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(world, save_path, monkeypatch, "step", epochs=3)
    output = assert_mirrors(save_path, {"0", "interrupted"})
    described = metadata(output / "interrupted")
    assert (described["epoch"], described["full_acc_0"]) == (1, None)
    assert described["global_step"] in (5, 6)  # the trainer counts after the hook that sent the signal
    assert "interrupted" in described["reasons"]["full_acc_0"]
    assert (output / "latest").readlink() == Path("interrupted")

    inode = (output / "interrupted" / "model.safetensors").stat().st_ino
    status, records = train(world, save_path, epochs=2)
    assert status == 0
    assert list(records.validations) == [1]
    assert_mirrors(save_path, {"0", "1", "interrupted"})
    assert (output / "interrupted" / "model.safetensors").stat().st_ino == inode
    assert (output / "latest").readlink() == Path("1")


@pytest.mark.parametrize("changes", [{}, {"save_best": True}, {"checkpoint_freq": 0.5}], ids=str)
def test_interrupted_inside_our_own_hook(
    world: TinyWorld, save_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """The interrupt is neither swallowed nor does it cost the checkpoint its export."""
    records = interrupted(world, save_path, monkeypatch, "hook", **changes)
    assert_mirrors(save_path, {"0", "interrupted"})
    assert list(records.validations) == ([0] if "save_best" in changes else [])


def test_interrupted_inside_the_save(
    world: TinyWorld, save_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer keeps what it had written, so that is exported too; of which step it is, nobody recorded."""
    interrupted(world, save_path, monkeypatch, "save", epochs=1)
    output = assert_mirrors(save_path, {"0", "interrupted"})
    assert metadata(output / "0")["global_step"] is None
    assert metadata(output / "0")["full_acc_0"] is None


def test_a_save_that_overtakes_its_export(
    world: TinyWorld, save_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export of a half epoch is still in flight when the whole epoch is saved over it, and the next is waiting."""
    import threading

    release = threading.Event()
    run = run_exports.PreparedExport.run
    published: list[int | None] = []

    def wait_then_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        assert release.wait(60)
        published.append(self.save_point.global_step)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(run_exports.PreparedExport, "run", wait_then_run)
    finish = run_exports.RunExports.finish
    monkeypatch.setattr(
        run_exports.RunExports, "finish", lambda self, timeout: (release.set(), finish(self, timeout))[1]
    )
    status, records = train(world, save_path, epochs=2, checkpoint_freq=0.25)
    assert status == 0
    # Step 1 was in flight, steps 2 and 3 were superseded while they waited; the same in the second epoch.
    assert published == [1, 4, 8]
    output = assert_mirrors(save_path, {"0", "1"})
    for epoch in (0, 1):
        assert metadata(output / str(epoch))["full_acc_0"] == records.validations[epoch]["full_acc_0_epoch"]


def test_a_save_waits_for_an_export_that_reads_what_it_rewrites(
    world: TinyWorld, save_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With safetensors before 0.8, which rewrites the file in place: each save of an epoch waits for the last one's."""
    import threading

    from speculators.train.checkpointer import SingleGPUCheckpointer

    monkeypatch.setattr(run_exports, "_saves_rewrite_in_place", lambda: True)
    order: list[tuple[str, int | None]] = []
    waits = threading.Event()
    wait_for = run_exports.RunExports.wait_for
    run, save = run_exports.PreparedExport.run, SingleGPUCheckpointer.save_checkpoint

    def announce(self: Any, *args: Any) -> bool:
        waits.set()
        return wait_for(self, *args)

    def run_when_waited_for(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.save_point.kind == "mid_epoch":
            assert waits.wait(60)
        result = run(self, *args, **kwargs)
        order.append(("export", self.save_point.global_step))
        return result

    @functools.wraps(save)
    def note_save(self: Any, *args: Any, **kwargs: Any) -> Any:
        order.append(("save", None))
        waits.clear()
        return save(self, *args, **kwargs)

    monkeypatch.setattr(run_exports.RunExports, "wait_for", announce)
    monkeypatch.setattr(run_exports.PreparedExport, "run", run_when_waited_for)
    monkeypatch.setattr(SingleGPUCheckpointer, "save_checkpoint", note_save)
    status, _ = train(world, save_path, epochs=1, checkpoint_freq=0.5)
    assert status == 0
    assert order == [("save", None), ("export", 2), ("save", None), ("export", 4)]


@pytest.mark.parametrize("end", ["planned", "interrupted"])
def test_a_hanging_filesystem_does_not_keep_the_run(
    world: TinyWorld, save_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    import threading

    from eagle3_export import callback

    # Were the other limit to count, this test would not end.
    short, long = ("END_OF_RUN_SECONDS", "INTERRUPTED_SECONDS")[:: 1 if end == "planned" else -1]
    monkeypatch.setattr(callback, short, 0.2)
    monkeypatch.setattr(callback, long, 1e6)
    monkeypatch.setattr(run_exports.PreparedExport, "run", lambda self, *_, **__: threading.Event().wait())
    if end == "planned":
        status, records = train(world, save_path)
        assert status == 0
    else:
        records = interrupted(world, save_path, monkeypatch, "step")
    saved = {"0", "1"} if end == "planned" else {"0", "interrupted"}
    assert checkpoints(save_path) == saved
    (summary,) = [message for message in records.messages if "without an export" in message]
    assert all(f"\n  {name}: " in summary for name in saved)


def test_errors_have_our_type(world: TinyWorld, save_path: Path) -> None:
    def use(trainer: Any) -> None:
        SGLangExportCallback(ExportConfig(output_dir="/proc/nowhere/sglang", on_failure="raise")).attach(
            trainer
        )
        with pytest.raises(Eagle3ExportError, match="/proc/nowhere"):
            trainer.run_training()

    with_trainer(world, save_path, use, epochs=1)
