"""`estimate` of checkpoints that the real trainer saved, against what the callback wrote of the same validation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3_export import (
    CheckpointError,
    EstimateError,
    ExportInvalidError,
    UsageError,
    estimate_checkpoint,
)
from eagle3_export.cli import app
from eagle3_export.estimate import Beginning, Progress
from tests.support.training.checks import metadata, output_of
from tests.support.training.recorder import recording, train
from tests.support.training.tiny_world import TinyWorld, in_float32, make_data, make_verifier

# until some drafts are right
LEARNS: dict[str, Any] = {"lr": 0.01, "epochs": 8, "draft_attn_impl": "sdpa", "train_data_ratio": 0.6}
DEEPER = ["--sglang-export.replay-num-steps", "6"]

pytestmark = [pytest.mark.slow, pytest.mark.training]


@pytest.fixture(scope="module")
def run(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The save_path of a run that validated exactly the weights that it saved.

    The trainer validates in float32 and saves in bfloat16, so it starts from a saved draft and learns no more.
    """
    directory = tmp_path_factory.mktemp("estimate")
    taught = directory / "taught"
    assert train(world, taught, **LEARNS)[0] == 0
    draft = in_float32(taught / "7", directory / "draft")
    frozen = {**LEARNS, "lr": 0.0, "epochs": 1, "from_pretrained": str(draft), "norm_before_residual": None}
    assert train(world, directory / "run", DEEPER, **frozen)[0] == 0
    return directory / "run"


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """That run with its exports, to be changed."""
    for path in (run, output_of(run)):
        shutil.copytree(path, tmp_path / path.name, symlinks=True)
    return tmp_path / run.name


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["estimate", *map(str, arguments)])


def without_its_source(acceptance: dict[str, Any]) -> dict[str, Any]:
    replay = acceptance["replay"]
    replay = {key: value for key, value in replay.items() if key != "data"}
    replay["reasons"] = {key: value for key, value in replay["reasons"].items() if key != "data"}
    return {**acceptance, "source": None, "replay": replay}


def test_it_is_the_number_that_the_callback_wrote(copied: Path) -> None:
    export = output_of(copied) / "0"
    before = metadata(export)
    histogram = before["acceptance"]["replay"]["depths"][2]["histogram"]
    assert sum(a * n for a, n in enumerate(histogram)) > 10, "some drafts must be right"
    done = command(copied / "0", "--num-steps", 6)
    assert done.exit_code == 0, done.output
    after = metadata(export)
    assert after["acceptance"]["source"] == "estimate"
    assert without_its_source(after["acceptance"]) == without_its_source(before["acceptance"])
    assert [walk["extrapolated"] for walk in after["acceptance"]["replay"]["depths"][2:7]] == [False] * 4 + [
        True
    ]
    data = after["acceptance"]["replay"]["data"]
    assert (data["first_row"], data["documents"], data["limit"], data["run_validation"]) == (
        24,
        16,
        None,
        True,
    )
    # all else is as it was
    assert {**after, "acceptance": None} == {**before, "acceptance": None}
    assert done.stdout == f"{after['estimated_acceptance_length']:.4f}\n"
    index = json.loads((output_of(copied) / "index.json").read_text())
    assert index["exports"][0]["acceptance_source"] == "estimate"
    assert (index["best"], index["latest"]) == ("0", "0")
    assert "validation, replayed afterwards" in (export / "README.md").read_text()


def test_the_trained_depth_alone_extrapolates_as_the_callback_does(copied: Path) -> None:
    found = estimate_checkpoint(copied / "checkpoint_best")
    assert found.export == (output_of(copied) / "0").resolve()
    callback = metadata(output_of(copied) / "0")["acceptance"]
    assert found.acceptance.replay is not None
    assert [walk.extrapolated for walk in found.acceptance.replay.depths[:4]] == [False] * 3 + [True]
    assert found.acceptance.estimated_acceptance_length == callback["estimated_acceptance_length"]


