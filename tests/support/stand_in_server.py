"""Answers over HTTP as SGLang 0.5.23 and vLLM do, for the faults that real servers cannot be made to show.

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
    """`answers` maps a path to a JSON value, to bytes or to a status; a callable is called with the request's body."""

    daemon_threads = True

    def __init__(self, answers: dict[str, Any], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answers = answers
        self.requests: list[tuple[str, Any]] = []

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
        answer = self.server.answers.get(self.path, 404)
        if callable(answer):
            answer = answer(body)
        status = answer if isinstance(answer, int) else 200
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def sglang(
    draft: str | None, num_steps: int = 3, *, histogram: tuple[int, ...] = (2, 1, 3, 4), **changes: Any
) -> dict[str, Any]:
    """The answers of an SGLang server whose every request takes sum(histogram) verify steps."""
    accepted = sum(n * count for n, count in enumerate(histogram))
    steps = sum(histogram)
    meta = {"completion_tokens": steps + accepted}
    if draft is not None:
        meta |= {
            "spec_verify_ct": steps,
            "spec_num_correct_drafts": accepted,
            "spec_correct_drafts_histogram": list(histogram),
        }
    info = {
        "version": "0.5.23",
        "model_path": "org/verifier",
        "device": "cuda",
        "speculative_algorithm": "EAGLE3" if draft else None,
        "speculative_draft_model_path": draft,
        "speculative_num_steps": num_steps if draft else None,
        "speculative_eagle_topk": 1 if draft else None,
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
