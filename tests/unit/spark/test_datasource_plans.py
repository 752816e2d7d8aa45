"""Options and spans of the data source, against tables."""

from __future__ import annotations

import pytest

from mld.core.positions import SHARD_END, SUB_MAX, TRIM_HORIZON, Position
from mld.core.streams import HashRange, IteratorType, Shard
from mld.processors.spark.datasource.read_options import OnDataLoss, OptionsError, options_of, parse_checkpoints
from mld.processors.spark.datasource.source import (
    PIECES_MAX,
    checkpoint_spans,
    last_before,
    spans_between,
    times_between,
)

NOW_S = 1_800_000_000.0
ALL = HashRange(0, 99)
LOW, HIGH = HashRange(0, 49), HashRange(50, 99)


def shard(name: str, *parents: str, keys: HashRange = ALL, is_open: bool = True) -> Shard:
    one, other = [*parents, None, None][:2]
    return Shard(name, keys, "1", None if is_open else "9", one, other)


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_are_keys_of_the_daemon_whatever_their_case_and_short_names():
    given = {
        "stream": "clicks",
        "region": "eu-west-1",
        "MLD.SCHEMAREGISTRY": "json",
        "from": "1h",
        "onDataLoss": "continue",
    }
    options = options_of(given, NOW_S)
    assert options.overrides == ("regionName=eu-west-1", "mld.schemaRegistry=json", "streamName=clicks")
    assert options.start is not None
    assert options.start.time_s == NOW_S - 3600
    assert options.on_data_loss is OnDataLoss.CONTINUE


def test_a_stream_may_be_an_arn():
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"
    assert options_of({"stream": arn}, NOW_S).overrides == (f"streamArn={arn}",)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"shard": "1"}, "shard: no such option"),
        ({"region": "a\nstreamName=other"}, "region: no such option"),
        ({"from": "1h", "to": "2h"}, "from must lie before to"),
        ({"from": "1h", "fromCheckpoints": '{"a": "1"}'}, "give one of them"),
        ({"from": "latest"}, "'latest' is not possible here"),
        ({"maxRecordsPerTrigger": "1"}, "maxrecordspertrigger: no such option"),
        ({"onDataLoss": "ignore"}, "neither fail nor continue"),
        ({"toCheckpoints": "17"}, "is no JSON of positions"),
        ({"toCheckpoints": '{"a": 17}'}, "a: 17 is no position"),
        ({"toCheckpoints": '{"a": "17/x"}'}, "is no position"),
    ],
)
def test_bad_options_are_named_with_what_to_write(given, sentence):
    with pytest.raises(OptionsError, match=sentence):
        options_of(given, NOW_S)


def test_a_checkpoint_without_a_sub_sequence_number_is_the_whole_record():
    text = '{"a": "17", "b": "17/3", "c": "TRIM_HORIZON", "d": "SHARD_END"}'
    assert parse_checkpoints(text) == {
        "a": Position("17", SUB_MAX),
        "b": Position("17", 3),
        "c": TRIM_HORIZON,
        "d": SHARD_END,
    }


# --- spans of a batch read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "spans"),
    [
        (["10", "20", "30"], [("10", 19, None), ("20", 29, None)]),
        (["10", "10", "30"], [("10", 29, None)]),
        (["10", None], [("10", None, 99)]),
        (["10", "20", None], [("10", 19, None), ("20", None, 99)]),
        ([None], []),
        (["10", "10"], []),
    ],
)
def test_spans_between_times_are_bounded_by_records(found, spans):
    made = spans_between(shard("a"), found, 99)
    assert [(s.start.sequence, s.through and s.through.number, s.before_ms) for s in made] == spans
    assert all(s.start.type is IteratorType.AT_SEQUENCE_NUMBER and s.first == s.start.sequence for s in made)


def test_every_record_lies_in_exactly_one_span():
    spans = spans_between(shard("a"), ["10", "14", "14", "20"], None)
    owners = [
        [n for n, s in enumerate(spans) if int(s.first or 0) <= number <= ((s.through or SHARD_END).number or 0)]
        for number in range(10, 20)
    ]
    assert owners == [[0]] * 4 + [[1]] * 6


@pytest.mark.parametrize(
    ("start_s", "end_s", "times"),
    [(0, 7_200, [0, 3_600, 7_200]), (0, 5_000, [0, 3_600, 5_000]), (0, 10, [0, 10])],
)
def test_times_between(start_s, end_s, times):
    assert times_between(start_s, end_s) == times


def test_a_long_range_has_no_more_than_so_many_spans():
    assert len(times_between(0, 1e9)) <= PIECES_MAX + 2


def test_the_position_before_a_record_is_after_all_of_the_one_before():
    assert last_before("20") == Position("19", SUB_MAX)


def test_a_checkpoint_range_follows_children_and_leaves_finished_shards():
    shards = [
        shard("a", is_open=False),
        shard("b", "a", keys=LOW),
        shard("c", "a", keys=HIGH),
        shard("x", is_open=False),
        shard("y", "x"),
        shard("z"),
    ]
    start = {"a": Position("17", 2), "x": SHARD_END, "y": Position("5", SUB_MAX)}
    made = checkpoint_spans(shards, start, None, 99)
    assert [(s.shard_id, s.after, s.through, s.before_ms, s.first) for s in made] == [
        ("a", Position("17", 2), None, 99, "17"),
        ("b", TRIM_HORIZON, None, 99, None),
        ("c", TRIM_HORIZON, None, 99, None),
        ("y", Position("5", SUB_MAX), None, 99, "5"),
    ]


def test_a_checkpoint_range_ends_at_its_positions():
    until = {"a": SHARD_END, "b": Position("9", 1), "c": Position("3", 0)}
    made = checkpoint_spans(
        [shard(n) for n in "abcd"], {"b": Position("4", 0), "c": Position("3", 0), "a": TRIM_HORIZON}, until, 99
    )
    assert [(s.shard_id, s.after, s.through) for s in made] == [
        ("a", TRIM_HORIZON, None),
        ("b", Position("4", 0), Position("9", 1)),
    ]
