"""Drawn record processors: they speak the real bytes, checkpoint at drawn points, are slow, die, hang, err."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Protocol
from zlib import crc32

from mld.consumer.ports import ShardAddress
from mld.core.clock import Clock
from tests.simulation.shared_shards import Life, SharedShards
from tests.simulation.world.loop import in_world
from tests.simulation.world.plan import Rates
from tests.simulation.world.surprises import Surprises
from tests.twins.children import ChildExit, MemoryChild, MemoryHost

WORK_MAX_S = 1.5
SLOW_WORK_MAX_S = 20.0
TOO_MUCH = 10**6
LATE_OF = 4
"""One shard in so many has children that ask for checkpoints after their answers."""


class Ledger(Protocol):
    """Who hears of deliveries."""

    @property
    def shared(self) -> SharedShards: ...

    def batch_begins(self, worker: str, shard: str, *, is_ours: bool = True) -> None: ...

    def begins_at(self, child: int, shard: str, sequence: str, sub: int) -> None: ...

    def delivered(self, worker: str, child: int, shard: str, places: list[tuple[int, int]]) -> None: ...

    def batch_begins_in(self, process: str, worker: str, shard: str) -> None: ...

    def asked(self, process: str, shard: str, sequence: str, sub: int, child: int = 0) -> None: ...

    def answered(self, process: str, shard: str, sequence: str, sub: int) -> None: ...

    def accepted_too_much(self, process: str, shard: str) -> None: ...


class DrawnProcessor:
    """What all children of one worker run. `rates` may be changed at any time."""

    def __init__(self, worker: str, process: str, ledger: Ledger, clock: Clock, rng: Random) -> None:
        self.rates = Rates()
        self._worker = worker
        self._process_name = process
        self._ledger = ledger
        self._clock = clock
        self._rng = rng
        self._careless = Random(f"careless {process}")  # of its own: runs without it stay what they are
        self._stored: dict[int, tuple[str, int]] = {}
        """The last place that each child was told to be stored."""

    async def __call__(self, child: MemoryChild) -> None:
        try:
            await self._live(child)
        finally:
            self._ledger.shared.ended(child.number)

    async def _live(self, child: MemoryChild) -> None:
        at: tuple[str, int] = ("", 0)
        """What a checkpoint without arguments means."""
        number = crc32(f"{self._process_name} {child.shard_id}".encode()) + child.of_shard
        following: dict[str, Any] | None = None
        while True:
            message = following or await self._receive(child)
            following = None
            is_late = bool(self.rates.child_silent) and number % LATE_OF == 1
            if message["action"] == "processRecords":
                last = message["records"][-1]
                at = (last["sequenceNumber"], last["subSequenceNumber"] or 0)
                await self._process(child, message["records"], at, checkpoints=not is_late)
            elif message["action"] == "initialize":
                at = (message["sequenceNumber"], message["subSequenceNumber"] or 0)
                self._stored[child.number] = at
                self._ledger.begins_at(child.number, child.shard_id, *at)
                await self._other(child, message["action"], at)
            else:
                await self._other(child, message["action"], at)
            if self._rng.random() < self.rates.child_wrong:
                child.send({"action": "status", "responseFor": "nonsense"})
            child.done(message)
            if is_late and message["action"] == "processRecords":
                following = await self._checkpoint_late(child, at)

    def starts(self, shard: ShardAddress) -> Life:
        return self._ledger.shared.starts(self._process_name, shard.key, shard.children)

    def started(self, child: MemoryChild, life: Life) -> None:
        self._ledger.shared.started(child.number, life, child.of_shard)

    async def _receive(self, child: MemoryChild) -> dict[str, Any]:
        message = await child.receive()
        if message["action"] == "processRecords":
            self._ledger.batch_begins(self._worker, child.shard_id)
            self._ledger.batch_begins_in(self._process_name, self._worker, child.shard_id)
        return message

    async def _checkpoint_late(self, child: MemoryChild, meant: tuple[str, int]) -> dict[str, Any] | None:
        """Ask for a checkpoint between two actions; returns the next action if that comes before the reply."""
        self._ledger.asked(self._process_name, child.shard_id, *meant, child.number)
        child.send({"action": "checkpoint", "sequenceNumber": meant[0], "subSequenceNumber": meant[1]})
        following = None
        while (message := await self._receive(child))["action"] != "checkpoint":
            following = message
        if message["error"] is None:
            self._stored[child.number] = meant
            self._ledger.answered(self._process_name, child.shard_id, *meant)
        return following

    async def _checkpoint(self, child: MemoryChild, meant: tuple[str, int], *, plain: bool = True) -> None:
        """Ask for a checkpoint, and tell the ledger what was asked for and what was answered."""
        self._ledger.asked(self._process_name, child.shard_id, *meant, child.number)
        error = await child.checkpoint() if plain else await child.checkpoint(*meant)
        if error is None:
            self._stored[child.number] = meant
            self._ledger.answered(self._process_name, child.shard_id, *meant)

    async def _ask_carelessly(self, child: MemoryChild, at: tuple[str, int], *, is_end: bool = False) -> bool:
        """Name what this child was not given; whether that ends its shard. 0 changes nothing, but ends a shard of which
        nothing is left.
        """
        stored = self._stored.get(child.number)
        sentinel = "LATEST" if at[0].isdigit() and stored != ("LATEST", 0) else "1"
        name = self._careless.choice(("0", "0", "1", "9" * 56, sentinel))
        ends = is_end and name == "0" and stored == at
        if ends:
            self._ledger.asked(self._process_name, child.shard_id, "SHARD_END", 0, child.number)
        error = await child.checkpoint(name)
        if error is None and name != "0":
            self._ledger.accepted_too_much(self._process_name, child.shard_id)
        return ends and error is None

    async def _ask_too_much(self, child: MemoryChild, at: tuple[str, int]) -> None:
        if at[0].isdigit() and await child.checkpoint(str(int(at[0]) + TOO_MUCH), 0) is None:
            self._ledger.accepted_too_much(self._process_name, child.shard_id)

    async def _process(
        self, child: MemoryChild, records: list[dict[str, Any]], at: tuple[str, int], *, checkpoints: bool
    ) -> None:
        rng, rates = self._rng, self.rates
        places = [(int(record["sequenceNumber"]), record["subSequenceNumber"]) for record in records]
        if rng.random() < rates.child_dies / 2:
            raise ChildExit
        self._ledger.delivered(self._worker, child.number, child.shard_id, places)
        if rng.random() < 0.1:
            await self._clock.sleep(rng.uniform(0.0, SLOW_WORK_MAX_S if rates.child_silent else WORK_MAX_S))
        if rng.random() < rates.child_hangs:
            await asyncio.get_running_loop().create_future()
        if rng.random() < rates.child_dies / 2:
            raise ChildExit
        if rng.random() < rates.child_wrong:
            await self._ask_too_much(child, at)
        if self._careless.random() < rates.child_careless:
            await self._ask_carelessly(child, at)
        if rng.random() < rates.child_silent:
            return
        if rates.child_silent and rng.random() < 0.3:  # somewhere in the middle, then perhaps at the end
            record = records[rng.randrange(len(records))]
            await self._checkpoint(child, (record["sequenceNumber"], record["subSequenceNumber"] or 0), plain=False)
            if rng.random() < 0.5:
                return
        if checkpoints:
            await self._checkpoint(child, at)

    async def _other(self, child: MemoryChild, action: str, at: tuple[str, int]) -> None:
        if action in ("initialize", "shutdownRequested") and self._rng.random() < self.rates.child_dies:
            raise ChildExit
        if action == "shardEnded":
            if self._rng.random() < self.rates.child_dies:
                raise ChildExit
            if self._rng.random() < 0.2:
                await self._clock.sleep(self._rng.uniform(0.0, SLOW_WORK_MAX_S))
            is_careless = self._careless.random() < self.rates.child_careless
            if is_careless and await self._ask_carelessly(child, at, is_end=True):
                return
            # One silent child of several fails the end of their shard for all, so the rate is that of the shard.
            if self._rng.random() >= self.rates.child_silent / 4 / child.children:
                await self._checkpoint(child, ("SHARD_END", 0))
        elif action == "shutdownRequested" and self._rng.random() < 0.8:
            await self._checkpoint(child, at)


class SimulatedHost(MemoryHost):
    """Children are processes of their own: they live on in the world when their worker is stopped or killed."""

    def __init__(self, script: DrawnProcessor, rng: Random) -> None:
        super().__init__(script, spawn=in_world)
        self._script = script
        self._rng = rng
        self.surprises: Surprises | None = None
        self._lives: dict[str, Life] = {}
        """By shard: those of its children that were started last, if there are several."""

    async def start(self, shard: ShardAddress) -> MemoryChild:
        """A host that raises has started nothing, whatever it raises. The first child of a shard is started first."""
        if shard.children > 1 and shard.child_number == 0:
            self._lives[shard.key] = self._script.starts(shard)
        if self.surprises is not None and (surprise := self.surprises.draw(self._script.rates.surprise)) is not None:
            raise surprise
        self.refuse = self._rng.random() < self._script.rates.child_fails_to_start
        child = await super().start(shard)
        child.shard_id = shard.key  # the ledger knows shards by their leases
        if shard.children > 1:
            self._script.started(child, self._lives[shard.key])
        return child

    def orphan(self) -> None:
        """The worker is gone: every pipe is closed."""
        for child in self.living():
            child.hang_up()
