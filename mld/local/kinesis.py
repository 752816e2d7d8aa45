"""`Kinesis`: a model of the service for one account and region. Each operation is a method with plain values. Pure.

Rules: retrieval#service-limits. Times are epoch seconds; each operation gets the present time as `now`. A parameter
`ref` is the name or the ARN of a stream. If an operation is refused, it raises `KinesisError`. Limits of throughput are
enforced only if `enforce` is set, all other limits always.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mld.core.streams import IteratorType, StartingPoint
from mld.local.kinesis_errors import (
    ACCOUNT,
    KinesisError,
    in_use,
    invalid,
    limit_exceeded,
    missing,
    not_found,
    shard_not_found,
    stream_not_found,
    throttled,
    validation,
)
from mld.local.records import ITERATOR_LIFE_S, TAKEOVER_S, PutEntry, PutResult, check_entries, shard_of, store
from mld.local.shard_filter import FilterType, ListFilter, matches
from mld.local.shard_reading import LogPage, read_page, start_position
from mld.local.shard_subscription import PAGE_RECORDS_MAX, ShardSubscription
from mld.local.stream_state import ON_DEMAND_SHARDS, RETENTION_H_MAX, Consumer, ShardState, Stream
from mld.local.tokens import SHARD_ITERATOR, SHARDS_TOKEN, ShardIterator, decode_iterator, pack, unpacked
from mld.properties.values import partition_of

REGION = "us-east-1"
SHARD_LIMIT = 10_000  # open shards of an account in a region
CONSUMERS_MAX = 20  # registered consumers of a stream
CREATING_MAX = 5  # consumers of a stream that are CREATING at the same time
LIST_SHARDS_DEFAULT = 1000  # shards in a page if the request names no limit
_ARN = re.compile(r"arn:(aws[^:]*):kinesis:([^:]+):(\d{12}):stream/([a-zA-Z0-9_.-]{1,128})")


@dataclass(frozen=True, slots=True)
class StateDelays:
    """How many seconds streams and consumers stay in states like CREATING. With 0 these states are never seen."""

    create_s: float = 0.0
    update_s: float = 0.0
    delete_s: float = 0.0
    consumer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ListedShards:
    """One page of shards, sorted by id. `next_token` is set if more shards follow."""

    shards: list[ShardState]
    next_token: str | None


class Kinesis:
    """The model. `enforce`, `delays` and `shard_limit` may be changed at any time.

    A consumer has at most one live subscription to a shard. A new subscription ends the one before it.
    """

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
        """The newest subscription for each consumer ARN and shard id."""

    # --- finding things ----------------------------------------------------------------------------------------------

    def stream_arn(self, name: str) -> str:
        return f"arn:{partition_of(self.region)}:kinesis:{self.region}:{self.account}:stream/{name}"

    def streams(self, now: float) -> list[Stream]:
        """Return all streams, sorted by name. Those whose deletion has ended are removed first."""
        for stream in [s for s in self._streams.values() if s.gone_s is not None and now >= s.gone_s]:
            del self._streams[stream.name]
        return [self._streams[name] for name in sorted(self._streams)]

    def stream(self, ref: str, now: float) -> Stream:
        """Return the stream with this name or ARN, whatever its status. Raises KinesisError if it does not exist."""
        name = ref
        if ref.startswith("arn:"):
            parts = _ARN.fullmatch(ref)
            if parts is None:
                raise invalid(f"StreamARN {ref} is not valid.")
            name = parts[4]
            if (parts[2], parts[3]) != (self.region, self.account):
                raise stream_not_found(name, parts[3])
        stream = self._streams.get(name)
        if stream is None or (stream.gone_s is not None and now >= stream.gone_s):
            self._streams.pop(name, None)
            raise stream_not_found(name, self.account)
        stream.drop_expired_shards(now)
        return stream

    def data_stream(self, ref: str, now: float) -> Stream:
        """Return a stream that can be read and written. For a stream that is still CREATING, raises the same error as
        if it did not exist.
        """
        stream = self.stream(ref, now)
        if stream.status(now) == "CREATING":
            raise stream_not_found(stream.name, self.account)
        return stream

    def settled_stream(self, ref: str, now: float) -> Stream:
        """Return a stream that is ACTIVE. For one with another status, raises ResourceInUse."""
        stream = self.stream(ref, now)
        if (status := stream.status(now)) != "ACTIVE":
            raise in_use(f"Stream {stream.name} under account {self.account} not ACTIVE, instead in state {status}")
        return stream

    def shard(self, stream: Stream, shard_id: str) -> ShardState:
        """Return a shard of a stream. Raises KinesisError."""
        shard = stream.shard(shard_id)
        if shard is None:
            raise shard_not_found(shard_id, stream.name, self.account)
        return shard

    # --- making and setting ------------------------------------------------------------------------------------------

    def create_stream(
        self,
        name: str,
        *,
        now: float,
        shard_count: int | None = None,
        on_demand: bool = False,
        record_kib_max: int | None = None,
        distributes: bool = False,
    ) -> Stream:
        """Create a stream. It needs a `shard_count`, unless it is `on_demand`; then it has four shards at first.

        If `distributes` is set, the stream chooses the shards of records itself, without regard to keys.
        """
        if any(s.name == name for s in self.streams(now)):
            raise in_use(f"Stream {name} under account {self.account} already exists.")
        if on_demand and shard_count is not None:
            raise validation("ShardCount must not be given for a stream in On-Demand mode.")
        if not on_demand and shard_count is None:
            raise missing("shardCount")
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
        if record_kib_max is not None:
            stream.record_kib_max = record_kib_max
        stream.distributes = distributes
        self._streams[name] = stream
        return stream

    def require_room(self, more: int, now: float) -> None:
        """Raise LimitExceeded if the account would have too many open shards with `more` of them."""
        open_count = sum(len(s.open_shards) for s in self.streams(now))
        if open_count + more > self.shard_limit:
            raise limit_exceeded(
                f"This request would exceed the shard limit for the account {self.account} in {self.region}. "
                f"Current shard count for the account: {open_count}. Limit: {self.shard_limit}."
            )

    def delete_stream(self, ref: str, *, now: float, with_consumers: bool = False) -> None:
        """Begin to delete a stream. Raises KinesisError if it has consumers, unless `with_consumers`."""
        stream = self.stream(ref, now)
        if any(not c.is_gone(now) for c in stream.consumers.values()) and not with_consumers:
            raise in_use(f"Stream {stream.name} under account {self.account} has registered consumers.")
        if stream.gone_s is None:
            stream.gone_s = now + self.delays.delete_s

    def set_retention(self, ref: str, hours: int, *, increase: bool, now: float) -> None:
        """Change the retention period of a stream: IncreaseStreamRetentionPeriod if `increase`, else
        DecreaseStreamRetentionPeriod. Raises KinesisError if it would change the other way.
        """
        stream = self.settled_stream(ref, now)
        if not 24 <= hours <= RETENTION_H_MAX:
            raise invalid(f"Retention period must be between 24 and {RETENTION_H_MAX} hours; requested: {hours} hours.")
        if increase and hours < stream.retention_h:
            raise invalid(
                f"Requested retention period ({hours} hours) for stream {stream.name} can not be shorter than existing "
                f"retention period ({stream.retention_h} hours). Use DecreaseRetentionPeriod API."
            )
        if not increase and hours > stream.retention_h:
            raise invalid(
                f"Requested retention period ({hours} hours) for stream {stream.name} can not be longer than existing "
                f"retention period ({stream.retention_h} hours). Use IncreaseRetentionPeriod API."
            )
        stream.retention_h = hours
        stream.updated_s = now + self.delays.update_s

    def set_mode(self, ref: str, *, on_demand: bool, now: float) -> None:
        """Make a stream provisioned or on demand. A provisioned stream does not distribute records over its shards
        itself, so that setting is reset.
        """
        stream = self.settled_stream(ref, now)
        stream.on_demand = on_demand
        stream.distributes = stream.distributes and on_demand
        stream.updated_s = now + self.delays.update_s

    def set_distribution(self, ref: str, *, distributes: bool, now: float) -> None:
        """Set whether the stream chooses the shards of records itself, without regard to keys. Raises KinesisError if
        the stream is not on demand.
        """
        stream = self.settled_stream(ref, now)
        if not stream.on_demand:
            raise _needs_on_demand(stream.name)
        stream.distributes = distributes

    # --- shards ------------------------------------------------------------------------------------------------------

    def list_shards(
        self,
        ref: str | None,
        *,
        now: float,
        token: str | None = None,
        after_id: str | None = None,
        shard_filter: ListFilter | None = None,
        limit: int = LIST_SHARDS_DEFAULT,
    ) -> ListedShards:
        """Return one page of the shards of the stream `ref`: those after `after_id` that pass the filter, by default
        all that still have records. The `token` of an earlier page continues it; then no other argument may be given
        except `limit`.
        """
        if token is not None:
            if ref is not None or after_id is not None or shard_filter is not None:
                raise invalid("NextToken and StreamName cannot be provided together.")
            stream, after_id, shard_filter = self._resume_listing(token, now)
        elif ref is None:
            raise invalid("Either NextToken or StreamName should be provided.")
        else:
            stream = self.stream(ref, now)
        if stream.status(now) not in ("ACTIVE", "UPDATING"):
            raise in_use(
                f"Stream {stream.name} under account {self.account} not ACTIVE or UPDATING, instead in state "
                f"{stream.status(now)}"
            )
        _check_filter(shard_filter)
        wanted = shard_filter or ListFilter(FilterType.FROM_TRIM_HORIZON)
        horizon = max(stream.horizon_s(now), stream.created_s)
        found = [s for s in stream.shards.values() if s.shard_id > (after_id or "") and matches(s, wanted, horizon)]
        page = found[:limit]
        if len(found) <= limit:
            return ListedShards(page, None)
        filter_fields = shard_filter and (shard_filter.type.value, shard_filter.shard_id, shard_filter.timestamp_s)
        place = (self.account, stream.name, stream.created_ms, page[-1].shard_id, filter_fields, now)
        return ListedShards(page, pack(SHARDS_TOKEN, *place))

    def _resume_listing(self, token: str, now: float) -> tuple[Stream, str, ListFilter | None]:
        """Return the contents of a page token: the stream, the last shard id of the page before, and the filter."""
        _, name, created_ms, after_id, filter_fields, issued_s = unpacked(SHARDS_TOKEN, token)
        if now - issued_s > ITERATOR_LIFE_S:
            raise KinesisError("ExpiredNextTokenException", "The NextToken is older than 300 seconds.")
        stream = self.stream(name, now)
        if stream.created_ms != created_ms:
            raise invalid("NextToken is of a stream that does not exist any more.")
        if filter_fields is None:
            return stream, after_id, None
        kind, *rest = filter_fields
        return stream, after_id, ListFilter(FilterType(kind), *rest)

    def split_shard(self, ref: str, shard_id: str, new_starting_hash_key: int, *, now: float) -> None:
        """Split a shard in two at this hash key."""
        stream = self._reshardable(ref, now)
        shard = self.shard(stream, shard_id)
        self.require_room(1, now)
        stream.split(shard, new_starting_hash_key, now)
        stream.updated_s = now + self.delays.update_s

    def merge_shards(self, ref: str, shard_id: str, adjacent_id: str, *, now: float) -> None:
        """Replace two shards with adjacent hash ranges by one."""
        stream = self._reshardable(ref, now)
        stream.merge(self.shard(stream, shard_id), self.shard(stream, adjacent_id), now)
        stream.updated_s = now + self.delays.update_s

    def update_shard_count(self, ref: str, target: int, *, now: float) -> int:
        """Split and merge shards until there are `target` shards of equal width. Return the number of shards before."""
        stream = self._reshardable(ref, now)
        current = len(stream.open_shards)
        if target > 2 * current or 2 * target < current:
            raise invalid(
                f"UpdateShardCount cannot scale to more than double or less than half your current open shard count. "
                f"Current open shard count: {current} Target shard count: {target}"
            )
        self.require_room(max(0, target - current), now)
        stream.scale(target, now)
        stream.updated_s = now + self.delays.update_s
        return current

    def _reshardable(self, ref: str, now: float) -> Stream:
        """Return a stream whose shards can be split and merged: it is ACTIVE, and not in on-demand mode."""
        stream = self.settled_stream(ref, now)
        if stream.on_demand:
            raise KinesisError(
                "ValidationException",
                f"Request is invalid. Stream {stream.name} under account {self.account} is in On-Demand mode.",
            )
        return stream

    # --- records -----------------------------------------------------------------------------------------------------

    def put_record(self, ref: str, entry: PutEntry, *, now: float) -> PutResult:
        """Put one record. Raises ProvisionedThroughputExceeded, which `put_records` returns as part of the result."""
        placed = self.put_records(ref, [entry], now=now)[0]
        if placed.error is not None:
            raise KinesisError(*placed.error)
        return placed

    def put_records(self, ref: str, entries: Sequence[PutEntry], *, now: float) -> list[PutResult]:
        """Put records, and return a result for each, in the same order. If limits are enforced, each record that
        exceeds the limits of its shard is refused.
        """
        stream = self.data_stream(ref, now)
        sizes = check_entries(stream, entries)
        results = []
        for entry, size in zip(entries, sizes, strict=True):
            shard = shard_of(stream, entry)
            if self.enforce and not shard.limits.admit_write(size, now):
                refusal = throttled(shard.shard_id, stream.name, self.account)
                results.append(PutResult(error=(refusal.code, refusal.message)))
            else:
                results.append(store(stream, shard, entry, size, now))
        return results

    def get_shard_iterator(self, ref: str, shard_id: str, start: StartingPoint, *, now: float) -> str:
        """Return an iterator for a place in a shard. Raises KinesisError, for example if the shard has given out too
        many iterators in this second.
        """
        stream = self.data_stream(ref, now)
        shard = self.shard(stream, shard_id)
        if self.enforce and not shard.limits.admit_iterator(now):
            raise throttled(shard.shard_id, stream.name, self.account)
        position = start_position(stream, shard, start, now)
        return pack(SHARD_ITERATOR, self.account, stream.name, stream.created_ms, shard.index, position, now)

    def get_records(
        self, iterator: str, *, now: float, limit: int | None = None, ref: str | None = None
    ) -> tuple[LogPage, str | None]:
        """Return a page and the next iterator, which is None at the end of a closed shard."""
        stream, shard, place = self._place(iterator, ref, now)
        if self.enforce and not shard.limits.admit_read(now):
            raise throttled(shard.shard_id, stream.name, self.account)
        page = read_page(stream, shard, place.position, now, limit=limit or PAGE_RECORDS_MAX)
        if self.enforce:
            shard.limits.spent(page.span.size_bytes, now, full_page=page.span.cut_by_size)
        if page.position is None:
            return page, None
        return page, pack(SHARD_ITERATOR, *place._replace(position=page.position, issued_s=now))

    def get_no_records(self, iterator: str, *, now: float) -> tuple[int, str]:
        """Answer GetRecords without records although there are some, as real streams sometimes do.

        Return the lag in milliseconds, and an iterator at the same position.
        """
        stream, shard, place = self._place(iterator, None, now)
        behind = read_page(stream, shard, place.position, now, limit=1).millis_behind_latest
        return behind, pack(SHARD_ITERATOR, *place._replace(issued_s=now))

    def _place(self, iterator: str, ref: str | None, now: float) -> tuple[Stream, ShardState, ShardIterator]:
        """Return the stream and the shard of an iterator, and the iterator's fields. Raises KinesisError if the
        iterator cannot be used.
        """
        place = decode_iterator(iterator)
        stream = self.data_stream(place.stream, now)
        if stream.created_ms != place.created_ms:
            raise stream_not_found(stream.name, self.account)
        if ref is not None and self.stream(ref, now) is not stream:
            raise invalid("The ShardIterator is of another stream than the one named.")
        if now - place.issued_s > ITERATOR_LIFE_S:
            raise KinesisError(
                "ExpiredIteratorException",
                f"Iterator expired. The iterator was created at time {place.issued_s:.3f} while right now it is "
                f"{now:.3f} which is further in the future than the tolerated delay of 300000 milliseconds.",
            )
        shard = stream.shards.get(place.shard_index)
        if shard is None:
            raise shard_not_found(f"of index {place.shard_index}", stream.name, self.account)
        return stream, shard, place

    # --- enhanced fan-out --------------------------------------------------------------------------------------------

    def register_consumer(self, ref: str, name: str, *, now: float) -> Consumer:
        """Register a consumer of a stream for enhanced fan-out."""
        stream = self.data_stream(ref, now)
        existing = self.consumers(stream.arn, now=now)
        if any(c.name == name for c in existing):
            raise in_use(f"Consumer {name} under stream {stream.name} already exists for account {self.account}.")
        if len(existing) >= CONSUMERS_MAX:
            raise limit_exceeded(f"Consumer count cannot exceed {CONSUMERS_MAX} for stream {stream.name}.")
        if sum(c.status(now) == "CREATING" for c in existing) >= CREATING_MAX:
            raise limit_exceeded(f"Only {CREATING_MAX} consumers can be created at the same time.")
        consumer = Consumer(
            name, f"{stream.arn}/consumer/{name}:{int(now)}", stream.arn, now, now + self.delays.consumer_s
        )
        stream.consumers[name] = consumer
        return consumer

    def consumers(self, ref: str, *, now: float) -> list[Consumer]:
        """Return all consumers of a stream, sorted by name. Those whose deletion has ended are removed first."""
        stream = self.stream(ref, now)
        for name in [c.name for c in stream.consumers.values() if c.is_gone(now)]:
            del stream.consumers[name]
        return [stream.consumers[name] for name in sorted(stream.consumers)]

    def consumer(
        self, *, now: float, arn: str | None = None, stream_arn: str | None = None, name: str | None = None
    ) -> Consumer:
        """Return the consumer with this ARN, or with this stream ARN and name. If both are given, they must agree."""
        if arn is not None:
            parts = _stream_and_name(arn)
            if parts is None:
                raise invalid(f"ConsumerARN {arn} is not valid.")
            if (stream_arn or parts[0]) != parts[0] or (name or parts[1]) != parts[1]:
                raise invalid("ConsumerARN contradicts StreamARN or ConsumerName.")
            stream_arn, name = parts
        if stream_arn is None or name is None:
            raise invalid("Either ConsumerARN or StreamARN and ConsumerName must be provided.")
        found = [c for c in self.consumers(stream_arn, now=now) if c.name == name and arn in (None, c.arn)]
        if not found:
            raise not_found(f"Consumer {arn or name} under account {self.account} not found.")
        return found[0]

    def deregister_consumer(self, consumer: Consumer, *, now: float) -> None:
        """Begin to delete a consumer."""
        if consumer.gone_s is None:
            consumer.gone_s = now + self.delays.consumer_s

    def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint, *, now: float) -> ShardSubscription:
        """Begin a subscription, and end the consumer's earlier one to this shard. If that one is younger than
        TAKEOVER_S, the new one is refused instead. Raises KinesisError; errors that happen later are returned by the
        subscription.
        """
        consumer = self.consumer(now=now, arn=consumer_arn)
        if (status := consumer.status(now)) != "ACTIVE":
            raise in_use(f"Consumer {consumer_arn} is not ACTIVE, instead in state {status}.")
        stream = self.data_stream(consumer.stream_arn, now)
        shard = self.shard(stream, shard_id)
        if start.type in (IteratorType.AT_SEQUENCE_NUMBER, IteratorType.AFTER_SEQUENCE_NUMBER) and not start.sequence:
            raise invalid("StartingPosition needs a SequenceNumber for this type.")
        position = start_position(stream, shard, start, now)
        key = (consumer_arn, shard.shard_id)
        before = self._subscriptions.get(key)
        refusal = in_use(
            f"Another active subscription exists for this consumer: {self.account}:{stream.name}:{shard.shard_id}:"
            f"{consumer.name}"
        )
        if before is not None and before.is_live:
            if now - before.started_s < TAKEOVER_S:
                raise refusal
            before.stop(refusal)

        def find(at: float) -> tuple[Stream, ShardState]:
            """Return the stream and the shard at this time. Raises KinesisError if one of them is gone."""
            self.consumer(now=at, arn=consumer_arn)
            current = self.data_stream(consumer.stream_arn, at)
            if current is not stream:
                raise stream_not_found(stream.name, self.account)
            return current, self.shard(current, shard.shard_id)

        subscription = ShardSubscription(find, position, now, enforce=self.enforce)
        self._subscriptions = {k: s for k, s in self._subscriptions.items() if s.is_live}
        self._subscriptions[key] = subscription
        return subscription


def _stream_and_name(arn: str) -> tuple[str, str] | None:
    """Return the stream ARN and the name in the ARN of a consumer; None if it is not the ARN of a consumer."""
    stream_arn, found, rest = arn.partition("/consumer/")
    name, colon, stamp = rest.rpartition(":")
    return (stream_arn, name) if found and colon and name and stamp.isdigit() else None


def _needs_on_demand(name: str) -> KinesisError:
    """Return the refusal of a strategy for a stream that is not in on-demand mode."""
    return invalid(f"Stream {name} is not in On-Demand mode: it has no record distribution strategy.")


def _check_filter(wanted: ListFilter | None) -> None:
    """Raise InvalidArgument if a filter lacks a field that its type needs, or has one that its type does not have."""
    if wanted is None:
        return
    by_time = wanted.type in (FilterType.AT_TIMESTAMP, FilterType.FROM_TIMESTAMP)
    if by_time is not (wanted.timestamp_s is not None):
        raise invalid(f"ShardFilter {wanted.type.value} and Timestamp do not go together.")
    if (wanted.type is FilterType.AFTER_SHARD_ID) is not (wanted.shard_id is not None):
        raise invalid(f"ShardFilter {wanted.type.value} and ShardId do not go together.")
