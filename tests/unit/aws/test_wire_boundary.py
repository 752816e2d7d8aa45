"""The wire client and the botocore one while the machine fails below them: errors of ours, and afterwards as before."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from botocore.credentials import Credentials

from mld.aws.client import BotoService
from mld.aws.wire.loop_connection import BODY_BYTES_MAX
from mld.core.errors import AwsUnreachableError, MldError
from tests.support.patience import PATIENCE_S
from tests.unit.aws.test_client import service_of
from tests.unit.aws.test_wire import SUBSCRIPTION, Server, answer, refusal, streaming, then_close, wire
from tests.unit.aws.throwing import THROWN, anew

SMALL = answer(b"{}")
LARGE = answer(b"x" * (3 * BODY_BYTES_MAX))
ROUNDS = 3


class Trap:
    """Raises `error` while it is set, in the threads that are meant."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.sprung = 0

    def spring(self) -> None:
        if self.error is not None:
            self.sprung += 1
            raise anew(self.error)


def on_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


def in_wire_thread() -> bool:
    return threading.current_thread().name.startswith("wire-")


def trapped(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_meant: Callable[[], bool]) -> Trap:
    """`owner.name` raises while the trap is set."""
    trap = Trap()
    real = getattr(owner, name)

    def call(*args: Any, **options: Any) -> Any:
        is_loops_own = args and isinstance(args[0], socket.socket) and args[0].family == socket.AF_UNIX
        if is_meant() and not is_loops_own:
            trap.spring()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return trap


LOOP_TRAPS: dict[str, tuple[Callable[[], Any], str]] = {
    "send": (lambda: socket.socket, "send"),
    "receive": (lambda: socket.socket, "recv"),
    "watch a descriptor": (asyncio.get_running_loop, "add_reader"),
    "stop waiting": (lambda: socket.socket, "settimeout"),
}
THREAD_TRAPS: dict[str, tuple[Callable[[], Any], str]] = {
    "connect": (lambda: socket, "create_connection"),
    "set an option": (lambda: socket.socket, "setsockopt"),
    "poll": (lambda: select, "poll"),
    "receive": (lambda: socket.socket, "recv_into"),
}


@pytest.fixture(params=[(name, True) for name in LOOP_TRAPS] + [(name, False) for name in THREAD_TRAPS], ids=str)
async def trap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Trap:
    name, is_on_loop = request.param
    owner, attribute = (LOOP_TRAPS if is_on_loop else THREAD_TRAPS)[name]
    return trapped(monkeypatch, owner(), attribute, on_loop if is_on_loop else in_wire_thread)


GET = ("GetRecords", {"ShardIterator": "i"})


async def test_what_the_machine_throws_costs_the_call_and_no_more(trap: Trap) -> None:
    """With one place. After a refusal a thread asks for the keys again, and uses what the loop has kept."""
    refused = refusal("ProvisionedThroughputExceededException")
    mixture = [LARGE, refused, then_close(SMALL)]
    with Server() as server:
        async with wire(server, threads_max=1) as service:
            assert await service.fetch(*GET, len) == 2
            for error in THROWN:
                server._scripts = mixture * ROUNDS
                trap.error, trap.sprung = error, 0
                for _ in range(2 * len(mixture)):
                    try:
                        await service.fetch(*GET, len, timeout_s=10)
                    except MldError:
                        continue
                assert trap.sprung, "nothing was thrown"
                trap.error = None
                server._scripts = []
                assert [await service.fetch(*GET, len) for _ in range(4)] == [2] * 4


@pytest.mark.parametrize("kept", [False, True])
async def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    real = threading.Thread.start
    trap = Trap()

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(("wire-", "aws-")):
            trap.spring()
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with Server() as server:
        async with wire(server, threads_max=4) as service:
            if kept:
                assert await service.fetch(*GET, len) == 2
            for trap.error in THROWN:
                outcomes = await asyncio.gather(*[service.fetch(*GET, len) for _ in range(8)], return_exceptions=True)
                if kept:
                    assert outcomes == [2] * 8, "the thread that there is does it"
                else:
                    assert all(isinstance(outcome, AwsUnreachableError) for outcome in outcomes)
            trap.error = None
            assert [await service.fetch(*GET, len) for _ in range(5)] == [2] * 5
    assert trap.sprung


