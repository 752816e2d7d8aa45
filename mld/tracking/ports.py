"""What a worker asks of its streams, be it one or several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Protocol

from mld.consumer.ports import ShardCare, ShardSource
from mld.leases.lease import Lease
from mld.leases.table import TableScan

Loop = tuple[Callable[[], Awaitable[None]], str]
"""What runs until it is cancelled, and what it does, for the log."""


class Standing(Enum):
    """What becomes of a lease that this worker holds."""

    CONSUMED = "consumed"
    FORMER = "former"
    """Nobody is to consume it: it is given back."""
    UNKNOWN = "unknown"
    """It is kept, and `StreamSources` tells when more is known."""


class StreamSources(Protocol):
    """The streams of one worker. Calls raise `errors.TableError` and `errors.StreamError` where they ask AWS."""

    @property
    def care(self) -> ShardCare:
        """The lease table's side of beginnings and ends, for the consumers of all streams."""
        ...

    @property
    def is_in_sync(self) -> bool:
        """Whether no shard is known to lack its row."""
        ...

    def check(self, scan: TableScan) -> None:
        """Raises StartupError if the table is of the other form: of one stream, or of several."""
        ...

    async def make_leases(self, scan: TableScan, *, leads: Callable[[], Awaitable[bool]]) -> bool:
        """Make the table true to the streams at the start; True if there may be rows that `scan` lacks.

        `leads`: whether this worker may fill an empty table. Raises StartupError for a foreign table.
        """
        ...

    def loops(self) -> Sequence[Loop]:
        """What runs while the worker does."""
        ...

    def visible(self, scan: TableScan) -> TableScan:
        """Without the leases that are not to be taken."""
        ...

    def standing(self, lease: Lease) -> Standing: ...

    def source_of(self, lease: Lease) -> ShardSource:
        """Where the records of a lease that is consumed come from."""
        ...

    async def closed_shards(self) -> frozenset[str]:
        """Keys of the shards that take no more records, as the streams list them now."""
        ...

    async def take_down(self) -> None:
        """What the last worker of a fleet removes."""
        ...
