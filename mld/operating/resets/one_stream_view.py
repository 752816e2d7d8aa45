"""One stream of a table with several, as the acts on a whole application see and write it. Pure.

They plan with the shards' own names, as in a table of one stream. What they plan becomes writes of the rows of that
stream, and of no other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mld.core.stream_ids import StreamId, parse_stream_id, stream_of_key
from mld.leases import rows
from mld.leases.table import TableScan
from mld.operating.acts.plan import ActPlan, ActRefusedError, Change, RawTable
from mld.operating.stream_choice import is_meant, names_of
from mld.properties.settings import StreamSetting
from mld.tracking import stream_list
from mld.tracking.stream_list import TrackedList
from mld.tracking.stream_rows import within_stream


def of_stream(table: RawTable, stream: str | None) -> RawTable:
    """The table with the leases of this stream only; all of it without a stream. The raw rows stay all."""
    if stream is None:
        return table
    scan = table.scan
    leases = tuple(lease for lease in scan.leases if lease.stream == stream)
    corrupt = tuple((key, why) for key, why in scan.corrupt if stream_of_key(key) == stream)
    return RawTable(table.rows, TableScan(leases, corrupt, scan.others))


def within(table: RawTable) -> RawTable:
    """The table with the shards' own names as keys of its leases."""
    if all(lease.stream is None for lease in table.scan.leases):
        return table
    return RawTable(table.rows, replace(table.scan, leases=tuple(map(within_stream, table.scan.leases))))


def in_stream(plan: ActPlan, stream: str | None) -> ActPlan:
    """The plan for the rows of this stream; as it is without one."""
    if stream is None:
        return plan
    return replace(plan, changes=tuple(_in_stream(change, stream) for change in plan.changes))


def _in_stream(change: Change, stream: str) -> Change:
    request: dict[str, Any] = dict(change.request)
    key = f"{stream}:{change.key}"
    if "Key" in request:
        request["Key"] = {rows.KEY: {"S": key}}
    if "Item" in request:
        names = {rows.KEY: {"S": key}, rows.STREAM: {"S": stream}, rows.SHARD: {"S": change.key}}
        request["Item"] = {**request["Item"], **names}
    return replace(change, key=key, request=request)


def require_form(table: RawTable, *, is_several: bool) -> None:
    """Raises ActRefusedError for a table that is not of the form that the file has."""
    other = next((lease for lease in table.scan.leases if (lease.stream is not None) is not is_several), None)
    if other is None:
        return
    if is_several:
        raise ActRefusedError(
            f"the lease table holds one stream (lease {other.key}), but the file names several: use the file with "
            "streamName, or turn the table with mld migrate-streams"
        )
    raise ActRefusedError(
        f"the lease table holds several streams (lease {other.key}), but the file names one: use the file with "
        "mld.streams, or turn the table with mld migrate-streams"
    )


def listed(table: RawTable) -> TrackedList:
    """The list of streams in the table."""
    return stream_list.parse(table.row(stream_list.KEY) or {})


def streams_in(table: RawTable) -> tuple[StreamId, ...]:
    """The streams whose leases name them."""
    found = {parse_stream_id(lease.stream) for lease in table.scan.leases if lease.stream is not None}
    return tuple(sorted(one for one in found if one is not None))


def stream_id_in(table: RawTable, setting: StreamSetting, wanted: str | None = None) -> str:
    """The identifier that the leases of a stream of the file have; `wanted` may be one itself.

    Of several incarnations it is the one that the list consumes. Raises ActRefusedError if there is none, or no telling
    which.
    """
    ids = [str(one) for one in streams_in(table)]
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
