"""`mld reset`: the application, or one shard, begins at another place. `mld export`, `restore` and `skip` are here too.

Places become checkpoints first, while nothing is held; then the rows are written (`target`). The same command again
finishes what broke off: what is as it should be is left alone.

A checkpoint is the last record that was processed, so it is the record before the first one that is wanted: a number
that Kinesis has given to a record of this shard. Nothing else will do. An invented number may be refused, and LATEST
would skip what arrives before somebody reads. If no record before that place is kept, TRIM_HORIZON is the checkpoint.

Kinesis cannot read backwards, so the record before is looked for from earlier and earlier times. Whatever is doubtful
(arrival times that are not in order, records that came meanwhile) makes the checkpoint an earlier one: read again,
never skipped.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mld.core.clock import Clock, a_few_at_a_time, in_turns
from mld.core.positions import LATEST, LATEST_NAME, SUB_MAX, TRIM_HORIZON, Position, StreamId
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
from mld.core.terminal import EXIT_OK
from mld.leases import rows
from mld.leases.lease import Lease
from mld.leases.rows import LEFT_OUT_MAX
from mld.leases.table import TableScan
from mld.operating.acting import (
    BackupHeader,
    PlanInput,
    backup_name,
    free_name,
    read_backup,
    read_table,
    require_new,
    save_rows,
    tell,
)
from mld.operating.application import Application, act_on, application_of, is_like, is_of_another_shard
from mld.operating.naming import (
    full_key,
    listed,
    names_of,
    of_stream,
    only_stream,
    shard_id_of,
    stream_id_in,
    streams_in,
)
from mld.operating.operator_hold import Observed
from mld.operating.options import Asked
from mld.operating.plan import (
    ActPlan,
    ActRefusedError,
    Change,
    KeptLines,
    RawTable,
    ResetRows,
    Row,
    create,
    direction,
    put_back,
    raw_table,
    remove,
    rewrite,
    shard_reset,
    whole_reset,
    words_of,
)
from mld.operating.points import Point, PointKind
from mld.operating.steering import end_of, plan_leave_out
from mld.operating.stream_access import SpanReader, arrival_ms, framed_records
from mld.properties.settings import Settings, StreamSetting
from mld.protocol.codec import FramedRecord
from mld.retrieval.reader_factory import Placement
from mld.retrieval.starting_points import initial_position, lacks_timestamp, starting_point
from mld.shards.graph import ShardGraph, id_order
from mld.shards.identity import foreign_evidence, oddity
from mld.tracking.stream_list import account_and_name, identify
from mld.tracking.stream_set import within_stream

NO_TIME = (
    "the stream of a DynamoDB table cannot be read from a time on: reset to trim-horizon or latest, or one shard to a "
    "sequence number; `mld replay --from TIME` sends records from a time on to another child"
)
_RECORD = re.compile(r"(?P<sequence>[0-9]{1,129})(?:/(?P<sub>[0-9]{1,19}))?", re.ASCII)
BACK_S = (1.0, 8.0, 64.0, 512.0, 4_096.0, 32_768.0, 262_144.0, 2_097_152.0)
"""How much earlier the record before a place is looked for, before all that is kept is read."""

RECORDS_SHOWN = 20


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


# --- export -----------------------------------------------------------------------------------------------------------


async def export_tables(app: Application, path: Path | None) -> int:
    """Save all rows, also those of the tables of KCL 3.0 to 3.4; the exit code. Raises BackupError, TableError."""
    settings, now_s = app.settings, app.clock.wall()
    first = path or free_name(Path(backup_name(settings.application_name, now_s)))
    tables = {settings.lease_table.name: (await read_table(app.calls, app.clock)).rows}
    for name in (settings.coordinator_state_table.name, settings.worker_metrics_table.name):
        if found := await app.rows_of(name):
            tables[name] = found
    for name, found in tables.items():
        file = first if name == settings.lease_table.name else first.with_name(f"{first.stem}-{name}{first.suffix}")
        save_rows("export", settings, found, now_s, file, name)
        tell(f"{len(found)} rows of {name} are saved in {file}")
    return EXIT_OK


# --- restore ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saved:
    """The leases of a file; other rows of it are not restored. `rows` has them as they were written, by key."""

    header: BackupHeader
    leases: tuple[Lease, ...]
    rows: Mapping[str, Row]
    stream: str | None = None
    """Whose leases these are, if the file tells streams apart."""


def read_saved(path: Path) -> Saved:
    """Read a file. Raises ActRefusedError for a lease that cannot be read, BackupError."""
    header, lines = read_backup(path)
    leases: dict[str, Lease] = {}
    raw: dict[str, Row] = {}
    for row in lines:
        try:
            lease = rows.parse_row(row)
        except rows.CorruptRowError as error:
            raise ActRefusedError(f"{path}: {error}") from error
        if lease is not None:
            leases[lease.key], raw[lease.key] = lease, row
    if not leases:
        raise ActRefusedError(f"{path} holds no lease")
    return Saved(header, tuple(leases.values()), raw)


def of_its_stream(saved: Saved, settings: Settings, setting: StreamSetting | None, name: str | None) -> Saved:
    """Return the leases of the stream that is meant, as a table of one stream has them; all of a file of one stream.

    `setting`: the one of several streams of the properties file. Raises ActRefusedError if the file has none of it, or
    no telling which.
    """
    ids = streams_in(saved.leases)
    if not ids:
        meant = settings.stream_name if setting is None else setting.stream_name
        if saved.header.stream not in ("", meant):
            raise ActRefusedError(f"the file is of stream {saved.header.stream}, and not of {meant}")
        return saved
    if setting is not None:
        stream = stream_id_in(RawTable((), TableScan(saved.leases)), setting, name)
    else:
        stream = _newest_of(settings, ids)
    leases = tuple(within_stream(lease) for lease in saved.leases if lease.stream == stream)
    raw = {lease.key: _within(saved.rows[f"{stream}:{lease.key}"], lease.key) for lease in leases}
    return Saved(saved.header, leases, raw, stream)


def _newest_of(settings: Settings, ids: Sequence[StreamId]) -> str:
    """Return which of the identifiers is that of the file's stream; of one that was made again, the last."""
    account, name = None, settings.stream_name
    if settings.stream_arn is not None:
        account, name = account_and_name(settings.stream_arn)
    found = [one for one in ids if one.name == name and account in (None, one.account)]
    if not found:
        raise ActRefusedError(f"the file has leases of {names_of(ids)}, and the properties file names stream {name}")
    if len({one.account for one in found}) > 1:
        raise ActRefusedError(
            f"the file has leases of {names_of(found)}, of several accounts: name the stream by streamArn instead of "
            "streamName"
        )
    return str(max(found, key=lambda one: one.epoch))


