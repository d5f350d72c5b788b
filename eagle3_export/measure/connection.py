"""JSON over HTTP to one server, with errors that say what to do."""

from __future__ import annotations

import ipaddress
import json
import urllib.request
from types import TracebackType
from typing import Any

import httpx

from eagle3_export.errors import MeasurementError, UsageError

MAX_ANSWER_BYTES = 64 << 20
CONNECT_SECONDS = 10.0
# Servers on uvicorn close idle connections after 5 s; ours are given up before that.
_KEEPALIVE_SECONDS = 2.0
_TOLD_BYTES = 2000


class AccessRefusedError(MeasurementError):
    """A server answered with status 401 or 403."""


class Connection:
    """A server's address, and the connections to it.

    Loopback addresses are reached directly. For all others the proxies and certificates of the environment
    (`http_proxy`, `no_proxy`, `SSL_CERT_FILE`, …) hold, as in every program that uses httpx.
    """

    def __init__(self, base_url: str, timeout: float = 600.0, api_key: str | None = None) -> None:
        """Prepares the connection; nothing is sent yet.

        Args:
            base_url: `http://host:port` or `https://…`.
            timeout: seconds to wait for one answer.
            api_key: sent with every request as `Authorization: Bearer …`. It appears in no message.

        Raises:
            UsageError: `base_url` is no address, the key cannot be sent, or the environment names no usable proxy.
        """
        url = _address(base_url)
        self._url = str(url).rstrip("/")
        self.base_url = str(url.copy_with(userinfo=b"")).rstrip("/")
        self._api_key = _sendable(api_key)
        loopback = is_loopback(url.host)
        self._proxy = None if loopback else proxy_for(url)
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        try:
            self._client = httpx.Client(
                headers=headers,
                timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS), pool=None),
                limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_SECONDS),
                trust_env=not loopback,
                # Without https there is nothing to verify, and loading the certificates takes time.
                verify=httpx.create_ssl_context() if url.scheme == "https" else False,
            )
        except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
            raise UsageError(
                f"The environment's proxies or certificates cannot be used: {error}.",
                remedy="Check http_proxy, https_proxy, all_proxy, no_proxy, SSL_CERT_FILE and SSL_CERT_DIR.",
            ) from error

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    @property
    def through(self) -> str:
        """ " through the proxy …" where requests take one, else nothing; for messages."""
        return f" through the proxy {self._proxy}" if self._proxy else ""

    @property
    def around_the_proxy(self) -> str:
        """What to do if the proxy is in the way, as a sentence; nothing where there is none."""
        return "Set no_proxy to the server's host if the proxy is in the way." if self._proxy else ""

    def get(self, path: str) -> bytes | None:
        """Returns the answer to a GET, None where the server has no such path.

        Raises:
            MeasurementError: no server answers there, or with an error.
        """
        return self._fetch("GET", path)

    def get_if_any(self, path: str) -> bytes | None:
        """As `get`, for what may be missing: None as well where the server answers with an error."""
        try:
            return self.get(path)
        except MeasurementError:
            return None

    def get_json(self, path: str) -> dict[str, Any] | None:
        """As `get`, for a JSON object."""
        content = self.get(path)
        return None if content is None else self._object(path, content)

    def post_json(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Returns the JSON object that a POST is answered with.

        Raises:
            MeasurementError: no server answers there, or with an error, or with something else.
        """
        content = self._fetch("POST", path, json.dumps(body).encode())
        if content is None:
            raise MeasurementError(f"{self.base_url} has no {path}.")
        return self._object(path, content)

    def _fetch(self, method: str, path: str, body: bytes | None = None) -> bytes | None:
        where = f"{method} {self.base_url}{path}"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            with self._client.stream(method, self._url + path, content=body, headers=headers) as answer:
                if answer.status_code == 404:
                    return None
                content = bytearray()
                for part in answer.iter_bytes():
                    content += part
                    if not answer.is_success and len(content) >= _TOLD_BYTES:
                        break
                    if len(content) > MAX_ANSWER_BYTES:
                        raise MeasurementError(f"{where} answered with more than {MAX_ANSWER_BYTES} bytes.")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RuntimeError) as error:
            reason = self._without_key(str(error) or type(error).__name__)
            raise MeasurementError(
                f"{where} got no answer{self.through}: {reason}.",
                remedy=f"Check that the server is up at that address. {self.around_the_proxy}".rstrip(),
            ) from None
        if not answer.is_success:
            raise self._refusal(where, answer, bytes(content))
        return bytes(content)

    def _refusal(self, where: str, answer: httpx.Response, content: bytes) -> MeasurementError:
        said = self._without_key(content[:_TOLD_BYTES].decode(errors="replace").strip())[:500]
        what = f"{where}{self.through} failed with status {answer.status_code}: {said}"
        if answer.status_code in (401, 403):
            return AccessRefusedError(
                what,
                remedy="The key that was sent is not one that the server takes."
                if self._api_key
                else "Give the server's API key with --api-key or in SGLANG_API_KEY or OPENAI_API_KEY.",
            )
        if answer.is_redirect:
            target = self._without_key(answer.headers.get("Location", ""))
            return MeasurementError(what, remedy=f"Give the address that it points to: {target}.")
        return MeasurementError(what, remedy=self.around_the_proxy)

    def _without_key(self, text: str) -> str:
        return text.replace(self._api_key, "[key]") if self._api_key else text

    def _object(self, path: str, content: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise MeasurementError(
                f"{self.base_url}{path}{self.through} answered with something else than a JSON object.",
                remedy=self.around_the_proxy,
            )
        return answer


def _address(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url)
        known = url.scheme in ("http", "https") and (url.port is None or 0 < url.port < 1 << 16)
        # A name with an empty, overlong or malformed label is refused here; a look-up would raise later.
        if known and url.host and url.raw_host.decode("ascii").encode("idna"):
            return url
    except (httpx.InvalidURL, ValueError):
        pass
    raise UsageError(f"{base_url!r} is no server address.", remedy="Write http://host:port.")


def _sendable(api_key: str | None) -> str | None:
    """The key without blanks around it; None for an empty one."""
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError("The API key holds characters that cannot be sent in an HTTP header.")
    return key or None


def is_loopback(host: str) -> bool:
    """Returns whether a host's name or address is this machine itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.rstrip(".").lower() == "localhost" or host.lower().endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped.is_loopback or mapped.is_unspecified


def proxy_for(url: httpx.URL) -> str | None:
    """Returns the proxy that the environment names for an address, without its user and password; None for none."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(url.host):
        return None
    try:
        return str(httpx.URL(proxy).copy_with(userinfo=b""))
    except (httpx.InvalidURL, ValueError):
        return "that the environment names"
