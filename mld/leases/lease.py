"""A lease in memory: the values of one lease row. Rules: leases spec, section 3.

Values only. What a row looks like in DynamoDB is `rows`, what may be written is `writes`, who holds what is `keeper`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mld.positions import Position
from mld.streams import HashRange

RENEWALS_PER_LEASE = 3  # Java's: within its duration a lease survives a renewal that failed and one that is late


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A prepared checkpoint (two-phase); `state` is the application's opaque bytes."""

    position: Position
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease row. `owner` None means unassigned; `checkpoint_owner` is present only while a handoff is pending."""

    key: str
    checkpoint: Position
    counter: int = 0
    owner: str | None = None
    checkpoint_owner: str | None = None
    owner_switches: int = 0
    pending: PendingCheckpoint | None = None
    parents: frozenset[str] = frozenset()
    children: frozenset[str] = frozenset()
    hash_range: HashRange | None = None
    throughput_kbps: float | None = None
    heartbeat: str | None = None
    """The epoch of the worker heartbeat that stands for the renewals of this lease; None if it is renewed by itself."""

    @property
    def actual_owner(self) -> str | None:
        """Who may renew and checkpoint now: the old owner while a handoff is pending."""
        return self.checkpoint_owner if self.checkpoint_owner is not None else self.owner

    @property
    def handoff_to(self) -> str | None:
        """The worker that gets the lease once its actual owner has finished; None if no handoff is pending."""
        return self.owner if self.checkpoint_owner is not None else None

    @property
    def is_complete(self) -> bool:
        return self.checkpoint.is_shard_end

    def with_counter(self, counter: int) -> Lease:
        return replace(self, counter=counter)
