"""SGLang's own counters, per request.

Names: sglang 0.5.23 ``managers/tokenizer_manager.py`` (``_calculate_spec_decoding_metrics``); before 0.5.12 the
accepted drafts were ``spec_accepted_drafts`` and ``spec_accept_histogram``; up to 0.5.4 only ``spec_verify_ct``
was reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.counts import Counts, from_histogram
from eagle3_export.measure.facts import ServerFacts, integer
from eagle3_export.measure.workload import Prompt, Workload

ACCEPTED_KEYS = ("spec_num_correct_drafts", "spec_accepted_drafts")
HISTOGRAM_KEYS = ("spec_correct_drafts_histogram", "spec_accept_histogram")


class SGLangServer:
    """A running SGLang server.

    Args:
        connection: its address.
        info: what ``/server_info`` answered (``/get_server_info`` before 0.5.11).
    """

    def __init__(self, connection: Connection, info: Mapping[str, Any]) -> None:
        self._connection = connection
        self.facts = ServerFacts(
            kind="sglang",
            version=info.get("version"),
            target=info.get("model_path"),
            algorithm=info.get("speculative_algorithm"),
            draft=info.get("speculative_draft_model_path"),
            num_steps=integer(info.get("speculative_num_steps")),
            topk=integer(info.get("speculative_eagle_topk")) or 1,
            hardware=info.get("device"),
        )

    def begin(self) -> None:
        """SGLang counts per request: nothing to note."""

    def end(self, answers: Counts) -> Counts:
        """The sum of the answers is all there is."""
        return answers

    def answer(self, prompt: Prompt, workload: Workload, max_new_tokens: int) -> Counts:
        """Generate for one prompt.

        Raises:
            MeasurementError: the request failed, or its answer lacks SGLang's ``meta_info``.
        """
        sampling = {**workload.sampling(), "max_new_tokens": max_new_tokens}
        if prompt.messages is not None:
            return self._counts(self._chat(prompt, sampling))
        asked = {"text": prompt.text} if prompt.input_ids is None else {"input_ids": list(prompt.input_ids)}
        answer = self._connection.post_json("/generate", {**asked, "sampling_params": sampling})
        return self._counts(answer.get("meta_info"))

    def _chat(self, prompt: Prompt, sampling: Mapping[str, Any]) -> Any:
        request = {
            "model": "default",
            "messages": list(prompt.messages or ()),
            "max_tokens": sampling["max_new_tokens"],
            "temperature": sampling["temperature"],
            "ignore_eos": sampling["ignore_eos"],
            "return_meta_info": True,
        }
        answer = self._connection.post_json("/v1/chat/completions", request)
        choices = answer.get("choices")
        meta = choices[0].get("meta_info") if isinstance(choices, list) and choices else None
        if meta is None:
            raise MeasurementError(
                f"SGLang {self.facts.version} reports no counters for chat requests.",
                remedy="Give the prompts as text, with the chat template applied.",
            )
        return meta

    def _counts(self, meta: Any) -> Counts:
        completion = integer(meta.get("completion_tokens")) if isinstance(meta, Mapping) else None
        if completion is None:
            raise MeasurementError("The server's answer has no meta_info with completion_tokens.")
        accepted = _first(meta, ACCEPTED_KEYS)
        histogram = _first(meta, HISTOGRAM_KEYS)
        depth = self.facts.num_steps or 0
        verify_steps = integer(meta.get("spec_verify_ct")) or 0
        at_least = None
        if isinstance(histogram, list):
            if any(integer(count) is None for count in histogram) or sum(histogram) != verify_steps:
                raise MeasurementError(
                    f"The server's histogram {histogram} does not add up to its {verify_steps} verify steps."
                )
            at_least = from_histogram(histogram, depth)
        elif verify_steps == 0 and depth:
            accepted, at_least = 0, (0,) * depth  # an answer of one token needs no verify step
        return Counts(completion, verify_steps, integer(accepted), at_least)


def _first(meta: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((meta[name] for name in names if meta.get(name) is not None), None)
