"""The way to a server: addresses, proxies, keys, and whatever answers there."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eagle3_export.errors import Eagle3ExportError, MeasurementError, UsageError
from eagle3_export.measure.connection import AccessRefusedError, Connection, is_loopback
from tests.support.stand_in_server import StandIn, running

KEY = "sk-very-secret"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:30000", "ftp://host", "http://", "http:///x", "http://[::1", "http://host:99999", "http://host:0"),
        *("http://gpu..node:30000", "http://" + "a" * 70, "http://xn--", "http://host:30000\n", "", "http://h\0"),
    ],
)  # fmt: skip
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="no server address"):
        Connection(address)


@given(st.text(max_size=30).map(lambda text: f"http://{text}"))
@example("http://\u2488com")
@example("http://a@b@c:1:2")
def test_any_text_is_an_address_or_our_error(address: str) -> None:
    try:
        Connection(address)
    except UsageError as error:
        assert "no server address" in str(error)


def test_no_server() -> None:
    with pytest.raises(MeasurementError, match=r"got no answer: .*refused"):
        Connection("http://127.0.0.1:9").get("/")


def test_a_host_that_nobody_knows() -> None:
    with pytest.raises(MeasurementError, match="got no answer"):
        Connection("http://nobody.invalid:30000").get("/")


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_export.measure.connection.MAX_ANSWER_BYTES", 1000)
    with running({"/": b"x" * 1001}) as server, pytest.raises(MeasurementError, match="more than 1000 bytes"):
        Connection(server.url).get("/")


@pytest.mark.parametrize("answer", [b"\xff", b"[" * 100_000, b"[1]", b"", b"9" * 5000])
def test_what_is_no_json_object(answer: bytes) -> None:
    with running({"/": answer}) as server, pytest.raises(MeasurementError, match="than a JSON object"):
        Connection(server.url).get_json("/")


def test_a_redirection_names_its_target() -> None:
    with running({"/": 302}) as server, pytest.raises(MeasurementError, match="status 302"):
        Connection(server.url).get("/")


class TestProxies:
    def test_loopback_never_goes_through_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in PROXIES[:3]:
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        with running({"/health": b"up"}) as server:
            port = server.server_address[1]
            for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
                assert Connection(f"http://{host}:{port}").get("/health") == b"up"

    @pytest.mark.parametrize(
        ("host", "loopback"),
        [
            *(("localhost", True), ("LOCALHOST.", True), ("gpu.localhost", True), ("127.3.2.1", True), ("::1", True)),
            *(("0.0.0.0", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False), ("gpu", False), ("::2", False)),
            *(("localhost.example", False), ("127.0.0.1.example", False)),
        ],
    )  # fmt: skip
    def test_what_loopback_is(self, host: str, loopback: bool) -> None:
        assert is_loopback(host) is loopback

    def test_elsewhere_requests_go_through_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with running({"http://gpu.invalid:30000/health": b"by proxy"}) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            assert Connection("http://gpu.invalid:30000").get("/health") == b"by proxy"

    def test_no_proxy_goes_around_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "gpu.invalid")
        with pytest.raises(MeasurementError) as caught:
            Connection("http://gpu.invalid:30000").get("/")
        assert "proxy" not in str(caught.value)

    def test_an_error_names_it_without_its_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://me:hunter2@127.0.0.1:9")
        with pytest.raises(
            MeasurementError, match=r"got no answer through the proxy http://127\.0\.0\.1:9"
        ) as caught:
            Connection("http://gpu.invalid:30000").get("/")
        assert "no_proxy" in caught.value.remedy
        assert "hunter2" not in str(caught.value)

    def test_a_proxy_that_refuses_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with running({"http://gpu.invalid:30000/": 503}) as proxy:
            monkeypatch.setenv("http_proxy", proxy.url)
            with pytest.raises(MeasurementError, match=r"through the proxy .* failed with status 503"):
                Connection("http://gpu.invalid:30000").get("/")

    @pytest.mark.parametrize("proxy", ["gopher://x", "http://h:99999999", "socks5://127.0.0.1:9"])
    def test_a_proxy_that_cannot_be_used(self, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
        monkeypatch.setenv("all_proxy", proxy)
        with pytest.raises(Eagle3ExportError):
            Connection("http://gpu.invalid:30000").get("/")


class TestKeys:
    def guarded(self, server: StandIn) -> None:
        def health(_: object) -> object:
            right = server.headers[-1].get("Authorization") == f"Bearer {KEY}"
            return {"ok": True} if right else 401

        server.answers["/health"] = health

    def test_it_is_sent_with_every_request(self) -> None:
        with running({}) as server:
            self.guarded(server)
            connection = Connection(server.url, api_key=f" {KEY}\n")
            assert connection.get_json("/health") == {"ok": True}
            assert connection.post_json("/health", {}) == {"ok": True}

    def test_without_one_the_remedy_says_how_to_give_it(self) -> None:
        with running({}) as server:
            self.guarded(server)
            with pytest.raises(AccessRefusedError, match="status 401") as caught:
                Connection(server.url).get("/health")
        assert "--api-key" in caught.value.remedy

    def test_it_is_in_no_error(self) -> None:
        with running({"/": KEY.encode()}) as server:
            server.status = 401
            connection = Connection(server.url, api_key=KEY)
            with pytest.raises(AccessRefusedError) as caught:
                connection.get("/")
        assert KEY not in f"{caught.value} {caught.value!r} {connection!r} {vars(caught.value)}"
        assert "[key]" in caught.value.what

    @pytest.mark.parametrize("key", ["two\nlines", "schl\u00fcssel", "\x7f"])
    def test_one_that_cannot_be_sent_is_refused_unseen(self, key: str) -> None:
        with pytest.raises(UsageError, match="cannot be sent") as caught:
            Connection("http://127.0.0.1:9", api_key=key)
        assert key not in str(caught.value)

    def test_a_password_in_the_address_is_sent_but_not_shown(self) -> None:
        with running({"/": 500}) as server:
            address = server.url.replace("http://", "http://me:hunter2@")
            with pytest.raises(MeasurementError) as caught:
                Connection(address).get("/")
        assert server.headers[-1]["Authorization"] == httpx.BasicAuth("me", "hunter2")._auth_header
        assert "hunter2" not in str(caught.value)
