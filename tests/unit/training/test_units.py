"""The parts of the training hook that need no trainer and no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.errors import Eagle3ExportError, StorageError, UsageError
from eagle3_export.train import config_path, main, split_arguments
from eagle3_export.training.background import BackgroundQueue
from eagle3_export.training.interrupts import deferred_interrupts
from eagle3_export.training.rank_environment import complete_launch_environment, is_rank_zero
from eagle3_export.training.ranks import CommonStop
from eagle3_export.training.replay import ValidationReplay


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "ours"),
        [
            (["--sglang-export.output-dir", "x y"], {"output_dir": "x y"}),
            (["--sglang-export.output-dir=a=b"], {"output_dir": "a=b"}),
            (["--sglang-export.sglang-version", "0.5"], {"sglang_version": "0.5"}),
            (["--sglang-export.num-steps", "1", "3", "5"], {"num_steps": [1, 3, 5]}),
            (["--sglang-export.num-steps=[1, 3]"], {"num_steps": [1, 3]}),
            (["--sglang-export.num-steps", "2,4"], {"num_steps": [2, 4]}),
            (["--sglang-export.keep-last", "3"], {"keep_last": 3}),
            (["--sglang-export.keep-last=null"], {"keep_last": None}),
        ],
    )
    def test_ours_are_taken_out_wherever_they_stand(self, arguments: list[str], ours: dict[str, Any]) -> None:
        before, after = (
            ["--config", "run.yaml", "--save-best"],
            ["--lr", "-1e-3", "--full-attention-indices", "0", "2"],
        )
        assert split_arguments([*before, *arguments, *after]) == (before + after, ours)

    @given(st.lists(st.text(min_size=1).filter(lambda text: "sglang" not in text)))
    def test_theirs_pass_untouched(self, arguments: list[str]) -> None:
        assert split_arguments(arguments) == (arguments, {})

    @pytest.mark.parametrize(
        "flag",
        [
            "--sglang-export",
            "--sglang-export.outputdir=x",
            "--sglang-export.output_dir",
            "--sglang-exports.x",
            "--sglang_export.runtime",
            "--sglangexport.runtime=exact",
            "--eagle3-export.runtime",
        ],
    )
    def test_unknown_flags_are_named(self, flag: str) -> None:
        with pytest.raises(UsageError, match=flag.partition("=")[0]):
            split_arguments([flag, "value"])

    def test_a_flag_without_its_value_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"--sglang-export\.runtime: expected one argument"):
            split_arguments(["--sglang-export.runtime", "--epochs", "1"])

    def test_a_second_value_is_left_to_speculators(self) -> None:
        """It takes no arguments without a flag and says so."""
        split = split_arguments(["--sglang-export.runtime", "exact", "stock", "--epochs", "1"])
        assert split == (["stock", "--epochs", "1"], {"runtime": "exact"})

    @pytest.mark.parametrize("form", ["--config ~/run.yaml", "--config=~/run.yaml"])
    def test_the_home_directory_of_the_config_is_expanded(
        self, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "run.yaml").write_text("sglang_export: {runtime: fast}\n")
        assert main(form.split()) == 2
        assert f"{tmp_path}/run.yaml: sglang_export.runtime" in capsys.readouterr().err

    def test_config_path(self) -> None:
        assert config_path(["--config", "a", "--config=b"]) == "b"
        assert config_path(["--lr", "1"]) is None
        assert config_path(["--config"]) is None


class TestWrongConfiguration:
    """Exit status 2 and one message, before PyTorch or speculators is imported."""

    @pytest.mark.parametrize(
        ("block", "flags", "named"),
        [
            ("{output_dirr: x}", [], "output_dirr"),
            ("{keep_last: many}", [], "keep_last"),
            ("{runtime: fast}", [], "runtime"),
            ("[1]", [], "mapping"),
            ("{}", ["--sglang-export.keep-last=0"], "--sglang-export.keep-last:"),
            ("{}", ["--sglang-export.oops=0"], "oops"),
            ("{}", ["--sglang-export.num-steps=one"], "--sglang-export.num-steps:"),
            ("{}", ["--sglang-export.keep-last=2026-02-30"], "--sglang-export.keep-last:"),
            ("false", ["--sglang-export.runtime=exact"], "sglang_export: false"),
            ("[]", [], "mapping"),
            ("''", [], "mapping"),
            ("0", [], "mapping"),
            ("true", [], "mapping"),
        ],
    )
    def test_it_is_said_once(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], block: str, flags: list[str], named: str
    ) -> None:
        config = tmp_path / "run.yaml"
        config.write_text(f"train: {{}}\nsglang_export: {block}\n")
        assert main(["--config", str(config), *flags]) == 2
        message = capsys.readouterr().err
        assert named in message
        assert message.count("\n") == 1

    def test_other_ranks_are_silent(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)
        assert main(["--sglang-export.oops=1"]) == 2
        assert capsys.readouterr().err == ""

    def test_nothing_heavy_is_imported(self) -> None:
        program = (
            "import sys; from eagle3_export.train import main; status = main(['--sglang-export.oops=1']);"
            "print(status, sorted({'torch', 'speculators', 'transformers'} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "2 []"


class TestLaunchEnvironment:
    TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}  # noqa: RUF012
    SRUN = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}  # noqa: RUF012
    MEETING = {"MASTER_ADDR": "a", "MASTER_PORT": "1"}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ({}, {}),
            (TORCHRUN, {}),
            (TORCHRUN | SRUN | {"SLURM_STEP_NUM_TASKS": "2"}, {}),
            (SRUN | MEETING, {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}),
            ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, {}),
            ({"LOCAL_RANK": "0", **MEETING}, {"RANK": "0", "WORLD_SIZE": "1"}),
        ],
    )
    def test_only_what_is_missing_is_filled_in(self, before: dict[str, str], after: dict[str, str]) -> None:
        environment = dict(before)
        complete_launch_environment(environment)
        assert environment == before | after
        assert is_rank_zero(environment) == (environment.get("RANK", "0") == "0")

    def test_a_lone_local_rank_gets_a_meeting_point(self) -> None:
        environment = {"LOCAL_RANK": "0"}
        complete_launch_environment(environment)
        assert environment["MASTER_ADDR"] == "127.0.0.1"
        assert 0 < int(environment["MASTER_PORT"]) < 65536

    def test_srun_without_a_meeting_point(self) -> None:
        with pytest.raises(UsageError, match="MASTER_ADDR"):
            complete_launch_environment(dict(self.SRUN))


class TestDeferredInterrupts:
    class InterruptedTrainingError(Exception):
        """An ordinary exception, as speculators' TrainingInterruptedError is."""

    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    def test_the_signal_comes_after_the_body(self, signum: signal.Signals) -> None:
        def handler(number: int, frame: object) -> None:
            raise self.InterruptedTrainingError(number)

        previous = signal.signal(signum, handler)
        reached = []
        try:
            with pytest.raises(self.InterruptedTrainingError), deferred_interrupts():
                try:
                    os.kill(os.getpid(), signum)
                    reached.append("past the signal")
                except Exception:
                    reached.append("swallowed")
            assert reached == ["past the signal"]
            assert signal.getsignal(signum) is handler
            with pytest.raises(self.InterruptedTrainingError):
                os.kill(os.getpid(), signum)
        finally:
            signal.signal(signum, previous)

    def test_default_handlers_stay(self) -> None:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt), deferred_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("a second Ctrl+C must act at once")

    def test_other_threads_touch_no_handlers(self) -> None:
        seen = []

        def body() -> None:
            with deferred_interrupts():
                seen.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        assert seen == [signal.getsignal(signal.SIGTERM)]


