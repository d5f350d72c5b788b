"""Run real SGLang on the CPU and print what it generated and how many draft tokens it accepted.

usage: generate.py REQUEST.json …, with the keys of `serve.Request`. Prints one JSON line on stdout for each, in order.
Run it as a process of its own (`serve.generate` does): an engine that fails to start kills its caller.

Of several requests each has an engine of its own, forked off this process once SGLang is imported: SGLang would have
every process import everything anew, which takes four times as long as all the rest.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

ENGINE = {
    "device": "cpu",
    "attention_backend": "intel_amx",
    "dtype": "float32",
    "random_seed": 0,
    "disable_radix_cache": True,
    # SGLang counts what other processes take while it loads as its own weights; the tokens are the limit that holds.
    "mem_fraction_static": 0.5,
    "max_total_tokens": 8192,
    "max_running_requests": 8,
    "context_length": 1024,
    "chunked_prefill_size": 1024,
    "skip_server_warmup": True,
    "log_level": "error",
}


def engine_options(request: dict[str, Any]) -> dict[str, Any]:
    options = {"model_path": request["target"], **ENGINE}
    if request["draft"]:
        options |= {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": request["draft"],
            "speculative_num_steps": request["num_steps"],
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": request["num_steps"] + 1,
        }
    return options | request["options"]


def summary(outputs: list[dict[str, Any]], num_steps: int | None) -> dict[str, Any]:
    """Tokens, and for a run with a draft SGLang's own counters.

    `accept_length` is completion tokens / verify steps over all requests (bonus token included);
    `accepted_drafts_histogram[n]` counts the verify steps that accepted n draft tokens.
    """
    result: dict[str, Any] = {"output_ids": [output["output_ids"] for output in outputs]}
    if num_steps is None:
        return result
    meta = [output["meta_info"] for output in outputs]
    verify_steps = sum(m["spec_verify_ct"] for m in meta)
    histogram = [0] * (num_steps + 1)
    per_request = []
    for m in meta:
        # SGLang leaves the tail of zeros out of a request's histogram
        counts = list(m.get("spec_correct_drafts_histogram") or m.get("spec_accept_histogram") or [])
        counts += [0] * (num_steps + 1 - len(counts))
        per_request.append(counts)
        histogram = [total + count for total, count in zip(histogram, counts, strict=True)]
    return result | {
        "accept_length": sum(m["completion_tokens"] for m in meta) / verify_steps,
        "verify_steps": verify_steps,
        "accepted_drafts_histogram": histogram,
        "histogram_per_request": per_request,
    }


def answer(request: dict[str, Any]) -> None:
    """Starts an engine, prints what it generated, and ends it."""
    import sglang

    engine = sglang.Engine(**engine_options(request))
    sampling = [
        {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": request["ignore_eos"]}
        for tokens in request["max_new_tokens"]
    ]
    outputs = engine.generate(input_ids=request["prompts"], sampling_params=sampling)
    result = summary(outputs, request["num_steps"] if request["draft"] else None)
    print(json.dumps({"sglang_version": sglang.__version__, **result}), flush=True)
    engine.shutdown()


def answer_each(requests: list[dict[str, Any]]) -> int:
    """Answers one after the other, each in a process that is forked off this one; returns the exit status."""
    import multiprocessing

    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler  # noqa: F401

    choose = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: choose("fork", force=True)
    for request in requests:
        child = os.fork()
        if not child:
            answer(request)
            os._exit(0)
        if status := os.waitpid(child, 0)[1]:
            return os.waitstatus_to_exitcode(status) or 1
    return 0


def main() -> None:
    requests = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    if len(requests) == 1:
        answer(requests[0])
    else:
        sys.exit(answer_each(requests))


if __name__ == "__main__":
    main()