def _within(row: Row, key: str) -> Row:
    own = {name: value for name, value in row.items() if name not in (rows.STREAM, rows.SHARD)}
    return own | {rows.KEY: {"S": key}}


def require_same_table(saved: Saved, application: str, table: str) -> None:
    """Raise ActRefusedError for a file of another application or table."""
    header = saved.header
    if (header.application, header.table) != (application, table):
        raise ActRefusedError(
            f"the file is of application {header.application}, table {header.table}, and not of {application}, "
            f"table {table}; --from-another restores it all the same"
        )


@dataclass(frozen=True, slots=True)
class Restoration:
    """What a file and a listing make of a table; planned against its rows as often as needed."""

    saved: Saved
    graph: ShardGraph
    may_skip: bool = False

    def plan(self, table: RawTable, me: str) -> ActPlan:
        """Return what is left to write. Raises ActRefusedError if records would be skipped that were not asked for."""
        seen = {lease.key: lease for lease in table.scan.leases}
        changes: list[Change] = []
        forward: list[str] = []
        for lease in sorted(self.saved.leases, key=lambda one: id_order(one.key)):
            row = seen.get(lease.key)
            if row is None:
                change = put_back(self.saved.rows[lease.key], me)
                changes.append(Change(f"put back at {lease.checkpoint}", change))
            elif row.checkpoint != lease.checkpoint or is_of_another_shard(row, lease):
                changes.append(Change(words_of(lease, row), rewrite(row, as_new(lease), me)))
                if direction(row.checkpoint, lease.checkpoint) != "back" and not self._is_odd(row):
                    forward.append(lease.key)
        if forward and not self.may_skip:
            raise ActRefusedError(
                f"the file is ahead of the table for {names_of(forward)}: records between the two would be skipped; "
                "--skip-forward restores these as well"
            )
        gone, kept = self._newer(seen)
        for key in gone:
            changes.append(Change(f"its row goes, at {seen[key].checkpoint}; it is read again", remove(key, me)))
        return ActPlan(
            f"{len(self.saved.leases)} leases of {self.saved.header.written_at}",
            tuple(changes),
            tuple(self._notes(forward, kept)),
        )

    def _is_odd(self, row: Lease) -> bool:
        """Return whether the row cannot be of its shard: then its checkpoint is no place that was reached."""
        shard = self.graph.shards.get(row.key)
        return shard is not None and oddity(shard, row) is not None

    def _newer(self, seen: Mapping[str, Lease]) -> tuple[list[str], list[str]]:
        """Return rows that the file does not have: those that go, and those that stay, from old to young."""
        unfinished = {lease.key for lease in self.saved.leases if not lease.is_complete} & self.graph.shards.keys()
        below = finish(self.graph.below(unfinished))
        newer = sorted(seen.keys() - self.saved.rows.keys(), key=id_order)
        return [key for key in newer if key in below], [key for key in newer if key not in below]

    def _notes(self, forward: Sequence[str], kept: Sequence[str]) -> Iterable[str]:
        trimmed = [lease.key for lease in self.saved.leases if lease.key not in self.graph.shards]
        if forward:
            yield f"records are skipped in {names_of(forward)}"
        if trimmed:
            yield f"of {names_of(trimmed)} Kinesis has no records any more"
        if kept:
            yield f"not in the file and left alone: {names_of(kept)}"


