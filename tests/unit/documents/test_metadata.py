"""metadata.json and index.json: strict, explained, versioned, and true to their published schemas."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pickle
import zipfile
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle3_export.documents.best import best_choice
from eagle3_export.documents.index import build_index
from eagle3_export.documents.json_files import read_index, read_metadata, to_json
from eagle3_export.documents.measurements import CONDITIONS, differing_conditions, headline, series
from eagle3_export.documents.metadata import with_measurement, with_metrics
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import CheckpointError, ExportInvalidError
from eagle3_export.estimates.acceptance import Coverage
from eagle3_export.estimates.coverage import draft_vocabulary_coverage
from eagle3_export.estimates.replay import DepthCounts, ReplayCounts, ReplayedData, replay_record
from eagle3_export.speculators_format.run_files import frequencies_file
from eagle3_export.speculators_format.token_frequencies import read_token_frequencies, run_coverage
from scripts.write_schemas import MODELS, SCHEMAS, schema_text
from tests.support.documents import GOOD, export, measurement, replayed


def strict(content: bytes):
    def refuse(name):
        raise AssertionError(f"{name} in a document that must be strict JSON")

    return json.loads(content, parse_constant=refuse)


def nulls_without_reason(node, path="") -> list[str]:
    """Every null in a section that has `reasons`, and no reason under its name there."""
    if isinstance(node, list):
        return [p for i, item in enumerate(node) for p in nulls_without_reason(item, f"{path}[{i}]")]
    if not isinstance(node, dict):
        return []
    here = [
        f"{path}.{k}"
        for k, v in node.items()
        if v is None and "reasons" in node and not node["reasons"].get(k)
    ]
    return here + [p for k, v in node.items() for p in nulls_without_reason(v, f"{path}.{k}")]


def schema(name):
    return json.loads((SCHEMAS / name.replace(".json", ".schema.json")).read_text())


@functools.cache
def validator(name):
    return jsonschema.Draft202012Validator(schema(name))


class TestDocument:
    def test_it_leads_with_what_a_dashboard_reads(self):
        document = strict(to_json(export(metrics=GOOD)))
        assert list(document)[:5] == [
            "schema_version",
            "epoch",
            "global_step",
            "full_acc_0",
            "estimated_acceptance_length",
        ]
        assert (document["full_acc_0"], document["estimated_acceptance_length"]) == (0.8, pytest.approx(2.8))

    @pytest.mark.parametrize("metrics", [None, {}, GOOD, {"full_acc_0": math.nan}, {"full_acc_0": 2.52}])
    def test_every_null_is_explained(self, metrics):
        document = strict(to_json(export(metrics=metrics)))
        assert nulls_without_reason(document) == []
        assert (document["estimated_acceptance_length"] is None) == (metrics is not GOOD)

    def test_metrics_that_come_later_leave_an_estimate_whole(self):
        """Those of a trainer without a replay: the export would mix two texts."""
        counts = ReplayCounts(1, {1: DepthCounts([20, 80], documents=1)}, documents=1, spans=1)
        replay = replay_record(counts, data=ReplayedData("/data", 0, 1, 0, None, False, "sha256:a"))
        estimated = with_metrics(export(), {"full_acc_0": 0.7}, source="estimate", replay=replay)
        assert estimated.estimated_acceptance_length == pytest.approx(1.8)
        assert with_metrics(estimated, GOOD) == estimated
        # a validation that was replayed takes its place
        validated = with_metrics(estimated, GOOD, replay=replay_record(counts))
        assert (validated.acceptance.source, validated.full_acc_0) == ("validation", 0.8)

    def test_a_null_without_a_reason_is_refused(self):
        content = strict(to_json(export(metrics=GOOD)))
        content["full_acc_0"] = None
        with pytest.raises(ValidationError, match="null without a reason: full_acc_0"):
            ExportMetadata.model_validate(content)

    def test_a_number_that_is_not_finite_is_refused(self):
        content = strict(to_json(export(metrics=GOOD)))
        content["acceptance"]["estimated_acceptance_length"] = math.nan
        with pytest.raises(ValidationError):
            ExportMetadata.model_validate(content)

    def test_before_validation_the_numbers_are_null_and_after_it_they_are_there(self):
        before = export(num_steps=(2, 4), metrics_missing_reason="Validation is running.")
        assert before.full_acc_0 is None
        assert before.reasons["full_acc_0"] == "Validation is running."
        after = with_metrics(before, GOOD)
        assert after.full_acc_0 == 0.8
        assert "full_acc_0" not in after.reasons
        assert [row.num_steps for row in after.acceptance.per_depth] == [2, 4]
        assert after.created_at == before.created_at

    def test_the_reason_for_a_missing_estimate_is_told_once_in_each_section(self):
        document = to_json(export(metrics_missing_reason="Validation is running.")).decode()
        assert document.count("Validation is running.") == 3  # two leading numbers, and the estimate itself

    def test_metrics_that_are_withdrawn_leave_no_stale_number(self):
        document = strict(to_json(with_metrics(export(metrics=GOOD), None, missing_reason="Overwritten.")))
        assert document["full_acc_0"] is None
        assert document["acceptance"]["steps"] == document["acceptance"]["per_depth"] == []

    def test_coverage_survives_new_metrics(self):
        coverage = Coverage(tokens=100, covered=90, ratio=0.9, source="token_freq.pt")
        after = with_metrics(export(coverage=coverage), GOOD)
        assert after.acceptance.adjusted_acceptance_length == pytest.approx(
            1 + 0.8 * 0.9 + 0.6 * 0.81 + 0.4 * 0.729
        )

    def test_what_a_newer_release_adds_is_kept(self):
        content = strict(to_json(export(metrics=GOOD)))
        content["new_key"] = {"a": 1}
        content["sglang"]["new_key"] = 2
        rewritten = strict(to_json(with_metrics(ExportMetadata.model_validate(content), GOOD)))
        assert (rewritten["new_key"], rewritten["sglang"]["new_key"]) == ({"a": 1}, 2)

    @given(
        st.dictionaries(
            st.sampled_from([f"{kind}_acc_{k}_epoch" for kind in ("full", "cond") for k in range(4)]),
            st.one_of(st.floats(), st.floats(0, 1), st.none(), st.text(max_size=3)),
        )
    )
    def test_any_metrics_give_a_document_that_follows_the_schema_and_comes_back(self, metrics):
        made = export(metrics=metrics)
        document = strict(to_json(made))
        validator("metadata.json").validate(document)
        assert nulls_without_reason(document) == []
        assert ExportMetadata.model_validate(document) == made


class TestMeasurements:
    def test_a_measurement_replaces_the_null(self):
        measured = with_measurement(export(metrics=GOOD), measurement())
        assert measured.measured.acceptance_length == 2.5
        assert "measured" not in measured.reasons
        assert measured.estimated_acceptance_length == pytest.approx(2.8)

    def test_depths_stand_beside_each_other_and_the_same_depth_is_replaced(self):
        metadata = export(metrics=GOOD)
        for depth, length in ((3, 2.5), (5, 2.7), (3, 2.6)):
            metadata = with_measurement(metadata, measurement(num_steps=depth, acceptance_length=length))
        assert [(m.num_steps, m.acceptance_length) for m in metadata.measured.measurements] == [
            (3, 2.6),
            (5, 2.7),
        ]
        validator("metadata.json").validate(strict(to_json(metadata)))

    @pytest.mark.parametrize("condition", [*CONDITIONS, "prompt_source"])
    def test_one_condition_that_differs_keeps_measurements_apart(self, condition):
        one = measurement()
        value = getattr(one, condition)
        other = (
            value + 1
            if isinstance(value, int)
            else {"temperature": 1.0}
            if condition == "sampling"
            else "vllm"
        )
        changed = one.model_copy(update={condition: other})
        assert differing_conditions(one, changed) == [f"{condition}: {value} against {other}"]
        assert differing_conditions(one, measurement(num_steps=5, acceptance_length=3.0)) == []
        metadata = with_measurement(with_measurement(export(metrics=GOOD), one), changed)
        assert len(metadata.measured.measurements) == len(series(metadata)) == 2

    def test_prompts_are_told_apart_by_themselves_rather_than_by_the_name_of_their_file(self):
        one = measurement(prompt_source="a.txt", prompts_digest="sha256:1")
        assert (
            differing_conditions(one, measurement(prompt_source="/b/a.txt", prompts_digest="sha256:1")) == []
        )
        edited = measurement(prompt_source="a.txt", prompts_digest="sha256:2")
        assert differing_conditions(one, edited) == ["prompts_digest: sha256:1 against sha256:2"]
        assert differing_conditions(one, measurement(prompt_source="a.txt")) == []

    def test_a_server_that_ran_the_draft_otherwise_is_compared_with_nothing(self):
        odd = measurement(
            acceptance_length=9.0, server_version="0.5.22", differences=["It ran another dtype."]
        )
        assert differing_conditions(odd, odd)
        assert headline([odd, measurement()], 3).acceptance_length == 2.5
        assert headline([odd], 3).acceptance_length == 9.0

    @given(st.permutations([1, 3, 5, 10, 16]), st.sampled_from([1, 3, 4, 8, 16, 0]))
    def test_the_one_to_show_first_does_not_depend_on_the_order_of_measuring(self, depths, trained):
        shown = headline([measurement(num_steps=depth) for depth in depths], trained)
        assert shown.num_steps == {1: 1, 3: 3, 4: 3, 8: 10, 16: 16, 0: 1}[trained]

    def test_metrics_that_come_after_a_measurement_choose_the_one_to_show(self):
        metadata = export(metrics=None)
        for depth in (3, 1):
            metadata = with_measurement(metadata, measurement(num_steps=depth))
        assert metadata.measured.num_steps == 1
        assert with_metrics(metadata, GOOD).measured.num_steps == 3

    def test_a_depth_that_is_none_is_refused(self):
        with pytest.raises(ValidationError, match="num_steps"):
            measurement(num_steps=0)


def accuracies(*full: float) -> dict[str, float]:
    return {f"full_acc_{step}": share for step, share in enumerate(full)}


class TestIndex:
    def test_exports_stand_in_order_of_training_with_latest_and_best(self):
        runs = [
            export("2", epoch=2, step=300, metrics=GOOD | {"full_acc_2_epoch": 0.3}),
            export("interrupted", epoch=3, step=350),
            export("0", epoch=0, step=100, metrics=GOOD | {"full_acc_1_epoch": 0.5}),
            export("1", epoch=1, step=200, metrics=GOOD),
        ]
        document = strict(to_json(build_index(runs)))
        assert [entry["name"] for entry in document["exports"]] == ["0", "1", "2", "interrupted"]
        assert (document["latest"], document["best"]) == ("interrupted", "1")
        assert nulls_without_reason(document) == []
        validator("index.json").validate(document)

    def test_an_estimate_from_training_is_never_best(self):
        rated = export("1", metrics=GOOD)
        boast = export("2", metrics=dict.fromkeys(GOOD, 0.99), metrics_source="training")
        assert best_choice([rated, boast]).name == "1"

    def test_a_geometric_estimate_is_not_compared_with_chains(self):
        chains = [export("0", metrics=GOOD), export("1", metrics=GOOD | {"full_acc_0_epoch": 0.7})]
        assert best_choice([*chains, export("2", metrics={"full_acc_0": 0.95})]).name == "0"

    def test_drafts_trained_for_different_depths_are_compared_at_the_shallower(self):
        # 2.87 at 3 steps; 3.10 at 5 steps, but 2.68 at 3
        shallow = export("0", epoch=0, step=1, metrics=accuracies(0.80, 0.62, 0.45))
        deep = export("1", epoch=1, step=2, metrics=accuracies(0.75, 0.55, 0.38, 0.25, 0.17))
        assert best_choice([shallow, deep]).name == best_choice([deep, shallow]).name == "0"

    def test_of_equal_ones_the_later_is_best(self):
        runs = [export(str(epoch), epoch=epoch, step=epoch + 1, metrics=GOOD) for epoch in range(3)]
        assert best_choice(runs).name == best_choice(runs[::-1]).name == "2"

    def test_estimates_of_another_method_are_not_compared(self):
        conditional = {"cond_acc_0": 0.99, "cond_acc_1": 0.99, "cond_acc_2": 0.99}
        runs = [export("0", metrics=GOOD), export("1", metrics=GOOD), export("2", metrics=conditional)]
        assert best_choice(runs).name in ("0", "1")

    def test_replays_and_means_over_positions_are_never_compared_by_their_numbers(self):
        # the mean over positions, 2.8, is higher than what any server would report of the same draft
        means = [export(str(n), epoch=n, step=n + 1, metrics=GOOD) for n in range(2)]
        replays = [
            export(str(n), epoch=n, step=n + 1, metrics=GOOD, replay=replayed(1.5 + n / 10)) for n in (2, 3)
        ]
        choice = best_choice([*replays, *means])
        assert choice.name == "3", "of groups of one size the replays"
        assert choice.why == (
            "Highest of the 2 estimates by replay, from validation at depth 1: 1.800."
            " Not compared: 0, 1, whose estimate is cumulative from validation."
        )
        assert best_choice([*means, replays[0]]).name == "1", "the larger group"
        document = strict(to_json(build_index([*replays, *means])))
        assert (document["best"], document["best_why"]) == ("3", choice.why)

    @given(
        st.lists(
            st.lists(st.floats(0, 1), min_size=1, max_size=6).map(lambda full: sorted(full, reverse=True)),
            min_size=1,
            max_size=6,
        )
    )
    def test_no_comparable_export_is_above_the_best_at_every_depth(self, runs):
        exports = [
            export(str(number), step=number, metrics=accuracies(*full)) for number, full in enumerate(runs)
        ]
        best = best_choice(exports).name
        if best is None:
            assert all(len(full) == 1 and full[0] == 1.0 for full in runs)
            return
        kind = len(runs[int(best)]) == 1  # one step alone gives a geometric estimate
        rivals = [full for full in runs if (len(full) == 1) == kind and full != [1.0]]
        common = min(len(full) for full in rivals)
        lengths = [sum(full[:common]) for full in rivals]
        assert sum(runs[int(best)][:common]) == pytest.approx(max(lengths))

    def test_an_empty_run(self):
        document = strict(to_json(build_index([])))
        assert (document["latest"], document["best"]) == (None, None)
        assert set(document["reasons"]) == {"run", "latest", "best", "best_why"}


class TestReading:
    def test_what_was_written_is_read(self, tmp_path):
        made = export(metrics=GOOD)
        (tmp_path / "metadata.json").write_bytes(to_json(made))
        (tmp_path / "index.json").write_bytes(to_json(build_index([made])))
        assert read_metadata(tmp_path) == made
        assert read_index(tmp_path).exports[0].name == "0"

    @pytest.mark.parametrize(
        ("content", "named"),
        [
            (b"", "strict JSON"),
            (b'{"epoch": NaN}', "NaN"),
            (b"[" * 100_000, "strict JSON"),
            (b"[]", "metadata.json"),
            (b"\xff\xfe", "strict JSON"),
            (b'{"schema_version": 2}', "schema_version 2"),
            (b'{"schema_version": 1, "reasons": {"x": "\\ud800"}}', "strict JSON"),
            (b'{"schema_version": 1}', "epoch"),
        ],
    )
    def test_a_broken_document_is_an_error_of_ours(self, tmp_path, content, named):
        (tmp_path / "metadata.json").write_bytes(content)
        with pytest.raises(ExportInvalidError, match=named):
            read_metadata(tmp_path)

    def test_a_missing_document_is_an_error_of_ours(self, tmp_path):
        with pytest.raises(ExportInvalidError, match="cannot be read"):
            read_metadata(tmp_path)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_published_schema_is_the_one_of_the_models(name):
    assert schema(name) == json.loads(schema_text(name)), "run scripts/write_schemas.py"
    jsonschema.Draft202012Validator.check_schema(schema(name))


def torch_file(path: Path, pickled: bytes) -> Path:
    """A file as torch.save lays it out."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", b"3\n")
    return path


