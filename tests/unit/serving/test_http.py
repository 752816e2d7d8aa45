"""The HTTP server with real connections on loopback: what it answers, whom, and what it bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from mld.serving import http
from mld.serving.http import HttpAnswer, HttpServer, Question, text_answer
from mld.webrule import WebRule

RULE = WebRule(frozenset({"worker.internal"}), "set mld.httpHosts", links=True)
PATIENCE_S = 30.0


async def hello(question: Question) -> HttpAnswer:
    return text_answer(200, f"hello from {question.target}")


async def broken(_: Question) -> HttpAnswer:
    raise RuntimeError("a defect")


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    server = HttpServer({"/hello": hello, "/broken": broken}, RULE)
    port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.close()


async def exchange(port: int, request: bytes) -> bytes:
    """Everything the server says to `request` until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        writer.close()


def request(line: str, host: str = "localhost", *more: str) -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", f"Host: {host}", "Connection: close", *more, "", "")).encode()


def run(check: Callable[[int], Awaitable[None]]) -> None:
    async def with_server() -> None:
        async with serving() as port:
            await check(port)

    asyncio.run(with_server())


def one(data: bytes) -> bytes:
    async def ask() -> bytes:
        async with serving() as port:
            return await exchange(port, data)

    return asyncio.run(ask())


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_path_is_answered_without_its_query() -> None:
    answer = one(request("GET /hello?x=1"))
    assert status(answer) == 200
    assert answer.endswith(b"\r\n\r\nhello from /hello\n")


def test_head_has_the_headers_and_no_body() -> None:
    answer = one(request("HEAD /hello"))
    assert b"content-length: 18" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(request("POST /hello", "localhost", "Content-Length: 3") + b"abc", 405, id="changes nothing"),
        pytest.param(request("GET /secrets"), 404, id="unknown path"),
        pytest.param(request("GET /hello", "evil.example"), 403, id="rebound name"),
        pytest.param(request("GET /hello", "worker.internal:9404"), 200, id="allowed name"),
        pytest.param(request("GET /hello", "localhost", "Origin: null"), 403, id="page"),
        pytest.param(request("GET http://localhost/hello"), 403, id="proxy target"),
        pytest.param(b"GET /hello HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"\x16\x03\x01\x02\x00", 400, id="TLS"),
        pytest.param(request("GET /broken"), 500, id="handler fails"),
    ],
)
def test_what_may_not_pass_is_refused(data: bytes, expected: int) -> None:
    assert status(one(data)) == expected


def test_a_failing_handler_is_logged_and_the_next_request_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def check(port: int) -> None:
        await exchange(port, request("GET /broken"))
        assert status(await exchange(port, request("GET /hello"))) == 200

    with caplog.at_level(logging.ERROR):
        run(check)
    assert [getattr(record, "action", None) for record in caplog.records] == ["http_failed"]


def test_an_endless_head_is_cut_off() -> None:
    data = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (http.HEAD_BYTES_MAX + 1)
    assert status(one(data)) == 431


def test_several_requests_on_one_connection() -> None:
    first = request("GET /hello").replace(b"Connection: close\r\n", b"")
    answer = one(first + request("HEAD /hello"))
    assert answer.count(b"HTTP/1.1 200") == 2


def test_of_too_many_connections_the_one_that_was_silent_for_longest_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 2)

    async def check(port: int) -> None:
        silent, one = await asyncio.open_connection("127.0.0.1", port)
        one.write(b"GET")
        kept, other = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            assert status(await asked_on(kept, other)) == 200
        async with asyncio.timeout(PATIENCE_S):
            assert status(await exchange(port, request("GET /hello"))) == 200
            assert await silent.read() == b""
            assert status(await asked_on(kept, other)) == 200
        one.close()
        other.close()

    run(check)


async def asked_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The answer to a request on a connection that stays open."""
    writer.write(request("GET /hello").replace(b"Connection: close\r\n", b""))
    return await reader.readuntil(b"hello from /hello\n")


def test_a_long_answer_reaches_a_slow_reader_whole() -> None:
    body = bytes(range(256)) * 40_000  # ten times what the system buffers

    async def long(_: Question) -> HttpAnswer:
        return HttpAnswer(200, "application/octet-stream", body)

    async def check() -> bytes:
        server = HttpServer({"/long": long}, RULE)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request("GET /long"))
        got = b""
        async with asyncio.timeout(PATIENCE_S):
            while piece := await reader.read(100_000):
                got += piece
        writer.close()
        await server.close()
        return got

    assert asyncio.run(check()).endswith(body)


def test_an_answer_to_a_request_with_a_long_body_is_not_destroyed_by_the_end_of_the_connection() -> None:
    sent = request("POST /hello", "localhost", "Content-Length: 500000") + b"x" * 500_000
    assert status(one(sent)) == 405


def test_a_link_on_another_site_opens_a_page_only_as_a_document() -> None:
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert status(one(request("GET /hello", "localhost", *link))) == 200
    assert status(one(request("GET /hello", "localhost", *link[:2], "Sec-Fetch-Dest: iframe"))) == 403
    assert status(one(request("GET /hello", "localhost", *link, "Origin: https://evil.example"))) == 403
    assert status(one(request("GET /hello", "evil.example", *link))) == 403


def test_who_sends_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.01)
    assert one(b"GET /hello HT") == b""


def test_close_ends_open_connections() -> None:
    async def check() -> bytes:
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET")
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()

    assert asyncio.run(check()) == b""
