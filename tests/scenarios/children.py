"""Record processors of the stories: well-behaved by default, misbehaving where a story says so."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

from tests.scenarios.naming import short
from tests.simulation.world.loop import in_world
from tests.twins.children import ChildExit, MemoryChild, MemoryHost


class Audience(Protocol):
    """Who hears of deliveries."""

    def delivered(self, life: Life, places: list[str]) -> None: ...


@dataclass(slots=True)
class Life:
    """One child's life. `number` counts from 1 within a story."""

    number: int
    worker: str
    shard_id: str
    child: MemoryChild
    actions: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    living: bool = True

    @property
    def place(self) -> str:
        """Where it is; with the child's number in the shard if there are several."""
        number = f"/{self.child.of_shard}" if self.child is not None and self.child.children > 1 else ""
        return f"{self.worker}/{short(self.shard_id)}{number}"


@dataclass(slots=True)
class Habit:
    """What children at places that match `pattern` do. `once` habits are used up by the first child they make fail."""

    pattern: str
    name: str
    seconds: float = 0.0
    once: bool = False


NAMES = {
    "dies": True,
    "hangs": True,
    "answers wrong": True,
    "checkpoints half and dies": True,
    "dies at every batch": False,
    "says garbage": False,
    "keeps no checkpoints": False,
    "forgets the checkpoint at shardEnded": False,
}
"""Every habit without a number, and whether it happens once only."""


def place_of(record: dict[str, Any]) -> str:
    """Sequence number, and sub-sequence number unless it is 0."""
    return record["sequenceNumber"] + (f"/{record['subSequenceNumber']}" if record["subSequenceNumber"] else "")


class Troupe:
    """All children of a story."""

    def __init__(self, audience: Audience) -> None:
        self.lives: list[Life] = []
        self.habits: list[Habit] = []
        self._audience = audience

    def has(self, life: Life, name: str) -> Habit | None:
        """The habit of that name which applies to this child now; one that happens once is used up by asking."""
        for habit in self.habits:
            if habit.name == name and fnmatchcase(life.place, habit.pattern):
                if habit.once:
                    self.habits.remove(habit)
                return habit
        return None

    async def play(self, worker: str, child: MemoryChild) -> None:
        life = Life(len(self.lives) + 1, worker, child.shard_id, child)
        self.lives.append(life)
        try:
            while True:
                message = await child.receive()
                life.actions.append(message["action"])
                await self._act(life, message)
                if self.has(life, "says garbage"):
                    child.say("{not json")
                child.done(message)
        finally:
            life.living = False

    async def _act(self, life: Life, message: dict[str, Any]) -> None:
        match message["action"]:
            case "processRecords":
                await self._process(life, message["records"])
            case "shardEnded" if not self.has(life, "forgets the checkpoint at shardEnded"):
                await self._checkpoint(life)
            case "shutdownRequested" if not self.has(life, "keeps no checkpoints"):
                await self._checkpoint(life)

    async def _process(self, life: Life, records: list[dict[str, Any]]) -> None:
        self._audience.delivered(life, [place_of(record) for record in records])
        assert all(base64.b64decode(record["data"]) for record in records)
        if self.has(life, "dies") or self.has(life, "dies at every batch"):
            raise ChildExit
        if self.has(life, "checkpoints half and dies"):
            half = records[len(records) // 2 - 1]
            await life.child.checkpoint(half["sequenceNumber"], half["subSequenceNumber"])
            raise ChildExit
        if self.has(life, "hangs"):
            await asyncio.get_running_loop().create_future()
        if self.has(life, "answers wrong"):
            life.child.send({"action": "status", "responseFor": "initialize"})
        if (habit := self.has(life, "works")) is not None:
            await asyncio.sleep(habit.seconds)
        if not self.has(life, "keeps no checkpoints"):
            await self._checkpoint(life)

    @staticmethod
    async def _checkpoint(life: Life) -> None:
        error = await life.child.checkpoint()
        if error is not None:
            life.errors[error] += 1


class TroupeHost(MemoryHost):
    """Children are processes of their own: they live on when their worker is stopped or killed."""

    def __init__(self, troupe: Troupe, worker: str) -> None:
        super().__init__(lambda child: troupe.play(worker, child), spawn=in_world)

    def orphan(self) -> None:
        """The worker is gone: every pipe is closed."""
        for child in self.living():
            child.hang_up()