def as_new(lease: Lease) -> Lease:
    """Return the lease as it would be created at its place."""
    return Lease(
        lease.key, lease.checkpoint, parents=lease.parents, children=lease.children, hash_range=lease.hash_range
    )


async def restore_from(
    app: Application,
    asked: Asked,
    path: Path,
    stream: str | None,
    *,
    from_another: bool,
    may_skip: bool,
    stop_fleet: bool,
) -> int:
    """Put the leases of a file back; the exit code. Raises ActRefusedError, BackupError, TableError."""
    saved, settings = read_saved(path), app.settings
    if not from_another:
        require_same_table(saved, settings.application_name, settings.lease_table.name)
    saved = of_its_stream(saved, settings, app.setting, stream)
    there = await app.table_or_none()
    seen = there or Observed(raw_table(()))
    if app.setting is not None:
        id_ = saved.stream
        if id_ is None:
            await app.require_no_workers(seen, "stop them first: they do not know that this stream has leases")
            id_ = await _identifier(app, app.setting, seen.table)
        app = replace(app, stream=id_)
        seen = replace(seen, table=of_stream(seen.table, id_))
    shards = await app.shards()  # rows of another stream in the table give way to those of the file
    foreign = finish(foreign_evidence(shards, saved.leases))
    if foreign is not None:
        raise ActRefusedError(foreign.replace("the lease table", f"the file {path}", 1))
    if there is None and asked.execute:
        await app.leases.ensure()
    restoration = Restoration(saved, ShardGraph(shards), may_skip)
    return await act_on(app, "restore", asked, restoration.plan, seen, stop_fleet=stop_fleet)


async def _identifier(app: Application, setting: StreamSetting, table: RawTable) -> str:
    """Return the identifier that the leases of the stream get in the table. Raises ActRefusedError, StreamError."""
    summary = await app.streams.describe()
    found = identify(
        setting.name,
        summary.arn,
        summary.created_ms,
        epoch=setting.epoch,
        listed=listed(table).current().get(setting.name),
        in_table=streams_in(table.scan.leases),
    )
    if isinstance(found, str):
        raise ActRefusedError(found)
    return str(found)


# --- records that are left out ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The record `only`, or those after the checkpoint: so many (`count`), or up to the record `past`, and that one."""

    only: str | None = None
    past: str | None = None
    count: int | None = None


async def leave_out(seen: PlanInput, shard: str, unwanted: Unwanted, path: Path) -> ActPlan:
    """Plan to leave records out, which are kept in the new file `path`. Raises ActRefusedError, MldError."""
    fleet, settings = seen.fleet, seen.reader.settings
    leases = {view.key: view.lease for view in fleet.shards}
    lease = leases[full_key(leases, shard, fleet.labels)]
    label = None if lease.stream is None else fleet.labels.get(lease.stream, lease.stream)
    only = None if unwanted.only is None else parse_record(unwanted.only)
    if only is not None:
        plan_leave_out(fleet, shard, only)  # which may be refused before the stream is asked
    async with application_of(settings, only_stream(settings, label)) as app:
        found, marks = (
            await records_after(app, lease, unwanted) if only is None else (await records_at(app, lease, only), [only])
        )
    planned = plan_leave_out(fleet, shard, *dict.fromkeys(marks))
    if planned.changes:
        require_new(path)
    kept = KeptLines(path, tuple(saved_line(lease, record) for record in found))
    more = (f"  … and {len(found) - RECORDS_SHOWN} more",) if len(found) > RECORDS_SHOWN else ()
    notes = (*map(_short, found[:RECORDS_SHOWN]), *more, *planned.notes)
    return replace(planned, notes=notes, kept=kept if planned.changes else None)


