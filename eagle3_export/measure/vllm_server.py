"""A running vLLM server, measured by its counters.

vLLM counts speculation in Prometheus counters at `/metrics` (`vllm/v1/spec_decode/metrics.py`) and describes its
configuration at `/server_info` where VLLM_SERVER_DEV_MODE=1 is set
(`vllm/entrypoints/serve/instrumentator/server_info.py`). The counters cover all traffic, so a measurement by them is
refused where others used the server meanwhile. With `--per-request-spec-decode-metrics` every answer has counters of
its own, and those are taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.counts import Counts, counts_of_request
from eagle3_export.measure.draft_settings import VLLM_SETTINGS, known_settings
from eagle3_export.measure.facts import ServerFacts, read_count, read_text
from eagle3_export.measure.prompt_forms import Prompt
from eagle3_export.measure.start_time import started_at
from eagle3_export.measure.workload import Workload

_GENERATED = "vllm:generation_tokens"
_DRAFTS = "vllm:spec_decode_num_drafts"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


class VLLMServer:
    """A running vLLM server."""

    def __init__(self, connection: Connection) -> None:
        """Asks the server what it runs, and reads its counters.

        Args:
            connection: its address.

        Raises:
            MeasurementError: it neither counts nor says whether it speculates.
        """
        self._connection = connection
        config = _mapping((connection.get_json("/server_info?config_format=json") or {}).get("vllm_config"))
        speculation = _mapping(config.get("speculative_config"))
        models = (connection.get_json("/v1/models") or {}).get("data")
        model = _mapping(models[0]) if isinstance(models, list) and models else {}
        counters = self._read()
        self._counts_traffic = counters is not None
        if not config and not self._counts_traffic:
            raise _uncounted()
        self._before = counters or Counts(0, 0, None, None)
        seen = self._before.at_least or ()
        self.facts = ServerFacts(
            kind="vllm",
            version=read_text((connection.get_json("/version") or {}).get("version")),
            target=read_text(model.get("root")) or read_text(model.get("id")),
            algorithm=read_text(speculation.get("method")) or ("eagle3" if seen else None),
            draft=read_text(speculation.get("model")),
            num_steps=read_count(speculation.get("num_speculative_tokens")) or len(seen),
            topk=1,
            hardware=None,
            settings=known_settings(speculation, VLLM_SETTINGS),
            started_at=started_at(connection),
        )
        self._model = model.get("id")

    def begin(self) -> None:
        """Notes the counters."""
        self._before = self._read() or self._before

    def end(self, answers: Counts) -> Counts:
        """Returns what the answers counted, or what the server's counters gained since `begin`.

        Raises:
            MeasurementError: the server counts nothing, or other requests were answered meanwhile.
        """
        if answers.accepted is not None:
            return answers
        after = self._read()
        if after is None:
            if self.facts.algorithm is None:
                return answers
            raise _uncounted()
        before = self._before
        generated = after.completion_tokens - before.completion_tokens
        if generated != answers.completion_tokens:
            raise MeasurementError(
                f"The server generated {generated} tokens, of which this measurement asked for"
                f" {answers.completion_tokens}.",
                why="vLLM counts acceptance over all its requests.",
                remedy="Measure while nobody else uses the server, or start it with"
                " --per-request-spec-decode-metrics summary.",
            )
        gained = after.at_least or ()
        past = (before.at_least or ())[: len(gained)]
        return Counts(
            generated,
            after.verify_steps - before.verify_steps,
            (after.accepted or 0) - (before.accepted or 0),
            tuple(new - old for new, old in zip(gained, past + (0,) * (len(gained) - len(past)), strict=True))
            or None,
        )

    def answer(self, prompt: Prompt, workload: Workload, max_new_tokens: int) -> Counts:
        """Generates for one prompt; where the answer has no counters, `end` reads those of the server.

        Raises:
            MeasurementError: the request failed, or its answer has no usage.
        """
        request: dict[str, Any] = {
            "model": self._model,
            "max_tokens": max_new_tokens,
            "temperature": workload.temperature,
            "ignore_eos": workload.ignore_eos,
        }
        if prompt.messages is not None:
            path = "/v1/chat/completions"
            request = {**(prompt.chat_options or {}), **request, "messages": list(prompt.messages)}
        else:
            path = "/v1/completions"
            request["prompt"] = prompt.text if prompt.input_ids is None else list(prompt.input_ids)
        answer = self._connection.post_json(path, request)
        completion = read_count(_mapping(answer.get("usage")).get("completion_tokens"))
        if completion is None:
            raise MeasurementError("The server's answer does not say how many tokens it has.")
        return self._own_counts(completion, _mapping(answer.get("metrics")).get("speculative_decoding"))

    def explain_missing(self, counts: Counts) -> str:
        """Returns why there is no acceptance by position among these counters."""
        return f"vLLM {self.facts.version} gave no accepted drafts by position."

    def _own_counts(self, completion: int, counters: Any) -> Counts:
        """The counters of one request, where the answer has them (vLLM pull request 48915)."""
        if not isinstance(counters, Mapping):
            return Counts(completion, 0, None, None)
        histogram = counters.get("acceptance_histogram")
        counted = [read_count(count) for count in histogram] if isinstance(histogram, list) else [None]
        return counts_of_request(
            completion,
            read_count(counters.get("num_spec_steps")),
            read_count(counters.get("num_accepted_draft_tokens")),
            None if None in counted else [count or 0 for count in counted],
            self.facts.num_steps or 0,
        )

    def _read(self) -> Counts | None:
        """The server's counters now, summed over engines; None where it keeps none.

        Raises:
            MeasurementError: what `/metrics` answers is no Prometheus text.
        """
        text = (self._connection.get("/metrics") or b"").decode(errors="replace")
        totals: Counter[str] = Counter()
        positions: Counter[int] = Counter()
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if not math.isfinite(sample.value) or sample.name.endswith("_created"):
                        continue
                    name = sample.name.removesuffix("_total")
                    totals[name] += int(sample.value)
                    if name == _PER_POSITION and sample.labels.get("position", "").isdecimal():
                        positions[int(sample.labels["position"])] += int(sample.value)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise MeasurementError(
                f"The server's /metrics cannot be read as Prometheus text: {error}."
            ) from error
        if _GENERATED not in totals:
            return None
        at_least = tuple(positions[k] for k in sorted(positions)) or None
        return Counts(totals[_GENERATED], totals[_DRAFTS], totals[_ACCEPTED], at_least)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _uncounted() -> MeasurementError:
    return MeasurementError(
        "This vLLM server counts nothing: it was started with --disable-log-stats.",
        why="What it accepted can be read nowhere.",
        remedy="Start it without --disable-log-stats, or with --per-request-spec-decode-metrics summary.",
    )