class TestBackgroundQueue:
    def test_order_labels_and_drop(self) -> None:
        queue, gate, done = BackgroundQueue("test"), threading.Event(), list[str]()
        started = threading.Event()
        queue.submit("a", lambda: (started.set(), gate.wait(), done.append("a"))[2])
        queue.submit("b", lambda: done.append("b1"), discard=lambda: done.append("b1 dropped"))
        queue.submit("c", lambda: done.append("c"))
        queue.submit("b", lambda: done.append("b2"))
        assert started.wait(30)
        assert queue.labels() == ["a", "b", "c"]
        assert not queue.wait(0.01)
        queue.drop("b")
        queue.drop("a")  # runs already
        gate.set()
        assert queue.wait(30)
        assert done == ["b1 dropped", "a", "c"]
        assert queue.labels() == []

    def test_waiting_for_one_label(self) -> None:
        queue, gate = BackgroundQueue("test"), threading.Event()
        queue.submit("first", lambda: None)
        queue.submit("second", gate.wait)
        assert queue.wait(30, label="first")
        assert not queue.wait(0.01, label="second")
        gate.set()
        assert queue.wait(30)

    def test_a_job_that_raises_is_logged_and_the_next_runs(self, caplog: pytest.LogCaptureFixture) -> None:
        queue, done = BackgroundQueue("test"), threading.Event()
        queue.submit("bad", lambda: 1 / 0)
        queue.submit("good", done.set)
        assert queue.wait(30)
        assert done.is_set()
        assert "ZeroDivisionError" in caplog.text

    def test_a_job_that_hangs_does_not_keep_the_process(self) -> None:
        program = (
            "import threading; from eagle3_export.training.background import BackgroundQueue;"
            "queue = BackgroundQueue('test'); queue.submit('x', threading.Event().wait); print(queue.wait(0.05))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == "False"


class Board(dict[str, str]):
    """One board for all ranks of a simulated run, as the process group's store is."""

    rank = 0

    def seen_by(self, rank: int) -> BoardOfRank:
        return BoardOfRank(self, rank)


class BoardOfRank:
    def __init__(self, shared: Board, rank: int) -> None:
        self.shared, self.rank = shared, rank

    def write(self, topic: str, text: str) -> None:
        assert self.rank == 0
        self.shared[topic] = text

    def await_readers(self, topic: str) -> None:
        assert self.rank == 0

    def read(self, topic: str) -> str | None:
        return self.shared.get(topic)

    def await_text(self, topic: str) -> str:
        return self.shared[topic]


class TestCommonStop:
    @given(st.integers(2, 5), st.integers(1, 12), st.integers(1, 10), st.randoms(use_true_random=False))
    def test_every_rank_leaves_at_the_same_point(
        self, ranks: int, points: int, fails_at: int, random: Any
    ) -> None:
        """Between two points the trainer synchronises the ranks; within one they come in any order."""
        shared, failure = Board(), list[Eagle3ExportError]()
        stops = [
            CommonStop(shared.seen_by(rank), lambda: failure[0] if failure else None) for rank in range(ranks)
        ]  # type: ignore[arg-type]
        left: dict[int, tuple[int, str]] = {}
        for point in range(1, points + 1):
            order = random.sample(range(ranks), ranks)
            for rank in order:
                if point == fails_at and rank == order[random.randrange(ranks)] and not failure:
                    failure.append(StorageError("disk full"))
                try:
                    stops[rank].check()
                except Eagle3ExportError as error:
                    left[rank] = (point, str(error))
            if left:
                break
        if not left:  # the run ended first: then they learn of it there
            for rank in range(ranks):
                try:
                    stops[rank].end_together(others_wait=True)
                except Eagle3ExportError as error:
                    left[rank] = (points + 1, str(error))
        assert len(left) == (ranks if failure else 0)
        assert len(set(left.values())) <= 1

    def test_alone_it_raises_at_once(self) -> None:
        failure: list[Eagle3ExportError] = []
        stop = CommonStop(None, lambda: failure[0] if failure else None)
        stop.check()
        failure.append(StorageError("disk full"))
        with pytest.raises(StorageError, match="disk full"):
            stop.check()
        with pytest.raises(StorageError, match="disk full"):
            stop.end_together(others_wait=True)


def test_a_model_that_cannot_be_watched_loses_the_replay_and_not_its_validation() -> None:
    replay = ValidationReplay(SimpleNamespace(model=object(), val_loader=[]), (1, 3))
    validated = False
    with replay.watching():
        validated = True
    assert validated
    assert "register_forward_hook" in (replay.result().reason or "")
