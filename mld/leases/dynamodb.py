"""`DynamoLeaseTable`: the lease table in DynamoDB, one request per call, without retries.

Rules: leases#lease-table, leases#table-reads, leases#conditional-writes, leases#table-errors, leases#lost-table. Every
write has a condition. If a call fails, or its outcome is unknown, a `TableError` is raised.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.aws.table_calls import ANSWER_S_MAX, REFUSED_CODE, RefusedError, TableCalls
from mld.core.clock import Clock
from mld.core.errors import TableMissingError, TableThrottledError, TableUnavailableError
from mld.core.log_fields import about
from mld.core.positions import LATEST
from mld.core.row_lines import RowLines
from mld.leases import rows, writes
from mld.leases.lease import Lease
from mld.leases.own_attribute import Row
from mld.leases.owner_index import FORBIDDEN_CODES, OwnerIndex
from mld.leases.rows import CorruptRowError
from mld.leases.table import AnswerT, LeaseWrite, Overtaken, Refusal, TableScan
from mld.leases.table_maker import TableMaker, on_demand
from mld.leases.write_request import request_of
from mld.properties.settings import TableSettings

log = logging.getLogger(__name__)
CORRUPT_REPORTED_EVERY_S = 3600.0
"""The time after which a row that is still unreadable is logged again."""
SEGMENTS_MAX = 32
SEGMENT_BYTES = 0.2 * 2**30  # one segment per 0.2 GiB
TABLE_SIZE_VALID_S = 7200.0  # how long the size of the table is used; DynamoDB refreshes it every six hours
ROWS_PER_SLICE = 32  # rows parsed before other tasks run; this takes well below 2 ms
GETS_PER_BATCH = 100  # DynamoDB's limit
RESTORES_AT_ONCE = 20  # rows of a lost table that are created concurrently; as many as renewals


@raises_only(TableUnavailableError)
class DynamoLeaseTable:
    """Implements the `StoredTable` port by a DynamoDB `Service`. `scan_segments` is the number of parallel segments of
    a scan; with 0 it depends on the table's size.

    `settings` are used only if the table is created. `key_name` names the hash key. It differs from the default only
    for a table of reports, which operators' commands write through this class.
    """

    def __init__(
        self,
        service: Service,
        clock: Clock,
        *,
        table_name: str,
        settings: TableSettings | None = None,
        scan_segments: int = 0,
        request_timeout_s: float = ANSWER_S_MAX,
        key_name: str = rows.KEY,
    ) -> None:
        self._key_name = key_name
        self.types_rows = True
        self._calls = TableCalls(service, table_name, request_timeout_s, self._note_missing)
        self.index = OwnerIndex(self._calls, clock)
        self._maker = TableMaker(
            service,
            clock,
            settings or on_demand(table_name),
            rows.KEY,
            request_timeout_s=request_timeout_s,
            on_missing=self._note_missing,
        )
        self._clock = clock
        self._table_name = table_name
        self._scan_segments = scan_segments
        self._had_many_pages = False
        """Whether a scan of the table, or of one segment, ever had several pages."""
        self._has_logged_no_batches = False
        """Whether it was logged that BatchGetItem is forbidden."""
        self._size_segments = 1
        """How many segments suit the size of the table, as last known; used until `_size_known_until`."""
        self._size_known_until = clock.monotonic()
        self._known: dict[str, Lease] = {}
        """The leases as last seen, by key. A lost table is restored from them."""
        self._lost_since: float | None = None
        self._corrupt_lines = RowLines("lease rows that cannot be read", clock)
        self._corrupt_reported: dict[str, tuple[str, float]] = {}
        """Unreadable rows by key: the reason that was logged, and when."""
        self._creates_from = -math.inf
        """Used after a lost table was restored. Before this time no new rows are created, because other workers may
        still restore the rows of the same shards, with their positions. They get as much time after our restoration as
        passed between the loss and our restoration."""

    # --- the table itself ---------------------------------------------------------------------------------------------

    async def ensure(self) -> bool:
        """Create the table if it is missing, and wait until it can be used, at most 600 s. Return whether this call
        created it. Raises TableError.
        """
        return await self._maker.ensure()

    @property
    def lost_since(self) -> float | None:
        """Since when the table has been missing, after it existed, in monotonic seconds; None if it exists."""
        return self._lost_since

    def _note_missing(self) -> None:
        """Note that an answer shows that the table is missing. If rows of it were seen before, the table is lost."""
        if self._known and self._lost_since is None:
            self._lost_since = self._clock.monotonic()

    async def restore(self, worker: str) -> int:
        """Create a lost table, and those of its rows that `worker` may restore (`may_restore`), without owners. Return
        how many rows were created. Afterwards `apply` refuses to create other rows, for as long again as the table was
        lost, because other workers may still restore their rows. Raises TableError.
        """
        await self.ensure()
        known = self._known.values()
        creations = [writes.create(rows.reborn(lease)) for lease in known if may_restore(lease, worker)]
        created = 0
        for start in range(0, len(creations), RESTORES_AT_ONCE):
            answers = [self._send(one) for one in creations[start : start + RESTORES_AT_ONCE]]
            created += sum(await asyncio.gather(*answers))
        if self._lost_since is not None:
            # now, plus the time from the loss until now
            self._creates_from = 2 * self._clock.monotonic() - self._lost_since
            self._lost_since = None
        return created

    # --- reads --------------------------------------------------------------------------------------------------------

    async def scan(self, part: tuple[int, int] | None = None, *, consistent: bool = False) -> TableScan:
        """Return all rows, or only one part of them (`LeaseTable.scan`). Raises TableError. Corrupt rows do not raise;
        they are in the result.

        The rows are also remembered, so that they can be restored if the table is lost. In a lease with the mark of mld
        0.2, the mark is replaced by the owner's heartbeat. That is in another row, so this is done only if all rows are
        read.
        """
        segments = 1 if part is not None else await self._segments()
        found = _Found()
        params: dict[str, Any] = {"ConsistentRead": consistent}
        if part is not None:
            params |= {"Segment": part[0], "TotalSegments": part[1]}
        if segments == 1:
            await self._scan_segment(params, found)
        else:
            await _all_or_first_error(
                self._scan_segment(params | {"Segment": segment, "TotalSegments": segments}, found)
                for segment in range(segments)
            )
        if self._lost_since is None:  # otherwise the table may lack rows that are still to be restored
            seen = {lease.key: lease for lease in found.leases}
            self._known = seen if part is None else self._known | seen
        self._report_corrupt(found.corrupt, is_whole=part is None)
        leases = found.leases if part is not None or not found.is_marked else await _with_heartbeats(found)
        return TableScan(tuple(leases), tuple(found.corrupt), tuple(found.others))

    def _report_corrupt(self, corrupt: Sequence[tuple[str, str]], *, is_whole: bool) -> None:
        """Log each unreadable row when it is first seen, and then once an hour until it is repaired. `is_whole`: the
        whole table was read, so `corrupt` has all its unreadable rows.
        """
        now_s, reported = self._clock.monotonic(), {}
        for key, reason in corrupt:
            before = self._corrupt_reported.get(key)
            if before is None or before[0] != reason or now_s - before[1] >= CORRUPT_REPORTED_EVERY_S:
                words = "lease row %s cannot be read: %s; other rows are not affected: repair or delete it"
                if self._corrupt_lines.may_log():
                    log.error(words, key, reason, extra=about("lease_corrupt", key))
                before = reason, now_s
            reported[key] = before
        self._corrupt_reported = reported if is_whole else self._corrupt_reported | reported

    async def _scan_segment(self, params: dict[str, Any], found: _Found) -> None:
        """Read the table, or one segment of it, by a scan, and add the rows to `found`."""
        is_first = True
        async for page in self._calls.pages("Scan", params):
            self._had_many_pages |= not is_first
            is_first = False
            await _parse_page(page, found)

    async def _segments(self) -> int:
        """Return in how many parallel segments to scan the table. Only if a scan had several pages, DescribeTable is
        called to learn the table's size.
        """
        if self._scan_segments > 0:
            return self._scan_segments
        if self._had_many_pages and self._clock.monotonic() >= self._size_known_until:
            answer = await self._calls.send("DescribeTable", {})
            self._size_segments = segments_for(int(answer["Table"].get("TableSizeBytes", 0)))
            self._size_known_until = self._clock.monotonic() + TABLE_SIZE_VALID_S
        return self._size_segments

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        """Return one lease; None if there is no such row, or if the row is not a lease. Raises TableError, for a
        corrupt row its subclass CorruptRowError.
        """
        row = await self._calls.get({rows.KEY: {"S": key}}, consistent=consistent)
        return None if row is None else rows.parse_row(row)

    async def get_many(self, keys: Sequence[str]) -> dict[str, Lease]:
        """Read many leases, and return them by key; rows that are missing, unreadable or not leases are left out.
        Raises TableError.
        """
        found = _Found()
        for start in range(0, len(keys), GETS_PER_BATCH):
            wanted = list(keys[start : start + GETS_PER_BATCH])
            while wanted:
                wanted = await self._get_batch(wanted, found)
        return {lease.key: lease for lease in found.leases}

    async def _get_batch(self, keys: list[str], found: _Found) -> list[str]:
        """Read the rows with these keys by BatchGetItem, or one by one if BatchGetItem is forbidden. Return the keys
        that DynamoDB has not processed. If it has processed none, raise TableThrottledError.
        """
        wanted = {"Keys": [{rows.KEY: {"S": key}} for key in keys], "ConsistentRead": True}
        params = {"RequestItems": {self._table_name: wanted}}
        try:
            answer = await self._calls.send("BatchGetItem", params, refusals=FORBIDDEN_CODES, one_table=False)
        except RefusedError as refused:
            level = logging.DEBUG if self._has_logged_no_batches else logging.WARNING
            self._has_logged_no_batches = True
            log.log(level, "rows are read one by one: %s", refused, extra={"action": "batch_reads_forbidden"})
            await _all_or_first_error(self._get_into(key, found) for key in keys)
            return []
        await _parse_page(answer.get("Responses", {}).get(self._table_name, ()), found)
        rest = answer.get("UnprocessedKeys", {}).get(self._table_name, {}).get("Keys", ())
        if len(rest) >= len(keys):
            raise TableThrottledError(f"table {self._table_name}: no row of a batch was read")
        return [row[rows.KEY]["S"] for row in rest]

    async def _get_into(self, key: str, found: _Found) -> None:
        """Read one row, and add it to `found` if it exists."""
        if (row := await self._calls.get({rows.KEY: {"S": key}})) is not None:
            found.note(row)

    # --- writes -------------------------------------------------------------------------------------------------------

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        """Carry out a conditional write, and return the answer that its function in `writes` describes. Remember the
        row that the answer shows, so that the row can be restored if the table is lost.

        Raises TableError. A write that creates a row raises TableMissingError while other workers may still restore
        rows of a lost table.
        """
        if write.creates is not None and (self._lost_since is not None or self._clock.monotonic() < self._creates_from):
            raise TableMissingError(f"not all rows of table {self._table_name} are made again yet")
        answer = await self._send(write)
        if isinstance(answer, Refusal) or (answer and write.deletes):  # the row is not as it was known, or is gone
            self._known.pop(write.key, None)
        elif isinstance(answer, Lease | Overtaken):
            self._known[write.key] = answer if isinstance(answer, Lease) else answer.row
        elif answer and write.creates is not None:
            self._known[write.key] = write.creates
        return answer

    async def _send(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        """Send one write and return the answer. If it is refused, and the refusal leads to another write, send that.
        While workers of 2.x may use the table (`types_rows` is False), new rows get no `entityType`.
        """
        if write.item is not None and not self.types_rows:
            write = replace(write, item={name: value for name, value in write.item.items() if name != rows.ENTITY_TYPE})
        operation, params = request_of(write, self._key_name)
        try:
            answer = await self._calls.send(operation, params, refusals=(REFUSED_CODE,))
        except RefusedError as refused:
            outcome = write.refused(await self._present_row(refused, write.key) if write.wants_row else None)
            return await self._send(outcome) if isinstance(outcome, LeaseWrite) else outcome
        return write.accepted(answer.get("Attributes", {}))

    async def _present_row(self, refused: RefusedError, key: str) -> Lease | None:
        """Return the row that did not fulfil a write's condition. The refusal usually contains it. If not, the row is
        read: it may be gone, or the server does not return rows with a refusal.
        """
        return rows.parse_row(refused.row) if refused.row else await self.get(key)


def may_restore(lease: Lease, worker: str) -> bool:
    """Return whether `worker` may restore the lost row of `lease`, which is the row as this worker last saw it.

    The owner may have stored a later checkpoint since. A row with an older position only makes records be repeated. But
    a row at LATEST would skip records, so only the owner restores such a row.
    """
    return lease.checkpoint != LATEST or lease.actual_owner == worker


def segments_for(table_bytes: int) -> int:
    """Return the number of parallel segments for the scan of a table of this size (leases#table-reads)."""
    full, rest = divmod(table_bytes, SEGMENT_BYTES)
    return min(max(int(full) + (1 if rest else 0), 1), SEGMENTS_MAX)


@dataclass(slots=True)
class _Found:
    """The rows that a read has found so far: leases, leases that cannot be read (key and reason), and rows that are no
    leases (`others`).
    """

    leases: list[Lease] = field(default_factory=list)
    corrupt: list[tuple[str, str]] = field(default_factory=list)
    others: list[Row] = field(default_factory=list)
    is_marked: bool = False
    """Whether any lease has the mark of mld 0.2, see `rows.HEARTBEAT`."""

    def note(self, row: Row) -> None:
        """Add a row, as a lease, as a corrupt row or as another row."""
        try:
            lease = rows.parse_row(row)
        except CorruptRowError as error:
            self.corrupt.append((error.key, error.reason))
            return
        if lease is None:
            self.others.append(row)
        else:
            self.leases.append(lease)
            self.is_marked |= lease.heartbeat is not None


async def _with_heartbeats(found: _Found) -> list[Lease]:
    """Return the leases of a scan. In a marked lease, the mark is replaced by the heartbeat of its owner, if that has
    the same epoch (leases#marked-rows).
    """
    heartbeats, leases = rows.heartbeats_in(found.others), []
    for number, lease in enumerate(found.leases, start=1):
        heartbeat = heartbeats.get(lease.actual_owner or "", "")
        is_covered = lease.heartbeat is not None and heartbeat.startswith(f"{lease.heartbeat}.")
        leases.append(replace(lease, heartbeat=heartbeat) if is_covered else lease)
        if number % ROWS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return leases


async def _parse_page(page: Sequence[Row], found: _Found) -> None:
    """Add the rows of a page to `found`; other tasks run in between."""
    for start in range(0, len(page), ROWS_PER_SLICE):
        for row in page[start : start + ROWS_PER_SLICE]:
            found.note(row)
        await asyncio.sleep(0)


async def _all_or_first_error(works: Iterable[Any]) -> None:
    """Run the coroutines concurrently. On the first error cancel the others and raise that error, not a group."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