def parse_record(text: str) -> str:
    """Return ``SEQUENCE`` or ``SEQUENCE/SUB``, without needless signs. Raises ActRefusedError for anything else."""
    found = _RECORD.fullmatch(text.strip())
    if found is None or int(found["sub"] or 0) > SUB_MAX:
        raise ActRefusedError(f"{text!r} is no sequence number: give digits, and /N for a user record of an aggregate")
    return found["sequence"] if found["sub"] is None else f"{found['sequence']}/{int(found['sub'])}"


async def records_at(app: Application, lease: Lease, record: str) -> list[FramedRecord]:
    """Return the user record, or all of the aggregate, that is there. Raises ActRefusedError if there is none."""
    sequence, _, sub = record.partition("/")
    start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=sequence)
    page = await SpanReader(app.streams, app.clock, lease.shard_id, start).page_with_records()
    hash_range = await Placement(app.streams, app.clock).range_of(lease.hash_range)
    found = [] if page is None else framed_records(page, lease.checkpoint, hash_range)
    kept = [one for one in found if one.sequence == sequence and sub in ("", str(one.sub))]
    if not kept:
        raise ActRefusedError(f"shard {lease.key} has no record {record} (any more)")
    return kept


async def records_after(app: Application, lease: Lease, unwanted: Unwanted) -> tuple[list[FramedRecord], list[str]]:
    """Return the user records after the checkpoint that are meant, and the marks that leave them out: one for a whole
    aggregate. Raises ActRefusedError if there are fewer.
    """
    checkpoint, initial = lease.checkpoint, initial_position(app.settings.initial_position)
    if checkpoint.sequence == LATEST_NAME or lacks_timestamp(checkpoint, initial):
        raise ActRefusedError(
            f"the checkpoint of shard {lease.key} is {checkpoint}: nothing was checkpointed yet, so it is not known "
            "where its reader began; `mld reset --shard` to a time or a sequence number first"
        )
    end = None if unwanted.past is None else end_of(parse_record(unwanted.past))
    walk = SpanReader(app.streams, app.clock, lease.shard_id, starting_point(checkpoint, initial))
    hash_range = await Placement(app.streams, app.clock).range_of(lease.hash_range)
    found: list[FramedRecord] = []
    of_each: Counter[str] = Counter()

    def is_enough() -> bool:
        if len(of_each) > LEFT_OUT_MAX:
            return True
        if end is None:
            return len(found) >= (unwanted.count or 0)
        return bool(found) and int(found[-1].sequence) >= int(end.sequence)

    while not is_enough() and (page := await walk.page_with_records()) is not None:
        records = framed_records(page, checkpoint, hash_range)
        found += records
        of_each.update(record.sequence for record in records)
    if end is None:
        meant, wanted = found[: unwanted.count], f"{len(found)} records, and not {unwanted.count},"
        is_there = len(meant) == unwanted.count
    else:
        meant, wanted = [one for one in found if _place(one) <= end], f"no record {unwanted.past}"
        is_there = bool(meant) and meant[-1].sequence == end.sequence and end.sub in (SUB_MAX, meant[-1].sub)
    if not is_there and len(of_each) <= LEFT_OUT_MAX:
        raise ActRefusedError(f"shard {lease.key} has {wanted} after its checkpoint {checkpoint}")
    meant_of_each = Counter(record.sequence for record in meant)
    return meant, [
        one.sequence if meant_of_each[one.sequence] == of_each[one.sequence] else f"{one.sequence}/{one.sub}"
        for one in meant
    ]


def _place(record: FramedRecord) -> Position:
    return Position(record.sequence, record.sub)


def saved_line(lease: Lease, record: FramedRecord) -> str:
    """Return the line of a record in the file: what a record processor gets, and the shard, of which stream too."""
    fields: dict[str, Any] = dict(record.fields())
    names = ("sequenceNumber", "subSequenceNumber", "partitionKey", "approximateArrivalTimestamp", "data")
    stream = {} if lease.stream is None else {"streamId": lease.stream}
    return json.dumps(stream | {"shardId": lease.shard_id} | {name: fields[name] for name in names}) + "\n"


def _short(record: FramedRecord) -> str:
    arrived = datetime.fromtimestamp(arrival_ms(record) / 1000, UTC)
    sub = f"/{record.sub}" if record.sub else ""
    return f"  {record.sequence}{sub}  {arrived.isoformat(timespec='milliseconds')}  {record.data_bytes} bytes"
