"""The HTTP server with real connections on loopback: what it answers, whom, and what it bounds."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
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
    SharedAnswers,
    text_answer,
)
from tests.virtual_time import virtual

RULE = WebRule(frozenset({"worker.internal"}), "set mld.httpHosts", links=True)
PATIENCE_S = 30.0


async def hello(question: Question) -> HttpAnswer:
    return text_answer(200, f"hello from {question.target}")


async def broken(_: Question) -> HttpAnswer:
    raise RuntimeError("a defect")


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    server = HttpServer({"/hello": hello, "/broken": broken}, RULE, probes=("/hello",))
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
    except ConnectionResetError:  # closed without a look at what we sent
        return b""
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
    data = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (http_exchange.HEAD_BYTES_MAX + 1)
    assert status(one(data)) == 431


def test_several_requests_on_one_connection() -> None:
    first = request("GET /hello").replace(b"Connection: close\r\n", b"")
    answer = one(first + request("HEAD /hello"))
    assert answer.count(b"HTTP/1.1 200") == 2


def test_whoever_says_nothing_keeps_no_probe_out_and_is_not_ended_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PLACES_MAX", 2)

    async def check(port: int) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        async with asyncio.timeout(PATIENCE_S):
            assert status(await exchange(port, request("GET /hello"))) == 200, "the path of a probe"
            assert await exchange(port, request("GET /broken")) == b"", "any other one"
            assert await exchange(port, b"") == b"", "one more that says nothing"
            for reader, writer in silent:
                assert status(await asked_on(reader, writer)) == 200
                writer.close()

    run(check)


def test_a_prober_that_does_not_close_its_side_keeps_no_other_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PLACES_MAX", 0)
    monkeypatch.setattr(http, "PROBES_MAX", 1)
    monkeypatch.setattr(http, "PROBE_TIMEOUT_S", PATIENCE_S)

    async def check(port: int) -> None:
        connected: list[asyncio.StreamWriter] = []
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                connected.append(writer)
                writer.write(request("GET /hello"))
                assert status(await reader.read()) == 200
        for writer in connected:
            writer.close()

    run(check)


FLOOD = {
    "nothing": b"",
    "half a head": b"GET /broken HTTP/1.1\r\nHost: ",
    "a request after the other": request("GET /broken").replace(b"Connection: close\r\n", b"") * 20,
    "a body that does not end": request("POST /hello", "localhost", "Content-Length: 9999999") + b"x" * 1000,
    "no HTTP": b"\x16\x03\x01\x02\x00",
}


@pytest.mark.parametrize("is_one_peer", [True, False], ids=["one peer", "many peers"])
def test_probes_are_answered_in_a_flood_of_500_connections(is_one_peer: bool) -> None:
    async def check() -> None:
        server = HttpServer({"/hello": hello, "/broken": broken}, RULE, probes=("/hello",))
        port = await server.start("127.0.0.1", 0)
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
        await server.close()

    asyncio.run(check())


def test_a_connection_gets_the_place_that_becomes_free_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PLACES_MAX", 1)
    monkeypatch.setattr(http, "WAIT_S", PATIENCE_S)

    async def check() -> bytes:
        server = HttpServer({"/broken": broken}, RULE)
        port = await server.start("127.0.0.1", 0)
        _, first = await asyncio.open_connection("127.0.0.1", port)
        waiting = asyncio.create_task(exchange(port, request("GET /broken")))
        async with asyncio.timeout(PATIENCE_S):
            while not server._waiting:
                await asyncio.sleep(0)
            first.close()
            while server._places:
                await asyncio.sleep(0)
        server._judge_first()  # as its timer does
        answer = await waiting
        await server.close()
        return answer

    assert status(asyncio.run(check())) == 500


def test_one_peer_does_not_take_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PLACES_OF_PEER_MAX", 1)

    async def check(port: int) -> None:
        _, silent = await asyncio.open_connection("127.0.0.1", port)
        assert await exchange(port, request("GET /broken")) == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        writer.write(request("GET /broken"))
        async with asyncio.timeout(PATIENCE_S):
            assert status(await reader.read()) == 500
        writer.close()
        silent.close()

    run(check)


def test_a_place_is_kept_for_a_while_after_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PLACES_MAX", 1)
    monkeypatch.setattr(http, "PACE_S", 10 * PATIENCE_S)

    async def check(port: int) -> None:
        assert status(await exchange(port, request("GET /broken"))) == 500
        assert await exchange(port, request("GET /broken")) == b""
        assert status(await exchange(port, request("GET /hello"))) == 200, "probes do not wait for it"

    run(check)


def test_what_costs_is_made_once_for_all_who_ask_within_a_second() -> None:
    made: list[str] = []

    async def check() -> None:
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

    asyncio.run(check())


def test_a_request_with_two_lengths_is_refused_and_nothing_after_it_is_read() -> None:
    smuggled = request("GET /broken")
    data = request("GET /hello", "localhost", "Content-Length: 5", "Transfer-Encoding: chunked").replace(
        b"Connection: close\r\n", b""
    )
    answer = one(data + b"0\r\n\r\n" + smuggled)
    assert status(answer) == 400
    assert answer.count(b"HTTP/1.1 ") == 1


def test_only_its_owner_may_use_a_socket_of_this_machine(tmp_path: Path) -> None:
    async def check() -> int:
        server = HttpServer({"/hello": hello}, RULE)
        await server.start_at(tmp_path / "pages")
        mode = (tmp_path / "pages").stat().st_mode
        reader, writer = await asyncio.open_unix_connection(tmp_path / "pages")
        writer.write(request("GET /hello"))
        assert status(await reader.read()) == 200
        writer.close()
        await server.close()
        return mode

    assert asyncio.run(check()) & 0o777 == 0o600


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


def test_a_caller_who_resets_the_connection_just_after_the_answer_leaves_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(port: int) -> None:
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

    run(check)


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
