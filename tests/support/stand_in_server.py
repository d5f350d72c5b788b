"""Answers over HTTP as SGLang and vLLM do, for the faults that real servers cannot be made to show.

Usage as a process, for sweeps: python -m tests.support.stand_in_server --port 12345 [SGLang's speculative options]
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class StandIn(ThreadingHTTPServer):
    """`answers` maps a path to a JSON value, to bytes or to a status; a callable is called with the request's body.

    With `status` set, every answer has it.
    """

    daemon_threads = True

    def __init__(self, answers: dict[str, Any], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answers = answers
        self.requests: list[tuple[str, Any]] = []
        self.status: int | None = None
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.server.requests.append((self.path, body))
        self.server.headers.append(dict(self.headers))
        answer = self.server.answers.get(self.path, 404)
        if callable(answer):
            answer = answer(body)
        status = self.server.status or (answer if isinstance(answer, int) else 200)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def counters(release: str, histogram: tuple[int, ...]) -> dict[str, Any]:
    """The counters in `meta_info` as `managers/tokenizer_manager.py` of that release's wheel writes them."""
    accepted = sum(n * count for n, count in enumerate(histogram))
    steps, depth = sum(histogram), len(histogram) - 1
    rates = {
        "spec_accept_rate": accepted / (steps * depth),
        "spec_accept_length": (accepted + steps) / steps,
        "spec_verify_ct": steps,
    }
    old = {"spec_accept_token_num": accepted, "spec_draft_token_num": steps * depth}
    between = {"spec_accepted_drafts": accepted, "spec_proposed_drafts": steps * depth}
    new = {"spec_num_correct_drafts": accepted, "spec_num_proposed_drafts": steps * depth}
    old_histogram = {"spec_accept_histogram": list(histogram)}
    new_histogram = {"spec_correct_drafts_histogram": list(histogram)}
    return {
        "0.5.2": {"spec_verify_ct": steps},
        "0.5.5": rates,
        "0.5.8": rates | old,
        "0.5.10": rates | old | old_histogram,
        "0.5.11": rates | between | old_histogram,
        "0.5.12": rates | between | new | old_histogram | new_histogram,
        "0.5.23": rates | new | new_histogram,
    }[release]


def sglang(
    draft: str | None,
    num_steps: int = 3,
    *,
    histogram: tuple[int, ...] = (2, 1, 3, 4),
    release: str = "0.5.23",
    **changes: Any,
) -> dict[str, Any]:
    """The answers of an SGLang server whose every request takes sum(histogram) verify steps."""
    meta = {"completion_tokens": sum((n + 1) * count for n, count in enumerate(histogram))}
    if draft is not None:
        meta |= counters(release, histogram)
    info = {
        "version": release,
        "model_path": "org/verifier",
        "device": "cuda",
        "dtype": "auto",
        "quantization": None,
        "api_key": "secret-of-the-server",
        "speculative_algorithm": "EAGLE3" if draft else None,
        "speculative_draft_model_path": draft,
        "speculative_num_steps": num_steps if draft else None,
        "speculative_eagle_topk": 1 if draft else None,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_draft_window_size": None,
        "speculative_draft_model_quantization": None,
        "speculative_adaptive": False,
    }
    return {"/server_info": info | changes, "/generate": {"meta_info": meta}, "/health": b""}


@contextmanager
def running(answers: dict[str, Any]) -> Iterator[StandIn]:
    """A stand-in in a thread of this process."""
    server = StandIn(answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative-draft-model-path")
    parser.add_argument("--speculative-num-steps", type=int, default=3)
    options, _ = parser.parse_known_args()
    depth = options.speculative_num_steps
    histogram = tuple([2] + [1] * (depth - 1) + [depth])
    StandIn(
        sglang(options.speculative_draft_model_path, depth, histogram=histogram), options.port
    ).serve_forever()


if __name__ == "__main__":
    main()
