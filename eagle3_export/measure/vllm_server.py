"""vLLM's counters, over the whole server.

vLLM counts speculation in Prometheus counters at ``/metrics`` (``vllm/v1/spec_decode/metrics.py``) and describes
its configuration at ``/server_info`` where VLLM_SERVER_DEV_MODE=1 is set
(``vllm/entrypoints/serve/instrumentator/server_info.py``). Counters cover all traffic, so a measurement is refused
where others used the server meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.counts import Counts
from eagle3_export.measure.facts import ServerFacts, integer
from eagle3_export.measure.workload import Prompt, Workload

_SAMPLE = re.compile(r"^(vllm:\w+)\{([^}]*)\}\s+(\S+)", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')


class VLLMServer:
    """A running vLLM server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        config = (connection.get_json("/server_info?config_format=json") or {}).get("vllm_config")
        config = config if isinstance(config, Mapping) else {}
        speculation = config.get("speculative_config") or {}
        models = (connection.get_json("/v1/models") or {}).get("data") or [{}]
        self._before = self._read()
        self.facts = ServerFacts(
            kind="vllm",
            version=(connection.get_json("/version") or {}).get("version"),
            target=models[0].get("root") or models[0].get("id"),
            algorithm=speculation.get("method") or ("eagle3" if self._before.at_least else None),
            draft=speculation.get("model"),
            num_steps=integer(speculation.get("num_speculative_tokens")) or len(self._before.at_least or ()),
            topk=1,
            hardware=None,
        )
        self._model = models[0].get("id")

    def begin(self) -> None:
        """Note the counters."""
        self._before = self._read()

    def end(self, answers: Counts) -> Counts:
        """What the counters gained since :meth:`begin`.

        Raises:
            MeasurementError: other requests were answered meanwhile.
        """
        before, after = self._before, self._read()
        generated = after.completion_tokens - before.completion_tokens
        if generated != answers.completion_tokens:
            raise MeasurementError(
                f"The server generated {generated} tokens, of which this measurement asked for"
                f" {answers.completion_tokens}.",
                why="vLLM counts acceptance over all its requests.",
                remedy="Measure while nobody else uses the server.",
            )
        old = before.at_least or (0,) * len(after.at_least or ())
        return Counts(
            generated,
            after.verify_steps - before.verify_steps,
            (after.accepted or 0) - (before.accepted or 0),
            tuple(new - past for new, past in zip(after.at_least or (), old, strict=True)) or None,
        )

    def answer(self, prompt: Prompt, workload: Workload, max_new_tokens: int) -> Counts:
        """Generate for one prompt; speculation is counted by :meth:`end`.

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
            path, request["messages"] = "/v1/chat/completions", list(prompt.messages)
        else:
            path = "/v1/completions"
            request["prompt"] = prompt.text if prompt.input_ids is None else list(prompt.input_ids)
        usage = self._connection.post_json(path, request).get("usage")
        completion = integer(usage.get("completion_tokens")) if isinstance(usage, Mapping) else None
        if completion is None:
            raise MeasurementError("The server's answer does not say how many tokens it has.")
        return Counts(completion, 0, None, None)

    def _read(self) -> Counts:
        """The counters now, summed over engines."""
        text = (self._connection.get("/metrics") or b"").decode(errors="replace")
        totals: dict[str, float] = {}
        positions: dict[int, float] = {}
        for name, labels, value in _SAMPLE.findall(text):
            try:
                number = float(value)
            except ValueError:
                continue
            totals[name] = totals.get(name, 0.0) + number
            position = _POSITION.search(labels)
            if (
                name.startswith("vllm:spec_decode_num_accepted_tokens_per_pos")
                and "_created" not in name
                and position
            ):
                positions[int(position[1])] = positions.get(int(position[1]), 0.0) + number
        return Counts(
            int(totals.get("vllm:generation_tokens_total", 0)),
            int(totals.get("vllm:spec_decode_num_drafts_total", 0)),
            int(totals.get("vllm:spec_decode_num_accepted_tokens_total", 0)),
            tuple(int(positions[k]) for k in sorted(positions)) or None,
        )
