"""`FleetSight`: what somebody knows of a fleet when faults are looked for. Pure.

It combines a look at the tables, what Kinesis lists, and what a worker knows of itself. Parts that are not known are
None or empty, and no faults are found in them."""

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
    """What the service says of a stream."""

    shards: Sequence[Shard] = ()
    status: str | None = None


@dataclass(frozen=True, slots=True)
class DiskTrouble:
    """What is wrong with a place; `is_lost`: nothing can be written there now."""

    place: str
    words: str
    remedy: str
    is_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a worker knows of itself, without asking anybody."""

    worker: str
    shards: Sequence[ShardView] = ()
    """Those whose leases it holds."""
    late: Sequence[LateLoop] = ()
    """Its loops that make no progress."""
    unreached: str | None = None
    """Why its lease table counts as out of reach."""
    slow: Mapping[str, str] = field(default_factory=dict)
    """Services that answer too late, and how late."""
    contested: Mapping[str, str] = field(default_factory=dict)
    """Who else takes the subscription to a shard, by the key of its lease."""
    left_behind: str | None = None
    """The mode that the fleet has gone on to without it, so that it takes no leases."""
    unread: str | None = None
    """Why it can read none of its shards, if it has any."""
    is_throttled: bool = False
    """Whether DynamoDB refuses requests of it for want of capacity."""
    corrupt: Sequence[tuple[str, str]] = ()
    """Rows that its loops could not read: key and reason."""
    holes: Mapping[str | None, int] = field(default_factory=dict)
    """Gaps in the hash range by the label of the stream, as the leader sees them."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why files of its configuration could not be used when they were last read."""
    waiting: Sequence[str] = ()
    """Keys whose new values need a restart."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """What its shards have lost to retention in the last day, by the key of the lease."""
    disks: Sequence[DiskTrouble] = ()
    """Places that it or its processor writes to and that are full, or soon will be."""
    strangers: int = 0
    """Live workers in the table that read another stream."""
    clocks_off: Mapping[str, float] = field(default_factory=dict)
    """By how many seconds the clocks of workers are ahead, as the leader sees them; those that are right are absent."""
    rows: tuple[int, int] | None = None
    """Leases in the table, and those of open shards, as the leader sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSight:
    """What somebody knows of a fleet. Nothing is found of what is not known."""

    fleet: FleetStatus | None = None
    unread: str | None = None
    """Why the tables cannot be read now."""
    listed: Mapping[str | None, Listed] = field(default_factory=dict)
    """Streams by label; None is the only one. Those that could not be asked are absent."""
    own: Own | None = None
    table_created_s: float | None = None
    """When the lease table was made, in epoch seconds."""
    file: str = ""
    """The properties file as remedies name it; empty: a command finds it by itself."""

    @property
    def shards(self) -> Sequence[ShardView]:
        """The open ones that are known."""
        if self.fleet is not None:
            return self.fleet.open_shards
        return () if self.own is None else self.own.shards

    @property
    def corrupt(self) -> Mapping[str, str]:
        """Why rows cannot be read, by key."""
        of_fleet = () if self.fleet is None else self.fleet.corrupt
        return {**dict(() if self.own is None else self.own.corrupt), **dict(of_fleet)}

    def command(self, verb: str, *words: str) -> str:
        """Return a command on this application: ``mld peek app.properties 3 --at checkpoint``."""
        return " ".join(["mld", verb, *([shlex.quote(self.file)] if self.file else []), *words])

    def label_of(self, key: str) -> str | None:
        """Return the label of the stream that a lease key names."""
        stream = stream_of_key(key)
        return stream if stream is None or self.fleet is None else self.fleet.labels.get(stream, stream)

    def starts(self) -> str:
        """Return what to do where nobody works: start a worker, or find out why those that live do not."""
        lives = self.own is not None or (
            self.fleet is not None and any(one.is_alive is not False for one in self.fleet.workers)
        )
        return self.command("doctor" if lives else "run")
