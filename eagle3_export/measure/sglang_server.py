"""A running SGLang server, measured by its own counters of each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.counts import Counts
from eagle3_export.measure.draft_settings import SGLANG_SETTINGS, known_settings
from eagle3_export.measure.facts import ServerFacts, read_count, read_text
from eagle3_export.measure.prompt_forms import Prompt
from eagle3_export.measure.sglang_counters import CHAT_COUNTERS_SINCE, explain_missing, read_counts
from eagle3_export.measure.workload import Workload


class SGLangServer:
    """A running SGLang server."""

    def __init__(self, connection: Connection, info: Mapping[str, Any]) -> None:
        """Reads what the server says of itself.

        Args:
            connection: its address.
            info: what `/server_info` answered (`/get_server_info` before 0.5.6). It may hold keys; only named entries
                are read.
        """
        self._connection = connection
        self.facts = ServerFacts(
            kind="sglang",
            version=read_text(info.get("version")),
            target=read_text(info.get("model_path")),
            algorithm=read_text(info.get("speculative_algorithm")),
            draft=read_text(info.get("speculative_draft_model_path")),
            num_steps=read_count(info.get("speculative_num_steps")),
            topk=read_count(info.get("speculative_eagle_topk")) or 1,
            hardware=read_text(info.get("device")),
            settings=known_settings(_current(info), SGLANG_SETTINGS),
        )

    def begin(self) -> None:
        """SGLang counts per request: nothing to note."""

    def end(self, answers: Counts) -> Counts:
        """Returns the sum of the answers; there is nothing else."""
        return answers

    def answer(self, prompt: Prompt, workload: Workload, max_new_tokens: int) -> Counts:
        """Generates for one prompt.

        Raises:
            MeasurementError: the request failed, or its answer lacks SGLang's `meta_info`.
        """
        sampling = {**workload.sampling(), "max_new_tokens": max_new_tokens}
        depth = self.facts.num_steps or 0
        if prompt.messages is not None:
            return read_counts(self._chat(prompt, sampling), depth)
        asked = {"text": prompt.text} if prompt.input_ids is None else {"input_ids": list(prompt.input_ids)}
        answer = self._connection.post_json("/generate", {**asked, "sampling_params": sampling})
        return read_counts(answer.get("meta_info"), depth)

    def explain_missing(self, counts: Counts) -> str:
        """Returns why there is no acceptance by position among these counters."""
        return explain_missing(self.facts.version, counts)

    def _chat(self, prompt: Prompt, sampling: Mapping[str, Any]) -> Any:
        request = {
            **(prompt.chat_options or {}),
            "model": "default",
            "messages": list(prompt.messages or ()),
            "max_tokens": sampling["max_new_tokens"],
            "temperature": sampling["temperature"],
            "ignore_eos": sampling["ignore_eos"],
            "return_meta_info": True,
        }
        answer = self._connection.post_json("/v1/chat/completions", request)
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        meta = choice.get("meta_info") if isinstance(choice, Mapping) else None
        if meta is None:
            raise MeasurementError(
                f"The server (SGLang {self.facts.version}) reports no counters for chat requests.",
                why=f"SGLang does from {CHAT_COUNTERS_SINCE} on.",
                remedy="Give the prompts as text, with the chat template applied.",
            )
        return meta


def _current(info: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they are now: some can be changed while the server runs, and then stand in its state."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    return {**info, **{key: state[key] for key in SGLANG_SETTINGS if key in state}}
