"""`mld reset`: makes the application, or one shard, start at another place.

First the place is turned into a checkpoint for each shard (`boundaries`); no lease is held meanwhile. Then the rows are
written. If the command breaks off, it can be run again: rows that are right already are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mld.core.positions import LATEST, TRIM_HORIZON, Position
from mld.core.steps import finish
from mld.core.streams import (
    Shard,
    ShardFilter,
    ShardFilterType,
    StreamKind,
)
from mld.core.turns import a_few_at_a_time, in_turns
from mld.leases.lease import Lease
from mld.operating.application import Application, act_on
from mld.operating.boundaries import boundary_at_sequence, boundary_at_time
from mld.operating.held_writes import create, remove, rewrite
from mld.operating.options import Invocation
from mld.operating.plan import (
    ActPlan,
    ActRefusedError,
    Change,
    RawTable,
)
from mld.operating.points import Point, PointKind
from mld.operating.reset_rows import (
    ResetRows,
    is_like,
    shard_reset,
    whole_reset,
    words_of,
)
from mld.operating.short_ids import names_of, shard_id_of
from mld.shards.graph import ShardGraph
from mld.shards.identity import foreign_evidence

ROW_GOES = "its row is deleted"
NO_TIME = (
    "the stream of a DynamoDB table cannot be read from a time on: reset to trim-horizon or latest, or one shard to a "
    "sequence number; `mld replay --from TIME` sends records from a time on to another child"
)


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset wants, found in the stream once. It can then be planned against the rows as often as needed."""

    point: Point
    shard_id: str | None
    """The shard to reset; None means all shards."""
    shards: tuple[Shard, ...]
    """All shards that Kinesis lists."""
    begin: tuple[Shard, ...] = ()
    """The shards that were open at the place; empty if only one shard is reset."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """The checkpoint of each shard that is reset."""

    def rows(self, leases: tuple[Lease, ...]) -> ResetRows:
        """Return the rows as the reset wants them. Raises ActRefusedError."""
        if self.shard_id is None:
            return finish(whole_reset(self.begin, self.positions, leases))
        graph = ShardGraph(self.shards)
        return finish(shard_reset(graph, self.shard_id, self.positions[self.shard_id], leases))

    def plan(self, table: RawTable, me: str) -> ActPlan:
        """Return the changes that are left to write for the operator `me`. Raises ActRefusedError."""
        rows = self.rows(table.scan.leases)
        present = {lease.key: lease for lease in table.scan.leases}
        changes: list[Change] = []
        for target in rows.puts:
            row = present.get(target.key)
            words = words_of(target, row)
            if row is None:
                changes.append(Change(words, create(target, me)))
            elif not is_like(row, target):
                changes.append(Change(words, rewrite(row, target, me)))
        for key in rows.deletes:
            changes.append(Change(f"{ROW_GOES} (at {present[key].checkpoint})", remove(key, me)))
        return ActPlan(self._title(), tuple(changes), (*rows.notes, *self._notes(changes, table)))

    def _title(self) -> str:
        return f"{self.shard_id or 'all shards'} to {self.point}"

    def _notes(self, changes: list[Change], table: RawTable) -> tuple[str, ...]:
        """Return notes on records that are skipped, rows that are replaced, and unfinished shards whose rows are
        deleted.
        """
        skipping = [change.key for change in changes if " forward to " in change.words]
        skipped_note = f"{len(skipping)} shards skip records that were not processed" if skipping else ""
        unfinished = {lease.key for lease in table.scan.leases if not lease.is_complete}
        deleted = [change.key for change in changes if change.words.startswith(ROW_GOES)]
        unread = [key for key in deleted if key in unfinished]
        unread_note = ""
        if unread and self.point.kind is not PointKind.TRIM_HORIZON:
            count = len(unread)
            unread_note = f"{count} unfinished shards end before that place, or are read again after their parents"
        foreign = finish(foreign_evidence(self.shards, table.scan.leases))
        replaced_note = f"all rows are replaced, because {foreign.partition(';')[0]}" if foreign else ""
        return tuple(note for note in (replaced_note, skipped_note, unread_note) if note)


async def reset_to(
    app: Application, invocation: Invocation, point: Point, stream: str | None, shard: str | None, *, stop_fleet: bool
) -> int:
    """Make the application, or one shard, start at `point`; return the exit code. Raises ActRefusedError,
    TableError.
    """
    app = await app.of_stream(stream)
    observed = await app.require_table()
    wanted = await resolve(app, observed.table, point, shard)
    return await act_on(app, "reset", invocation, wanted.plan, observed, stop_fleet=stop_fleet)


async def resolve(app: Application, table: RawTable, point: Point, shard_name: str | None) -> Reset:
    """Return the reset: the checkpoint that the place means in each shard, or in the one that `shard_name` names.
    Raises ActRefusedError, StreamError, TableError.
    """
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
        """Find the checkpoint of one shard."""
        positions[shard.shard_id] = await _boundary(app, shard, point)

    await a_few_at_a_time(locate, begin)
    return Reset(point, None, shards, begin, positions)


async def _one_shard(app: Application, shards: tuple[Shard, ...], point: Point, name: str) -> Reset:
    """Return a reset of the one shard that `name` means."""
    graph = await in_turns(ShardGraph.steps(shards))
    shard_id = shard_id_of(name)
    if shard_id not in graph.shards:
        raise ActRefusedError(f"the stream has no shard {name} (any more); it has {names_of(sorted(graph.shards))}")
    checkpoint = await _boundary(app, graph.shards[shard_id], point)
    return Reset(point, shard_id, shards, positions={shard_id: checkpoint})


async def _filter_of(app: Application, point: Point) -> ShardFilter:
    """Return the filter with which Kinesis lists the shards that were open at the place."""
    if point.kind is PointKind.LATEST:
        return ShardFilter(ShardFilterType.AT_LATEST)
    if point.kind is PointKind.TRIM_HORIZON:
        return ShardFilter(ShardFilterType.AT_TRIM_HORIZON)
    assert point.time_s is not None
    created_ms = (await app.streams.describe()).created_ms
    if created_ms is not None and point.time_s * 1000 <= created_ms:
        return ShardFilter(ShardFilterType.AT_TRIM_HORIZON)  # no shard was open at that time yet
    return ShardFilter(ShardFilterType.AT_TIMESTAMP, point.time_s)


async def _boundary(app: Application, shard: Shard, point: Point) -> Position:
    """Return the checkpoint that makes the shard start at the place."""
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
