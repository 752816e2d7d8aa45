"""Several streams in the world: what is done to them and to their list, and what must hold for it (checker 14).

A stream of the world is known by its name; an incarnation of it by the identifier that its lease rows are to have.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from mld.core.streams import HashRange, StreamSummary
from mld.daemon.stream_ports import SourcePorts, StreamPorts
from mld.local.kinesis import Kinesis, KinesisError
from mld.properties.values import InitialPositionKind, InitialPositionSetting
from mld.tracking.list_follower import WantedStream
from mld.tracking.stream_list import ListedStream, account_and_name
from tests.simulation.checkers import SHARD_END, Violation
from tests.simulation.world.fleet3x import is_lease
from tests.simulation.world.network import CALM, KinesisDoor
from tests.simulation.world.plan import DRIFT_MAX, Action, Kind, Rates, StreamsPlan
from tests.simulation.world.producer import Producer
from tests.support.fleet import TABLE
from tests.twins.dynamo import Applied

if TYPE_CHECKING:
    from mld.core.clock import Clock
    from tests.simulation.world.world import World

LIST_KEY = "mldStreams"
KEY_SPACE = 2**128
NEVER = float("inf")
PROMPT_S = 60.0
"""Within this time a stream is read after its line came, and released after its line went."""
GENERATION_S = 25.0
"""How much later the children of a shard may be read up to the line. Parents come first, a processor may ask late for
the checkpoint at their end, and another worker looks for an ended parent every 10 s."""
DAMAGED = "[damaged"
SETTLED_S = 220.0
"""After the last fault: a lock of a dead leader has run out, and another leads."""
KNOWN_S = 45.0
"""Until all workers have read a list: twice their period, and a slow answer."""


def settings_of_streams(plan: StreamsPlan) -> dict[str, str]:
    return {
        "streamName": "",
        "mld__streams": ",".join(name_of(number) for number in plan.wanted),
        "mld__formerStreams": plan.former,
    }


def name_of(number: int) -> str:
    return f"stream{number}"


@dataclass(frozen=True, slots=True)
class OpenShard:
    """An open shard as the rest of the world knows it: by its lease."""

    shard_id: str
    hash_range: HashRange
    stream: str


@dataclass(slots=True)
class _Change:
    """A line that came or went, and is to be noticed."""

    at_s: float
    stream: str
    key_prefix: str
    came: bool
    generation: int = 0
    """Which shards are looked at: those with as many generations of ancestors."""

    @property
    def due_s(self) -> float:
        return self.at_s + PROMPT_S + self.generation * GENERATION_S


class StreamDoors(KinesisDoor):
    """One way of a worker to Kinesis for all streams; each has a door of its own in it."""

    def __init__(self, model: Kinesis, stream: str, clock: Clock, rng: Random, latency_s: float) -> None:
        self._doors: list[KinesisDoor] = []
        self._rates, self._is_cut, self._surprises = CALM, False, None
        super().__init__(model, stream, clock, rng, latency_s)

    def door(self, stream: str, incarnation: str = "") -> KinesisDoor:
        """To the stream of this name, whichever that is; its shards are reported by leases of `incarnation`."""
        door = _DoorOfOne(self, self._model, stream, self._clock, self._rng, self._latency_s, incarnation)
        self._doors.append(door)
        return door

    rates: Rates
    cut: bool


class _DoorOfOne(KinesisDoor):
    """Has the faults of the whole."""

    def __init__(
        self,
        whole: StreamDoors,
        model: Kinesis,
        stream: str,
        clock: Clock,
        rng: Random,
        latency_s: float,
        incarnation: str,
    ) -> None:
        self._whole = whole
        self._incarnation = incarnation
        super().__init__(model, stream, clock, rng, latency_s)
        self.on_tip = lambda shard_id: whole.on_tip(f"{incarnation}:{shard_id}")

    async def _ask(self, operation: str, act: Any) -> Any:
        self.rates, self.cut, self.surprises = self._whole.rates, self._whole.cut, self._whole.surprises
        answer = await super()._ask(operation, act)
        for shard_id, at in self.read_at.items():
            self._whole.read_at[f"{self._incarnation}:{shard_id}"] = at
        return answer


class Sources:
    """The streams of a world, the file that names them, and the checks of both."""

    def __init__(self, world: World, plan: StreamsPlan) -> None:
        self._world = world
        self._plan = plan
        self._wanted = [name_of(number) for number in plan.wanted]
        self._old: dict[int, tuple[float, list[str]]] = {}
        """By machine: until when it reads which old file."""
        self._id: dict[str, str] = {}
        """By name, of the streams that are there: the identifier of the incarnation."""
        self._all_ids: set[str] = set()
        self._listed: dict[str, tuple[bool, float]] = {}
        self._were_former: dict[str, float] = {}
        """Since when, in a list whose row was deleted: a leader that lives puts back what it remembers."""
        """By identifier: whether the row has it as a former stream, and since when it does so."""
        self._changes: list[_Change] = []
        self._moved: dict[str, float] = {}
        """By key: when the row was renewed last."""
        self.producers = {
            name: Producer(
                world.kinesis,
                world.clock,
                world.ledger,
                world.plan.aggregated,
                Random(f"{world.plan.seed}:producer {name}"),
                stream=name,
                key_of=self._key_of(name),
            )
            for name in map(name_of, range(len(plan.initials)))
        }
        world.ledger.may_delete = self._may_delete

    def _key_of(self, name: str) -> Any:
        return lambda shard_id: f"{self._id[name]}:{shard_id}"

    # --- streams ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for name in self._wanted:
            self._create(name)

    def _create(self, name: str) -> None:
        if name in self._id:
            return
        world, now = self._world, self._world.clock.wall()
        world.kinesis.create_stream(name, now=now, shard_count=world.plan.shards)
        stream = world.kinesis.stream(name, now)
        account, _ = account_and_name(stream.arn)
        self._id[name] = f"{account}:{name}:{stream.created_ms // 1000}"
        self._all_ids.add(self._id[name])
        self._learn(name)
        world.trace(f"stream {self._id[name]} is made")

    def _delete(self, name: str) -> None:
        if name not in self._id:
            return
        world = self._world
        self._learn(name)
        world.kinesis.delete_stream(name, now=world.clock.wall(), with_consumers=True)
        prefix = f"{self._id.pop(name)}:"
        for key, record in world.ledger.shards.items():
            record.is_gone = record.is_gone or key.startswith(prefix)
        self._changes = [change for change in self._changes if change.stream != name]
        world.trace(f"stream {prefix} is deleted")

    def _learn(self, name: str) -> None:
        world = self._world
        for shard in world.kinesis.list_shards(name, now=world.clock.wall()).shards:
            record = world.ledger.shard(self._key_of(name)(shard.shard_id))
            record.parents = tuple(sorted(map(self._key_of(name), shard.view().parents)))
            record.closed = not shard.is_open
            record.starts_at_latest = self._initial(name) == "LATEST"

    def _initial(self, name: str) -> str:
        return self._plan.initials[int(name.removeprefix("stream"))]

    def put(self, count: int, rng: Random) -> None:
        for _ in range(count):
            name, key = name_of(rng.randrange(len(self._plan.initials))), rng.randrange(KEY_SPACE)
            if name in self._id:
                self.producers[name].put(key)

    def open_shards(self) -> list[OpenShard]:
        """Of the streams that are to be read."""
        return [
            OpenShard(self._key_of(name)(shard.shard_id), shard.hash_range, name)
            for name in sorted(self._id)
            if self.is_owed(f"{self._id[name]}:")
            for shard in self._open(name)
        ]

    def _open(self, name: str) -> list[Any]:
        shards = self._world.kinesis.list_shards(name, now=self._world.clock.wall()).shards
        return sorted((s for s in shards if s.is_open), key=lambda shard: shard.hash_range.start)

    def reshard(self, action: Action) -> None:
        if not self._id:
            return
        name = sorted(self._id)[action.worker % len(self._id)]
        shards, now = self._open(name), self._world.clock.wall()
        index = (action.worker // 7) % len(shards)
        shard = shards[index]
        span = shard.hash_range.end - shard.hash_range.start
        try:
            if action.kind is Kind.SPLIT:
                middle = shard.hash_range.start + max(1, int(span * action.argument))
                self._world.kinesis.split_shard(name, shard.shard_id, middle, now=now)
            elif len(shards) > 1:
                other = shards[index + 1] if index + 1 < len(shards) else shards[index - 1]
                self._world.kinesis.merge_shards(name, shard.shard_id, other.shard_id, now=now)
        except KinesisError as error:
            self._world.trace(f"reshard refused: {error}")
        self._learn(name)

    # --- what workers see ---------------------------------------------------------------------------------------------

    def ports(self, number: int, doors: StreamDoors) -> SourcePorts:
        async def read_wanted() -> Sequence[WantedStream]:
            until_s, old = self._old.get(number, (0.0, []))
            return [WantedStream(name) for name in (old if self._world.now() < until_s else self._wanted)]

        async def describe(wanted: WantedStream) -> StreamSummary:
            return await doors.door(wanted.label).describe()

        async def open_stream(listed: ListedStream | None) -> StreamPorts:
            assert listed is not None
            name = listed.id.name
            return StreamPorts(doors.door(name, listed.stream), initial=_setting(self._initial(name)))

        return SourcePorts(open_stream, read_wanted, describe)

    # --- what happens -------------------------------------------------------------------------------------------------

    def perform(self, action: Action, machine: int) -> None:
        name = name_of(action.worker % len(self._plan.initials))
        match action.kind:
            case Kind.LIST_ADD:
                self._add(name)
            case Kind.LIST_REMOVE:
                self._remove(name)
            case Kind.REMAKE:
                self._delete(name)
                self._world.event(self._create_later(name, action.argument))
            case Kind.OLD_LIST:
                self._old[machine] = (self._world.now() + action.argument, list(self._wanted))
            case Kind.LIST_ROW_GONE | Kind.LIST_ROW_DAMAGED:
                self._break_row(action)

    async def _create_later(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._create(name)

    def _break_row(self, action: Action) -> None:
        row = self._world.dynamo.row(TABLE, LIST_KEY) if self._world._has_table() else None
        if row is None:
            return
        if action.kind is Kind.LIST_ROW_DAMAGED:
            self._world.dynamo.put_row(TABLE, {**row, "streams": {"S": DAMAGED}})
        else:
            self._world.dynamo.delete_row(TABLE, LIST_KEY)
        self._were_former.update({stream: since for stream, (former, since) in self._listed.items() if former})
        self._listed = {}

    def _add(self, name: str) -> None:
        if name in self._wanted:
            return
        self._create(name)
        for shard in self._open(name):
            self.producers[name].put_one(shard.hash_range.start)
        self._wanted.append(name)
        self._expect(name, came=True)

    def _remove(self, name: str) -> None:
        if name not in self._wanted or len(self._wanted) == 1:
            return
        self._wanted.remove(name)
        self._expect(name, came=False)

    def _expect(self, name: str, *, came: bool) -> None:
        self._changes = [change for change in self._changes if change.stream != name]
        prompt_for = self._plan.former != "keep" or came
        if prompt_for and name in self._id and self._is_settled():
            self._changes.append(_Change(self._world.now(), name, f"{self._id[name]}:", came))

    def _is_settled(self) -> bool:
        """Whether there is a leader for certain: in 2.x nobody may lead until the next election."""
        if self._world.plan.fleet is None:
            return False
        now = self._world.now()
        return now - self._world.ledger.calm_at > SETTLED_S or (self._plan.is_peaceful and now > PROMPT_S)

    async def change_in_calm(self) -> None:
        """A stream comes and another goes when a leader has been found for certain."""
        await asyncio.sleep(SETTLED_S + 5.0)
        rng = self._world.rng("calm changes")
        names = [name_of(number) for number in range(len(self._plan.initials))]
        absent = [name for name in names if name not in self._wanted]
        present = list(self._wanted)
        if absent:
            self._add(rng.choice(absent))
        if present:
            self._remove(rng.choice(present))

    # --- checker 14 ---------------------------------------------------------------------------------------------------

    def is_owed(self, key: str) -> bool:
        """Whether the records of this shard are to be delivered in the end."""
        stream = key.rpartition(":")[0]
        name = stream.split(":")[1] if stream else ""
        if self._id.get(name) != stream:
            return False
        return name in self._wanted or (self._plan.former == "keep" and stream in self._listed)

    def known_since(self, key: str) -> float:
        """From when on all workers are to take care of this lease; infinite if nobody is."""
        is_former, since = self._listed.get(key.rpartition(":")[0], (True, 0.0))
        return NEVER if is_former else since + KNOWN_S

    def check(self) -> None:
        """Once a second: what was to be noticed by now."""
        for change in list(self._changes):
            if self._world.now() > change.due_s:
                self._changes.remove(change)
                if not change.generation:
                    self._check_held(change)
                if change.came and self._initial(change.stream) != "LATEST":
                    self._check_read(change)

    def _check_held(self, change: _Change) -> None:
        rows = {key: row for key, row in self._world.lease_rows().items() if key.startswith(change.key_prefix)}
        if not change.came:
            if held := sorted(key for key, row in rows.items() if "leaseOwner" in row):
                raise self._violation(f"{held} are not released {PROMPT_S:.0f} s after the line of their stream went")
            return
        for shard in self._open(change.stream):
            if shard.created_s > self._world.clock.wall() - PROMPT_S:
                continue  # a child of a reshard: its parents come first
            row = rows.get(f"{change.key_prefix}{shard.shard_id}")
            if row is None or "leaseOwner" not in row:
                raise self._violation(f"{change.stream} {shard.shard_id} is not read {PROMPT_S:.0f} s after its line")

    def _check_read(self, change: _Change) -> None:
        ledger, later = self._world.ledger, False
        for key, record in ledger.shards.items():
            if not key.startswith(change.key_prefix):
                continue
            generation = ledger.generation(record)
            later = later or generation > change.generation
            early = sum(at <= change.at_s for at in record.put_at)
            if generation == change.generation and record.complete_to < early:
                raise self._violation(f"{key} is not read up to its line {change.due_s - change.at_s:.0f} s after it")
        if later:
            self._changes.append(replace(change, generation=change.generation + 1))

    def applied(self, applied: Applied) -> None:
        """Every accepted write."""
        row = applied.after or applied.before
        key = str(row.get("leaseKey", {}).get("S", ""))
        if applied.table != TABLE or not key:
            return
        if key == LIST_KEY:
            self._list_written(applied)
        elif is_lease(row):
            self._lease_written(key, applied)

    def _list_written(self, applied: Applied) -> None:
        before, after = _version(applied.before), _version(applied.after)
        if after != before + 1 and before:
            raise self._violation(f"{applied.sender} takes the list of streams from version {before} to {after}")
        now, listed = self._world.now(), {}
        for one in json.loads(applied.after["streams"]["S"]):
            stream, is_former = one["stream"], one.get("former_since_s") is not None
            if stream not in self._all_ids:
                raise self._violation(f"{applied.sender} lists {stream}, which there never was")
            remembered = self._were_former.get(stream) if is_former else None
            unknown = (True, remembered) if remembered is not None else (not is_former, now)
            was_former, since = self._listed.get(stream, unknown)
            listed[stream] = (is_former, since if was_former == is_former else now)
        self._were_former = {}
        self._listed = listed
        told = ", ".join(f"{stream}{' (former)' if former else ''}" for stream, (former, _) in listed.items())
        self._world.trace(f"{applied.sender} writes the list, version {after}: {told}")

    def _lease_written(self, key: str, applied: Applied) -> None:
        stream, _, shard = key.rpartition(":")
        row = applied.after or applied.before
        if row["streamName"]["S"] != stream or row["shardId"]["S"] != shard or stream not in self._all_ids:
            raise self._violation(f"{applied.sender} writes {key} of {row['streamName']}, which there never was")
        relatives = [*row.get("parentShardId", {}).get("SS", ()), *row.get("childShardIds", {}).get("SS", ())]
        if any(":" in name for name in relatives):
            raise self._violation(f"{applied.sender} writes {relatives} as relatives of {key}")
        if stream not in self._id.values():
            self._world.ledger.shard(key).is_gone = True  # children, too, that only the next incarnation has
        if not applied.after:
            self._check_deletion(key, applied)
            return
        if _counter(applied.before) != _counter(applied.after):
            self._moved[key] = self._world.now()
        if not applied.before and row["checkpoint"]["S"] == "LATEST":
            for other, record in self._world.ledger.shards.items():
                if other.startswith(f"{stream}:") and record.closed and not record.had_row:
                    record.deliver_nothing_before_now()
                    record.ended = True  # passed over, as all shards that were closed before

    def _may_delete(self, key: str) -> bool:
        is_former, _ = self._listed.get(key.rpartition(":")[0], (False, 0.0))
        return is_former

    def _check_deletion(self, key: str, applied: Applied) -> None:
        """Of the row of a former stream: after its wait, and not while somebody renews it."""
        is_former, since = self._listed.get(key.rpartition(":")[0], (False, 0.0))
        if not is_former or applied.before["checkpoint"]["S"] == SHARD_END:
            return
        waited_s = self._world.now() - since
        if self._plan.former != "delete":
            raise self._violation(f"{applied.sender} deletes {key} of a former stream")
        if waited_s < self._plan.former_wait_s * (1 - 2 * DRIFT_MAX) - 1.0:
            raise self._violation(
                f"{applied.sender} deletes {key} {waited_s:.0f} s after its stream became a former one"
            )
        still_s = self._world.now() - self._moved.get(key, 0.0)
        if "leaseOwner" in applied.before and still_s < self._world.plan.failover_s * (1 - 2 * DRIFT_MAX):
            raise self._violation(f"{applied.sender} deletes {key}, which was renewed {still_s:.1f} s ago")
        record = self._world.ledger.shard(key)
        record.had_row = record.ended = False
        self._world.trace(f"{applied.sender} deletes {key} of a former stream")

    def _violation(self, text: str) -> Violation:
        violation = f"checker 14 at {self._world.now():.2f} s: {text}"
        self._world.trace(violation)
        return Violation(violation)


def _setting(initial: str) -> InitialPositionSetting:
    match initial:
        case "LATEST":
            return InitialPositionSetting(InitialPositionKind.LATEST)
        case "AT_TIMESTAMP":
            from tests.simulation.world.world import EPOCH_S

            return InitialPositionSetting(InitialPositionKind.AT_TIMESTAMP, int(EPOCH_S) - 10)
        case _:
            return InitialPositionSetting(InitialPositionKind.TRIM_HORIZON)


def _version(row: Any) -> int:
    """0: there is no list that can be read."""
    is_there = "version" in row and row["streams"] != {"S": DAMAGED}
    return int(row["version"]["N"]) if is_there else 0


def _counter(row: Any) -> str:
    return str(row.get("leaseCounter", {}).get("N"))
