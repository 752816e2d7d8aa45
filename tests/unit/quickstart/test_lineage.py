"""The judgement at the end of the tour on Spark bites: every kind of fault is a sentence."""

import json
from dataclasses import replace

import pytest

from mld.quickstart.lineage import Put, Sums, TourOutcome, expected, find_faults, shard_lines


def event(number, page="/", agent="Firefox", at=60.5, load_ms=100):
    return json.dumps({"event_id": number, "page": page, "agent": agent, "at": at, "load_ms": load_ms})


PUT = [
    Put("s0", 1, event(10)),
    Put("s0", 2, event(11, page="/product/7", at=119.9)),
    Put("s0", 3, event(12, agent="Crawler")),
    Put("s1", 5, event(13, at=120.0)),
    Put("s1", 6, '{"event_id": 14, "us'),
]
WHOLE = expected(PUT)
CHECKPOINTS = {"s0": 3, "s1": 6}


def test_what_should_be_there():
    assert WHOLE.rows == [("s0", 1, 10), ("s0", 2, 11), ("s1", 5, 13)]
    assert WHOLE.minutes == {(60, "home"): Sums(1, 100), (60, "product"): Sums(1, 100), (120, "home"): Sums(1, 100)}
    assert WHOLE.dead == [("s1", 6, '{"event_id": 14, "us')]
    assert WHOLE.marks == {"s0": 3, "s1": 6}


def test_a_whole_sink_has_no_faults():
    assert find_faults(WHOLE, WHOLE, CHECKPOINTS) == []
    assert find_faults(WHOLE, WHOLE, {"s1": 6}) == [], "a shard that is finished has no checkpoint to compare"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": WHOLE.rows[1:]}, "clicks: 1 of 3 records are missing, the first is ('s0', 1)"),
        ({"rows": [*WHOLE.rows, WHOLE.rows[0]]}, "clicks: 1 records are there more than once"),
        ({"rows": [*WHOLE.rows, ("s0", 3, 12)]}, "clicks: 1 rows should not be there, the first is ('s0', 3)"),
        ({"dead": []}, "the dead letter: 1 of 1 records are missing"),
        ({"dead": [*WHOLE.dead, *WHOLE.dead]}, "the dead letter: 1 records are there more than once"),
        ({"minutes": {**WHOLE.minutes, (60, "home"): Sums(2, 100)}}, "section home at 60 has Sums(clicks=2"),
        ({"minutes": {**WHOLE.minutes, (180, "home"): Sums(1, 1)}}, "section home at 180 has Sums(clicks=1"),
        ({"marks": {"s0": 3}}, "s1: the sink clicks is at None, and the last record is 6"),
    ],
)
def test_each_kind_of_fault_is_named(change, words):
    faults = find_faults(WHOLE, replace(WHOLE, **change), {})
    assert len(faults) == 1 and words in faults[0], faults


def test_a_checkpoint_that_is_not_where_the_sink_is_is_a_fault():
    [fault] = find_faults(WHOLE, WHOLE, {**CHECKPOINTS, "s0": 2})
    assert fault == "s0: the checkpoint is 2, and the sink is at 3"


def test_the_lineage_says_where_the_records_of_a_shard_went():
    lines = shard_lines(PUT, TourOutcome(WHOLE.rows, WHOLE.minutes, WHOLE.dead, WHOLE.marks))
    assert [(shard, one.records, one.out, one.filtered, one.dead) for shard, one in lines.items()] == [
        ("s0", 3, 2, 1, 0),
        ("s1", 2, 1, 0, 1),
    ]