async def test_keys_that_cannot_be_had() -> None:
    trap = Trap()

    class Failing(Credentials):
        def get_frozen_credentials(self) -> Any:
            trap.spring()
            return super().get_frozen_credentials()

    with Server() as server:
        async with wire(server, credentials=Failing("AKID", "secret"), threads_max=1) as service:
            for trap.error in (*THROWN, StopIteration("x")):
                with pytest.raises(AwsUnreachableError):
                    await service.fetch(*GET, len)
            trap.error = None
            assert await service.fetch(*GET, len) == 2


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["loop", "thread"])
async def test_an_answer_that_cannot_be_read(body: bytes) -> None:
    trap = Trap()

    def read(_: bytes) -> None:
        trap.spring()

    errors = (*THROWN, StopIteration("x"))
    with Server(SMALL, *[body] * len(errors)) as server:
        async with wire(server, threads_max=1) as service:
            await service.fetch(*GET, len)
            for trap.error in errors:
                with pytest.raises(AwsUnreachableError):
                    await service.fetch(*GET, read)
                with pytest.raises(AwsUnreachableError):
                    await service.in_thread("SubscribeToShard", lambda: read(b""))
            assert await service.fetch(*GET, len) == 2
        assert server.connections == 1, "the connection is as good as before"


async def test_a_stream_that_the_loop_cannot_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    trap = trapped(monkeypatch, asyncio.get_running_loop(), "add_reader", on_loop)
    frame = (16).to_bytes(4, "big") + bytes(12)
    with Server(*[streaming(frame, pause_s=0.05)] * (len(THROWN) + 1)) as server:
        async with wire(server) as service:
            for trap.error in THROWN:
                with pytest.raises(AwsUnreachableError):
                    await service.open_stream("SubscribeToShard", SUBSCRIPTION)
            trap.error = None
            source = await service.open_stream("SubscribeToShard", SUBSCRIPTION)
            assert b"".join(await source.next() or ()) == frame
            source.close()


async def test_a_stream_that_breaks_in_an_unknown_way(monkeypatch: pytest.MonkeyPatch) -> None:
    trap = trapped(monkeypatch, socket.socket, "recv", on_loop)
    frame = (16).to_bytes(4, "big") + bytes(12)
    armed = threading.Semaphore(0)  # before that no frame is sent, which might be received with the head of the answer
    with Server(*[streaming(frame, before=partial(armed.acquire, timeout=PATIENCE_S))] * len(THROWN)) as server:
        async with wire(server) as service:
            for error in THROWN:
                source = await service.open_stream("SubscribeToShard", SUBSCRIPTION)
                trap.error = error
                armed.release()
                with pytest.raises(type(error)):
                    await asyncio.wait_for(source.next(), 10)
                trap.error = None
                source.close()


async def test_a_length_of_more_digits_than_a_number_may_have_is_no_answer() -> None:
    """On the loop `int` raises, where nobody would hear of it."""
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\n"
    with Server(SMALL, endless) as server:
        async with wire(server, threads_max=1) as service:
            await service.fetch(*GET, len)
            with pytest.raises(AwsUnreachableError, match="content-length"):
                await service.fetch(*GET, len)


# --- through botocore ------------------------------------------------------------------------------------------------


async def test_what_botocore_raises_is_an_error_of_ours() -> None:
    trap = Trap()

    def get_item(**_: Any) -> dict[str, Any]:
        trap.spring()
        return {"RawBody": b"{}"}

    def read(_: bytes) -> None:
        trap.spring()

    async with service_of(get_item) as service:
        for error in (*THROWN, StopIteration("x")):
            trap.error = error
            with pytest.raises(AwsUnreachableError):
                await service.call("GetItem", {})
            with pytest.raises(AwsUnreachableError):
                await service.fetch("GetItem", {}, read)
            trap.error = None
            assert await service.fetch("GetItem", {}, len) == 2


async def test_no_thread_for_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    trap = trapped(monkeypatch, threading.Thread, "start", on_loop)
    async with service_of(lambda **_: {"a": 1}) as service:
        for trap.error in THROWN:
            with pytest.raises(AwsUnreachableError):
                await service.call("GetItem", {})
        trap.error = None
        assert await service.call("GetItem", {}) == {"a": 1}
        trap.error = THROWN[0]
        assert await asyncio.gather(*[service.call("GetItem", {}) for _ in range(8)]) == [{"a": 1}] * 8


async def test_a_client_that_cannot_be_made() -> None:
    trap = Trap()

    def make() -> Any:
        trap.spring()

    service = BotoService(make, threads_max=1, name="test")
    for trap.error in (*THROWN, StopIteration("x")):
        with pytest.raises(AwsUnreachableError):
            await service.call("GetItem", {})
    await service.close()


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level("CRITICAL")
    yield
