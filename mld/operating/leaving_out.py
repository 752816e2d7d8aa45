"""`mld skip`: finds the records that a record processor is not to get, and plans to leave them out."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mld.core.positions import LATEST_NAME, SUB_MAX, Position
from mld.core.streams import (
    IteratorType,
    StartingPoint,
)
from mld.leases.lease import Lease
from mld.leases.rows import LEFT_OUT_MAX
from mld.operating.acting import PlanInput
from mld.operating.application import Application, application_of
from mld.operating.backup import require_new
from mld.operating.naming import (
    full_key,
    only_stream,
)
from mld.operating.plan import (
    ActPlan,
    ActRefusedError,
    KeptLines,
)
from mld.operating.steering import end_of, plan_leave_out
from mld.operating.stream_access import SpanReader, arrival_ms, framed_records
from mld.protocol.framed_records import FramedRecord
from mld.retrieval.placement import Placement
from mld.retrieval.starting_points import initial_position, lacks_timestamp, starting_point

_RECORD = re.compile(r"(?P<sequence>[0-9]{1,129})(?:/(?P<sub>[0-9]{1,19}))?", re.ASCII)
"""Matches ``SEQUENCE`` or ``SEQUENCE/SUB``."""

RECORDS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Unwanted:
    """Which records to leave out; exactly one of the three fields is set."""

    only: str | None = None
    """A single record."""
    past: str | None = None
    """The record up to which all records after the checkpoint are left out; this record is left out, too."""
    count: int | None = None
    """How many records after the checkpoint are left out."""


async def leave_out(plan_input: PlanInput, shard: str, unwanted: Unwanted, path: Path) -> ActPlan:
    """Return a plan that leaves the `unwanted` records of a shard out, and saves them in the new file `path`.

    The plan writes marks into the lease row. A mark names one user record, or a record with all its user records.
    Raises ActRefusedError; other MldErrors if the stream or the table cannot be read.
    """
    fleet, settings = plan_input.fleet, plan_input.reader.settings
    leases = {view.key: view.lease for view in fleet.shards}
    lease = leases[full_key(leases, shard, fleet.labels)]
    label = None if lease.stream is None else fleet.labels.get(lease.stream, lease.stream)
    only = None if unwanted.only is None else parse_record(unwanted.only)
    if only is not None:
        plan_leave_out(fleet, shard, only)  # so that a refusal comes before the stream is read
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
    """Return ``SEQUENCE`` or ``SEQUENCE/SUB`` without blanks around it, and SUB without leading zeros. Raises
    ActRefusedError for any other text.
    """
    found = _RECORD.fullmatch(text.strip())
    if found is None or int(found["sub"] or 0) > SUB_MAX:
        raise ActRefusedError(f"{text!r} is no sequence number: give digits, and /N for a user record of an aggregate")
    return found["sequence"] if found["sub"] is None else f"{found['sequence']}/{int(found['sub'])}"


async def records_at(app: Application, lease: Lease, record: str) -> list[FramedRecord]:
    """Return the user record `SEQUENCE/SUB`, or all user records of `SEQUENCE`. Raises ActRefusedError if the stream
    does not have it any more.
    """
    sequence, _, sub = record.partition("/")
    start = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=sequence)
    page = await SpanReader(app.streams, app.clock, lease.shard_id, start).page_with_records()
    # An aggregate may hold user records whose hash keys belong to other shards. They are not delivered, so not found.
    hash_range = await Placement(app.streams, app.clock).range_of(lease.hash_range)
    found = [] if page is None else framed_records(page, lease.checkpoint, hash_range)
    kept = [one for one in found if one.sequence == sequence and sub in ("", str(one.sub))]
    if not kept:
        raise ActRefusedError(f"shard {lease.key} has no record {record} (any more)")
    return kept


async def records_after(app: Application, lease: Lease, unwanted: Unwanted) -> tuple[list[FramedRecord], list[str]]:
    """Return the unwanted user records after the checkpoint, and the marks in the lease row that leave them out.

    An aggregate of which all records are unwanted gets one mark. Raises ActRefusedError if there are fewer records than
    wanted.
    """
    checkpoint, initial = lease.checkpoint, initial_position(app.settings.initial_position)
    if checkpoint.sequence == LATEST_NAME or lacks_timestamp(checkpoint, initial):
        raise ActRefusedError(
            f"the checkpoint of shard {lease.key} is {checkpoint}: nothing was checkpointed yet, so it is not known "
            "where its reader began; `mld reset --shard` to a time or a sequence number first"
        )
    end = None if unwanted.past is None else end_of(parse_record(unwanted.past))
    reader = SpanReader(app.streams, app.clock, lease.shard_id, starting_point(checkpoint, initial))
    hash_range = await Placement(app.streams, app.clock).range_of(lease.hash_range)
    found: list[FramedRecord] = []
    found_of: Counter[str] = Counter()  # how many user records were found, by sequence number

    def is_enough() -> bool:
        """Return whether no further page has to be read. That is so if all unwanted records are found: as many as
        wanted (`unwanted.count`), or the last one (`end`) and those before it. It is also so if there are more sequence
        numbers than a lease row can leave out, because then the command is refused.
        """
        if len(found_of) > LEFT_OUT_MAX:
            return True
        if end is None:
            return len(found) >= (unwanted.count or 0)
        return bool(found) and int(found[-1].sequence) >= int(end.sequence)

    while not is_enough() and (page := await reader.page_with_records()) is not None:
        records = framed_records(page, checkpoint, hash_range)
        found += records
        found_of.update(record.sequence for record in records)
    if end is None:
        chosen, shortage = found[: unwanted.count], f"{len(found)} records, and not {unwanted.count},"
        is_complete = len(chosen) == unwanted.count
    else:
        chosen, shortage = [one for one in found if _place(one) <= end], f"no record {unwanted.past}"
        is_complete = bool(chosen) and chosen[-1].sequence == end.sequence and end.sub in (SUB_MAX, chosen[-1].sub)
    # If more are found than may be left out, `plan_leave_out` refuses them.
    if not is_complete and len(found_of) <= LEFT_OUT_MAX:
        raise ActRefusedError(f"shard {lease.key} has {shortage} after its checkpoint {checkpoint}")
    chosen_of = Counter(record.sequence for record in chosen)
    return chosen, [
        one.sequence if chosen_of[one.sequence] == found_of[one.sequence] else f"{one.sequence}/{one.sub}"
        for one in chosen
    ]


def _place(record: FramedRecord) -> Position:
    return Position(record.sequence, record.sub)


def _short(record: FramedRecord) -> str:
    """Return a line for the plan: position, arrival and size of a record."""
    arrived = datetime.fromtimestamp(arrival_ms(record) / 1000, UTC)
    sub = f"/{record.sub}" if record.sub else ""
    return f"  {record.sequence}{sub}  {arrived.isoformat(timespec='milliseconds')}  {record.data_bytes} bytes"


def saved_line(lease: Lease, record: FramedRecord) -> str:
    """Return the line for a record in the file: the shard and stream, and the fields that a record processor gets."""
    fields: dict[str, Any] = dict(record.fields())
    names = ("sequenceNumber", "subSequenceNumber", "partitionKey", "approximateArrivalTimestamp", "data")
    stream = {} if lease.stream is None else {"streamId": lease.stream}
    return json.dumps(stream | {"shardId": lease.shard_id} | {name: fields[name] for name in names}) + "\n"
