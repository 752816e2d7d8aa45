"""The judgement at the end of the quickstart bites."""

import pytest

from mld.quickstart.lineage import Put, click_events
from mld.quickstart.plain_tour import find_faults

PUT = [Put("s0", 3, "c"), Put("s0", 1, "a"), Put("s0", 2, "b"), Put("s1", 9, "z")]
WHOLE = {"s0": [(1, "a"), (2, "b"), (3, "c")], "s1": [(9, "z")]}


def test_a_whole_archive_has_no_faults():
    assert find_faults(PUT, WHOLE) == []


@pytest.mark.parametrize(
    ("shard", "found", "words"),
    [
        ("s0", [(1, "a"), (3, "c")], "1 of 4 records are missing, the first is ('s0', 2)"),
        ("s0", [(1, "a"), (1, "a"), (2, "b"), (3, "c")], "1 records are there more than once"),
        ("s0", [(2, "b"), (1, "a"), (3, "c")], "s0: the records are out of order"),
        ("s1", [(8, "y"), (9, "z")], "1 rows should not be there, the first is ('s1', 8)"),
        ("s1", [(9, "tampered")], "1 of 4 records are missing, the first is ('s1', 9)"),
        ("s1", [], "1 of 4 records are missing, the first is ('s1', 9)"),
        ("s2", [(5, "x")], "1 rows should not be there, the first is ('s2', 5)"),
    ],
)
def test_each_kind_of_fault_is_named(shard, found, words):
    faults = find_faults(PUT, {**WHOLE, shard: found})
    assert len([fault for fault in faults if words in fault]) == 1, faults


def test_events_are_reproducible_and_spread_over_keys():
    events = list(click_events(1000, seed=7, start_s=0.0))
    assert events == list(click_events(1000, seed=7, start_s=0.0))
    assert len({event.partition_key for event in events}) > 500
