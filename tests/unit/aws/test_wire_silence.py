"""Kept connections that lead nowhere any more: one call may find that out, not each of its retries."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from mld.core.errors import AwsUnreachableError
from tests.unit.aws.test_wire import GOOD, HANG_S, Server, answer, read_request, reset, then_close, wire

SOON_S = 0.3
KEPT = 4
"""Connections; the first few places are there at once."""
READ = ("GetItem", {"TableName": "t", "Key": {"leaseKey": {"S": "a"}}})
WRITE = ("UpdateItem", {"TableName": "t", "Key": {"leaseKey": {"S": "a"}}})


class Meeting:
    """Holds the first answers back until all connections have been asked, so that there are so many."""

    def __init__(self, server: Server) -> None:
        self._all_here = threading.Barrier(KEPT)
        self.is_dead = False
        self.over = threading.Event()
        self.alive = answer(b"{}")
        server._scripts = [self.serve] * KEPT

    def serve(self, peer: socket.socket) -> None:
        """Answers until the connections made so far are dead."""
        self._all_here.wait(HANG_S)
        peer.sendall(GOOD)
        while read_request(peer) is not None:
            if self.is_dead:
                self.over.wait(HANG_S)
                return
            peer.sendall(self.alive)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


@pytest.mark.parametrize("operation", [READ, WRITE], ids=["read", "write"])
async def test_one_call_without_an_answer_spares_the_others(server: Server, operation: tuple) -> None:  # type: ignore[type-arg]
    meeting = Meeting(server)
    try:
        async with wire(server, "dynamodb", threads_max=KEPT) as service:
            await asyncio.gather(*[service.call(*READ) for _ in range(KEPT)])
            assert server.connections == KEPT
            meeting.is_dead = True
            with pytest.raises(AwsUnreachableError, match="no answer within"):
                await service.call(*operation, timeout_s=SOON_S)
            assert await service.call(*operation) == {}
            assert server.connections == KEPT + 1
    finally:
        meeting.over.set()


@pytest.mark.parametrize("end", [then_close(b""), reset], ids=["closed", "reset"])
async def test_so_does_one_that_ends_without_an_answer(server: Server, end: object) -> None:
    meeting = Meeting(server)
    meeting.over.set()
    async with wire(server, "dynamodb", threads_max=KEPT) as service:
        await asyncio.gather(*[service.call(*READ) for _ in range(KEPT)])
        meeting.is_dead = True
        with pytest.raises(AwsUnreachableError):
            await service.call(*WRITE)
        assert await service.call(*WRITE) == {}
        assert server.connections == KEPT + 1


async def test_a_caller_who_is_cancelled_soon_says_nothing_about_connections(server: Server) -> None:
    meeting = Meeting(server)
    try:
        async with wire(server, "dynamodb", threads_max=KEPT) as service:
            await asyncio.gather(*[service.call(*READ) for _ in range(KEPT)])
            meeting.is_dead = True
            before = len(server.requests)
            caller = asyncio.create_task(service.call(*READ))
            await asyncio.sleep(0)
            caller.cancel()
            meeting.is_dead = False
            await asyncio.wait({caller})
            assert await service.call(*READ) == {}
            assert (server.connections, before) == (KEPT, KEPT)
    finally:
        meeting.over.set()
