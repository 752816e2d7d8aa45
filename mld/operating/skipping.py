"""`mld skip`: past records that cannot be processed, each of them saved before.

The lease is taken first, so that nobody checkpoints meanwhile. Then the records behind the checkpoint are read, as a
record processor gets them: aggregates opened, those of other shards left out. They are in the file, and the file is on
the disk, before the checkpoint moves to the last of them. Then the lease is given back, and whoever takes it begins
there. If anything fails on the way, the checkpoint is where it was.

Exactly what was asked for is skipped. If fewer records are there, or not the one that was named, nothing is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mld.core.positions import LATEST_NAME, SUB_MAX, InitialPosition, Position
from mld.core.streams import IteratorType, Page, StartingPoint
from mld.core.terminal import EXIT_FAILURE, EXIT_OK
from mld.leases.lease import Lease
from mld.operating.acting import PlanInput, forget, require_new, saved_file
from mld.operating.application import Application, application_of, save_before
from mld.operating.naming import full_key, only_stream
from mld.operating.operator_hold import Observed
from mld.operating.options import Asked, show
from mld.operating.plan import ActPlan, ActRefusedError, Change, Fate, KeptLines, Outcome, advance
from mld.operating.steering import plan_leave_out
from mld.operating.stream_access import SpanReader, framed_records
from mld.protocol.codec import FramedRecord
from mld.retrieval.reader_factory import Placement
from mld.retrieval.starting_points import initial_position, lacks_timestamp, starting_point

RECORDS_SHOWN = 20
_PAST = re.compile(r"(?P<sequence>[0-9]{1,129})(?:/(?P<sub>[0-9]{1,19}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SkipRange:
    """Either `count` user records, or all up to `past`; without a sub-sequence number up to the end of an aggregate."""

    count: int | None = None
    past: Position | None = None
    names_user_record: bool = False

    def covers(self, record: FramedRecord, already: int) -> bool:
        """Return whether the next record is to be skipped, `already` so many before it."""
        if self.count is not None:
            return already < self.count
        assert self.past is not None
        return Position(record.sequence, record.sub) <= self.past

    def is_met_by(self, last: Position | None, count: int) -> bool:
        """Return whether what was skipped is all that was asked for."""
        if self.count is not None:
            return count == self.count
        assert self.past is not None
        if last is None or last.sequence != self.past.sequence:
            return False
        return not self.names_user_record or last.sub == self.past.sub

    def __str__(self) -> str:
        if self.count is not None:
            return f"{self.count} records"
        assert self.past is not None
        return f"up to {self.past.sequence}{f'/{self.past.sub}' if self.names_user_record else ''}"


def parse_past(text: str) -> SkipRange:
    """Read ``SEQUENCE`` or ``SEQUENCE/SUB``. Raises ActRefusedError."""
    found = _PAST.fullmatch(text.strip())
    if found is None or int(found["sub"] or 0) > SUB_MAX:
        raise ActRefusedError(f"{text!r} is no sequence number: give digits, and /N for a user record of an aggregate")
    names = found["sub"] is not None
    return SkipRange(past=Position(found["sequence"], int(found["sub"]) if names else SUB_MAX), names_user_record=names)


@dataclass(frozen=True, slots=True)
class Passed:
    """What is skipped: how many user records, and the first and the last of them."""

    count: int
    first: Position
    last: Position


async def records_at(app: Application, lease: Lease, wanted: SkipRange) -> list[FramedRecord]:
    """Return the user record, or all of the aggregate, that ends `wanted`. Raises ActRefusedError if there is none."""
    assert wanted.past is not None
    start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=wanted.past.sequence)
    page = await SpanReader(app.streams, app.clock, lease.shard_id, start).page_with_records()
    hash_range = await Placement(app.streams, app.clock).range_of(lease.hash_range)
    found = [] if page is None else framed_records(page, lease.checkpoint, hash_range)
    names_it = [one for one in found if one.sequence == wanted.past.sequence]
    kept = [one for one in names_it if not wanted.names_user_record or one.sub == wanted.past.sub]
    if not kept:
        raise ActRefusedError(f"shard {lease.key} has no record {str(wanted).removeprefix('up to ')} (any more)")
    return kept


Keep = Callable[[FramedRecord], None]
Tell = Callable[[Passed, Outcome], None]


async def pass_records(
    app: Application, lease: Lease, wanted: SkipRange, initial: InitialPosition, keep: Keep
) -> Passed:
    """Read what follows the checkpoint, as far as it is to be skipped, and hand it to `keep`. Raises ActRefusedError
    if there is less, or something else, than was asked for; StreamError."""
    _require_readable(lease, wanted, initial)
    walk = SpanReader(app.streams, app.clock, lease.shard_id, starting_point(lease.checkpoint, initial))
    hash_range = await Placement(app.streams, app.clock).range_of(lease.hash_range)
    count, first, last = 0, None, None
    is_complete = False
    while not is_complete and (page := await walk.page_with_records()) is not None:
        for record in framed_records(page, lease.checkpoint, hash_range):
            if not wanted.covers(record, count):
                is_complete = True
                break
            keep(record)
            last = Position(record.sequence, record.sub)
            first = first or last
            count += 1
        is_complete = is_complete or (wanted.count is not None and count >= wanted.count) or _is_past(page, wanted)
    if first is None or last is None or not wanted.is_met_by(last, count):
        raise ActRefusedError(_too_few(lease, wanted, last, count))
    return Passed(count, first, last)


def _is_past(page: Page, wanted: SkipRange) -> bool:
    if wanted.past is None or page.last_sequence is None:
        return False
    return int(page.last_sequence) >= int(wanted.past.sequence)


def _require_readable(lease: Lease, wanted: SkipRange, initial: InitialPosition) -> None:
    checkpoint = lease.checkpoint
    if lease.is_complete:
        raise ActRefusedError(f"shard {lease.key} is read to its end: there is nothing to skip")
    if checkpoint.sequence == LATEST_NAME or lacks_timestamp(checkpoint, initial):
        raise ActRefusedError(
            f"the checkpoint of shard {lease.key} is {checkpoint}: nothing was checkpointed yet, so it is not known "
            "where its reader began; `mld reset --shard … --to` a time or a sequence number first"
        )
    if wanted.past is not None and wanted.past <= checkpoint:
        raise ActRefusedError(f"the checkpoint of shard {lease.key} is {checkpoint}, which is not before {wanted}")


def _too_few(lease: Lease, wanted: SkipRange, last: Position | None, count: int) -> str:
    if wanted.count is not None:
        return f"shard {lease.key} has {count} records after its checkpoint {lease.checkpoint}, not {wanted.count}"
    ends = f"the last one before it is {last}" if last else "nothing before it follows the checkpoint either"
    return f"shard {lease.key} has no record {str(wanted).removeprefix('up to ')} after its checkpoint; {ends}"


def saved_line(lease: Lease, record: FramedRecord) -> str:
    """Return the line of a record in the file: what a record processor gets, and the shard, of which stream too."""
    fields: dict[str, Any] = dict(record.fields())
    names = ("sequenceNumber", "subSequenceNumber", "partitionKey", "approximateArrivalTimestamp", "data")
    stream = {} if lease.stream is None else {"streamId": lease.stream}
    return json.dumps(stream | {"shardId": lease.shard_id} | {name: fields[name] for name in names}) + "\n"


async def skip(
    app: Application, seen: Observed, lease: Lease, wanted: SkipRange, initial: InitialPosition, path: Path, tell: Tell
) -> Fate:
    """Save the records in a new file, move the checkpoint, and `tell` before the lease is given back.

    Unless the checkpoint is surely where it was, the file stays. Raises ActRefusedError, MldError and OSError before
    the checkpoint is moved: then there is no file.
    """
    async with app.hold(seen) as hold:
        await hold.take([lease], by_force=True)
        held = await app.leases.get(lease.key)
        if held is None or held.actual_owner != hold.me:
            raise ActRefusedError(f"lease {lease.key} moved while it was taken; ask again")
        with saved_file(path) as file:

            def keep(record: FramedRecord) -> None:
                file.write(saved_line(lease, record))

            passed = await pass_records(app, held, wanted, initial, keep)
        change = Change(f"to {passed.last}", advance(held, passed.last, hold.me))
        outcome = await hold.advance(change, passed.last)
        if outcome.fate is Fate.REFUSED:
            forget(path)
        tell(passed, outcome)
    return outcome.fate


# --- the command ------------------------------------------------------------------------------------------------------


async def skip_in(app: Application, asked: Asked, wanted: SkipRange, stream: str | None, shard: str, path: Path) -> int:
    """Skip records of a shard, or say which would be skipped; the exit code. Raises ActRefusedError, MldError."""
    app = await app.of_stream(stream)
    seen = await app.require_table()
    leases = {lease.key: lease for lease in seen.table.scan.leases}
    lease = leases[full_key(leases, shard)]
    await app.shards(seen.table)
    initial = initial_position(app.settings.initial_position)
    require_new(path)
    await app.require_no_operators(seen)
    found: list[str] = []

    def note(record: FramedRecord) -> None:
        if len(found) < RECORDS_SHOWN:
            found.append(_short(record))

    passed = await pass_records(app, lease, wanted, initial, note)
    if not asked.execute:
        more = passed.count - len(found)
        lines = [f"{lease.key}: {passed.count} records after {lease.checkpoint} would be skipped:", *found]
        lines += [f"  … and {more} more"] if more else []
        show(asked.output, [*lines, "nothing was done; --execute does it"], _value(lease, passed, outcome="planned"))
        return EXIT_OK
    saved = save_before(app, "skip", seen, asked)

    def tell(passed: Passed, outcome: Outcome) -> None:
        file = {} if outcome.fate is Fate.REFUSED else {"file": str(path)}
        lines = [f"the rows are saved in {saved}"]
        if file:
            lines.append(f"{passed.count} records of {lease.key} are saved in {path}: {passed.first} to {passed.last}")
        lines.append(f"checkpoint to {passed.last}: {outcome.words}")
        show(asked.output, lines, _value(lease, passed, outcome=outcome.fate.value, saved=str(saved), **file))

    fate = await skip(app, seen, lease, wanted, initial, path, tell)
    return EXIT_OK if fate is Fate.DONE else EXIT_FAILURE


def _value(lease: Lease, passed: Passed, **more: str) -> dict[str, Any]:
    value = {"shard": lease.key, "records": passed.count, "first": str(passed.first), "last": str(passed.last)}
    return value | more


async def leave_out(seen: PlanInput, shard: str, only: str, path: Path) -> ActPlan:
    """Plan to leave one record out, which is kept in the new file `path`. Raises ActRefusedError, MldError."""
    wanted, fleet, settings = parse_past(only), seen.fleet, seen.reader.settings
    planned = plan_leave_out(fleet, shard, str(wanted).removeprefix("up to "))
    if planned.changes:
        require_new(path)
    leases = {view.key: view.lease for view in fleet.shards}
    lease = leases[full_key(leases, shard, fleet.labels)]
    label = None if lease.stream is None else fleet.labels.get(lease.stream, lease.stream)
    async with application_of(settings, only_stream(settings, label)) as app:
        found = await records_at(app, lease, wanted)
    kept = KeptLines(path, tuple(saved_line(lease, record) for record in found))
    return replace(planned, notes=(*map(_short, found), *planned.notes), kept=kept if planned.changes else None)


def _short(record: FramedRecord) -> str:
    arrived = datetime.fromtimestamp(int(str(record.fields()["approximateArrivalTimestamp"])) / 1000, UTC)
    sub = f"/{record.sub}" if record.sub else ""
    return f"  {record.sequence}{sub}  {arrived.isoformat(timespec='milliseconds')}  {record.data_bytes} bytes"
