"""Connections on the event loop: small answers in whatever pieces they come, everything else left to a thread."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from mld.aws.wire.answers import Answer, Incoming, NothingSentBackError
from mld.aws.wire.chunks import BrokenAnswerError
from mld.aws.wire.connection import Connection, Origin
from mld.aws.wire.loop_connection import BODY_BYTES_MAX, LoopConnection
from mld.aws.wire.places import IDLE_MAX_S, Places, PlacesClosedError, WirePlace
from mld.aws.wire.turns import Turn
from tests.support.certificates import write_certificate
from tests.support.patience import PATIENCE_S
from tests.unit.aws.test_wire import answer

NEVER_S = 3600.0
SOON_S = 0.001
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"


# --- on a connection -------------------------------------------------------------------------------------------------


class Peer:
    """The other end, on the same loop. `line` is ours."""

    def __init__(self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lost: asyncio.Queue[Connection] = asyncio.Queue()
        self.line = LoopConnection(connection, partial(self.lost.put_nowait, connection))
        self.connection = connection
        self._reader = reader
        self._writer = writer

    def ask(self, request: bytes = REQUEST, *, timeout_s: float = PATIENCE_S) -> asyncio.Task[object]:
        return asyncio.create_task(self.line.exchange(request, timeout_s=timeout_s))

    async def hears(self, request: bytes = REQUEST) -> None:
        assert await self._reader.readexactly(len(request)) == request

    async def say(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.close()


@asynccontextmanager
async def peer(context: ssl.SSLContext | None = None, trusted: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    arrived: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await arrived.put((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    origin = Origin("127.0.0.1", server.sockets[0].getsockname()[1], trusted)
    async with asyncio.timeout(PATIENCE_S):
        connection = await asyncio.to_thread(
            Connection, origin, connect_timeout_s=PATIENCE_S, read_timeout_s=PATIENCE_S
        )
        connection.let_go()
        made = Peer(connection, *await arrived.get())
        try:
            yield made
        finally:
            made.line.close()
            await made.end()
            server.close()


@pytest.fixture(params=["plain", "tls"])
async def other(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Peer]:
    context = trusted = None
    if request.param == "tls":
        public, secret = write_certificate(tmp_path, "127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(public, secret)
        trusted = ssl.create_default_context(cafile=str(public))
    async with peer(context, trusted) as made:
        yield made


async def test_answers_come_one_after_the_other_in_pieces_of_any_size(other: Peer) -> None:
    for size in (0, 1, 5_000, BODY_BYTES_MAX):
        sent = answer(b"x" * size)
        for cuts in ([], [1], [20, 60], [len(sent) - 1]):
            asked = other.ask()
            await other.hears()
            for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                await other.say(sent[start:end])
                await asyncio.sleep(0)
            found = await asked
            assert isinstance(found, Answer) and found.body == b"x" * size and found.keep
    assert other.lost.empty()


async def test_a_large_answer_is_read_on_by_a_thread_and_the_connection_comes_back(other: Peer) -> None:
    for size in (3 * BODY_BYTES_MAX, 3_000_000):
        asked = other.ask()
        await other.hears()
        sending = asyncio.create_task(other.say(answer(b"y" * size)))
        found = await asked
        assert isinstance(found, Incoming)
        connection = other.line.release()
        got = await asyncio.to_thread(connection.receive, found)
        await sending
        assert (got.body, got.keep) == (b"y" * size, True)
        connection.let_go()
        other.line = LoopConnection(connection, partial(other.lost.put_nowait, connection))
        asked = other.ask()
        await other.hears()
        await other.say(answer(b"small"))
        small = await asked
        assert isinstance(small, Answer) and small.body == b"small"


async def test_what_was_read_of_an_answer_is_free_without_a_collection(other: Peer) -> None:
    gc.disable()
    try:
        asked = other.ask()
        await other.hears()
        sending = asyncio.create_task(other.say(answer(b"y" * 3 * BODY_BYTES_MAX)))
        found = await asked
        assert isinstance(found, Incoming)
        was = weakref.ref(other.line)
        connection = other.line.release()
        await asyncio.to_thread(connection.receive, found)
        await sending
        connection.let_go()
        other.line = LoopConnection(connection, partial(other.lost.put_nowait, connection))
        del asked, found
        await asyncio.sleep(0)
        assert was() is None
    finally:
        gc.enable()


async def test_a_connection_that_breaks_in_a_threads_hands_is_not_taken_back(other: Peer) -> None:
    connection = other.line.release()
    connection.socket.close()
    with pytest.raises(OSError, match="Bad file"):
        connection.let_go()


async def test_a_large_request_leaves_as_the_other_end_reads_it(other: Peer) -> None:
    request = b"POST / HTTP/1.1\r\n" + b"z" * 8_000_000
    asked = other.ask(request)
    await other.hears(request)
    await other.say(answer(b"{}"))
    found = await asked
    assert isinstance(found, Answer) and found.body == b"{}"


async def test_an_answer_to_half_a_request_is_none(other: Peer) -> None:
    asked = other.ask(b"POST / HTTP/1.1\r\n" + b"z" * 30_000_000)
    await other.say(answer(b"{}"))
    with pytest.raises(BrokenAnswerError, match="half a request"):
        await asked


async def test_the_end_of_an_idle_connection_is_told(other: Peer) -> None:
    await other.end()
    assert await other.lost.get() is other.connection


async def test_an_end_before_an_answer_is_told_apart(other: Peer) -> None:
    asked = other.ask()
    await other.hears()
    await other.end()
    with pytest.raises(NothingSentBackError):
        await asked


async def test_an_answer_cut_off_is_an_error(other: Peer) -> None:
    asked = other.ask()
    await other.hears()
    await other.say(answer(b"abc")[:-1])
    await other.end()
    with pytest.raises(BrokenAnswerError, match="cut off"):
        await asked


async def test_no_answer_in_time_is_an_error(other: Peer) -> None:
    asked = other.ask(timeout_s=SOON_S)
    await other.hears()
    with pytest.raises(TimeoutError):
        await asked


async def test_who_waits_can_be_told_of_the_end(other: Peer) -> None:
    asked = other.ask()
    await other.hears()
    other.line.fail(RuntimeError("closing"))
    with pytest.raises(RuntimeError, match="closing"):
        await asked


# --- places ----------------------------------------------------------------------------------------------------------

HERE, THERE = Origin("here", 1, None), Origin("there", 1, None)


class Wire:
    """A connection, as far as places are concerned, made of a pair of sockets."""

    def __init__(self, origin: Origin) -> None:
        self.socket, self.far = socket.socketpair()
        self.origin = origin

    def let_go(self) -> None:
        self.socket.setblocking(False)

    def take_back(self) -> None:
        self.socket.setblocking(True)

    def close(self) -> None:
        self.socket.close()
        self.far.close()

    @property
    def is_closed(self) -> bool:
        return self.socket.fileno() < 0


def used(places: Places, place: WirePlace, origin: Origin = HERE) -> Wire:
    """The place is given back with a connection that a thread has made."""
    wire = Wire(origin)
    place.connection = wire  # type: ignore[assignment]
    places.give_back(place)
    return wire


async def test_an_idle_connection_is_used_again_and_others_are_not_made() -> None:
    places = Places(20)
    place = await places.take(HERE)
    assert place.origin is None
    used(places, place)
    for _ in range(5):
        place = await places.take(HERE)
        assert place.origin == HERE and len(places) == 1
        places.give_back(place)
    places.close(RuntimeError())


async def test_calls_that_do_not_wait_long_share_the_first_few_places() -> None:
    places = Places(20, wait_max_s=NEVER_S)
    first = [await places.take(HERE) for _ in range(4)]
    waiting = [asyncio.create_task(places.take(HERE)) for _ in range(10)]
    await asyncio.sleep(0)
    assert len(places) == 4
    for place in first:
        places.give_back(place)
    for task in waiting:
        places.give_back(await task)
    assert len(places) == 0, "a place without a connection is nothing to keep"


async def test_calls_that_wait_get_places_up_to_the_limit() -> None:
    places = Places(7, wait_max_s=SOON_S)
    async with asyncio.timeout(PATIENCE_S):
        taken = [await places.take(HERE) for _ in range(7)]
    late = asyncio.create_task(places.take(HERE))
    for _ in range(10):
        await asyncio.sleep(SOON_S)
    assert not late.done() and len(places) == 7
    places.give_back(taken[0])
    assert await late is taken[0]


async def test_calls_that_wait_for_the_processor_are_not_more_at_a_time() -> None:
    turn = Turn()
    places = Places(20, wait_max_s=SOON_S, turn=turn)
    async with asyncio.timeout(PATIENCE_S):
        taken = [await places.take(HERE) for _ in range(10)]
    with turn:  # somebody reads a large body all the time
        late = asyncio.create_task(places.take(HERE))
        for _ in range(10):
            await asyncio.sleep(SOON_S)
        for place in taken[:6]:
            places.give_back(place)
        assert not late.done(), "four go on"
        places.give_back(taken[6])
        assert await late is taken[6]
    waiting = [asyncio.create_task(places.take(HERE)) for _ in range(5)]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*waiting)


async def test_who_gives_up_waiting_loses_no_place() -> None:
    places = Places(1, wait_max_s=NEVER_S)
    place = await places.take(HERE)
    waiting = [asyncio.create_task(places.take(HERE)) for _ in range(2)]
    await asyncio.sleep(0)
    places.give_back(place)  # to the first, which has not run yet
    waiting[0].cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting[1] is place


async def test_an_idle_connection_that_ends_leaves() -> None:
    places = Places(4)
    wire = used(places, await places.take(HERE))
    wire.far.close()
    async with asyncio.timeout(PATIENCE_S):
        while len(places):
            await asyncio.sleep(0)
    assert wire.is_closed
    assert (await places.take(HERE)).origin is None


async def test_a_connection_that_ends_on_its_way_to_the_next_caller_does_not_reach_him() -> None:
    """Right behind an answer: the caller before has given the place to the one who waits, who has not run yet."""
    places = Places(1)
    wire = used(places, await places.take(HERE))
    place = await places.take(HERE)
    waiting = asyncio.create_task(places.take(None))
    await asyncio.sleep(0)
    wire.far.close()
    asyncio.get_running_loop().call_soon(places.give_back, place)  # in the turn in which the end is heard of
    assert await waiting is place
    place.lend()
    assert place.connection is None and wire.is_closed
    places.give_back(place)
    assert len(places) == 0


async def test_a_connection_that_cannot_be_lent_is_dropped() -> None:
    class Stubborn(Wire):
        def take_back(self) -> None:
            raise OSError(9, "Bad file descriptor")

    places = Places(1)
    place = await places.take(HERE)
    wire = Stubborn(HERE)
    place.connection = wire  # type: ignore[assignment]
    places.give_back(place)
    place = await places.take(HERE)
    with pytest.raises(OSError, match="Bad file"):
        place.lend()
    place.drop()
    places.give_back(place)
    assert len(places) == 0 and wire.is_closed


async def test_after_a_call_without_an_answer_no_idle_connection_to_there_is_used() -> None:
    places = Places(20)
    taken = [await places.take(HERE) for _ in range(3)] + [await places.take(THERE)]
    idle = [used(places, place) for place in taken[1:3]]
    elsewhere = used(places, taken[3], THERE)
    taken[0].silent = HERE
    places.give_back(taken[0])
    assert all(wire.is_closed for wire in idle) and not elsewhere.is_closed
    assert (await places.take(THERE)).origin == THERE
    assert (await places.take(HERE)).origin is None
    places.close(RuntimeError())
    elsewhere.close()


async def test_an_idle_connection_is_not_used_after_a_minute() -> None:
    places = Places(20)
    taken = [await places.take(HERE) for _ in range(3)]
    wires = [used(places, place) for place in taken]
    for place, age_s in zip(taken, (61.0, 60.1, 50.0), strict=True):
        place.idle_since_s -= age_s
    assert await places.take(HERE) is taken[2]
    assert [wire.is_closed for wire in wires] == [True, True, False] and IDLE_MAX_S == 60
    wires[2].close()


async def test_a_full_house_gives_up_a_connection_to_elsewhere() -> None:
    places = Places(1)
    wire = used(places, await places.take(THERE), THERE)
    place = await places.take(HERE)
    assert place.origin is None and wire.is_closed and len(places) == 1


async def test_closing_ends_connections_and_waiting() -> None:
    places = Places(2, wait_max_s=NEVER_S)
    place, other = await places.take(HERE), await places.take(HERE)
    idle = used(places, other)
    busy = await places.take(HERE)
    waiting = asyncio.create_task(places.take(HERE))
    await asyncio.sleep(0)
    places.close(RuntimeError())
    with pytest.raises(PlacesClosedError):
        await waiting
    with pytest.raises(PlacesClosedError):
        await places.take(HERE)
    late = used(places, place)
    assert late.is_closed and not idle.is_closed, "a busy one belongs to its call"
    places.give_back(busy)
    assert idle.is_closed
