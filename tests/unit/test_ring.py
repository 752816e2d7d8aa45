"""Who watches whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mld.fleet.ring import changed, watch_ring
from mld.leases.lease import Lease
from mld.positions import SHARD_END, TRIM_HORIZON

NAMES = [f"w{number}" for number in range(9)]


def leases_of(*owners: str) -> list[Lease]:
    return [Lease(f"{owner}-{number}", TRIM_HORIZON, owner=owner) for owner in owners for number in (2, 1)]


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_every_live_worker_with_leases_has_two_watchers_other_than_itself(
    mld: set[str], java: set[str], holders: set[str]
) -> None:
    live = mld | java
    ring = watch_ring(mld, live, leases_of(*sorted(holders)))
    assert ring.keys() == mld
    watchers: Counter[str] = Counter()
    for watcher, duties in ring.items():
        assert list(duties) == sorted(set(duties))
        for watched, key in duties:
            assert watched != watcher
            assert key == f"{watched}-1"
            watchers[watched] += 1
    assert watchers == {worker: count for worker in live & holders if (count := min(2, len(mld - {worker})))}


def test_the_representative_is_one_that_the_worker_will_go_on_renewing() -> None:
    done, leaving, mine = (Lease(key, TRIM_HORIZON, owner="a") for key in ("s1", "s2", "s3"))
    rows = [mine, replace(done, checkpoint=SHARD_END), replace(leaving, owner="b", checkpoint_owner="a")]
    assert watch_ring(["m"], ["a", "m"], rows) == {"m": (("a", "s3"),)}
    assert watch_ring(["m"], ["a", "m"], rows[1:]) == {"m": ()}


def test_one_more_worker_changes_few_duties() -> None:
    java = [f"java-{number:03d}" for number in range(200)]
    mld = [f"mld-{number:03d}" for number in range(50)]
    rows = leases_of(*java, *mld)
    before = watch_ring(mld, java + mld, rows)
    assert max(len(duties) for duties in before.values()) < 64
    after = watch_ring([*mld, "mld-new"], [*java, *mld, "mld-new"], rows)
    assert len(changed(after, before)) <= 4


def test_only_differences_are_published() -> None:
    duties = {"a": (("x", "s1"),), "b": (), "c": (("y", "s2"),)}
    assert changed(duties, {"a": (("x", "s1"),), "c": ()}) == {"b": (), "c": (("y", "s2"),)}