class TestCoverage:
    @given(st.dictionaries(st.integers(0, 2**40), st.integers(0, 2**70), max_size=30), st.integers(2, 5))
    def test_any_pickle_of_a_dict_of_counts_is_read(self, tmp_path_factory, counts, protocol):
        path = tmp_path_factory.mktemp("freq") / "token_freq.pt"
        assert read_token_frequencies(torch_file(path, pickle.dumps(counts, protocol))) == counts

    @pytest.mark.parametrize(
        "content", [{"a": 1}, {1: -1}, {1: 2.5}, {1: {2: 3}}, [1, 2], Path("x"), print, {1: print}, 3]
    )
    def test_anything_else_is_refused_without_being_run(self, tmp_path, content):
        with pytest.raises(CheckpointError, match="token frequencies"):
            read_token_frequencies(torch_file(tmp_path / "token_freq.pt", pickle.dumps(content, 2)))

    @given(st.binary(max_size=60))
    def test_any_bytes_give_our_error_or_a_dict(self, tmp_path_factory, content):
        path = torch_file(tmp_path_factory.mktemp("freq") / "token_freq.pt", content)
        with contextlib.suppress(CheckpointError):
            assert isinstance(read_token_frequencies(path), dict)

    @pytest.mark.parametrize("content", [None, b"", b"no archive"])
    def test_what_is_no_archive_is_refused(self, tmp_path, content):
        path = tmp_path / "token_freq.pt"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"token_freq\.pt"):
            read_token_frequencies(path)

    def test_share_of_the_tokens_not_of_the_ids(self):
        coverage = draft_vocabulary_coverage({0: 90, 1: 9, 2: 1}, [0, 2, 7], source="token_freq.pt")
        assert (coverage.tokens, coverage.covered, coverage.ratio) == (100, 91, 0.91)

    @pytest.mark.slow
    def test_the_file_that_speculators_writes(self, tmp_path):
        torch = pytest.importorskip("torch")
        from datasets import Dataset
        from speculators.train.vocab_mapping import save_token_frequency_distribution

        rows = Dataset.from_dict({"input_ids": [[5, 7, 5], [7, 9, 9]], "loss_mask": [[1, 1, 1], [0, 1, 1]]})
        save_token_frequency_distribution(rows.with_format("torch"), tmp_path / "token_freq.pt")
        expected = torch.load(tmp_path / "token_freq.pt", weights_only=True)
        assert read_token_frequencies(tmp_path / "token_freq.pt") == expected
        assert expected[9] == 2