def test_a_run_without_the_callback_gets_its_numbers(world: TinyWorld, tmp_path: Path) -> None:
    """Trained by `speculators train`, converted, estimated: then it has a best export, as from the callback."""
    from speculators.train import cli
    from speculators.train.config import TrainConfig

    from eagle3_export.training.cpu_rehearsal import enable_cpu_rehearsal
    from tests.support.training.tiny_world import train_arguments

    enable_cpu_rehearsal()
    save_path, output = tmp_path / "checkpoints", tmp_path / "exports"
    cli.main(TrainConfig.resolve(train_arguments(world, save_path, **{**LEARNS, "epochs": 3})))
    convert = CliRunner().invoke(app, ["convert", str(save_path), str(output), "--all"])
    assert convert.exit_code == 0
    lengths = {}
    for name in ("0", "1", "2"):
        done = command(save_path / name, "--data", world.data, "--export", output / name, "--json")
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
        assert (answer["status"], answer["directory"]) == ("written", str(output / name))
        document = metadata(output / name)
        assert document["acceptance"] == answer["acceptance"]
        assert document["acceptance"]["method"] == "replay"
        assert document["full_acc_0"] is not None
        lengths[name] = document["estimated_acceptance_length"]
    best = max(lengths, key=lambda name: (lengths[name], name))
    assert json.loads((output / "index.json").read_text())["best"] == best
    assert (output / "best").readlink() == Path(best)
    # Without an export the number is the same, and nothing is written.
    before = sorted(path for path in tmp_path.rglob("*"))
    done = command(save_path / "2")
    assert (done.exit_code, done.stdout) == (0, f"{lengths['2']:.4f}\n")
    assert "eagle3-export convert" in done.stderr
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_other_data_are_walked_whole_and_compared_with_their_like_only(
    copied: Path, world: TinyWorld, tmp_path: Path
) -> None:
    other = make_data(tmp_path / "other", world.verifier, sequences=6, seed=5)
    everything = estimate_checkpoint(copied / "0", other)
    some = estimate_checkpoint(copied / "0", other, limit=3)
    for found, documents in ((everything, 6), (some, 3)):
        data = found.acceptance.replay.data  # type: ignore[union-attr]
        assert data is not None
        assert (data.first_row, data.documents, data.run_validation) == (0, documents, False)
        assert data.path == str(other)
    assert everything.acceptance.replay.data.digest != some.acceptance.replay.data.digest  # type: ignore[union-attr]
    own = estimate_checkpoint(copied / "0", world.data, limit=3)
    assert own.acceptance.replay.data.run_validation is False  # type: ignore[union-attr]


