"""Measurements: against real SGLang on the CPU, and the refusals that only a stand-in can provoke."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from eagle3_export.documents.json_files import read_index, read_metadata
from eagle3_export.errors import MeasurementError, UsageError
from eagle3_export.measure import sweep as sweeping
from eagle3_export.measure.measurement import measure, measure_baseline, record
from eagle3_export.measure.prompt_forms import Prompt, parse_prompt
from eagle3_export.measure.sweep import Sweep, sweep_depths
from eagle3_export.measure.workload import Workload
from tests.support.measuring import files_of, workload
from tests.support.stand_in_server import running, sglang


class TestSGLang:
    def test_counts_are_summed_and_the_warm_up_is_not_counted(self, draft):
        with running(sglang(str(draft), histogram=(2, 1, 3, 4))) as server:
            found = measure(draft, server.url, workload("a", "b", max_new_tokens=64))
        # by hand: 10 verify steps accept 0+1+6+12 = 19 drafts; 8, 7 and 4 of the steps accept 1, 2 and 3 or more
        assert found.acceptance_length == pytest.approx(2.9)
        assert found.accepted_per_position == pytest.approx([0.8, 0.7, 0.4])
        assert found.acceptance_length == pytest.approx(1 + sum(found.accepted_per_position))
        assert (found.verify_steps, found.prompts, found.num_steps) == (20, 2, 3)
        assert found.reported_acceptance_length == pytest.approx(29 / 10)
        limits = [
            body["sampling_params"]["max_new_tokens"] for path, body in server.requests if path == "/generate"
        ]
        assert limits == [8, 64, 64]

    def test_a_speed_up_above_the_acceptance_length_is_noise(self, draft):
        with running(sglang(str(draft))) as server:
            noisy = measure(draft, server.url, workload(), baseline_tokens_per_second=1e-9)
            sound = measure(draft, server.url, workload(), baseline_tokens_per_second=1e9)
        assert noisy.speedup is None
        assert "the machine was busy" in noisy.reasons["speedup"]
        assert sound.speedup == pytest.approx(sound.tokens_per_second / 1e9)

    def test_chat_prompts_go_through_the_servers_template(self, draft):
        answers = sglang(str(draft))
        answers["/v1/chat/completions"] = {"choices": [answers["/generate"]]}
        prompt = Prompt(messages=({"role": "user", "content": "Hi"},))
        with running(answers) as server:
            assert measure(draft, server.url, Workload([prompt], "chat")).acceptance_length == pytest.approx(
                2.9
            )
        body = server.requests[-1][1]
        assert body["messages"] == [{"role": "user", "content": "Hi"}]
        assert body["return_meta_info"] is True

    def test_messages_are_sent_as_they_are_with_what_stood_beside_them(self, draft):
        answers = sglang(str(draft))
        answers["/v1/chat/completions"] = {"choices": [answers["/generate"]]}
        tools = [{"type": "function", "function": {"name": "add"}}]
        call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
        turns = [
            {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}], "name": "Ann"},
            call,
            {"role": "tool", "content": "4", "tool_call_id": "1"},
        ]
        prompt = parse_prompt({"messages": turns, "tools": tools})
        with running(answers) as server:
            measure(draft, server.url, Workload([prompt], "chat"))
        body = server.requests[-1][1]
        assert (body["messages"], body["tools"]) == (turns, tools)

    def test_a_release_without_counters_for_chat(self, draft):
        answers = sglang(str(draft), release="0.5.12") | {"/v1/chat/completions": {"choices": [{"index": 0}]}}
        prompt = Prompt(messages=({"role": "user", "content": "Hi"},))
        with (
            running(answers) as server,
            pytest.raises(MeasurementError, match=r"SGLang 0\.5\.12.*chat") as caught,
        ):
            measure(draft, server.url, Workload([prompt], "chat"))
        assert "from 0.5.13 on" in caught.value.why

    @pytest.mark.parametrize("release", ["0.5.10", "0.5.11", "0.5.12"])
    def test_a_release_with_other_names(self, draft, release):
        with running(sglang(str(draft), release=release)) as server:
            found = measure(draft, server.url, workload())
        assert found.acceptance_length == pytest.approx(2.9)
        assert found.accepted_per_position == pytest.approx([0.8, 0.7, 0.4])
        assert found.server_version == release

    def test_many_requests_at_a_time(self, draft):
        with running(sglang(str(draft))) as server:
            found = measure(draft, server.url, workload(*"abcdefghij", concurrency=4))
        assert (found.verify_steps, found.prompts, found.concurrency) == (100, 10, 4)

    def test_progress_tells_the_acceptance_length_so_far(self, draft):
        told = []

        def progress(done, total, counts):
            told.append((done, total, round(counts.acceptance_length, 6)))

        with running(sglang(str(draft))) as server:
            measure(draft, server.url, workload("a", "b"), progress=progress)
        assert told == [(1, 2, 2.9), (2, 2, 2.9)]

    def test_a_pointer_is_not_written_through(self, draft):
        with running(sglang(str(draft))) as server:
            found = measure(draft, server.url, workload())
        (draft.parent / "best").symlink_to("0")
        with pytest.raises(UsageError, match="a pointer"):
            record(draft.parent / "best", found)

    def test_a_release_that_reports_verify_steps_only(self, draft):
        answers = sglang(str(draft)) | {
            "/generate": {"meta_info": {"completion_tokens": 30, "spec_verify_ct": 10}}
        }
        answers["/get_server_info"] = answers.pop("/server_info")
        with running(answers) as server:
            found = measure(draft, server.url, workload())
        assert (found.acceptance_length, found.accepted_per_position) == (3.0, None)
        assert "does not report accepted drafts" in found.reasons["accepted_per_position"]

    def test_what_is_recorded_reaches_metadata_card_and_index(self, draft):
        with running(sglang(str(draft))) as server:
            record(draft, measure(draft, server.url, workload(), baseline_tokens_per_second=1.0))
        assert read_metadata(draft).measured.acceptance_length == pytest.approx(2.9)
        assert "2.90" in (draft / "README.md").read_text()
        (entry,) = read_index(draft.parent).exports
        assert (entry.measured_acceptance_length, entry.measured_num_steps) == (pytest.approx(2.9), 3)


@contextlib.contextmanager
def pointer_to(draft):
    link = draft.parent / "latest"
    link.symlink_to(draft.name)
    yield str(link)


class TestRefusals:
    """Every one of them leaves the export as it was."""

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"speculative_algorithm": None}, "without speculation"),
            ({"speculative_algorithm": "NGRAM"}, "NGRAM"),
            ({"speculative_draft_model_path": "/elsewhere"}, "runs the draft /elsewhere"),
            ({"speculative_draft_model_path": None}, "does not say which draft"),
        ],
    )
    def test_a_server_that_does_not_run_this_export(self, draft, change, named):
        self.refused(draft, sglang(str(draft), **change), named)

    def test_a_server_started_with_a_pointer(self, draft):
        with pointer_to(draft) as link:
            self.refused(draft, sglang(link), "a pointer that may have moved")

    @pytest.mark.parametrize(
        ("answer", "named"),
        [
            (500, "status 500"),
            (404, "has no /generate"),
            (b"<html>", "something else than a JSON object"),
            ([], "something else than a JSON object"),
            ({}, "no meta_info"),
            ({"meta_info": {"completion_tokens": "many"}}, "no meta_info"),
            ({"meta_info": {"completion_tokens": 5}}, "verified no draft"),
        ],
    )
    def test_a_request_that_fails(self, draft, answer, named):
        self.refused(draft, sglang(str(draft)) | {"/generate": answer}, named)

    @pytest.mark.parametrize(
        "meta",
        [
            {
                "spec_verify_ct": 10,
                "spec_num_correct_drafts": 19,
                "spec_correct_drafts_histogram": [2, 1, 3, 3],
            },
            {
                "spec_verify_ct": 10,
                "spec_num_correct_drafts": 18,
                "spec_correct_drafts_histogram": [2, 1, 3, 4],
            },
            {
                "spec_verify_ct": 10,
                "spec_num_correct_drafts": 23,
                "spec_correct_drafts_histogram": [2, 1, 3, 3, 1],
            },
            {"spec_verify_ct": 10, "spec_num_correct_drafts": 31},
        ],
    )
    def test_counters_that_contradict_each_other(self, draft, meta):
        answers = sglang(str(draft)) | {"/generate": {"meta_info": {"completion_tokens": 29} | meta}}
        self.refused(draft, answers, "server")

    def test_a_server_that_dies_half_way(self, draft):
        answered = []

        def answer(_):
            answered.append(None)
            return sglang(str(draft))["/generate"] if len(answered) < 3 else 503

        self.refused(draft, sglang(str(draft)) | {"/generate": answer}, "status 503")

    def test_no_server(self, draft):
        before = files_of(draft)
        with pytest.raises(MeasurementError, match="got no answer"):
            measure(draft, "http://127.0.0.1:9", workload())
        assert files_of(draft) == before

    def test_something_else_than_a_server_of_ours(self, draft):
        self.refused(draft, {"/server_info": {"name": "nginx"}}, "neither an SGLang nor a vLLM server")

    def test_a_baseline_that_speculates(self, draft):
        with (
            running(sglang(str(draft))) as server,
            pytest.raises(MeasurementError, match="speculates with EAGLE3"),
        ):
            measure_baseline(server.url, workload())

    def test_no_address(self, draft):
        with pytest.raises(UsageError, match="no server address"):
            measure(draft, "localhost:30000", workload())

    def refused(self, draft, answers, named):
        before = files_of(draft)
        with running(answers) as server, pytest.raises(MeasurementError, match=named):
            record(draft, measure(draft, server.url, workload()))
        assert files_of(draft) == before


class VLLM:
    """vLLM's counters, kept by the Prometheus client it uses, under the names it gives them."""

    def __init__(self, draft, others=0):
        self.registry = CollectorRegistry()
        labels = ["model_name", "engine"]
        self.drafts, self.accepted, self.tokens = (
            Counter(name, name, labels, registry=self.registry).labels("m", "0")
            for name in (
                "vllm:spec_decode_num_drafts",
                "vllm:spec_decode_num_accepted_tokens",
                "vllm:generation_tokens",
            )
        )
        per_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "per position",
            [*labels, "position"],
            registry=self.registry,
        )
        self.positions = [per_position.labels("m", "0", str(k)) for k in range(3)]
        self.others = others
        self.config = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 3}
        self.answers = {
            "/metrics": lambda _: generate_latest(self.registry),
            "/v1/models": {"data": [{"id": "m", "root": "org/verifier"}]},
            "/version": {"version": "0.12.0"},
            "/server_info?config_format=json": {"vllm_config": {"speculative_config": self.config}},
            "/v1/completions": self.complete,
        }

    def complete(self, _):
        """10 verify steps that accept 0, 1, 2 and 3 drafts 2, 1, 3 and 4 times."""
        self.drafts.inc(10)
        self.accepted.inc(19)
        for position, count in zip(self.positions, (8, 7, 4), strict=True):
            position.inc(count)
        self.tokens.inc(29 + self.others)
        return {"usage": {"completion_tokens": 29}}


