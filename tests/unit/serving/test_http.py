"""The HTTP server with real connections on loopback: what it answers, whom, and what it bounds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mld.core.webrule import WebRule
from mld.serving import http, http_exchange
from mld.serving.http import HttpServer
from mld.serving.http_answers import (
    HttpAnswer,
    Question,
    Route,
    SharedAnswers,
    text_answer,
)
from tests.support.patience import PATIENCE_S
from tests.virtual_time import virtual

RULE = WebRule(frozenset({"worker.internal"}), "set mld.httpHosts", links=True)


async def hello(question: Question) -> HttpAnswer:
    return text_answer(200, f"hello from {question.target}")


async def broken(_: Question) -> HttpAnswer:
    raise RuntimeError("a defect")


@asynccontextmanager
async def serving(**others: Route) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server and its port; `others` are routes by the word of their path."""
    routes = {"/hello": hello, "/broken": broken, **{f"/{word}": route for word, route in others.items()}}
    server = HttpServer(routes, RULE, probes=("/hello",))
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with serving() as (_, number):
        yield number


async def exchange(port: int, request: bytes) -> bytes:
    """Everything the server says to `request` until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionResetError:  # closed without a look at what we sent
        return b""
    finally:
        writer.close()


def request(line: str, host: str = "localhost", *more: str) -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", f"Host: {host}", "Connection: close", *more, "", "")).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_path_is_answered_without_its_query(port: int) -> None:
    answer = await exchange(port, request("GET /hello?x=1"))
    assert status(answer) == 200
    assert answer.endswith(b"\r\n\r\nhello from /hello\n")


async def test_head_has_the_headers_and_no_body(port: int) -> None:
    answer = await exchange(port, request("HEAD /hello"))
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
async def test_what_may_not_pass_is_refused(port: int, data: bytes, expected: int) -> None:
    assert status(await exchange(port, data)) == expected


async def test_a_failing_handler_is_logged_and_the_next_request_is_answered(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    await exchange(port, request("GET /broken"))
    assert status(await exchange(port, request("GET /hello"))) == 200
    assert [getattr(record, "action", None) for record in caplog.records] == ["http_failed"]


async def test_an_endless_head_is_cut_off(port: int) -> None:
    data = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (http_exchange.HEAD_BYTES_MAX + 1)
    assert status(await exchange(port, data)) == 431


async def test_several_requests_on_one_connection(port: int) -> None:
    first = request("GET /hello").replace(b"Connection: close\r\n", b"")
    answer = await exchange(port, first + request("HEAD /hello"))
    assert answer.count(b"HTTP/1.1 200") == 2


async def test_whoever_says_nothing_keeps_no_probe_out_and_is_not_ended_for_it(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PLACES_MAX", 2)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        assert status(await exchange(port, request("GET /hello"))) == 200, "the path of a probe"
        assert await exchange(port, request("GET /broken")) == b"", "any other one"
        assert await exchange(port, b"") == b"", "one more that says nothing"
        for reader, writer in silent:
            assert status(await asked_on(reader, writer)) == 200
            writer.close()


async def test_a_prober_that_does_not_close_its_side_keeps_no_other_probe_out(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PLACES_MAX", 0)
    monkeypatch.setattr(http, "PROBES_MAX", 1)
    monkeypatch.setattr(http, "PROBE_TIMEOUT_S", PATIENCE_S)
    connected: list[asyncio.StreamWriter] = []
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            connected.append(writer)
            writer.write(request("GET /hello"))
            assert status(await reader.read()) == 200
    for writer in connected:
        writer.close()


FLOOD = {
    "nothing": b"",
    "half a head": b"GET /broken HTTP/1.1\r\nHost: ",
    "a request after the other": request("GET /broken").replace(b"Connection: close\r\n", b"") * 20,
    "a body that does not end": request("POST /hello", "localhost", "Content-Length: 9999999") + b"x" * 1000,
    "no HTTP": b"\x16\x03\x01\x02\x00",
}


@pytest.mark.parametrize("is_one_peer", [True, False], ids=["one peer", "many peers"])
async def test_probes_are_answered_in_a_flood_of_500_connections(is_one_peer: bool) -> None:
    async with serving() as (server, port):
        flood: list[asyncio.StreamWriter] = []
        async with asyncio.timeout(PATIENCE_S):
            for number, data in zip(range(500), itertools.cycle(FLOOD.values()), strict=False):
                source = "127.0.0.2" if is_one_peer else f"127.0.1.{1 + number % 250}"
                _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
                writer.write(data)
                flood.append(writer)
                assert len(server._places) <= http.PLACES_MAX
                assert len(server._waiting) <= http.WAITING_MAX
                if number % 50 == 49:
                    assert status(await exchange(port, request("GET /hello"))) == 200
            for writer in flood:
                writer.transport.abort()
            while server._places or server._waiting:
                await asyncio.sleep(0.01)
            assert status(await exchange(port, request("GET /broken"))) == 500, "and any page after it"


async def test_a_connection_gets_the_place_that_becomes_free_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PLACES_MAX", 1)
    monkeypatch.setattr(http, "WAIT_S", PATIENCE_S)
    async with serving() as (server, port):
        _, first = await asyncio.open_connection("127.0.0.1", port)
        waiting = asyncio.create_task(exchange(port, request("GET /broken")))
        async with asyncio.timeout(PATIENCE_S):
            while not server._waiting:
                await asyncio.sleep(0)
            first.close()
            while server._places:
                await asyncio.sleep(0)
        server._judge_first()  # as its timer does
        assert status(await waiting) == 500


async def test_one_peer_does_not_take_all_places(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PLACES_OF_PEER_MAX", 1)
    _, silent = await asyncio.open_connection("127.0.0.1", port)
    assert await exchange(port, request("GET /broken")) == b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
    writer.write(request("GET /broken"))
    async with asyncio.timeout(PATIENCE_S):
        assert status(await reader.read()) == 500
    writer.close()
    silent.close()


async def test_a_place_is_kept_for_a_while_after_each_request(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PLACES_MAX", 1)
    monkeypatch.setattr(http, "PACE_S", 10 * PATIENCE_S)
    assert status(await exchange(port, request("GET /broken"))) == 500
    assert await exchange(port, request("GET /broken")) == b""
    assert status(await exchange(port, request("GET /hello"))) == 200, "probes do not wait for it"


async def test_what_costs_is_made_once_for_all_who_ask_within_a_second() -> None:
    made: list[str] = []
    shared = SharedAnswers(valid_s=PATIENCE_S)

    async def answer() -> HttpAnswer:
        made.append("answer")
        await asyncio.sleep(0)
        return text_answer(200, str(len(made)))

    answers = await asyncio.gather(*(shared.answer("text", answer) for _ in range(50)))
    assert {found.body for found in answers} == {b"1\n"}
    assert (await shared.answer("openmetrics", answer)).body == b"2\n"
    for number in range(100):
        await shared.answer(f"variant {number}", answer)
    assert len(shared._kept) <= SharedAnswers.VARIANTS_MAX


async def test_a_request_with_two_lengths_is_refused_and_nothing_after_it_is_read(port: int) -> None:
    smuggled = request("GET /broken")
    data = request("GET /hello", "localhost", "Content-Length: 5", "Transfer-Encoding: chunked").replace(
        b"Connection: close\r\n", b""
    )
    answer = await exchange(port, data + b"0\r\n\r\n" + smuggled)
    assert status(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_only_its_owner_may_use_a_socket_of_this_machine(tmp_path: Path) -> None:
    server = HttpServer({"/hello": hello}, RULE)
    await server.start_at(tmp_path / "pages")
    assert (tmp_path / "pages").stat().st_mode & 0o777 == 0o600
    reader, writer = await asyncio.open_unix_connection(tmp_path / "pages")
    writer.write(request("GET /hello"))
    assert status(await reader.read()) == 200
    writer.close()
    await server.close()


async def asked_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The answer to a request on a connection that stays open."""
    writer.write(request("GET /hello").replace(b"Connection: close\r\n", b""))
    return await reader.readuntil(b"hello from /hello\n")


