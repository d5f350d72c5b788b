"""JSON over HTTP to one server, with errors that say what to do."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from eagle3_export.errors import MeasurementError, UsageError

MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's address.

    Args:
        base_url: ``http://host:port``.
        timeout: seconds to wait for one answer.
    """

    base_url: str
    timeout: float = 600.0

    def __post_init__(self) -> None:
        try:
            known = urlsplit(self.base_url).scheme in ("http", "https")
        except ValueError:
            known = False
        if not known:
            raise UsageError(f"{self.base_url} is no server address.", remedy="Write http://host:port.")

    def get(self, path: str) -> bytes | None:
        """The answer to a GET, None where the server has no such path.

        Raises:
            MeasurementError: no server answers there, or with an error.
        """
        return self._fetch(urllib.request.Request(self._url(path)))

    def get_json(self, path: str) -> dict[str, Any] | None:
        """As :meth:`get`, for a JSON object."""
        content = self.get(path)
        return None if content is None else self._object(path, content)

    def post_json(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object a POST is answered with.

        Raises:
            MeasurementError: no server answers there, or with an error, or with something else.
        """
        request = urllib.request.Request(
            self._url(path), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        content = self._fetch(request)
        if content is None:
            raise MeasurementError(f"{self.base_url} has no {path}.")
        return self._object(path, content)

    def _url(self, path: str) -> str:
        return self.base_url.rstrip("/") + path

    def _fetch(self, request: urllib.request.Request) -> bytes | None:
        where = f"{request.get_method()} {request.full_url}"
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                content: bytes = answer.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            said = error.read(2000).decode(errors="replace").strip()
            raise MeasurementError(f"{where} failed with status {error.code}: {said[:500]}") from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise MeasurementError(
                f"{where} got no answer: {reason}.", remedy="Check that the server is up at that address."
            ) from error
        if len(content) > MAX_ANSWER_BYTES:
            raise MeasurementError(f"{where} answered with more than {MAX_ANSWER_BYTES} bytes.")
        return content

    def _object(self, path: str, content: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise MeasurementError(f"{self.base_url}{path} answered with something else than a JSON object.")
        return answer
