"""`mld reset`: the application, or one shard, begins at another place.

Places become checkpoints first, while nothing is held; then the rows are written (`target`). The same command again
finishes what broke off: rows that are as they should be are left alone.

A checkpoint is the last record that was processed, so it is the record before the first one that is wanted: a number
that Kinesis has given to a record of this shard. Nothing else will do. An invented number may be refused, and LATEST
would skip records that arrive before a worker reads. If no record before that place is kept, TRIM_HORIZON is the
checkpoint.

Kinesis cannot read backwards, so the record before is looked for from earlier and earlier times. In doubt (arrival
times that are not in order, records that came meanwhile) the checkpoint is an earlier one: records are read again,
never skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mld.core.clock import Clock
from mld.core.positions import LATEST, TRIM_HORIZON, Position
from mld.core.steps import finish
from mld.core.streams import (
    IteratorType,
    Page,
    Shard,
    ShardFilter,
    ShardFilterType,
    StartingPoint,
    StreamKind,
    Streams,
)
from mld.core.turns import a_few_at_a_time, in_turns
from mld.leases.lease import Lease
from mld.operating.application import Application, act_on, is_like
from mld.operating.naming import (
    names_of,
    shard_id_of,
)
from mld.operating.options import Asked
from mld.operating.plan import (
    ActPlan,
    ActRefusedError,
    Change,
    RawTable,
    ResetRows,
    create,
    remove,
    rewrite,
    shard_reset,
    whole_reset,
    words_of,
)
from mld.operating.points import Point, PointKind
from mld.operating.stream_access import SpanReader, arrival_ms, framed_records
from mld.protocol.framed_records import FramedRecord
from mld.shards.graph import ShardGraph
from mld.shards.identity import foreign_evidence

NO_TIME = (
    "the stream of a DynamoDB table cannot be read from a time on: reset to trim-horizon or latest, or one shard to a "
    "sequence number; `mld replay --from TIME` sends records from a time on to another child"
)
BACK_S = (1.0, 8.0, 64.0, 512.0, 4_096.0, 32_768.0, 262_144.0, 2_097_152.0)
"""How much earlier the record before a place is looked for, before all that is kept is read."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset wants: made once, from the stream; planned against the rows as often as needed."""

    point: Point
    shard_id: str | None
    shards: tuple[Shard, ...]
    begin: tuple[Shard, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)

    def rows(self, leases: tuple[Lease, ...]) -> ResetRows:
        """Return the rows that are wanted. Raises ActRefusedError."""
        if self.shard_id is None:
            return finish(whole_reset(self.begin, self.positions, leases))
        graph = ShardGraph(self.shards)
        return finish(shard_reset(graph, self.shard_id, self.positions[self.shard_id], leases))

    def plan(self, table: RawTable, me: str) -> ActPlan:
        """Return what is left to write, for the operator `me`. Raises ActRefusedError."""
        rows = self.rows(table.scan.leases)
        seen = {lease.key: lease for lease in table.scan.leases}
        changes: list[Change] = []
        for target in rows.puts:
            row = seen.get(target.key)
            words = words_of(target, row)
            if row is None:
                changes.append(Change(words, create(target, me)))
            elif not is_like(row, target):
                changes.append(Change(words, rewrite(row, target, me)))
        for key in rows.deletes:
            changes.append(Change(f"its row goes, at {seen[key].checkpoint}", remove(key, me)))
        return ActPlan(self._title(), tuple(changes), (*rows.notes, *self._notes(changes, table)))

    def _title(self) -> str:
        return f"{self.shard_id or 'all shards'} to {self.point}"

    def _notes(self, changes: list[Change], table: RawTable) -> tuple[str, ...]:
        skipped = [change.key for change in changes if " forward to " in change.words]
        forward = f"{len(skipped)} shards skip records that were not processed" if skipped else ""
        unfinished = {lease.key for lease in table.scan.leases if not lease.is_complete}
        goes = [change.key for change in changes if change.words.startswith("its row goes")]
        unread = [key for key in goes if key in unfinished]
        left = ""
        if unread and self.point.kind is not PointKind.TRIM_HORIZON:
            left = f"{len(unread)} unfinished shards are older than that place, or are read again after their parents"
        foreign = finish(foreign_evidence(self.shards, table.scan.leases))
        gone = f"all rows are replaced, because {foreign.partition(';')[0]}" if foreign else ""
        return tuple(note for note in (gone, forward, left) if note)


async def reset_to(
    app: Application, asked: Asked, point: Point, stream: str | None, shard: str | None, *, stop_fleet: bool
) -> int:
    """Let the application, or one shard, begin at `point`; the exit code. Raises ActRefusedError, TableError."""
    app = await app.of_stream(stream)
    seen = await app.require_table()
    wanted = await resolve(app, seen.table, point, shard)
    return await act_on(app, "reset", asked, wanted.plan, seen, stop_fleet=stop_fleet)


