"""The control socket with real connections: where it may be, whom it answers, and what it bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mld.core import control_place
from mld.core.clock import LoopClock
from mld.core.control_place import ControlPlace, ControlPlaceError, SocketPeer
from mld.serving import control
from mld.serving.control import (
    Answer,
    ControlServer,
    Request,
    RequestRefused,
)
from mld.serving.control_start import keep_control, serve_control
from tests.support.patience import PATIENCE_S


async def hello(request: Request) -> AsyncGenerator[Answer, None]:
    yield {"hello": request.get("name", "nobody")}


async def refusing(_: Request) -> AsyncGenerator[Answer, None]:
    raise RequestRefused("there is no such shard")
    yield {}


async def broken(_: Request) -> AsyncGenerator[Answer, None]:
    raise RuntimeError("a defect")
    yield {}


async def counting(_: Request) -> AsyncGenerator[Answer, None]:
    for number in range(3):
        yield {"number": number}


class Endless:
    """A stream that somebody has to end; says whether it was."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def __call__(self, _: Request) -> AsyncGenerator[Answer, None]:
        try:
            yield {"begins": True}
            await asyncio.Event().wait()
        finally:
            self.ended.set()


ROUTES = {"hello": hello, "refusing": refusing, "broken": broken, "counting": counting}


