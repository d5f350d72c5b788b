"""A running SGLang server, measured by its own counters of each request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.counts import Counts
from eagle3_export.measure.draft_settings import SGLANG_SETTINGS, known_settings
from eagle3_export.measure.facts import ServerFacts, read_count, read_text
from eagle3_export.measure.prompt_forms import Prompt
from eagle3_export.measure.sglang_counters import CHAT_COUNTERS_SINCE, explain_missing, read_counts
from eagle3_export.measure.start_time import started_at
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
        started_with = read_text(info.get("weight_version"))
        version = _weight_version(connection) or started_with
        self._weight_versions = {version} if version else set()
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
            weight_version=version,
            updated=version != started_with,
            started_at=started_at(connection),
        )

    def begin(self) -> None:
        """SGLang counts per request: nothing to note."""

    def end(self, answers: Counts) -> Counts:
        """Returns the sum of the answers; there is nothing else.

        Raises:
            MeasurementError: the weights were replaced meanwhile.
        """
        if len(self._weight_versions) > 1:
            raise MeasurementError(
                "The server's weights were replaced while it was measured: its answers name the versions"
                f" {', '.join(sorted(self._weight_versions))}.",
                why="The counters are of more than one draft.",
                remedy="Measure again while nobody updates them.",
            )
        return answers

    def answer(self, prompt: Prompt, workload: Workload, max_new_tokens: int) -> Counts:
        """Generates for one prompt.

        Raises:
            MeasurementError: the request failed, or its answer lacks SGLang's `meta_info`.
        """
        sampling = {**workload.sampling(), "max_new_tokens": max_new_tokens}
        depth = self.facts.num_steps or 0
        if prompt.messages is not None:
            return read_counts(self._noting_version(self._chat(prompt, sampling)), depth)
        asked = {"text": prompt.text} if prompt.input_ids is None else {"input_ids": list(prompt.input_ids)}
        answer = self._connection.post_json("/generate", {**asked, "sampling_params": sampling})
        return read_counts(self._noting_version(answer.get("meta_info")), depth)

    def explain_missing(self, counts: Counts) -> str:
        """Returns why there is no acceptance by position among these counters."""
        return explain_missing(self.facts.version, counts)

    def _noting_version(self, meta: Any) -> Any:
        version = read_text(meta.get("weight_version")) if isinstance(meta, Mapping) else None
        if version:
            self._weight_versions.add(version)
        return meta

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


def _weight_version(connection: Connection) -> str | None:
    """The version of the weights now; `/server_info` keeps that of the start (`/get_model_info` before 0.5.6)."""
    for path in ("/model_info", "/get_model_info"):
        content = connection.get_if_any(path)
        if content is not None:
            try:
                return read_text(json.loads(content)["weight_version"])
            except (ValueError, KeyError, TypeError, RecursionError):
                return None
    return None


def _current(info: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as they are now: some can be changed while the server runs, and then stand in its state."""
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], Mapping) else {}
    return {**info, **{key: state[key] for key in SGLANG_SETTINGS if key in state}}
