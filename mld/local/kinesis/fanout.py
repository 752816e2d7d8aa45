"""Enhanced fan-out: the registered consumers and their subscriptions (retrieval#service-limits)."""

from __future__ import annotations

from mld.local.kinesis import errors
from mld.local.kinesis.directory import Directory
from mld.local.kinesis.reading import start_position
from mld.local.kinesis.shard import ShardState
from mld.local.kinesis.stream_state import Consumer, Stream
from mld.local.kinesis.subscription import TAKEOVER_S, ShardSubscription
from mld.streams import IteratorType, StartingPoint

CONSUMERS_MAX = 20
CREATING_MAX = 5


class FanOutDirectory(Directory):
    """One live subscription for each consumer and shard; a later one takes over."""

    def register_consumer(self, ref: str, name: str, *, now: float) -> Consumer:
        stream = self.data_stream(ref, now)
        existing = self.consumers(stream.arn, now=now)
        if any(c.name == name for c in existing):
            raise errors.in_use(
                f"Consumer {name} under stream {stream.name} already exists for account {self.account}."
            )
        if len(existing) >= CONSUMERS_MAX:
            raise errors.limit_exceeded(f"Consumer count cannot exceed {CONSUMERS_MAX} for stream {stream.name}.")
        if sum(c.status(now) == "CREATING" for c in existing) >= CREATING_MAX:
            raise errors.limit_exceeded(f"Only {CREATING_MAX} consumers can be created at the same time.")
        consumer = Consumer(
            name, f"{stream.arn}/consumer/{name}:{int(now)}", stream.arn, now, now + self.delays.consumer_s
        )
        stream.consumers[name] = consumer
        return consumer

    def consumers(self, ref: str, *, now: float) -> list[Consumer]:
        """All consumers of a stream, in order of their names."""
        stream = self.stream(ref, now)
        for name in [c.name for c in stream.consumers.values() if c.is_gone(now)]:
            del stream.consumers[name]
        return [stream.consumers[name] for name in sorted(stream.consumers)]

    def consumer(
        self, *, now: float, arn: str | None = None, stream_arn: str | None = None, name: str | None = None
    ) -> Consumer:
        """The consumer with this ARN, or with this stream's ARN and name; if all are given they must agree."""
        if arn is not None:
            parts = _stream_and_name(arn)
            if parts is None:
                raise errors.invalid(f"ConsumerARN {arn} is not valid.")
            if (stream_arn or parts[0]) != parts[0] or (name or parts[1]) != parts[1]:
                raise errors.invalid("ConsumerARN contradicts StreamARN or ConsumerName.")
            stream_arn, name = parts
        if stream_arn is None or name is None:
            raise errors.invalid("Either ConsumerARN or StreamARN and ConsumerName must be provided.")
        found = [c for c in self.consumers(stream_arn, now=now) if c.name == name and arn in (None, c.arn)]
        if not found:
            raise errors.not_found(f"Consumer {arn or name} under account {self.account} not found.")
        return found[0]

    def deregister_consumer(self, consumer: Consumer, *, now: float) -> None:
        if consumer.gone_s is None:
            consumer.gone_s = now + self.delays.consumer_s

    def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint, *, now: float) -> ShardSubscription:
        """Raises before anything is streamed; later the subscription reports its own end."""
        consumer = self.consumer(now=now, arn=consumer_arn)
        if (status := consumer.status(now)) != "ACTIVE":
            raise errors.in_use(f"Consumer {consumer_arn} is not ACTIVE, instead in state {status}.")
        stream = self.data_stream(consumer.stream_arn, now)
        shard = self.shard(stream, shard_id)
        if start.type in (IteratorType.AT_SEQUENCE_NUMBER, IteratorType.AFTER_SEQUENCE_NUMBER) and not start.sequence:
            raise errors.invalid("StartingPosition needs a SequenceNumber for this type.")
        position = start_position(stream, shard, start, now)
        key = (consumer_arn, shard.shard_id)
        before = self._subscriptions.get(key)
        in_use = errors.in_use(
            f"Another active subscription exists for this consumer: {self.account}:{stream.name}:{shard.shard_id}:"
            f"{consumer.name}"
        )
        if before is not None and before.is_live:
            if now - before.started_s < TAKEOVER_S:
                raise in_use
            before.stop(in_use)

        def find(at: float) -> tuple[Stream, ShardState]:
            self.consumer(now=at, arn=consumer_arn)
            current = self.data_stream(consumer.stream_arn, at)
            if current is not stream:
                raise errors.stream_not_found(stream.name, self.account)
            return current, self.shard(current, shard.shard_id)

        subscription = ShardSubscription(find, position, now, enforce=self.enforce)
        self._subscriptions = {k: s for k, s in self._subscriptions.items() if s.is_live}
        self._subscriptions[key] = subscription
        return subscription


def _stream_and_name(arn: str) -> tuple[str, str] | None:
    """Stream ARN and consumer name of a consumer's ARN; None if it is none."""
    stream_arn, found, rest = arn.partition("/consumer/")
    name, colon, stamp = rest.rpartition(":")
    return (stream_arn, name) if found and colon and name and stamp.isdigit() else None