@pytest.fixture
def private(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir(0o700)
    return directory


@asynccontextmanager
async def serving(place: ControlPlace, routes: Any = ROUTES, *, is_named: bool = True) -> AsyncIterator[ControlServer]:
    server = ControlServer(routes)
    await server.start(place, is_named=is_named)
    try:
        yield server
    finally:
        await server.close()


async def exchange(path: str, line: bytes) -> list[Any]:
    """Everything the server says to this line until it closes."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return [json.loads(one) for one in (await reader.read()).splitlines()]
    finally:
        writer.close()


async def ask(place: ControlPlace, what: str, **more: object) -> list[Any]:
    return await exchange(place.path, json.dumps({"ask": what, **more}).encode() + b"\n")


async def test_a_request_is_answered_and_a_stream_is_sent_to_its_end(private: Path) -> None:
    place = ControlPlace(private, "a.sock")
    async with serving(place):
        assert await ask(place, "hello", name="Ada") == [{"answer": {"hello": "Ada"}}]
        assert await ask(place, "counting") == [{"answer": {"number": 0}}, {"number": 1}, {"number": 2}]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"ask": "goodbye"}\n', "ask for one of broken, counting, hello, refusing"),
        (b'{"ask": ["hello"]}\n', "ask for one of broken"),
        (b'{"ask": "refusing"}\n', "there is no such shard"),
        (b"GET / HTTP/1.1\n", "one line of JSON"),
        (b"[" * 4000 + b"\n", "one line of JSON"),
        (b"x" * 5000 + b"\n", "at most 4096 bytes"),
        (b'{"ask": "\x1b[2J\x00\xff"}\n', "one line of JSON"),
        (b'{"ask": "\\u001b[2J\\ud800"}\n', "ask for one of broken"),
    ],
)
async def test_what_cannot_be_answered_is_refused_in_a_sentence(private: Path, line: bytes, words: str) -> None:
    place = ControlPlace(private, "a.sock")
    async with serving(place):
        (refusal,) = await exchange(place.path, line)
        assert words in refusal["error"]


async def test_a_defect_is_an_error_for_the_caller_and_a_trace_in_the_log(
    private: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = ControlPlace(private, "a.sock")
    async with serving(place):
        assert await ask(place, "broken") == [{"error": "this answer failed; the daemon's log says why"}]
        assert "a defect" in caplog.text
        assert await ask(place, "hello") == [{"answer": {"hello": "nobody"}}]


async def test_a_caller_that_leaves_ends_its_stream(private: Path) -> None:
    place, endless = ControlPlace(private, "a.sock"), Endless()
    async with serving(place, {"endless": endless}):
        reader, writer = await asyncio.open_unix_connection(place.path)
        writer.write(b'{"ask": "endless"}\n')
        assert await reader.readline() == b'{"answer":{"begins":true}}\n'
        writer.close()
        async with asyncio.timeout(PATIENCE_S):
            await endless.ended.wait()


async def test_a_caller_that_closes_its_sending_side_gets_its_answer(private: Path) -> None:
    place = ControlPlace(private, "a.sock")
    async with serving(place):
        reader, writer = await asyncio.open_unix_connection(place.path)
        writer.write(b'{"ask": "hello"}\n')
        writer.write_eof()
        assert json.loads(await reader.read()) == {"answer": {"hello": "nobody"}}
        writer.close()


async def test_the_end_of_the_server_ends_its_streams(private: Path) -> None:
    place, endless = ControlPlace(private, "a.sock"), Endless()
    async with serving(place, {"endless": endless}):
        reader, writer = await asyncio.open_unix_connection(place.path)
        writer.write(b'{"ask": "endless"}\n')
        await reader.readline()
    assert endless.ended.is_set()
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("size", [1, 4000, 10_000_000])
async def test_a_caller_that_never_ends_its_line_is_hung_up_on(
    private: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    place = ControlPlace(private, "a.sock")
    async with serving(place):
        with monkeypatch.context() as patch:
            patch.setattr(control, "REQUEST_TIMEOUT_S", 0.0)
            with contextlib.suppress(ConnectionError):  # with some of it unread
                await exchange(place.path, b"x" * size)
        assert await ask(place, "hello") == [{"answer": {"hello": "nobody"}}]


class Held:
    """A route whose answer is not made until it is released."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def __call__(self, _: Request) -> AsyncGenerator[Answer, None]:
        self.asked.set()
        await self.released.wait()
        yield {"held": True}


async def held_caller(place: ControlPlace, held: Held) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(place.path)
    writer.write(b'{"ask": "held"}\n')
    await held.asked.wait()
    return reader, writer


async def test_connections_beyond_the_bound_are_closed_and_the_others_go_on(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 1)
    place, held = ControlPlace(private, "a.sock"), Held()
    async with serving(place, {"held": held}):
        reader, writer = await held_caller(place, held)
        with pytest.raises((ConnectionError, ValueError)):
            (_,) = await ask(place, "held")
        held.released.set()
        assert json.loads(await reader.read()) == {"answer": {"held": True}}
        writer.close()


async def test_a_process_has_a_bound_of_its_own(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "OF_PROCESS_MAX", 2)
    place = ControlPlace(private, "a.sock")
    async with serving(place):
        silent = [await asyncio.open_unix_connection(place.path) for _ in range(2)]
        with pytest.raises((ConnectionError, ValueError)):
            (_,) = await ask(place, "hello")
        with monkeypatch.context() as patch:
            patch.setattr(control_place, "peer_of", lambda _: SocketPeer(1, os.geteuid()))
            assert await ask(place, "hello") == [{"answer": {"hello": "nobody"}}], "another process has its own"
            patch.setattr(control_place, "peer_of", lambda _: None)
            assert [await ask(place, "hello") for _ in range(3)] == 3 * [[{"answer": {"hello": "nobody"}}]]
        for _, writer in silent:
            writer.close()
        async with asyncio.timeout(PATIENCE_S):
            while True:  # until the server has seen that they are gone
                with contextlib.suppress(ConnectionError, ValueError):
                    (_,) = await ask(place, "hello")
                    break


async def test_connections_that_ask_for_nothing_keep_no_command_out(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(control, "REQUEST_TIMEOUT_S", PATIENCE_S)
    place = ControlPlace(private, "a.sock")
    async with serving(place):
        silent = [await asyncio.open_unix_connection(place.path) for _ in range(3)]
        async with asyncio.timeout(PATIENCE_S):
            assert await silent[0][0].read() == b"", "the oldest of them made room"
            assert await ask(place, "hello") == [{"answer": {"hello": "nobody"}}]
        for _, writer in silent:
            writer.close()


async def test_the_oldest_stream_makes_room_for_a_command(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 2)
    place, endless = ControlPlace(private, "a.sock"), Endless()
    async with serving(place, {"endless": endless, "hello": hello}):
        callers = [await asyncio.open_unix_connection(place.path) for _ in range(2)]
        for reader, writer in callers:
            writer.write(b'{"ask": "endless"}\n')
            await reader.readline()
        assert await ask(place, "hello") == [{"answer": {"hello": "nobody"}}]
        async with asyncio.timeout(PATIENCE_S):
            assert await callers[0][0].read() == b""
        for _, writer in callers:
            writer.close()


async def test_of_many_commands_at_once_each_is_answered(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ANSWERS_MAX", 2)
    for name in ("WAIT_S", "REQUEST_TIMEOUT_S", "UNREAD_S"):
        monkeypatch.setattr(control, name, PATIENCE_S)
    place = ControlPlace(private, "a.sock")
    async with serving(place):
        callers = [socket.socket(socket.AF_UNIX) for _ in range(8)]
        for caller in callers:  # all have sent their request before the server accepts the first
            caller.connect(place.path)
            caller.sendall(b'{"ask": "hello"}\n')
        for caller in callers:
            reader, writer = await asyncio.open_unix_connection(sock=caller)
            assert json.loads(await reader.read()) == {"answer": {"hello": "nobody"}}
            writer.close()


@pytest.mark.parametrize("callers", [1, 4])
async def test_answers_that_nobody_reads_keep_no_command_out(
    private: Path, monkeypatch: pytest.MonkeyPatch, callers: int
) -> None:
    async def large(_: Request) -> AsyncGenerator[Answer, None]:
        yield {"large": "x" * 10_000_000}

    monkeypatch.setattr(control, "ANSWERS_MAX", 1)
    monkeypatch.setattr(control, "UNREAD_S", 0.01)
    for name in ("WAIT_S", "ANSWER_TIMEOUT_S"):
        monkeypatch.setattr(control, name, PATIENCE_S)
    place = ControlPlace(private, "a.sock")
    async with serving(place, {"large": large, "hello": hello}):
        deaf = [socket.socket(socket.AF_UNIX) for _ in range(callers)]
        for caller in deaf:
            caller.connect(place.path)
            caller.sendall(b'{"ask": "large"}\n')
        while not select.select(deaf[:1], [], [], 0)[0]:  # its answer has begun to come
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S / 2):
            assert await ask(place, "hello") == [{"answer": {"hello": "nobody"}}]
        for caller in deaf:
            caller.close()


GIVEN_UP_S = 0.1  # if more passes before the command is sent, the test shows nothing, but does not fail


async def test_a_command_is_answered_that_comes_just_when_an_unread_answer_is_given_up(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop finds both in one turn, so the request is read before the answer's task has noticed."""

    async def large(_: Request) -> AsyncGenerator[Answer, None]:
        yield {"large": "x" * 10_000_000}

    monkeypatch.setattr(control, "ANSWERS_MAX", 1)
    monkeypatch.setattr(control, "WAIT_S", PATIENCE_S)
    monkeypatch.setattr(control, "ANSWER_TIMEOUT_S", GIVEN_UP_S)
    place, loop = ControlPlace(private, "a.sock"), asyncio.get_running_loop()
    async with serving(place, {"large": large, "hello": hello}):
        reader, writer = await asyncio.open_unix_connection(place.path)
        deaf = socket.socket(socket.AF_UNIX)
        deaf.connect(place.path)
        deaf.sendall(b'{"ask": "large"}\n')
        while not select.select([deaf], [], [], 0)[0]:  # its answer has begun to come
            await asyncio.sleep(0)
        given_up_at = loop.time() + GIVEN_UP_S
        writer.write(b'{"ask": "hello"}\n')
        while loop.time() < given_up_at:  # on purpose nothing else runs meanwhile
            pass
        assert json.loads(await reader.read()) == {"answer": {"hello": "nobody"}}
        writer.close()
        deaf.close()


async def test_a_command_waits_until_there_is_room_for_it(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ANSWERS_MAX", 1)
    monkeypatch.setattr(control, "WAIT_S", PATIENCE_S)
    place, held = ControlPlace(private, "a.sock"), Held()
    async with serving(place, {"held": held, "hello": hello}):
        _, writer = await held_caller(place, held)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(ask(place, "hello"))
            held.released.set()
        assert asked.result() == [{"answer": {"hello": "nobody"}}]
        writer.close()


async def test_a_command_without_room_is_told_so(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ANSWERS_MAX", 1)
    monkeypatch.setattr(control, "WAIT_S", 0.0)
    place, held = ControlPlace(private, "a.sock"), Held()
    async with serving(place, {"held": held, "hello": hello}):
        _, writer = await held_caller(place, held)
        assert await ask(place, "hello") == [{"error": "ask again: 1 other requests are being answered"}]
        writer.close()


async def test_the_socket_is_for_its_user_alone_whatever_the_umask_and_gone_at_the_end(tmp_path: Path) -> None:
    place = ControlPlace(tmp_path / "made", "a.sock")
    before = os.umask(0)
    try:
        async with serving(place):
            assert stat.S_IMODE(place.directory.stat().st_mode) == 0o700
            assert stat.S_IMODE(Path(place.path).stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert list(place.directory.iterdir()) == []


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o750, 0o755, 0o777])
async def test_a_directory_that_others_can_enter_is_refused(private: Path, mode: int) -> None:
    private.chmod(mode)
    with pytest.raises(ControlPlaceError, match=f"open to other users .mode {mode:04o}.: name one"):
        await ControlServer(ROUTES).start(ControlPlace(private, "a.sock"), is_named=True)
    assert list(private.iterdir()) == []


def test_a_directory_of_another_user_and_a_link_are_refused(private: Path, tmp_path: Path) -> None:
    with pytest.raises(ControlPlaceError, match="belongs to user"):
        control_place.open_directory(private, os.geteuid() + 1, make=True)
    link = tmp_path / "link"
    link.symlink_to(private)
    with pytest.raises(ControlPlaceError, match="cannot be used"):
        control_place.open_directory(link, os.geteuid(), make=True)
    assert not control_place.is_private(link, os.geteuid())


async def test_a_path_longer_than_an_address_works(private: Path) -> None:
    deep = private / ("d" * 120) / ("e" * 120)
    deep.mkdir(0o700, parents=True)
    place = ControlPlace(deep, "a.sock")
    async with serving(place):
        handle = control_place.open_directory(deep, os.geteuid(), make=False)
        try:
            (answer,) = await exchange(control_place.address_of(handle, deep, place.name), b'{"ask": "hello"}\n')
        finally:
            os.close(handle)
    assert answer == {"answer": {"hello": "nobody"}}


def leave_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


async def test_the_socket_of_a_dead_daemon_is_replaced(private: Path) -> None:
    place = ControlPlace(private, "a.sock")
    leave_dead(private / "a.sock")
    async with serving(place):
        assert await ask(place, "hello") == [{"answer": {"hello": "nobody"}}]


async def test_the_socket_of_a_living_daemon_is_not_stolen(private: Path) -> None:
    place = ControlPlace(private, "a.sock")
    async with serving(place, {"first": hello}):
        with pytest.raises(ControlPlaceError, match="another process answers"):
            await ControlServer(ROUTES).start(place, is_named=True)
        assert await ask(place, "first") == [{"answer": {"hello": "nobody"}}]


async def test_what_is_no_socket_is_left_alone(private: Path) -> None:
    (private / "a.sock").write_text("precious")
    with pytest.raises(ControlPlaceError, match="is no socket"):
        await ControlServer(ROUTES).start(ControlPlace(private, "a.sock"), is_named=True)
    assert (private / "a.sock").read_text() == "precious"


async def test_the_end_leaves_the_socket_of_a_successor(private: Path) -> None:
    place = ControlPlace(private, "a.sock")
    first = ControlServer({"first": hello})
    await first.start(place, is_named=True)
    Path(place.path).unlink()
    async with serving(place, {"second": hello}):
        await first.close()
        assert await ask(place, "second") == [{"answer": {"hello": "nobody"}}]


async def test_sockets_of_killed_daemons_are_swept_and_those_of_others_stay(private: Path) -> None:
    leave_dead(private / "dead.sock")
    (private / "note.txt").write_text("mine")
    async with serving(ControlPlace(private, "a.sock"), is_named=False), serving(ControlPlace(private, "b.sock")):
        assert {path.name for path in private.iterdir()} == {"a.sock", "b.sock", "note.txt"}


async def test_a_chosen_place_is_not_swept(private: Path) -> None:
    leave_dead(private / "somebody-s.sock")
    async with serving(ControlPlace(private, "a.sock")):
        assert (private / "somebody-s.sock").exists()


async def test_two_that_start_at_once_share_one_place_and_one_gets_it(private: Path) -> None:
    place = ControlPlace(private, "a.sock")
    leave_dead(private / "a.sock")
    servers = [ControlServer({str(number): hello}) for number in range(4)]
    outcomes = await asyncio.gather(*(one.start(place, is_named=True) for one in servers), return_exceptions=True)
    winners = [number for number, outcome in enumerate(outcomes) if outcome == place.path]
    assert len(winners) == 1
    assert await ask(place, str(winners[0])) == [{"answer": {"hello": "nobody"}}]
    for one in servers:
        await one.close()


# --- where ------------------------------------------------------------------------------------------------------------


def test_systemd_s_directory_comes_first_then_the_session_s_then_the_temporary_one() -> None:
    environ = {"RUNTIME_DIRECTORY": "/run/clicks:/run/other", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert [str(path) for path in control_place.directories(environ, 7)] == [
        "/run/clicks",
        "/run/clicks/mld",
        "/run/user/7/mld",
        "/tmp/mld-7",
    ]
    assert [str(path) for path in control_place.directories({"XDG_RUNTIME_DIR": "relative"}, 7)] == ["/tmp/mld-7"]


def test_names_tell_applications_apart_and_fit_a_file_system() -> None:
    names = {control_place.prefix_of(name) for name in ("a.b", "a_b", "a/b", "a" * 255, "a" * 254 + "b", "ä")}
    assert len(names) == 6
    assert all(len(name) < 70 and "/" not in name and name.isascii() for name in names)
    assert control_place.new_name("clicks") != control_place.new_name("clicks")


async def test_an_open_runtime_directory_gets_a_closed_one_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    server = ControlServer(ROUTES)
    path = await serve_control(server, "clicks", None, {"RUNTIME_DIRECTORY": str(tmp_path)})
    assert path is not None and Path(path).parent == tmp_path / "mld"
    found = control_place.sockets_of("clicks", {"RUNTIME_DIRECTORY": str(tmp_path)}, os.geteuid())
    assert path in [place.path for place in found]
    await server.close()


async def test_no_socket_is_a_warning_with_the_reason(private: Path, caplog: pytest.LogCaptureFixture) -> None:
    private.chmod(0o755)
    caplog.set_level(logging.INFO)
    server = ControlServer(ROUTES)
    assert await serve_control(server, "clicks", str(private / "a.sock"), {}) is None
    (record,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "mode 0700" in record.getMessage()
    await server.close()


async def looked(server: ControlServer, environ: dict[str, str]) -> None:
    """One look of the loop that keeps the socket."""
    clock = OneSleep()
    with pytest.raises(asyncio.CancelledError):
        await keep_control(server, "clicks", None, environ, clock)


class OneSleep(LoopClock):
    """Sleeps once, without time, and then is cancelled."""

    def __init__(self) -> None:
        self._slept = False

    async def sleep(self, seconds: float) -> None:
        if self._slept:
            raise asyncio.CancelledError
        self._slept = True


async def test_a_socket_that_was_cleaned_away_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ, endless = {"XDG_RUNTIME_DIR": str(tmp_path)}, Endless()
    server = ControlServer({**ROUTES, "endless": endless})
    first = await serve_control(server, "clicks", None, environ)
    assert first is not None
    try:
        reader, writer = await asyncio.open_unix_connection(first)
        writer.write(b'{"ask": "endless"}\n')
        await reader.readline()
        await looked(server, environ)
        assert [str(path) for path in (tmp_path / "mld").iterdir()] == [first]
        Path(first).unlink()
        (tmp_path / "mld").rmdir()
        await looked(server, environ)
        (again,) = (tmp_path / "mld").iterdir()
        assert await exchange(str(again), b'{"ask": "hello"}\n') == [{"answer": {"hello": "nobody"}}]
        assert "made again" in caplog.text
        assert not endless.ended.is_set(), "who was connected still is"
        writer.close()
    finally:
        await server.close()
    assert list((tmp_path / "mld").iterdir()) == []
