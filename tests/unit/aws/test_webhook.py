"""How a document is posted to a webhook: TLS, proxies, and what a hostile receiver may answer."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.aws.webhook import PostFailedError, Webhook
from tests.support.certificates import write_certificate
from tests.support.servers import free_port
from tests.unit.aws.test_hostile_endpoint import ENDLESS, SENT_MAX, Endless
from tests.unit.aws.test_wire import Server, answer, hang

SECRET = "T0-secret"
DOCUMENT = {"text": "ü", "count": 1}
ACCEPTED = b"HTTP/1.1 204 No Content\r\n\r\n"
TUNNELLED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return write_certificate(tmp_path, "127.0.0.1")


@pytest.fixture
def secure(certificate: tuple[Path, Path]) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with Server(ACCEPTED, context=context) as server:
        yield server


async def post(url: str, path: str = f"/{SECRET}", timeout_s: float = 20.0) -> str | None:
    """Why it failed; None if it did not."""
    webhook = Webhook(f"{url}{path}", timeout_s)
    try:
        await webhook.post(DOCUMENT)
    except PostFailedError as error:
        assert SECRET not in str(error)
        return str(error)
    finally:
        webhook.close()
    return None


async def test_a_receiver_gets_the_document() -> None:
    with Server(ACCEPTED) as server:
        assert await post(f"http://127.0.0.1:{server.port}") is None
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert b"\r\nContent-Type: application/json" in head
    assert json.loads(body) == DOCUMENT


@pytest.mark.parametrize("status", [500, 404, 302, 307])
async def test_any_answer_but_success_is_a_failure_and_no_redirect_is_followed(status: int) -> None:
    with Server(answer(b"", "Location: http://127.0.0.1:1/elsewhere", status=f"{status} Oh")) as server:
        path = f"/{SECRET}?key={SECRET}"
        assert await post(f"http://127.0.0.1:{server.port}", path) == f"HTTP status {status}"
        assert len(server.requests) == 1


async def test_a_receiver_that_hangs_costs_the_time_out_and_nobody_waits_for_it() -> None:
    with Server(hang) as server:
        assert await post(f"http://127.0.0.1:{server.port}", timeout_s=0.3) == "no answer within 0.3 s"


async def test_a_receiver_that_is_away_is_a_failure_in_words() -> None:
    why = await post(f"http://127.0.0.1:{free_port()}")
    assert why is not None and why.startswith("ConnectionRefusedError")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://127.0.0.1:9", f"/\x07{SECRET}"),
        ("http://127.0.0.1:9", f"/\u00e9{SECRET}"),
        ("http://127.0.0.1:9", f"/x\r\nEvil: {SECRET}"),
        (f"http://{'a' * 70}.example", f"/{SECRET}"),
        (f"http://{SECRET}..example", "/"),
    ],
)
async def test_an_address_that_cannot_be_asked_for_is_not_named(url: str, path: str) -> None:
    why = await post(url, path)
    assert why is not None and why.endswith("Error: not posted"), "the text of an unknown error may have the address"


async def test_a_receiver_by_tls_is_posted_to_if_its_certificate_is_trusted(
    secure: Server, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = await post(f"https://127.0.0.1:{secure.port}")
    assert why is not None
    assert "CERTIFICATE_VERIFY_FAILED" in why
    assert secure.requests == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    assert await post(f"https://127.0.0.1:{secure.port}") is None
    assert secure.requests[0].startswith(b"POST /T0-secret HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % secure.port)


async def test_a_plain_receiver_is_asked_for_at_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(ACCEPTED) as proxy:
        monkeypatch.setenv("http_proxy", f"http://us:er@127.0.0.1:{proxy.port}")
        assert await post("http://hooks.invalid:81") is None
        head = proxy.requests[0]
        assert head.startswith(b"POST http://hooks.invalid:81/T0-secret HTTP/1.1\r\nHost: hooks.invalid:81\r\n")
        assert b"\r\nProxy-Authorization: Basic dXM6ZXI=\r\n" in head


async def test_a_receiver_by_tls_is_reached_through_the_tunnel_of_a_proxy(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    heard = []

    def tunnel(peer: socket.socket) -> None:
        peer.sendall(TUNNELLED)
        with context.wrap_socket(peer, server_side=True) as secured:
            heard.append(secured.recv(65536))
            secured.sendall(ACCEPTED)

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with Server(tunnel) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        assert await post("https://127.0.0.1") is None
        assert proxy.requests[0].startswith(b"CONNECT 127.0.0.1:443 HTTP/1.1\r\n")
    assert heard[0].startswith(b"POST /T0-secret HTTP/1.1\r\nHost: 127.0.0.1\r\n")


async def test_a_proxy_that_refuses_the_tunnel_is_named_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        why = await post("https://hooks.invalid")
    refused = f"the proxy 127.0.0.1:{proxy.port} refuses to connect: HTTP status 403 Forbidden"
    assert why == f"ProxyRefusedError: {refused}"


async def test_a_proxy_that_speaks_tls_is_not_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "https://127.0.0.1:1")
    assert await post("http://127.0.0.1:1") == "UnusualError: a proxy that is not spoken to in plain HTTP"


@pytest.mark.parametrize("name", ["answers that answer nothing", "headers", "a header"])
async def test_a_head_without_an_end_is_hung_up_on(name: str) -> None:
    attack = Endless(*ENDLESS[name])
    with Server(attack) as server:
        assert await post(f"http://127.0.0.1:{server.port}") == "BrokenAnswerError: not posted"
    assert attack.sent <= SENT_MAX


async def test_what_a_receiver_says_besides_its_status_is_not_read() -> None:
    attack = Endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536)
    with Server(attack) as server:
        assert await post(f"http://127.0.0.1:{server.port}") is None
    assert attack.sent <= SENT_MAX


async def test_an_answer_with_the_address_in_it_puts_no_secret_into_the_reason() -> None:
    with Server(f"POST /{SECRET} HTTP/1.1\r\n\r\n".encode()) as server:
        assert await post(f"http://127.0.0.1:{server.port}") == "BrokenAnswerError: not posted"


async def test_the_second_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(ACCEPTED) as server:
        found = [(2, 1, 6, "", ("127.0.0.9", 0)), (2, 1, 6, "", ("127.0.0.1", 0))]
        monkeypatch.setattr("mld.aws.webhook.socket.getaddrinfo", lambda *_, **__: found)
        assert await post(f"http://hooks.invalid:{server.port}") is None


async def test_an_address_that_does_not_answer_takes_a_part_of_the_time(
    secure: Server, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(2, 1, 6, "", ("127.0.0.9", 0)), (2, 1, 6, "", ("127.0.0.1", 0))]
    monkeypatch.setattr("mld.aws.webhook.socket.getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr("mld.aws.webhook.CONNECT_SHARE", 0.01, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with socket.create_server(("127.0.0.9", secure.port)):  # it never says a word of TLS
        assert await post(f"https://127.0.0.1:{secure.port}") is None
