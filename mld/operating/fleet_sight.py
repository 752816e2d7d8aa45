"""`FleetSight`: everything that is known of a fleet when faults are looked for. Pure.

It combines what the tables show, what Kinesis lists, and what a worker knows of itself. A part that is not known is
None or empty; then no faults are found in it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mld.core.stream_ids import stream_of_key
from mld.core.streams import Shard
from mld.metrics.progress import LateLoop
from mld.operating.fleet_status import FleetStatus
from mld.operating.shard_view import ShardView


@dataclass(frozen=True, slots=True)
class Listed:
    """The shards and status of a stream, as its service lists them."""

    shards: Sequence[Shard] = ()
    status: str | None = None


@dataclass(frozen=True, slots=True)
class DiskTrouble:
    """A directory (`place`) that is full, or soon will be, in words. `is_lost`: writing to it fails already."""

    place: str
    words: str
    remedy: str
    is_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a worker knows of itself, without a request to any service."""

    worker: str
    shards: Sequence[ShardView] = ()
    """Shards whose leases the worker holds."""
    late: Sequence[LateLoop] = ()
    """Loops of the worker that make no progress."""
    unreached: str | None = None
    """Why the lease table counts as out of reach."""
    slow: Mapping[str, str] = field(default_factory=dict)
    """Services that answer too late, with words on how late."""
    contested: Mapping[str, str] = field(default_factory=dict)
    """Subscriptions that another program takes over again and again: words on it, by lease key."""
    spent: Mapping[str, str] = field(default_factory=dict)
    """Shards whose records used up a budget lately: words on it, by lease key."""
    left_behind: str | None = None
    """The mode that the fleet has changed to, if this worker was set to stay in a 2.x mode. It takes no leases then."""
    unread: str | None = None
    """Why the worker can read none of its shards; None if it reads some, or has none."""
    is_throttled: bool = False
    """Whether DynamoDB refuses requests of the worker for lack of capacity."""
    corrupt: Sequence[tuple[str, str]] = ()
    """Rows that the loops of the worker could not read, by key, with the reason."""
    holes: Mapping[str | None, int] = field(default_factory=dict)
    """Gaps in the hash range by the label of the stream, as the leader sees them."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why configuration files could not be used when they were last read, by file."""
    waiting: Sequence[str] = ()
    """Keys whose new values need a restart."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """Records that left the stream unread in the last day, described in words, by lease key."""
    disks: Sequence[DiskTrouble] = ()
    """Directories that the worker or its processor writes to, and that are full or soon will be."""
    strangers: int = 0
    """Number of live workers in the table that read another stream."""
    clocks_off: Mapping[str, float] = field(default_factory=dict)
    """Workers whose clocks are wrong, and how many seconds each clock is ahead, as the leader sees them."""
    rows: tuple[int, int] | None = None
    """Number of leases in the table, and number of leases of open shards, as the leader sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSight:
    """Everything that is known of a fleet when faults are looked for; see the module."""

    fleet: FleetStatus | None = None
    unread: str | None = None
    """Why the tables cannot be read now."""
    listed: Mapping[str | None, Listed] = field(default_factory=dict)
    """Shards that the service lists, by the label of the stream (None: the only one). Streams that could not be listed
    are absent.
    """
    own: Own | None = None
    """What the worker that looks knows of itself; None if no worker looks, but a command."""
    table_created_s: float | None = None
    """When the lease table was created, in epoch seconds."""
    file: str = ""
    """The properties file, for the commands in remedies; empty if commands find it by an environment variable."""

    @property
    def shards(self) -> Sequence[ShardView]:
        """All open shards that are known."""
        if self.fleet is not None:
            return self.fleet.open_shards
        return () if self.own is None else self.own.shards

    @property
    def corrupt(self) -> Mapping[str, str]:
        """Rows that cannot be read, with the reason, by key."""
        of_fleet = () if self.fleet is None else self.fleet.corrupt
        return {**dict(() if self.own is None else self.own.corrupt), **dict(of_fleet)}

    def command(self, verb: str, *words: str) -> str:
        """Return a command line for this application, such as ``mld peek app.properties 3 --at checkpoint``."""
        return " ".join(["mld", verb, *([shlex.quote(self.file)] if self.file else []), *words])

    def label_of(self, key: str) -> str | None:
        """Return the label of the stream that a lease key names; None if it names none."""
        stream = stream_of_key(key)
        return stream if stream is None or self.fleet is None else self.fleet.labels.get(stream, stream)

    def starts(self) -> str:
        """Return the command to try if nothing is read: ``mld doctor`` if a worker is alive, else ``mld run``."""
        lives = self.own is not None or (
            self.fleet is not None and any(one.is_alive is not False for one in self.fleet.workers)
        )
        return self.command("doctor" if lives else "run")
