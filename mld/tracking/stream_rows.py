"""The rows of each stream in a table that has several, and the table as the fleet sees it.

Rules: shards#several-streams. In `StreamRows` a lease's `key` is the shard's own name, and no row of another stream
exists; a scan of the whole table serves all streams that ask at about the same time. `VisibleTable` hides the leases of
streams that nobody is to consume.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mld.core.clock import Clock
from mld.core.stream_ids import StreamId, key_of, parse_stream_id, stream_of_key
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import AnswerT, LeaseTable, LeaseWrite, TableScan

SCAN_VALID_S = 5.0
"""How old a scan may be. Older than a listing of shards is what the decisions need; rows are created conditionally."""
ROWS_PER_TURN = 500


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The leases of a table by stream; None is the stream of rows that name none."""

    of: Mapping[str | None, TableScan] = field(default_factory=dict)
    scan: TableScan = field(default_factory=TableScan)
    """The whole table as it was read."""
    began_at: float = 0.0
    """When the read began, in monotonic seconds."""

    @property
    def streams(self) -> frozenset[StreamId]:
        """The identifiers that rows have."""
        found = (parse_stream_id(stream) for stream in self.of if stream is not None)
        return frozenset(stream for stream in found if stream is not None)

    def of_stream(self, stream: str | None) -> TableScan:
        """Return the rows of one stream, with the shards' own names as keys."""
        return self.of.get(stream, TableScan())


async def sorted_by_stream(scan: TableScan, began_at: float = 0.0) -> SortedRows:
    """Return the leases of `scan` by stream, in the form of `StreamRows`; with a turn of the loop every few hundred."""
    leases: dict[str | None, list[Lease]] = {}
    corrupt: dict[str | None, list[tuple[str, str]]] = {}
    for number, lease in enumerate(scan.leases, 1):
        leases.setdefault(lease.stream, []).append(within_stream(lease))
        if number % ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
    for key, reason in scan.corrupt:
        stream = stream_of_key(key)
        name = key if stream is None else key.removeprefix(f"{stream}:")
        corrupt.setdefault(stream, []).append((name, reason))
    return SortedRows(
        {
            stream: TableScan(tuple(leases.get(stream, ())), tuple(corrupt.get(stream, ())))
            for stream in leases.keys() | corrupt.keys()
        },
        scan,
        began_at,
    )


def within_stream(lease: Lease) -> Lease:
    """Return the lease as its stream's rooms know it."""
    return lease if lease.stream is None else replace(lease, key=lease.shard_id, stream=None)


class SharedScan:
    """One scan of the table for all who need one within a few seconds."""

    def __init__(self, table: LeaseTable, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._lock = asyncio.Lock()
        self._rows: SortedRows | None = None

    async def rows(self) -> SortedRows:
        """Return rows that are at most `SCAN_VALID_S` old. Raises `errors.TableError`."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._rows is None or now - self._rows.began_at > SCAN_VALID_S:
                self._rows = await sorted_by_stream(await self._table.scan(), now)
            return self._rows


@dataclass(eq=False)
class StreamRows:
    """Implements `shards.shard_rows.ShardRows` for the stream with this identifier."""

    table: LeaseTable
    stream: str
    scans: SharedScan

    async def scan(self) -> TableScan:
        return (await self.scans.rows()).of_stream(self.stream)

    async def get(self, key: str) -> Lease | None:
        lease = await self.table.get(key_of(self.stream, key))
        return None if lease is None else within_stream(lease)

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        return await self.table.apply(writes.of_stream(write, self.stream))


class VisibleTable:
    """A `LeaseTable` whose scans have only leases of the streams that this worker consumes now, by their identifiers;
    None stands for the one stream of a table of one. Rows can be read and written by key as ever.
    """

    def __init__(self, table: LeaseTable, *streams: str | None) -> None:
        self.stored = table
        self.streams: frozenset[str | None] = frozenset(streams)
        self.ensure, self.get, self.get_many, self.apply = table.ensure, table.get, table.get_many, table.apply

    async def scan(self, part: tuple[int, int] | None = None, *, consistent: bool = False) -> TableScan:
        return self.visible(await self.stored.scan(part, consistent=consistent))

    def visible(self, scan: TableScan) -> TableScan:
        """Return the scan without the leases of other streams."""
        return replace(scan, leases=tuple(lease for lease in scan.leases if lease.stream in self.streams))