class TestVLLM:
    def test_what_the_counters_gained_is_the_measurement(self, draft):
        vllm = VLLM(draft)
        vllm.complete(None)  # somebody else, earlier
        with running(vllm.answers) as server:
            found = measure(draft, server.url, workload("a", "b", "c"))
        assert (found.server, found.server_version, found.verify_steps) == ("vllm", "0.12.0", 30)
        assert found.acceptance_length == pytest.approx(2.9)
        assert found.accepted_per_position == pytest.approx([0.8, 0.7, 0.4])

    def test_other_traffic_makes_it_no_measurement(self, draft):
        with (
            running(VLLM(draft, others=5).answers) as server,
            pytest.raises(MeasurementError, match="nobody else"),
        ):
            measure(draft, server.url, workload())

    def test_answers_with_counters_of_their_own_are_taken_whatever_others_do(self, draft):
        vllm = VLLM(draft, others=5)
        # as vLLM writes them with --per-request-spec-decode-metrics summary
        counters = {
            "mean_acceptance_length": 2.9,
            "draft_acceptance_rate": 19 / 30,
            "acceptance_histogram": [2, 1, 3, 4],
            "num_spec_steps": 10,
            "num_accepted_draft_tokens": 19,
            "num_draft_tokens": 30,
            "num_spec_tokens": 3,
        }
        own = {"usage": {"completion_tokens": 29}, "metrics": {"speculative_decoding": counters}}
        for metrics in (vllm.answers["/metrics"], 404):
            with running(vllm.answers | {"/v1/completions": own, "/metrics": metrics}) as server:
                server.answers["/v1/models"]["data"][0]["owned_by"] = "vllm"
                found = measure(draft, server.url, workload())
            assert (found.acceptance_length, found.verify_steps) == (pytest.approx(2.9), 20)
            assert found.accepted_per_position == pytest.approx([0.8, 0.7, 0.4])

    @pytest.mark.parametrize("metrics", [b"# HELP python_info Python\npython_info 1.0\n", 404])
    @pytest.mark.parametrize("tells_config", [True, False])
    def test_a_server_that_keeps_no_counters(self, draft, metrics, tells_config):
        answers = VLLM(draft).answers
        answers |= {"/metrics": metrics, "/v1/completions": {"usage": {"completion_tokens": 29}}}
        answers["/v1/models"] = {"data": [{"id": "m", "owned_by": "vllm"}]}
        if not tells_config:
            del answers["/server_info?config_format=json"]
        with running(answers) as server, pytest.raises(MeasurementError, match="--disable-log-stats"):
            measure(draft, server.url, workload())

    @pytest.mark.parametrize(
        "text", [b"vllm:x{ 1", b'vllm:x{a="b} 1', b"vllm:x one", b"vllm:\xff 1 2 3 4", b"# TYPE vllm:x"]
    )
    def test_metrics_that_are_none(self, draft, text):
        with running(VLLM(draft).answers | {"/metrics": text}) as server, pytest.raises(MeasurementError):
            measure(draft, server.url, workload())

    def test_a_quantised_draft_is_a_difference(self, draft):
        vllm = VLLM(draft)
        vllm.config["quantization"] = "fp8"
        with running(vllm.answers) as server:
            assert "quantises the draft (fp8)" in measure(draft, server.url, workload()).differences[0]

    def test_a_server_that_does_not_tell_its_draft(self, draft):
        answers = VLLM(draft).answers
        del answers["/server_info?config_format=json"]
        with running(answers) as server, pytest.raises(MeasurementError, match="VLLM_SERVER_DEV_MODE=1"):
            measure(draft, server.url, workload())


