"""Limits a command to one stream of a table with several. Pure.

Such a command makes its plan with plain shard ids as lease keys, as in a table of one stream. Afterwards `in_stream`
turns the plan into writes of that stream's rows only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mld.core.stream_ids import StreamId, parse_stream_id, stream_of_key
from mld.leases import writes
from mld.leases.lease import Lease, within_stream
from mld.leases.table import TableScan
from mld.operating.naming import is_meant
from mld.operating.plan import ActPlan, ActRefusedError, RawTable
from mld.operating.short_ids import names_of
from mld.properties.settings import StreamSetting
from mld.tracking import stream_list
from mld.tracking.stream_list import TrackedList

OTHER_FORM = "mld export and mld restore --from-another"
"""Commands that move leases into a table of the other form (one stream or several)."""


def of_stream(table: RawTable, stream: str | None) -> RawTable:
    """Return the table with only the leases of this stream, but all raw rows; unchanged if `stream` is None."""
    if stream is None:
        return table
    scan = table.scan
    leases = tuple(lease for lease in scan.leases if lease.stream == stream)
    corrupt = tuple((key, why) for key, why in scan.corrupt if stream_of_key(key) == stream)
    return RawTable(table.rows, TableScan(leases, corrupt, scan.others))


def within(table: RawTable) -> RawTable:
    """Return the table with plain shard ids as lease keys."""
    if all(lease.stream is None for lease in table.scan.leases):
        return table
    return RawTable(table.rows, replace(table.scan, leases=tuple(map(within_stream, table.scan.leases))))


def in_stream(plan: ActPlan, stream: str | None) -> ActPlan:
    """Return the plan with writes to the rows of this stream instead of plain shard ids; unchanged if `stream`
    is None.
    """
    if stream is None:
        return plan
    changes = (replace(change, write=writes.of_stream(change.write, stream)) for change in plan.changes)
    return replace(plan, changes=tuple(changes))


def require_form(table: RawTable, *, is_several: bool) -> None:
    """Raise ActRefusedError if the table is for one stream and the file for several, or the reverse."""
    other = next((lease for lease in table.scan.leases if (lease.stream is not None) is not is_several), None)
    if other is not None:
        holds, names, key = (
            ("one stream", "several", "streamName") if is_several else ("several streams", "one", "mld.streams")
        )
        raise ActRefusedError(
            f"the lease table holds {holds} (lease {other.key}), but the file names {names}: use the file with {key}, "
            f"or set another tableName and move the leases there by {OTHER_FORM}"
        )


def listed(table: RawTable) -> TrackedList:
    """Return the list of streams that is stored in the table."""
    return stream_list.parse(table.row(stream_list.KEY) or {})


def streams_in(leases: Iterable[Lease]) -> tuple[StreamId, ...]:
    """Return the identifiers of all streams that have leases."""
    found = {parse_stream_id(lease.stream) for lease in leases if lease.stream is not None}
    return tuple(sorted(one for one in found if one is not None))


def stream_id_in(table: RawTable, setting: StreamSetting, wanted: str | None = None) -> str:
    """Return the identifier that the leases of this stream have; `wanted` itself if it is one of those in the table.

    A stream that was deleted and made again may have several identifiers. Then the fleet's list of streams, which is a
    row of the table, decides. Raises ActRefusedError if the stream has no leases, or if the list does not decide.
    """
    ids = [str(one) for one in streams_in(table.scan.leases)]
    if wanted is not None and wanted in ids:
        return wanted
    found = [one for one in ids if is_meant(setting, one)]
    current = listed(table).current()
    if setting.name in current and current[setting.name].stream in found:
        return current[setting.name].stream
    if len(found) == 1:
        return found[0]
    if found:
        raise ActRefusedError(
            f"the table has leases of {names_of(found)}: say which with --stream and the whole identifier"
        )
    raise ActRefusedError(
        f"the lease table has no lease of stream {setting.name}; it has {names_of(ids) or 'no leases of any'}"
    )
