"""The judgement at the end of the quickstart bites."""

import pytest

from mld.quickstart.lineage import Put, click_events
from mld.quickstart.plain import Archived, find_faults

PUT = [Put("s0", 3, "c"), Put("s0", 1, "a"), Put("s0", 2, "b"), Put("s1", 9, "z")]
WHOLE = {"s0": [Archived(1, "a"), Archived(2, "b"), Archived(3, "c")], "s1": [Archived(9, "z")]}


def test_a_whole_archive_has_no_faults():
    assert find_faults(PUT, WHOLE) == []


@pytest.mark.parametrize(
    ("shard", "found", "words"),
    [
        ("s0", [Archived(1, "a"), Archived(3, "c")], "1 of 3 records are missing, the first is 2"),
        ("s0", [Archived(1, "a"), Archived(1, "a"), Archived(2, "b"), Archived(3, "c")], "1 records are there more"),
        ("s0", [Archived(2, "b"), Archived(1, "a"), Archived(3, "c")], "out of order"),
        ("s1", [Archived(8, "y"), Archived(9, "z")], "never put, the first is 8"),
        ("s1", [Archived(9, "tampered")], "contents"),
        ("s1", [], "1 of 1 records are missing"),
        ("s2", [Archived(5, "x")], "never put"),
    ],
)
def test_each_kind_of_fault_is_named(shard, found, words):
    [fault] = find_faults(PUT, {**WHOLE, shard: found})
    assert fault.startswith(shard) and words in fault


def test_events_are_reproducible_and_spread_over_keys():
    events = list(click_events(1000, seed=7, start_s=0.0))
    assert events == list(click_events(1000, seed=7, start_s=0.0))
    assert len({event.partition_key for event in events}) > 500
