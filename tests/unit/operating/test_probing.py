"""Which shards are probed, and what the answers change."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from mld.core.errors import StreamThrottledError
from mld.core.positions import LATEST, SHARD_END, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import IteratorType, StartingPoint
from mld.leases.lease import Lease, ShardStatus
from mld.operating.fleet_status import fleet_status
from mld.operating.probes import PROBED, probe, silent, with_probed
from mld.operating.shard_view import Verdict, ViewRules
from tests.twins.streams import MemoryStreams
from tests.virtual_time import virtual

NOW_S = 1_000.0
RULES = ViewRules(10.0)
INITIAL = InitialPosition(TRIM_HORIZON)


def lease(key: str, checkpoint: Position = TRIM_HORIZON, owner: str | None = "java", **more: object) -> Lease:
    return Lease(key, checkpoint, owner=owner, **more)  # type: ignore[arg-type]


def status_of(*leases: Lease):
    return fleet_status(leases, (), None, NOW_S, RULES)


def test_only_shards_that_say_nothing_are_asked_about() -> None:
    told = lease("told", status=ShardStatus("idle", int(NOW_S), 5))
    asked = silent(
        status_of(told, lease("ended", SHARD_END), lease("latest", LATEST), lease("java"), lease("free", owner=None))
    )
    assert sorted(one.key for one in asked) == ["free", "java"]


def test_an_answer_makes_a_verdict_of_the_unknown_and_is_marked() -> None:
    status = status_of(lease("a"), lease("b"), lease("c"), lease("d", owner=None))
    probed = {s.key: s for s in with_probed(status, {"a": 10, "b": 61_000, "d": 10}, 60.0).shards}
    assert {key: shard.verdict for key, shard in probed.items()} == {
        "a": Verdict.OK,
        "b": Verdict.LAGGING,
        "c": Verdict.UNKNOWN,
        "d": Verdict.STOPPED,
    }
    assert {key: shard.is_probed for key, shard in probed.items()} == {"a": True, "b": True, "c": False, "d": True}
    assert probed["a"].status is not None and probed["a"].status.activity == PROBED
    assert probed["b"].behind_s == 61.0


@virtual
async def test_each_shard_is_asked_once_behind_its_checkpoint() -> None:
    streams = MemoryStreams("a", "b", "c")
    first, *_ = streams.put(3, shard_id="a")
    streams.fail("GetRecords", None, StreamThrottledError("slow"))
    leases = [lease("a", Position(first)), lease("b"), lease("c")]
    answers, refused = await probe(streams, leases, INITIAL)
    assert len(streams.times("GetShardIterator")) == len(streams.times("GetRecords")) == 3
    assert StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=first) in streams.points()
    assert len(answers) == 2
    assert [str(why) for why in refused.values()] == ["slow"]
    assert answers["a"] > 0


@virtual
async def test_many_shards_are_asked_at_a_bounded_rate() -> None:
    keys = [f"s{n}" for n in range(100)]
    streams = MemoryStreams(*keys)
    started = asyncio.get_running_loop().time()
    answers, _ = await probe(streams, [replace(lease("x"), key=key) for key in keys], INITIAL)
    assert len(answers) == 100
    assert asyncio.get_running_loop().time() - started >= 2.4
