"""The metadata service of this host against a hostile address: whom it leads to, and what is answered there."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mld.aws.host_reader import HostReader, HostReadError
from tests.support.patience import PATIENCE_S
from tests.unit.aws.test_hostile_endpoint import ENDLESS, SENT_MAX, Endless
from tests.unit.aws.test_wire import Server, answer

OK = b"HTTP/1.1 200 OK\r\n"
REDIRECT = b"HTTP/1.1 %d Elsewhere\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostReader]:
    reader = HostReader(tmp_path, timeout_s=PATIENCE_S)
    yield reader
    reader.close()


async def failure(host: HostReader, url: str) -> str:
    with pytest.raises(HostReadError) as caught:
        await host.document(url)
    return str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "http://metadata.example/v4",
        "http://localhost/v4",
        "http://10.0.0.7/v4",
        "http://192.0.2.1/v4",
        "http://[2001:db8::1]/v4",
        "http://2130706433/v4",
        "http://0x7f000001/v4",
        "http://0.0.0.0/v4",
        "http://127.0.0.1@192.0.2.1/v4",
        "http://user:word@127.0.0.1/v4",
        "https://127.0.0.1/v4",
        "file:///etc/passwd",
        "http://127.0.0.1/v4 HTTP/1.1",
        "http://127.0.0.1/\x07",
        "http://127.0.0.1/\u00e9",
        "http://127.0.0.1:99999/",
    ],
)
async def test_nobody_but_this_host_is_asked(address: str, host: HostReader, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object, **__: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("asyncio.open_connection", connect)
    assert "a connection" not in await failure(host, address)


@pytest.mark.parametrize("address", ["169.254.170.2", "127.0.0.1", "[::1]", "[fe80::1]", "[fd00:ec2::23]"])
async def test_addresses_of_this_host_are_asked(
    address: str, host: HostReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def connect(host: str, port: int, **_: object) -> None:
        asked.append((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr("asyncio.open_connection", connect)
    await failure(host, f"http://{address}/v4")
    assert asked == [(address.strip("[]"), 80)]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_no_document_and_is_not_followed(status: int, host: HostReader) -> None:
    with Server() as elsewhere, Server(REDIRECT % (status, elsewhere.port)) as server:
        assert f"HTTP status {status}" in await failure(host, f"http://127.0.0.1:{server.port}/v4?x=1")
        assert elsewhere.connections == 0
        assert server.requests[0].startswith(b"GET /v4?x=1 HTTP/1.1\r\n")


@pytest.mark.parametrize("name", [name for name in ENDLESS if name not in ("more than was announced",)])
async def test_an_answer_without_an_end_is_hung_up_on(name: str, host: HostReader) -> None:
    attack = Endless(*ENDLESS[name])
    with Server(attack) as server:
        assert "not read within" not in await failure(host, f"http://127.0.0.1:{server.port}/")
    assert attack.sent <= SENT_MAX


async def test_an_answer_that_stops_is_given_up_when_its_time_is_over(tmp_path: Path) -> None:
    host = HostReader(tmp_path, timeout_s=0.2)

    def silent(peer: socket.socket) -> None:
        peer.sendall(OK)
        peer.recv(1)  # until it is hung up on

    with Server(silent) as server:
        assert "not read within 0.2 s" in await failure(host, f"http://127.0.0.1:{server.port}/")
    host.close()


@pytest.mark.parametrize(
    "body", [b"<html>", b"\xff", b"[" * 100_000, b""], ids=["a page", "no text", "deep", "nothing"]
)
async def test_what_is_no_json_is_a_failure_in_words(body: bytes, host: HostReader) -> None:
    with Server(answer(body)) as server:
        await failure(host, f"http://127.0.0.1:{server.port}/")
        with Server(answer(b'{"a": 1}')) as well:
            assert await host.document(f"http://127.0.0.1:{well.port}/") == {"a": 1}