async def resolve(app: Application, table: RawTable, point: Point, shard_name: str | None) -> Reset:
    """Ask the stream what the place means for each shard. Raises ActRefusedError, StreamError."""
    if point.kind is PointKind.TIME and app.kind is StreamKind.DYNAMODB:
        raise ActRefusedError(NO_TIME)
    shards = await app.shards(table, are_replaced=shard_name is None)
    if shard_name is not None:
        return await _one_shard(app, shards, point, shard_name)
    if point.kind is PointKind.SEQUENCE:
        raise ActRefusedError("a sequence number belongs to one shard: name it with --shard")
    begin = await app.open_at(await _filter_of(app, point))
    positions: dict[str, Position] = {}

    async def locate(shard: Shard) -> None:
        positions[shard.shard_id] = await _boundary(app, shard, point)

    await a_few_at_a_time(locate, begin)
    return Reset(point, None, shards, begin, positions)


async def _one_shard(app: Application, shards: tuple[Shard, ...], point: Point, name: str) -> Reset:
    graph = await in_turns(ShardGraph.steps(shards))
    shard_id = shard_id_of(name)
    if shard_id not in graph.shards:
        raise ActRefusedError(f"the stream has no shard {name} (any more); it has {names_of(sorted(graph.shards))}")
    checkpoint = await _boundary(app, graph.shards[shard_id], point)
    return Reset(point, shard_id, shards, positions={shard_id: checkpoint})


async def _filter_of(app: Application, point: Point) -> ShardFilter:
    if point.kind is PointKind.LATEST:
        return ShardFilter(ShardFilterType.AT_LATEST)
    if point.kind is PointKind.TRIM_HORIZON:
        return ShardFilter(ShardFilterType.AT_TRIM_HORIZON)
    assert point.time_s is not None
    created_ms = (await app.streams.describe()).created_ms
    if created_ms is not None and point.time_s * 1000 <= created_ms:
        return ShardFilter(ShardFilterType.AT_TRIM_HORIZON)  # no shard was open then
    return ShardFilter(ShardFilterType.AT_TIMESTAMP, point.time_s)


async def _boundary(app: Application, shard: Shard, point: Point) -> Position:
    match point.kind:
        case PointKind.TRIM_HORIZON:
            return TRIM_HORIZON
        case PointKind.LATEST:
            return LATEST
        case PointKind.TIME:
            assert point.time_s is not None
            return await boundary_at_time(app.streams, app.clock, shard.shard_id, point.time_s)
        case PointKind.SEQUENCE:
            assert point.position is not None
            return await boundary_at_sequence(app.streams, app.clock, shard, point.position)
    raise AssertionError(point.kind)


# --- the checkpoint before a place ------------------------------------------------------------------------------------


async def boundary_at_time(streams: Streams, clock: Clock, shard_id: str, time_s: float) -> Position:
    """Return the checkpoint before the first record that arrived at `time_s` (epoch seconds) or later."""
    walk = SpanReader(streams, clock, shard_id, StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=time_s))
    page = await walk.page_with_records()
    first = None if page is None else page.first_sequence
    return await _last_before(streams, clock, shard_id, first, time_s)


async def boundary_at_sequence(streams: Streams, clock: Clock, shard: Shard, place: Position) -> Position:
    """Return the checkpoint before the record `place`. Raises ActRefusedError if the shard has no such record."""
    number = int(place.sequence)
    after_end = shard.ending_sequence is not None and number > int(shard.ending_sequence)
    if number < int(shard.starting_sequence) or after_end:
        raise ActRefusedError(f"{place.sequence} is no sequence number of shard {shard.shard_id}")
    start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=place.sequence)
    page = await SpanReader(streams, clock, shard.shard_id, start).page_with_records()
    if page is None or page.first_sequence is None or int(page.first_sequence) != number:
        there = "no later one either" if page is None else f"the next one that is kept is {page.first_sequence}"
        raise ActRefusedError(f"shard {shard.shard_id} has no record {place.sequence} (any more); {there}")
    if place.sub:
        return Position(place.sequence, place.sub - 1)
    arrival_s = (page.first_arrival_ms or 0) / 1000
    return await _last_before(streams, clock, shard.shard_id, place.sequence, arrival_s, by_time=False)


async def _last_before(
    streams: Streams, clock: Clock, shard_id: str, first: str | None, time_s: float, *, by_time: bool = True
) -> Position:
    bound = None if first is None else int(first)
    for back_s in (*BACK_S, None):
        start = StartingPoint(IteratorType.TRIM_HORIZON)
        if back_s is not None and back_s < time_s:
            start = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=time_s - back_s)
        walk = SpanReader(streams, clock, shard_id, start)
        last: Position | None = None
        while (page := await walk.page_with_records()) is not None:
            found = framed_records(page, TRIM_HORIZON)
            kept = before(found, bound, int(time_s * 1000) if by_time else None)
            last = Position(kept[-1].sequence, kept[-1].sub) if kept else last
            if len(kept) < len(found) or _reaches(page, bound):
                break
        if last is not None:
            return last
        if start.type is IteratorType.TRIM_HORIZON:
            break
    return TRIM_HORIZON


def before(records: Sequence[FramedRecord], bound: int | None, time_ms: int | None) -> Sequence[FramedRecord]:
    """Return the records before the first one that has the number `bound` or more, or arrived at `time_ms` or later."""
    for number, record in enumerate(records):
        if bound is not None and int(record.sequence) >= bound:
            return records[:number]
        if time_ms is not None and arrival_ms(record) >= time_ms:
            return records[:number]
    return records


def _reaches(page: Page, bound: int | None) -> bool:
    return bound is not None and page.last_sequence is not None and int(page.last_sequence) >= bound