@pytest.mark.slow
@pytest.mark.sglang
def test_real_sglang_is_swept_and_the_measurement_is_what_its_engine_reports(tmp_path, monkeypatch):
    """One depth on real SGLang, and the same prompts asked directly beside it."""
    pytest.importorskip("sglang")
    from eagle3_export.export import export_checkpoint
    from eagle3_export.launch import draft_arguments
    from tests.support.sglang_cpu import serve, toy

    verifier = toy.make_verifier(tmp_path / "verifier")
    export_dir = export_checkpoint(
        toy.trained_draft(tmp_path / "draft", verifier, steps=40), tmp_path / "out" / "0"
    ).directory
    prompts = [tuple(map(int, prompt)) for prompt in toy.prompts(3)]
    asked = Workload([Prompt(input_ids=ids) for ids in prompts], "toy", max_new_tokens=48, ignore_eos=True)
    reported = []

    def spy(export, url, workload, **options):
        reported.extend(ask_directly(url, prompts, workload.max_new_tokens))
        return measure(export, url, workload, **options)

    monkeypatch.setattr(sweeping, "measure", spy)
    for name, value in serve.environment().items():
        monkeypatch.setenv(name, value)
    sweep = Sweep(
        target=str(verifier),
        arguments=lambda depth: draft_arguments(export_dir, str(verifier), depth),
        template=" ".join(
            [
                f"{sys.executable} -m sglang.launch_server --model-path {{target}} --host 127.0.0.1 --port {{port}}",
                *serve.server_flags(),
                "--skip-tokenizer-init",
                "{speculative}",
            ]
        ),
    )
    (found,) = sweep_depths(export_dir, [4], asked, sweep, baseline=False).measurements

    steps = sum(meta["spec_verify_ct"] for meta in reported)
    histogram = [sum((m["spec_correct_drafts_histogram"] + [0] * 5)[n] for m in reported) for n in range(5)]
    accepted = sum(n * count for n, count in enumerate(histogram))
    assert sum(histogram) == steps == found.verify_steps
    assert found.acceptance_length == pytest.approx(1 + accepted / steps)
    assert found.acceptance_length == pytest.approx(1 + sum(found.accepted_per_position))
    assert found.reported_acceptance_length == pytest.approx(
        sum(m["completion_tokens"] for m in reported) / steps
    )
    assert found.acceptance_length > 1.2
    assert (found.num_steps, found.server_version, found.hardware) == (4, "0.5.23", "cpu")
    assert read_metadata(export_dir).measured.measurements == [found]


def ask_directly(url, prompts, max_new_tokens):
    """SGLang's own meta_info for each prompt, greedy, without any code of ours."""
    answers = []
    for ids in prompts:
        body = {
            "input_ids": list(ids),
            "sampling_params": {"temperature": 0.0, "max_new_tokens": max_new_tokens, "ignore_eos": True},
        }
        request = urllib.request.Request(
            url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            answers.append(json.load(answer)["meta_info"])
    return answers