class TestRunCoverage:
    # the draft says 0 and 2 of the tokens 0, 1, 2, counted 90, 9 and 1 times
    OFFSETS = (0, 1)

    def run(self, directory, run_yaml, *, frequencies=True):
        save_path, data = directory / "checkpoints", directory / "data"
        save_path.mkdir()
        data.mkdir()
        if run_yaml is not None:
            (save_path / "run.yaml").write_text(run_yaml.replace("DATA", str(data)))
        if frequencies:
            torch_file(data / "token_freq.pt", pickle.dumps({0: 90, 1: 9, 2: 1}, 2))
        return run_coverage(frequencies_file(save_path), self.OFFSETS)

    @pytest.mark.parametrize(
        "run_yaml",
        [
            "train:\n  data:\n    data_path: DATA\n",
            "train:\n  draft:\n    token_freq_path: DATA/token_freq.pt\n  data:\n    data_path: elsewhere\n",
        ],
    )
    def test_the_frequencies_are_found_through_the_runs_own_record(self, tmp_path, run_yaml):
        assert self.run(tmp_path, run_yaml).ratio == 0.91

    def test_a_full_vocabulary_covers_everything(self, tmp_path):
        self.run(tmp_path, "train:\n  data:\n    data_path: DATA\n")
        assert run_coverage(frequencies_file(tmp_path / "checkpoints"), None).ratio == 1.0

    @pytest.mark.parametrize(
        "run_yaml", [None, "", "train: 3", "train:\n  data: 3", "{", "train:\n  data: {}\n"]
    )
    def test_without_a_usable_record_it_is_unknown(self, tmp_path, run_yaml):
        assert self.run(tmp_path, run_yaml) is None

    def test_without_or_with_broken_frequencies_it_is_unknown(self, tmp_path):
        record = "train:\n  data:\n    data_path: DATA\n"
        assert self.run(tmp_path, record, frequencies=False) is None
        (tmp_path / "data" / "token_freq.pt").write_bytes(b"broken")
        assert run_coverage(frequencies_file(tmp_path / "checkpoints"), self.OFFSETS) is None
