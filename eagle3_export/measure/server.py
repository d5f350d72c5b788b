"""Finds out what kind of server answers."""

from __future__ import annotations

from typing import Any

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.facts import Server
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