async def test_a_long_answer_reaches_a_slow_reader_whole() -> None:
    body = bytes(range(256)) * 40_000  # ten times what the system buffers

    async def long(_: Question) -> HttpAnswer:
        return HttpAnswer(200, "application/octet-stream", body)

    async with serving(long=long) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request("GET /long"))
        got = b""
        async with asyncio.timeout(PATIENCE_S):
            while piece := await reader.read(100_000):
                got += piece
        writer.close()
    assert got.endswith(body)


async def test_an_answer_to_a_request_with_a_long_body_is_not_destroyed_by_the_end_of_the_connection(
    port: int,
) -> None:
    sent = request("POST /hello", "localhost", "Content-Length: 500000") + b"x" * 500_000
    assert status(await exchange(port, sent)) == 405


LINK = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")


@pytest.mark.parametrize(
    ("host", "headers", "expected"),
    [
        ("localhost", LINK, 200),
        ("localhost", (*LINK[:2], "Sec-Fetch-Dest: iframe"), 403),
        ("localhost", (*LINK, "Origin: https://evil.example"), 403),
        ("evil.example", LINK, 403),
    ],
)
async def test_a_link_on_another_site_opens_a_page_only_as_a_document(
    port: int, host: str, headers: tuple[str, ...], expected: int
) -> None:
    assert status(await exchange(port, request("GET /hello", host, *headers))) == expected


async def test_who_sends_nothing_is_dropped(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.01)
    assert await exchange(port, b"GET /hello HT") == b""


async def test_a_caller_who_resets_the_connection_just_after_the_answer_leaves_no_error(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    send, caller, reset = http.send_answer, socket.create_connection(("127.0.0.1", port)), asyncio.Event()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def send_and_reset(*given: Any, **named: Any) -> None:
        await send(*given, **named)
        caller.close()
        reset.set()

    monkeypatch.setattr(http, "send_answer", send_and_reset)
    caller.sendall(request("GET /hello"))
    async with asyncio.timeout(PATIENCE_S):
        await reset.wait()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the server lets go of the task
    gc.collect()  # the loop is told of an error that nobody has fetched
    assert errors == []


async def test_close_ends_open_connections() -> None:
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET")
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


@virtual
async def test_what_takes_long_is_made_seldom() -> None:
    shared, made = SharedAnswers(), list[int]()

    async def make() -> HttpAnswer:
        made.append(1)
        await asyncio.sleep(0.1)
        return text_answer(200, "ok")

    for _ in range(10):
        await shared.answer("", make)
        await asyncio.sleep(0.3)
    assert len(made) == 2, "in three seconds, as a twentieth of the time may go into it"
