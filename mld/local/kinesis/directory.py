"""The streams of one account and region: finding, making, deleting and setting them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mld.local.accounts import partition_of
from mld.local.kinesis import errors
from mld.local.kinesis.errors import ACCOUNT
from mld.local.kinesis.shard import ShardState
from mld.local.kinesis.stream_state import ON_DEMAND_SHARDS, RETENTION_H_MAX, Stream
from mld.local.kinesis.subscription import ShardSubscription

REGION = "us-east-1"
SHARD_LIMIT = 10_000
RECORD_KIB_MAX = 10_240
_ARN = re.compile(r"arn:(aws[^:]*):kinesis:([^:]+):(\d{12}):stream/([a-zA-Z0-9_.-]{1,128})")


@dataclass(frozen=True, slots=True)
class StateDelays:
    """How long streams and consumers stay in their passing states, in seconds. At 0 these are never seen."""

    create_s: float = 0.0
    update_s: float = 0.0
    delete_s: float = 0.0
    consumer_s: float = 0.0


class Directory:
    """Mutable; `enforce`, `delays` and `shard_limit` may be changed at any time."""

    def __init__(
        self,
        *,
        region: str = REGION,
        account: str = ACCOUNT,
        enforce: bool = False,
        delays: StateDelays | None = None,
    ) -> None:
        self.region = region
        self.account = account
        self.enforce = enforce
        self.delays = delays or StateDelays()
        self.shard_limit = SHARD_LIMIT
        self._streams: dict[str, Stream] = {}
        self._subscriptions: dict[tuple[str, str], ShardSubscription] = {}

    # --- finding things ----------------------------------------------------------------------------------------------

    def stream_arn(self, name: str) -> str:
        return f"arn:{partition_of(self.region)}:kinesis:{self.region}:{self.account}:stream/{name}"

    def streams(self, now: float) -> list[Stream]:
        """Return all streams, in order of their names."""
        for stream in [s for s in self._streams.values() if s.gone_s is not None and now >= s.gone_s]:
            del self._streams[stream.name]
        return [self._streams[name] for name in sorted(self._streams)]

    def stream(self, ref: str, now: float) -> Stream:
        """Return the stream of this name or ARN, in whatever state."""
        name = ref
        if ref.startswith("arn:"):
            parts = _ARN.fullmatch(ref)
            if parts is None:
                raise errors.invalid(f"StreamARN {ref} is not valid.")
            name = parts[4]
            if (parts[2], parts[3]) != (self.region, self.account):
                raise errors.stream_not_found(name, parts[3])
        stream = self._streams.get(name)
        if stream is None or (stream.gone_s is not None and now >= stream.gone_s):
            self._streams.pop(name, None)
            raise errors.stream_not_found(name, self.account)
        stream.drop_expired_shards(now)
        return stream

    def data_stream(self, ref: str, now: float) -> Stream:
        """Return a stream that takes reads and writes; one that is still being made has no shards yet."""
        stream = self.stream(ref, now)
        if stream.status(now) == "CREATING":
            raise errors.stream_not_found(stream.name, self.account)
        return stream

    def settled_stream(self, ref: str, now: float) -> Stream:
        stream = self.stream(ref, now)
        if (status := stream.status(now)) != "ACTIVE":
            raise errors.in_use(
                f"Stream {stream.name} under account {self.account} not ACTIVE, instead in state {status}"
            )
        return stream

    def shard(self, stream: Stream, shard_id: str) -> ShardState:
        shard = stream.shard(shard_id)
        if shard is None:
            raise errors.shard_not_found(shard_id, stream.name, self.account)
        return shard

    # --- making and setting ------------------------------------------------------------------------------------------

    def create_stream(
        self,
        name: str,
        *,
        now: float,
        shard_count: int | None = None,
        on_demand: bool = False,
        tags: Mapping[str, str] | None = None,
        record_kib_max: int | None = None,
        distributes: bool = False,
    ) -> Stream:
        """Create a stream. `shard_count` is required unless `on_demand`, which starts with four shards."""
        if any(s.name == name for s in self.streams(now)):
            raise errors.in_use(f"Stream {name} under account {self.account} already exists.")
        if on_demand and shard_count is not None:
            raise errors.validation("ShardCount must not be given for a stream in On-Demand mode.")
        if not on_demand and shard_count is None:
            raise errors.missing("shardCount")
        if distributes and not on_demand:
            raise _needs_on_demand(name)
        count = ON_DEMAND_SHARDS if on_demand else shard_count or 0
        self.require_room(count, now)
        stream = Stream(
            name,
            self.stream_arn(name),
            now,
            shard_count=count,
            on_demand=on_demand,
            active_s=now + self.delays.create_s,
        )
        stream.tags.update(tags or {})
        if record_kib_max is not None:
            stream.record_kib_max = record_kib_max
        stream.distributes = distributes
        self._streams[name] = stream
        return stream

    def require_room(self, more: int, now: float) -> None:
        open_count = self.open_shard_count(now)
        if open_count + more > self.shard_limit:
            raise errors.limit_exceeded(
                f"This request would exceed the shard limit for the account {self.account} in {self.region}. "
                f"Current shard count for the account: {open_count}. Limit: {self.shard_limit}."
            )

    def open_shard_count(self, now: float) -> int:
        return sum(len(s.open_shards) for s in self.streams(now))

    def delete_stream(self, ref: str, *, now: float, with_consumers: bool = False) -> None:
        stream = self.stream(ref, now)
        if any(not c.is_gone(now) for c in stream.consumers.values()) and not with_consumers:
            raise errors.in_use(f"Stream {stream.name} under account {self.account} has registered consumers.")
        if stream.gone_s is None:
            stream.gone_s = now + self.delays.delete_s

    def set_retention(self, ref: str, hours: int, *, increase: bool, now: float) -> None:
        stream = self.settled_stream(ref, now)
        if not 24 <= hours <= RETENTION_H_MAX:
            raise errors.invalid(
                f"Retention period must be between 24 and {RETENTION_H_MAX} hours; requested: {hours} hours."
            )
        if increase and hours < stream.retention_h:
            raise errors.invalid(
                f"Requested retention period ({hours} hours) for stream {stream.name} can not be shorter than existing "
                f"retention period ({stream.retention_h} hours). Use DecreaseRetentionPeriod API."
            )
        if not increase and hours > stream.retention_h:
            raise errors.invalid(
                f"Requested retention period ({hours} hours) for stream {stream.name} can not be longer than existing "
                f"retention period ({stream.retention_h} hours). Use IncreaseRetentionPeriod API."
            )
        stream.retention_h = hours
        stream.updated_s = now + self.delays.update_s

    def set_mode(self, ref: str, *, on_demand: bool, now: float) -> None:
        stream = self.settled_stream(ref, now)
        stream.on_demand = on_demand
        stream.distributes = stream.distributes and on_demand
        stream.updated_s = now + self.delays.update_s

    def set_distribution(self, ref: str, *, distributes: bool, now: float) -> None:
        """Set the distribution, at once."""
        stream = self.settled_stream(ref, now)
        if not stream.on_demand:
            raise _needs_on_demand(stream.name)
        stream.distributes = distributes

    def set_record_size(self, ref: str, kib: int, *, now: float) -> None:
        stream = self.settled_stream(ref, now)
        if not 1024 <= kib <= RECORD_KIB_MAX:
            raise errors.validation(f"Value '{kib}' at 'maxRecordSizeInKiB' must be between 1024 and {RECORD_KIB_MAX}")
        stream.record_kib_max = kib
        stream.updated_s = now + self.delays.update_s


def _needs_on_demand(name: str) -> errors.KinesisError:
    return errors.invalid(f"Stream {name} is not in On-Demand mode: it has no record distribution strategy.")