def refused(error: type[Exception], text: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(error, match=text):
        estimate_checkpoint(*arguments, **options)


def test_what_does_not_fit_is_refused_and_nothing_written(
    copied: Path, world: TinyWorld, tmp_path: Path
) -> None:
    checkpoint, export = copied / "0", output_of(copied) / "0"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    wider = make_verifier(tmp_path / "wider", hidden_size=128, num_attention_heads=8)
    larger = make_verifier(tmp_path / "larger", vocab_size=4096)
    data = {
        "narrow": make_data(tmp_path / "narrow", wider, sequences=2),
        "words": make_data(tmp_path / "words", larger, sequences=2),
        "short": make_data(tmp_path / "short", world.verifier, sequences=2),
        "lost": make_data(tmp_path / "lost", world.verifier, sequences=2),
        "mixed": make_data(tmp_path / "mixed", world.verifier, sequences=2),
    }
    states = data["short"] / "hidden_states" / "hs_0.safetensors"
    states.write_bytes(states.read_bytes()[:-100])
    shutil.rmtree(data["lost"] / "hidden_states")
    names = [data["mixed"] / "hidden_states" / f"hs_{n}.safetensors" for n in (0, 1)]
    names[0].write_bytes(names[1].read_bytes())
    refused(EstimateError, "has hidden size 128, the draft 64", checkpoint, data["narrow"])
    refused(EstimateError, "has token .* the draft's vocabulary 128 words", checkpoint, data["words"])
    refused(EstimateError, "hs_0.safetensors cannot be read", checkpoint, data["short"])
    refused(EstimateError, "no hidden states for rows 0 to 1", checkpoint, data["lost"])
    refused(EstimateError, "holds other tokens than its row", checkpoint, data["mixed"])
    rewrite(names[0], hidden_states=lambda states: states * float("nan"))
    refused(EstimateError, "hs_0.safetensors holds NaN or infinity", checkpoint, data["mixed"])
    rewrite(names[1], hidden_states=lambda states: states[:, 1:].contiguous())
    names[0].unlink()
    refused(EstimateError, "holds 3 hidden states a token, the draft reads 4", checkpoint, data["mixed"])
    refused(UsageError, "is not there", checkpoint, tmp_path / "nowhere")
    refused(UsageError, "holds no data set", checkpoint, world.verifier)
    refused(UsageError, "no run.yaml beside", shutil.copytree(checkpoint, tmp_path / "alone" / "0"))
    refused(
        ExportInvalidError,
        "is an export of .* not of",
        copied.parent / "alone" / "0",
        world.data,
        export=changed(export, tmp_path),
    )
    assert {path: path.read_bytes() for path in before} == before
    assert command(export).exit_code == 2


def rewrite(path: Path, **changes: Callable[[Any], Any]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    save_file({name: changes.get(name, lambda same: same)(tensor) for name, tensor in tensors.items()}, path)


def changed(export: Path, tmp_path: Path) -> Path:
    """An export of another checkpoint: the same with other digests of its weights."""
    other = Path(shutil.copytree(export, tmp_path / "changed"))
    document = metadata(other)
    document["source"]["fingerprint"] |= {"sample_digest": "sha256:0", "modified_ns": 1}
    (other / "metadata.json").write_text(json.dumps(document))
    return other


def test_rows_without_hidden_states_are_left_out_and_counted(
    copied: Path, world: TinyWorld, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(world.data, tmp_path / "data"))
    for row in (24, 30):
        (data / "hidden_states" / f"hs_{row}.safetensors").unlink()
    run = (copied / "run.yaml").read_text().replace(str(world.data), str(data))
    (copied / "run.yaml").write_text(run)
    found = estimate_checkpoint(copied / "0")
    walked = found.acceptance.replay.data  # type: ignore[union-attr]
    assert walked is not None
    # `on_missing: raise`: the run would not have validated so
    assert (walked.documents, walked.left_out, walked.run_validation) == (14, 2, False)
    (copied / "run.yaml").write_text(run.replace("on_missing: raise", "on_missing: skip"))
    found = estimate_checkpoint(copied / "0")
    assert found.acceptance.replay.data.run_validation is True  # type: ignore[union-attr]


def edited(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    change(config["speculators_config"]["verifier"])
    (checkpoint / "config.json").write_text(json.dumps(config))


def test_without_its_verifier_it_is_refused(copied: Path, tmp_path: Path) -> None:
    checkpoint = copied / "0"
    edited(checkpoint, lambda verifier: verifier.update(name_or_path=str(tmp_path / "gone")))
    refused(CheckpointError, "The verifier .*gone is not there; tried", checkpoint)
    edited(checkpoint, lambda verifier: verifier.update(name_or_path=None))
    refused(CheckpointError, "names no verifier", checkpoint)


def test_no_code_of_a_verifier_is_run(copied: Path, world: TinyWorld, tmp_path: Path) -> None:
    verifier = Path(shutil.copytree(world.verifier, tmp_path / "own-code"))
    config = json.loads((verifier / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    (verifier / "config.json").write_text(json.dumps(config))
    (verifier / "configuration_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edited(copied / "0", lambda found: found.update(name_or_path=str(verifier)))
    refused(CheckpointError, "cannot be loaded by speculators", copied / "0")
    assert not (tmp_path / "ran").exists()


def test_text_without_responses_is_refused(copied: Path, world: TinyWorld, tmp_path: Path) -> None:
    from datasets import load_from_disk

    data = Path(shutil.copytree(world.data, tmp_path / "silent", ignore=shutil.ignore_patterns("*.arrow")))
    rows = load_from_disk(str(world.data)).map(lambda row: {"loss_mask": [0] * len(row["loss_mask"])})
    rows.save_to_disk(data)
    refused(EstimateError, "no response of two tokens", copied / "0", data)


def test_an_interrupt_leaves_everything_as_it_was(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eagle3_export.cli.estimating._announce", interrupt)
    done = command(copied / "0")
    assert (done.exit_code, done.stdout) == (130, "")
    assert "nothing is half-written" in done.stderr
    with pytest.raises(KeyboardInterrupt):
        estimate_checkpoint(copied / "0", progress=interrupt)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_checkpoint_that_is_saved_again_meanwhile_is_refused(copied: Path) -> None:
    weights = copied / "0" / "model.safetensors"

    def save_again(_: Any) -> None:
        again = weights.with_name("again")
        again.write_bytes(weights.read_bytes())
        again.rename(weights)

    refused(EstimateError, "was saved again while it was replayed", copied / "0", progress=save_again)
    assert metadata(output_of(copied) / "0")["acceptance"]["source"] == "validation"


def test_progress_is_told_batch_by_batch(copied: Path) -> None:
    seen: list[Progress] = []
    begun: list[Beginning] = []
    found = estimate_checkpoint(copied / "0", begin=begun.append, progress=seen.append)
    assert [(told.documents, told.total) for told in seen] == [(8, 16), (16, 16)]
    assert seen[-1].acceptance_length == found.acceptance.estimated_acceptance_length
    assert (begun[0].data.documents, begun[0].num_steps, begun[0].device) == (16, 3, "cpu")


def test_dashboards_of_this_process_hear_nothing(copied: Path) -> None:
    with recording() as records:
        estimate_checkpoint(copied / "0")
    assert records.validations == {}


def test_the_mask_of_eager_attention_is_never_used(world: TinyWorld, tmp_path: Path) -> None:
    """Up to speculators 0.8.1 it shows later positions, so drafts seem better; sdpa says what they are worth."""
    save_path = tmp_path / "eager"
    assert train(world, save_path, epochs=1, draft_attn_impl="eager")[0] == 0
    estimates = [estimate_checkpoint(save_path / "0").acceptance]
    run = save_path / "run.yaml"
    run.write_text(run.read_text().replace("draft_attn_impl: eager", "draft_attn_impl: sdpa"))
    estimates.append(estimate_checkpoint(save_path / "0").acceptance)
    assert estimates[0] == estimates[1]


def test_names_with_a_wrappers_prefix_are_understood(copied: Path) -> None:
    before = estimate_checkpoint(copied / "0").acceptance
    weights = copied / "0" / "model.safetensors"
    from safetensors.torch import load_file, save_file

    save_file({f"_orig_mod.{name}": tensor for name, tensor in load_file(weights).items()}, weights)
    found = estimate_checkpoint(copied / "0")
    assert found.export is None
    assert found.acceptance.replay == before.replay


def test_a_loss_mask_of_another_length_is_refused(copied: Path, world: TinyWorld, tmp_path: Path) -> None:
    from datasets import load_from_disk

    data = Path(shutil.copytree(world.data, tmp_path / "short", ignore=shutil.ignore_patterns("*.arrow")))
    load_from_disk(str(world.data)).map(lambda row: {"loss_mask": [1] * 20}).save_to_disk(data)
    refused(EstimateError, "holds 32 tokens, its row of the data set a loss_mask for 20", copied / "0", data)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("total_seq_len: 256", "total_seq_len: many"), ("train_data_ratio: 0.6", "train_data_ratio: 6")],
)
def test_a_run_yaml_that_no_trainer_wrote_is_refused(copied: Path, ours: str, theirs: str) -> None:
    run = copied / "run.yaml"
    assert ours in run.read_text()
    run.write_text(run.read_text().replace(ours, theirs))
    refused(UsageError, f"run.yaml beside the checkpoint has {theirs.split(':')[0]}", copied / "0")
