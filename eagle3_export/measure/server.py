"""Finds out what kind of server answers, and whether it runs the export that is to be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.facts import Server, ServerFacts
from eagle3_export.measure.sglang_server import SGLangServer
from eagle3_export.measure.vllm_server import VLLMServer


def connect(connection: Connection) -> Server:
    """Finds out what kind of server answers.

    Raises:
        MeasurementError: none does, or one that is neither SGLang nor vLLM.
    """
    info = connection.get_json("/server_info") or connection.get_json("/get_server_info")
    if info is not None and "speculative_algorithm" in info:
        return SGLangServer(connection, info)
    if _is_vllm(connection):
        return VLLMServer(connection)
    raise MeasurementError(
        f"{connection.base_url}{connection.through} is neither an SGLang nor a vLLM server.",
        remedy="Give the address of the server itself, not of a gateway before it."
        f" {connection.around_the_proxy}".rstrip(),
    )


def _is_vllm(connection: Connection) -> bool:
    metrics = connection.get("/metrics")
    if metrics is not None and b"vllm:" in metrics:
        return True
    models: Any = (connection.get_json("/v1/models") or {}).get("data")
    return isinstance(models, list) and any(
        isinstance(model, dict) and model.get("owned_by") == "vllm" for model in models
    )


def require_export(facts: ServerFacts, export: Path) -> int:
    """Returns the depth at which a server runs this export.

    Args:
        facts: of the server.
        export: the export's own directory, no pointer to it.

    Raises:
        MeasurementError: it runs no draft, another one, or one that cannot be told.
    """
    if facts.algorithm is None or not facts.num_steps:
        raise MeasurementError(
            "The server runs without speculation.",
            why="There is nothing to measure.",
            remedy="Start it with the command that `eagle3-export launch` prints.",
        )
    if "EAGLE3" not in facts.algorithm.upper():
        raise MeasurementError(
            f"The server speculates with {facts.algorithm}, not with EAGLE3.",
            remedy="Start it with the command that `eagle3-export launch` prints.",
        )
    if facts.draft is None:
        raise MeasurementError(
            "The server does not say which draft it runs.",
            why="A number counts as measured only for the export that was served.",
            remedy="Start vLLM with VLLM_SERVER_DEV_MODE=1, so that /server_info answers."
            if facts.kind == "vllm"
            else "",
        )
    served = Path(facts.draft)
    if _is_pointer(served):
        raise MeasurementError(
            f"The server was started with {served}, a pointer that may have moved since.",
            remedy=f"Start it with the directory itself: {export.resolve()}.",
        )
    if "\0" in facts.draft or served.resolve() != export.resolve():
        raise MeasurementError(
            f"The server runs the draft {served}, not {export.resolve()}.",
            why="A number counts as measured only for the export that was served.",
            remedy="Measure that export, or start a server with this one; both machines must see it under one path.",
        )
    return facts.num_steps


def _is_pointer(path: Path) -> bool:
    try:
        return path.is_symlink()
    except (OSError, ValueError):  # such as a name that is too long for a file
        return False
