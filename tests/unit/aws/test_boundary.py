"""Nothing but our own errors leaves a port, whatever is thrown below it and whatever the answer looks like."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from mld.aws.boundary import raises_only
from mld.aws.fanout import EventSubscription, KinesisFanOut
from mld.aws.kinesis import KinesisStreams
from mld.core.clock import Clock
from mld.core.errors import MldError, StreamError, StreamUnavailableError, TableError, TableUnavailableError
from mld.core.positions import TRIM_HORIZON
from mld.core.streams import HashRange, IteratorType, StartingPoint
from mld.fleet.leader.lock import LockRow
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.migrate.states import CLIENT_VERSION, ClientVersion, StateRow
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.report.reports import WorkerReport
from mld.fleet.report.reports_table import ReportsTable
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.rows import Place
from mld.leases.table_maker import LegacyTable, on_demand
from mld.retrieval.rawbody import page_of
from tests.unit.aws.throwing import THROWN, anew, name_of

T = TypeVar("T")
PLACE = Place("t", "leaseKey")
VALUES: dict[str, Any] = {
    "arn": "arn",
    "children": frozenset({"b"}),
    "consumer_arn": "arn",
    "hash_range": HashRange(0, 1),
    "iterator": "i",
    "keys": ["a", "b"],
    "key": "a",
    "kind": CLIENT_VERSION,
    "last": "1",
    "leader": "w",
    "lease": Lease("a", TRIM_HORIZON, owner="w"),
    "lease_s": 120.0,
    "leases": PLACE,
    "legacy": Place("legacy", "key"),
    "limit": 10,
    "marks": frozenset({"e"}),
    "name": "n",
    "next_owner": "v",
    "next_token": None,
    "next_version": "2",
    "over": LockRow("w", 120.0, "1"),
    "owner": "w",
    "place": PLACE,
    "position": TRIM_HORIZON,
    "previous": ClientVersion.INIT,
    "report": WorkerReport("w", 1),
    "row": StateRow(CLIENT_VERSION, ClientVersion.INIT, "w", 1),
    "rows": [],
    "seen": "1",
    "shard_filter": None,
    "shard_id": "s",
    "start": StartingPoint(IteratorType.LATEST),
    "java_peer": "j",
    "stream_arn": "arn",
    "text": "v",
    "before": ["1"],
    "value": "2",
    "version": "1",
    "worker": "w",
    "write": writes.create(Lease("a", TRIM_HORIZON)),
    "written_until_s": 1,
}
"""An argument for each name of a parameter; a new method of a port may need one more."""
ANSWERS: tuple[Any, ...] = (
    {},
    {"Items": [3], "Item": 3, "Attributes": 3, "Responses": 3, "Table": 3, "Shards": [3], "Records": 3},
    {"Items": [{}], "Item": {"leaseKey": {}}, "Attributes": {"leaseKey": {"S": None}}, "Shards": [{}], "Records": [{}]},
    {"Items": None, "Item": None, "Attributes": None, "Shards": None, "Records": None, "ShardIterator": 3},
    None,
    [],
)


class Below:
    """What is below the adapters: an error, or an answer that nobody expects."""

    def __init__(self, thrown: Any) -> None:
        self._thrown = thrown

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        if isinstance(self._thrown, Exception):
            raise anew(self._thrown)
        answer: dict[str, Any] = self._thrown
        return answer

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        await self.call(operation, params)
        return read(b"\xff")

    async def open_stream(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> Below:
        await self.call(operation, params)
        return self

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        await self.call(operation, {})
        return work()

    async def next(self) -> tuple[memoryview, ...] | None:
        await self.call("next", {})
        return (memoryview(b"\xff" * 40_000),)

    def close(self) -> None: ...


class Hasty(Clock):
    """Time passes by sleeping only."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._now += seconds


def streams(below: Below) -> KinesisStreams:
    return KinesisStreams(below, stream_name="s", page_of=page_of)


ADAPTERS: dict[str, tuple[Callable[[Below], Any], type[MldError]]] = {
    "leases": (lambda below: DynamoLeaseTable(below, Hasty(), table_name="t"), TableError),
    "lock": (lambda below: LockTable(below, PLACE), TableError),
    "reports": (lambda below: ReportsTable(below, PLACE), TableError),
    "states": (StatesTable, MldError),
    "legacy": (lambda below: LegacyTable(below, Hasty(), on_demand("legacy"), "key"), MldError),
    "streams": (streams, StreamError),
    "fan-out": (
        lambda below: KinesisFanOut(below, streams(below), stream_name="s", page_of=page_of),
        StreamError,
    ),
    "subscription": (lambda below: EventSubscription(below, below, "s", page_of), StreamError),
}  # fmt: skip


def methods_of(port: object) -> list[Callable[..., Any]]:
    found = inspect.getmembers(port, inspect.iscoroutinefunction)
    return [method for name, method in found if not name.startswith("_")]


async def call(method: Callable[..., Any]) -> None:
    parameters = inspect.signature(method).parameters.values()
    await method(**{p.name: VALUES[p.name] for p in parameters if p.default is p.empty})


@pytest.mark.parametrize("below", THROWN, ids=name_of)
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_what_is_thrown_below_an_adapter_leaves_it_as_an_error_of_ours(adapter: str, below: Exception) -> None:
    make, kind = ADAPTERS[adapter]
    for method in methods_of(make(Below(below))):
        with pytest.raises(kind):
            await call(method)


@pytest.mark.parametrize("below", ANSWERS, ids=name_of)
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_an_answer_that_nobody_expects_is_a_value_or_an_error_of_ours(adapter: str, below: Any) -> None:
    make, kind = ADAPTERS[adapter]
    for method in methods_of(make(Below(below))):
        try:
            await call(method)
        except kind:
            continue


async def test_broken_invariants_and_cancellations_pass() -> None:
    for passing in (AssertionError("broken"), asyncio.CancelledError()):

        @raises_only(TableUnavailableError)
        class Port:
            async def read(self) -> None:
                raise passing  # noqa: B023

        with pytest.raises(type(passing)):
            await Port().read()


async def test_a_surprise_is_logged_once_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    @raises_only(StreamUnavailableError)
    class Port:
        async def read(self, error: Exception) -> None:
            raise error

    port = Port()
    for error in (KeyError("a"), KeyError("b"), MemoryError()):
        with pytest.raises(StreamUnavailableError, match=r"Port\.read: (KeyError|MemoryError)"):
            await port.read(error)
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert "KeyError: 'a'" in caplog.text and "MemoryError" in caplog.text
