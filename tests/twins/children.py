"""In-memory children behind the `ProcessorHost` port: they read and write the real bytes of the protocol.

A *script* is a coroutine function that plays the processor: it receives decoded messages and sends lines. `Recorder` is
the well-behaved one; tests subclass or replace it for every kind of misbehaviour.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from mld.consumer.ports import ChildStartError, ShardAddress
from mld.core.clock import Clock

_NUMBERS = itertools.count()  # child numbers are unique among all hosts of a process


class ChildExit(Exception):
    """Raised by a script to end its process."""


class MemoryChild:
    """One child. `script(child)` runs as its process."""

    def __init__(
        self,
        shard_id: str,
        script: Callable[[MemoryChild], Any],
        number: int,
        spawn: Callable[[Any], asyncio.Task[None]] = asyncio.create_task,
    ) -> None:
        self.shard_id = shard_id
        self.number = number
        self.of_shard = 0
        """Which of the shard's children it is, of `children`."""
        self.children = 1
        self.ended = ""
        self.last_words: list[str] = []
        self._partial = b""
        self._inbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._lines: list[str] = []
        self._ready = asyncio.Event()
        self._closed = False
        self._stdin_closed = False
        self._task = spawn(self._live(script))

    # --- the child's side ---------------------------------------------------------------------------------------------

    async def receive(self) -> dict[str, Any]:
        """The next message; ends the process at end of input."""
        message = await self._inbox.get()
        if message is None:
            raise ChildExit
        return message

    def send(self, message: dict[str, Any]) -> None:
        self.say(json.dumps(message))

    def say(self, line: str) -> None:
        self._lines.append(line)
        self._ready.set()

    def close_stdin(self) -> None:
        self._stdin_closed = True

    def done(self, message: dict[str, Any]) -> None:
        self.send({"action": "status", "responseFor": message["action"]})

    async def checkpoint(self, sequence: str | None = None, sub: int | None = None) -> str | None:
        """Ask for a checkpoint; the error, None for success."""
        self.send({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub})
        reply = await self.receive()
        assert reply["action"] == "checkpoint", reply
        return reply["error"]

    async def _live(self, script: Callable[[MemoryChild], Any]) -> None:
        try:
            await script(self)
        except ChildExit:
            pass
        finally:
            self._closed = self._stdin_closed = True
            self._ready.set()

    # --- the daemon's side: ports.ChildProcess -----------------------------------------------------------------------

    @property
    def description(self) -> str:
        return f"memory child {self.number}"

    def begin_write(self, pieces: Iterable[bytes]) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.write(pieces))

    async def write(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            await asyncio.sleep(0)
            if self._stdin_closed:
                raise BrokenPipeError("closed")
            *lines, self._partial = (self._partial + piece).split(b"\n")
            for line in lines:
                self._inbox.put_nowait(json.loads(line))

    async def read_line(self) -> str | None:
        while not self._lines:
            if self._closed:
                return None
            self._ready.clear()
            await self._ready.wait()
        return self._lines.pop(0)

    def take_unread(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def hang_up(self) -> None:
        """Its daemon is gone: end of input, nobody reads its output."""
        self._stdin_closed = True
        self._inbox.put_nowait(None)

    async def end(self) -> str:
        self._inbox.put_nowait(None)
        try:
            done, _ = await asyncio.wait({self._task}, timeout=5.0)
        except asyncio.CancelledError:
            self._task.cancel()
            self.ended = self.ended or "killed"
            raise
        return await self.kill() if not done else self._finish("exited")

    async def kill(self) -> str:
        self._task.cancel()
        await asyncio.wait({self._task})
        return self._finish("killed")

    def _finish(self, how: str) -> str:
        self.ended = self.ended or how
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error
        return how


@dataclass
class Delivery:
    """One record as a child got it."""

    at_s: float
    child: int
    shard_id: str
    sequence: str
    data: bytes


@dataclass
class Recorder:
    """A processor that notes what it gets and checkpoints after each batch; shared by all children of a test."""

    clock: Clock
    checkpoint_every_batch: bool = True
    checkpoint_at_shard_end: bool = True
    work_s: float = 0.0
    deliveries: list[Delivery] = field(default_factory=list)
    actions: list[tuple[str, str]] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)

    def data(self) -> list[bytes]:
        return [d.data for d in self.deliveries]

    def actions_of(self, shard_id: str) -> list[str]:
        return [action for shard, action in self.actions if shard == shard_id and action != "processRecords"]

    async def __call__(self, child: MemoryChild) -> None:
        while True:
            message = await child.receive()
            self.actions.append((child.shard_id, message["action"]))
            await self.act(child, message)
            child.done(message)

    async def act(self, child: MemoryChild, message: dict[str, Any]) -> None:
        match message["action"]:
            case "processRecords":
                await self.process(child, message["records"])
            case "shardEnded" if self.checkpoint_at_shard_end:
                await self.note_error(child, await child.checkpoint())
            case "shutdownRequested":
                await self.note_error(child, await child.checkpoint())

    async def process(self, child: MemoryChild, records: list[dict[str, Any]]) -> None:
        if self.work_s:
            await self.clock.sleep(self.work_s)
        for record in records:
            self.deliveries.append(
                Delivery(
                    self.clock.monotonic(),
                    child.number,
                    child.shard_id,
                    record["sequenceNumber"],
                    base64.b64decode(record["data"]),
                )
            )
        if self.checkpoint_every_batch and records:
            await self.note_error(child, await child.checkpoint())

    async def note_error(self, child: MemoryChild, error: str | None) -> None:
        if error is not None:
            self.errors.append((child.shard_id, error))


class MemoryHost:
    """Starts `MemoryChild`s that all run `script`. `refuse` makes starts fail."""

    def __init__(
        self,
        script: Callable[[MemoryChild], Any],
        spawn: Callable[[Any], asyncio.Task[None]] = asyncio.create_task,
    ) -> None:
        self.script = script
        self.spawn = spawn
        self.children: list[MemoryChild] = []
        self.refuse = False

    async def start(self, shard: ShardAddress) -> MemoryChild:
        """The child knows its shard by the key of the lease, which is unique among several streams."""
        await asyncio.sleep(0)
        if self.refuse:
            raise ChildStartError("cannot start 'processor' (key executableName): No such file or directory")
        child = MemoryChild(shard.key, self.script, next(_NUMBERS), self.spawn)
        child.of_shard, child.children = shard.child_number, shard.children
        self.children.append(child)
        return child

    def living(self) -> list[MemoryChild]:
        return [child for child in self.children if not child.ended]
