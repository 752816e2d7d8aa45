"""The doors of one worker to DynamoDB and Kinesis, with everything a network does to requests.

A request that has left its process goes on without it: it is served in the world, whatever happens to the sender.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeAlias

from mld.aws.table_calls import REFUSED_CODE
from mld.core.clock import Clock
from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    IteratorExpiredError,
    StreamError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.streams import IteratorType, StartingPoint, StreamSummary
from mld.leases.rows import LEASE_TABLE_KEY
from mld.local.kinesis import Kinesis, KinesisError
from mld.retrieval.rawpage import RawPage
from tests.simulation.checkers import ANSWER_LATE_MAX_S
from tests.simulation.world.loop import later_in_world
from tests.simulation.world.plan import Rates
from tests.simulation.world.slowness import Slowness
from tests.simulation.world.surprises import Surprises
from tests.twins.dynamo import Applied, Fault, MemoryDynamo
from tests.twins.dynamo_expressions import Item, ValidationError
from tests.twins.dynamo_tables import Table
from tests.twins.kinesis_model import ModelStreams, stream_error

SLOW_REPLY_MAX_S = ANSWER_LATE_MAX_S
HANG_S = 60.0
"""A packet into the void: longer than anybody waits."""
INDEX_LAGS_S = (0.0, 0.0, 0.5, 3.0)
"""Usually an owner index is behind by milliseconds; under load, by seconds."""
RECENT_S = 5.0  # longer than any read is stale
CALM = Rates()
_SENT_AT = "_sent_at"  # travels with a request, unseen by the service


class SimulatedDynamo(MemoryDynamo):
    """DynamoDB whose eventually consistent scans are up to `stale_s` behind, and whose indexes lag by a drawn time.

    The most an index lags in this run is drawn from `INDEX_LAGS_S`, and each change's lag between nothing and that.
    """

    def __init__(self, clock: Clock, rng: Random, *, stale_s: float) -> None:
        super().__init__(clock)
        self.stale_s = stale_s
        self._index_rng = _another(rng, "index")
        self.index_lag_max_s = self._index_rng.choice(INDEX_LAGS_S)
        self.index_lag = self._drawn_index_lag
        self.outage_until = 0.0
        self.outage_code = ""
        self.slowness: Slowness | None = None
        self.doors: dict[str, DynamoDoor] = {}
        self.on_applied: list[Any] = []
        self._rng = rng
        self._recent: dict[str, deque[tuple[float, str, Item]]] = {}
        self._sent_at = 0.0

    def _drawn_index_lag(self) -> float:
        return self._index_rng.uniform(0.0, self.index_lag_max_s) if self.index_lag_max_s else 0.0

    def _fault_of(self, sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        door, slowness = self.doors[sender], self.slowness
        fault = door.fault(operation)
        if slowness is None or door.cut:
            return fault
        table, now = params.get("TableName", ""), self.clock.monotonic()
        more_s = slowness.seconds(now, door.number, operation, table)
        return replace(
            fault,
            delay_before_s=fault.delay_before_s + slowness.before * more_s,
            delay_after_s=fault.delay_after_s + (1 - slowness.before) * more_s,
        )

    async def request(
        self, sender: str, operation: str, params: dict[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        return await self.send(sender, operation, params, timeout_s)

    def send(
        self, sender: str, operation: str, params: dict[str, Any], timeout_s: float | None
    ) -> asyncio.Future[dict[str, Any]]:
        """As the twin does it, but without copies: nobody here changes what he is given, or what he has given.

        The request travels in the world: the caller's process may be gone before the answer comes.
        """
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        fault = self._fault_of(sender, operation, params) or Fault()
        self._count(sender, operation, params)
        if timeout_s is not None and fault.delay_before_s + fault.delay_after_s >= timeout_s:
            late = AwsUnreachableError(operation, f"no answer within {timeout_s} s")
            later_in_world(timeout_s, _answer, reply, late)
            later_in_world(fault.delay_before_s, self._arrive, None, sender, operation, params, fault)
        else:
            later_in_world(fault.delay_before_s, self._arrive, reply, sender, operation, params, fault)
        return reply

    def _arrive(self, reply: _Reply | None, sender: str, operation: str, params: dict[str, Any], fault: Fault) -> None:
        if fault.fail_before is not None:
            _answer(reply, fault.fail_before)
            return
        answer: dict[str, Any] | Exception
        try:
            answer = self._apply(sender, operation, params)
        except ValidationError as error:
            answer = AwsError(operation, "ValidationException", str(error))
        except Exception as error:  # of AWS, or a fault of the twin, which is the caller's to see
            answer = error
        if reply is not None:
            later_in_world(fault.delay_after_s, _answer, reply, fault.fail_after or answer)

    def _apply(self, sender: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        self._sent_at = params.pop(_SENT_AT, self.clock.monotonic())
        return super()._apply(sender, operation, params)

    def operate(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        """Somebody at a console does it now."""
        return self._apply("operator", operation, params)

    def _record(self, applied: Applied) -> None:
        if not applied.before and not applied.after:
            return  # deleted what was not there
        key = self._tables[applied.table].key_in(applied.before or applied.after)
        recent = self._recent.get(applied.table)
        if recent is None:
            recent = self._recent[applied.table] = deque()
        recent.append((applied.at, key, applied.before))
        for hook in self.on_applied:
            hook(applied, self._sent_at)

    def _items_seen(self, table: Table, params: dict[str, Any]) -> Mapping[str, Item]:
        recent = self._recent.get(table.name)
        now = self.clock.monotonic()
        while recent and recent[0][0] < now - RECENT_S:
            recent.popleft()
        if params.get("ConsistentRead") or not self.stale_s or not recent or "Key" in params or "IndexName" in params:
            return table.items
        since = now - self._rng.uniform(0.0, self.stale_s)
        past = dict(table.items)
        for at, key, before in reversed(recent):
            if at <= since:
                break
            past[key] = before
        return {key: item for key, item in past.items() if item}


_Reply: TypeAlias = asyncio.Future[Any]


def _answer(reply: _Reply | None, answer: Any) -> None:
    """What comes back to a caller who still waits."""
    if reply is None or reply.done():
        return
    if isinstance(answer, Exception):
        reply.set_exception(answer)
        reply._log_traceback = False  # type: ignore[attr-defined]  # the caller may have been killed
    else:
        reply.set_result(answer)


def _act_for(reply: _Reply, act: Callable[[], Any]) -> None:
    """Answer a caller who still waits with what `act` returns or raises."""
    if reply.done():
        return
    try:
        answer = act()
    except Exception as error:
        answer = error
    _answer(reply, answer)


def _another(rng: Random, purpose: str) -> Random:
    """Draws of their own, from the same seed, without disturbing those of `rng`."""
    same = Random()
    same.setstate(rng.getstate())
    return Random(f"{same.getrandbits(64)} {purpose}")


class DynamoDoor:
    """The `Service` of one worker. `cut` is a partition; `rates` are the faults of the moment.

    `number` is that of its machine; None for an operator.
    """

    def __init__(
        self, dynamo: SimulatedDynamo, sender: str, rng: Random, latency_s: float, number: int | None = None
    ) -> None:
        self.sender = sender
        self.number = number
        self.on_answer: Callable[[str, float, Sequence[float]], None] = lambda key, sent_at, waiting: None
        """Told of each answer to an UpdateItem that is no error: its key, when it was sent, and when those were sent
        that still wait."""
        self.on_refusal: Callable[[str], None] = lambda key: None
        """Told of each condition of an UpdateItem that did not hold: its key."""
        self._updates: dict[str, list[float]] = {}
        self.rates = CALM
        self.cut = False
        self.calls = 0
        self.waiting = 0
        """Requests under way."""
        self.surprises: Surprises | None = None
        self._dynamo = dynamo
        self._rng = rng
        self._latency_s = latency_s
        dynamo.doors[sender] = self

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        self.calls += 1
        sent_at = self._dynamo.clock.monotonic()
        self.waiting += 1
        key = params.get("Key", {}).get(LEASE_TABLE_KEY, {}).get("S", "") if operation == "UpdateItem" else ""
        updates = self._updates.setdefault(key, [])
        updates.append(sent_at)
        try:
            answer = await self._dynamo.send(self.sender, operation, {**params, _SENT_AT: sent_at}, timeout_s)
        except AwsError as error:
            if key and error.code == REFUSED_CODE:
                self.on_refusal(key)
            raise
        finally:
            self.waiting -= 1
            updates.remove(sent_at)
        if key:
            self.on_answer(key, sent_at, updates)
        return answer

    def fault(self, operation: str) -> Fault:
        rng, rates = self._rng, self.rates
        there = self._latency_s * (0.5 + rng.random())
        back = self._latency_s * (0.5 + rng.random())
        if self.cut:
            if rng.random() < 0.3:  # the request got through, the reply does not
                return Fault(there, None, AwsUnreachableError(operation, "partition"), HANG_S)
            return Fault(HANG_S, AwsUnreachableError(operation, "partition"))
        if self._dynamo.outage_until > self._dynamo.clock.monotonic():
            return Fault(there, AwsError(operation, self._dynamo.outage_code, "outage"))
        if self.surprises is not None and (surprise := self.surprises.draw(rates.surprise)) is not None:
            return Fault(there, None, surprise, back) if self.surprises.with_effect() else Fault(there, surprise)
        lucky = rng.random()
        if lucky < rates.dynamo_error:
            error = AwsError(operation, "InternalServerError", "drawn", status=500)
            return Fault(there, error) if rng.random() < 0.5 else Fault(there, None, error, back)
        lucky -= rates.dynamo_error
        if lucky < rates.dynamo_lost_reply:
            late_s = rng.uniform(0.0, SLOW_REPLY_MAX_S)
            return Fault(there, None, AwsUnreachableError(operation, "connection reset"), late_s)
        lucky -= rates.dynamo_lost_reply
        if lucky < rates.dynamo_throttled:
            return Fault(there, AwsError(operation, "ProvisionedThroughputExceededException", "drawn"))
        lucky -= rates.dynamo_throttled
        if lucky < rates.dynamo_slow:
            if rng.random() < 0.5:
                return Fault(there, None, None, rng.uniform(0.0, SLOW_REPLY_MAX_S))
            return Fault(rng.uniform(0.0, SLOW_REPLY_MAX_S), None, None, back)
        return Fault(there, None, None, back)


class KinesisDoor(ModelStreams):
    """The `Streams` of one worker."""

    def __init__(self, model: Kinesis, stream: str, clock: Clock, rng: Random, latency_s: float) -> None:
        super().__init__(model, stream, clock, latency_s=latency_s, faults=self._draw)
        self.read_at: dict[str, float] = {}
        """When each shard was last asked for records."""
        self._shard_of: dict[str, str] = {}
        self.on_tip: Callable[[str], None] = lambda shard_id: None
        """Told of each shard that somebody begins to read at its tip, as it is answered."""
        self.rates = CALM
        self.cut = False
        self.calls = 0
        self.surprises: Surprises | None = None
        self._rng = rng

    async def shard_iterator(self, shard_id: str, start: StartingPoint) -> str:
        def act(now: float) -> str:
            iterator = self._model.get_shard_iterator(self._name, shard_id, start, now=now)
            if start.type is IteratorType.LATEST:
                self.on_tip(shard_id)
            return iterator

        iterator: str = await self._ask("GetShardIterator", act)
        self._shard_of[iterator] = shard_id
        return iterator

    async def get_records(self, iterator: str, limit: int | None) -> RawPage:
        shard_id = self._shard_of.get(iterator, "")
        self.read_at[shard_id] = self._clock.monotonic()
        page = await super().get_records(iterator, limit)
        self._shard_of.pop(iterator, None)
        if page.next_iterator is not None:
            self._shard_of[page.next_iterator] = shard_id
        return page

    async def describe(self) -> StreamSummary:
        """Always answered: while nobody knows who places records, aggregates that are sent again may come twice."""
        try:
            stream = self._model.stream(self._name, self._clock.wall())
        except KinesisError as error:
            raise stream_error("DescribeStreamSummary", error) from None
        return StreamSummary(
            stream.name,
            stream.arn,
            stream.status(self._clock.wall()),
            stream.created_ms,
            retention_s=stream.retention_h * 3600.0,
        )

    async def _ask(self, operation: str, act: Any) -> Any:
        self.calls += 1
        if self.cut:
            await self._reply_after(HANG_S if self._rng.random() < 0.5 else self._latency_s, lambda: None)
            raise StreamUnavailableError(f"{operation}: partition")
        delay_s = self._latency_s
        if self.rates.kinesis_slow and self._rng.random() < self.rates.kinesis_slow:
            delay_s += self._rng.uniform(0.0, SLOW_REPLY_MAX_S)
        if (surprise := self.surprise()) is not None:
            assert self.surprises is not None
            if self.surprises.with_effect():
                await self._reply_after(delay_s, lambda: self._asked(operation, act))
            raise surprise
        return await self._reply_after(delay_s, lambda: self._asked(operation, act))

    def surprise(self) -> Exception | None:
        """What a call raises that no port is meant to raise."""
        return None if self.surprises is None else self.surprises.draw(self.rates.surprise)

    @staticmethod
    def _reply_after(delay_s: float, act: Callable[[], Any]) -> _Reply:
        reply: _Reply = asyncio.get_running_loop().create_future()
        later_in_world(delay_s, _act_for, reply, act)
        return reply

    def _draw(self, operation: str) -> StreamError | None:
        lucky = self._rng.random()
        if lucky < self.rates.kinesis_error:
            return StreamUnavailableError(f"{operation}: InternalFailure: drawn")
        if lucky - self.rates.kinesis_error < self.rates.kinesis_throttled:
            return StreamThrottledError(f"{operation}: drawn")
        if operation == "GetRecords" and self._rng.random() < self.rates.iterator_expired:
            return IteratorExpiredError(f"{operation}: drawn")
        if operation in ("GetRecords", "GetShardIterator") and self._rng.random() < self.rates.shard_missing:
            return StreamNotFoundError(f"{operation}: drawn")
        return None
