"""The `LeaseTable` port: every read and conditional write of the lease table (leases#conditional-writes).

Each write is fenced by its condition. A `Refusal` or False means *refused*: somebody else changed the row. An exception
(`errors.TableError`) means *unknown*, except `TableThrottledError` and `TableMissingError`, which mean *not applied*.
Implementations do not retry by themselves: a caller that retries after an unknown outcome passes `resent=True`, and
only then is a row that an earlier attempt of ours left behind accepted as our own success (leases#lost-replies).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from mld.leases.lease import Failing, Lease, ShardStatus
from mld.positions import Position
from mld.streams import HashRange


@dataclass(frozen=True, slots=True)
class TableScan:
    """Every row of the table, or of a part of it."""

    leases: tuple[Lease, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()
    """Keys of the rows that are leases but cannot be read, with the reason."""
    others: tuple[Mapping[str, Mapping[str, Any]], ...] = ()
    """The raw rows that are no leases."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no lease at all, not even an unreadable one."""
        return not (self.leases or self.corrupt)

    @property
    def unreadable(self) -> frozenset[str]:
        """Keys of the leases that cannot be read."""
        return frozenset(key for key, _ in self.corrupt)


class IndexStatus(Enum):
    """The owner index, `LeaseOwnerToLeaseKeyIndex` (leases#owner-index)."""

    MISSING = "missing"  # also while it is being deleted
    CREATING = "creating"  # cannot be read before it is filled
    ACTIVE = "active"
    FORBIDDEN = "forbidden"  # we may not create it, or may not ask


@dataclass(frozen=True, slots=True)
class Refusal:
    """A conditional write was refused. `by_twin`: the row still names us, yet somebody else has moved its counter."""

    why: str
    by_twin: bool = False


class LeaseTable(Protocol):
    async def ensure(self) -> bool:
        """Create the table if it is missing and wait until it can be used; True if this call created it."""
        ...

    @property
    def lost_since(self) -> float | None:
        """Since when a table that was there is gone, in monotonic seconds; None if it is not, or was made again."""
        ...

    async def restore(self, worker: str) -> int:
        """Create a lost table, and in it, for nobody, the rows as `worker` saw them last; how many were not there."""
        ...

    async def scan(self, part: tuple[int, int] | None = None, *, timeout_s: float | None = None) -> TableScan:
        """Every row, in one eventually consistent pass of pages, in parallel segments where the table is large.

        `part` (number, of how many): only the rows of one part of the table. The same row is always in the same part.
        `timeout_s`: how long each page may take, if less than usual.
        """
        ...

    async def get(self, key: str, *, consistent: bool = True) -> Lease | None:
        """One lease, strongly consistent; None if there is no such row or the row is not a lease.

        Not `consistent`: the row may be shown as it was a moment ago, for half the price.
        """
        ...

    async def get_many(self, keys: Sequence[str]) -> Mapping[str, Lease]:
        """Many leases, strongly consistent. Rows that are absent, unreadable or no leases are left out."""
        ...

    async def create(self, lease: Lease) -> bool:
        """Put the row if the key is free; False if it exists."""
        ...

    async def renew(
        self,
        lease: Lease,
        *,
        resent: bool = False,
        heartbeat: str | None = None,
        failing: Failing | None = None,
        status: ShardStatus | None = None,
    ) -> Lease | Refusal:
        """Raise the counter by one if the row still is `lease`'s holding; returns the row as it is now.

        A handoff that somebody else began shows as `checkpoint_owner` on the returned lease. `throughput_kbps` is
        written if `lease` has one. `resent`: an earlier write of ours with this counter has an unknown outcome.
        `heartbeat`: mark the row as kept by the worker heartbeat of this epoch; None: take such a mark away.
        `failing`: note on the row that its record processor fails; None: leave the row's note alone.
        `status`: what to tell people about the shard; None: leave what the row says.
        """
        ...

    async def take(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        """Make `owner` the owner if the counter has not moved since `lease` was read; returns the row as it is now.

        `resent`: an earlier take of this very lease and counter by `owner` has an unknown outcome.
        """
        ...

    async def begin_handoff(self, lease: Lease, next_owner: str, *, resent: bool = False) -> Lease | Refusal:
        """Name `next_owner` and let the present owner finish (leases#conditional-writes). The counter stays.

        Refused unless the row still has `lease`'s owner and no pending handoff. `next_owner` must be another worker.
        """
        ...

    async def assign(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        """Make `owner` the owner and end any handoff, if the row's owners are `lease`'s.

        The counter is no condition: the present holder's renewals do not hinder it. With `resent`, a row that belongs
        to `owner` is a success, whoever made it so.
        """
        ...

    async def assign_expired(self, lease: Lease, owner: str, *, resent: bool = False) -> Lease | Refusal:
        """`assign`, only if the counter stands where it was seen: for workers that judge expiry without leading."""
        ...

    async def release(self, lease: Lease) -> bool:
        """Remove the owner if the row still is `lease`'s holding, so that others may take it at once.

        While a handoff is pending this completes it: the next owner stays.
        """
        ...

    async def checkpoint(
        self, lease: Lease, position: Position, *, resent: bool = False, throughput_kbps: float | None = None
    ) -> Lease | Refusal:
        """Store `position`, drop any pending checkpoint and note of failures, if the row still is `lease`'s holding.

        Returns the row as it is now. Its checkpoint differs from `position` in two cases: the row is complete, because
        SHARD_END is never replaced by anything else; or, with `resent`, an earlier write of ours was another one, and
        the caller sends again on top of the returned lease.
        """
        ...

    async def record_children(self, key: str, children: frozenset[str]) -> bool:
        """Note the child shards on the row, if it exists. Does not touch the counter."""
        ...

    async def fill_hash_range(self, key: str, hash_range: HashRange) -> bool:
        """Write the hash range if the row exists and has none. Does not touch the counter."""
        ...

    async def delete_completed(self, key: str) -> bool:
        """Delete the row if its checkpoint is SHARD_END; False if it is absent or not complete."""
        ...

    async def delete_unchanged(self, lease: Lease) -> bool:
        """Delete the row if its counter and owners are as seen; False if they are not.

        For streams that the application has given up: the checkpoint is lost with the row. It is for the caller to
        know that nobody renews the lease.
        """
        ...

    async def ensure_owner_index(self) -> IndexStatus:
        """Create the owner index if it is missing, without waiting for it; how it stands afterwards.

        A concurrent creator or a missing permission is no error: the status tells.
        """
        ...

    async def owner_index_status(self) -> IndexStatus: ...

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        """Keys of the rows whose owner is `worker`, pending handoffs to it included; eventually consistent.

        Read from the owner index, and while that cannot be used from a scan, which is made only every few seconds.
        """
        ...
