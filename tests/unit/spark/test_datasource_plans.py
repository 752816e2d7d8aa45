"""Options, offsets and spans of the data source, against tables."""

from __future__ import annotations

import pytest

from mld.core.positions import SHARD_END, SUB_MAX, TRIM_HORIZON, Position
from mld.core.streams import ChildShard, HashRange, IteratorType, Shard
from mld.processors.spark.datasource.offsets import (
    PIECES_MAX,
    OffsetError,
    ShardProgress,
    StreamOffset,
    admitted,
    advanced,
    checkpoint_spans,
    from_json,
    heirs_of_lost,
    initial_offset,
    last_before,
    pruned,
    span_of,
    spans_between,
    start_at,
    times_between,
    to_json,
    to_read,
)
from mld.processors.spark.datasource.read_options import OnDataLoss, OptionsError, options_of, parse_checkpoints

NOW_S = 1_800_000_000.0
ALL = HashRange(0, 99)
LOW, HIGH = HashRange(0, 49), HashRange(50, 99)


def shard(name: str, *parents: str, keys: HashRange = ALL, is_open: bool = True) -> Shard:
    one, other = [*parents, None, None][:2]
    return Shard(name, keys, "1", None if is_open else "9", one, other)


def child(name: str, *parents: str, keys: HashRange = ALL) -> ChildShard:
    return ChildShard(name, frozenset(parents), keys)


def read(first: int, last: int, *, keys: HashRange = ALL) -> ShardProgress:
    return ShardProgress(keys, first=str(first), last=str(last), count=last - first + 1)


def offset(**shards: ShardProgress) -> StreamOffset:
    return StreamOffset("arn@1", shards)


# --- options ----------------------------------------------------------------------------------------------------------


def test_options_are_keys_of_the_daemon_whatever_their_case_and_short_names():
    given = {
        "stream": "clicks",
        "region": "eu-west-1",
        "MLD.SCHEMAREGISTRY": "json",
        "from": "1h",
        "onDataLoss": "continue",
    }
    options = options_of(given, NOW_S, is_stream=False)
    assert options.overrides == ("regionName=eu-west-1", "mld.schemaRegistry=json", "streamName=clicks")
    assert options.start is not None
    assert options.start.time_s == NOW_S - 3600
    assert options.on_data_loss is OnDataLoss.CONTINUE


def test_a_stream_may_be_an_arn():
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"
    assert options_of({"stream": arn}, NOW_S, is_stream=True).overrides == (f"streamArn={arn}",)


@pytest.mark.parametrize(
    ("given", "is_stream", "sentence"),
    [
        ({"shard": "1"}, False, "shard: no such option"),
        ({"region": "a\nstreamName=other"}, False, "region: no such option"),
        ({"from": "1h", "to": "2h"}, False, "from must lie before to"),
        ({"from": "1h", "fromCheckpoints": '{"a": "1"}'}, False, "give one of them"),
        ({"from": "latest"}, False, "'latest' is not possible here"),
        ({"to": "1h"}, True, "to: not for readStream"),
        ({"maxRecordsPerTrigger": "0"}, True, "maxrecordspertrigger: '0' is no positive number"),
        ({"onDataLoss": "ignore"}, True, "neither fail nor continue"),
        ({"toCheckpoints": "17"}, False, "is no JSON of positions"),
        ({"toCheckpoints": '{"a": 17}'}, False, "a: 17 is no position"),
        ({"toCheckpoints": '{"a": "17/x"}'}, False, "is no position"),
    ],
)
def test_bad_options_are_named_with_what_to_write(given, is_stream, sentence):
    with pytest.raises(OptionsError, match=sentence):
        options_of(given, NOW_S, is_stream=is_stream)


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
    ("start_s", "end_s", "step_s", "times"),
    [(0, 100, 50, [0, 50, 100]), (0, 100, 60, [0, 60, 100]), (0, 10, 60, [0, 10])],
)
def test_times_between(start_s, end_s, step_s, times):
    assert times_between(start_s, end_s, step_s) == times


def test_a_long_range_has_no_more_than_so_many_spans():
    assert len(times_between(0, 1e9, 60)) <= PIECES_MAX + 2


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


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_a_query_starts_with_shards_whose_parents_are_gone():
    shards = [shard("a", "gone", is_open=False), shard("b", "a"), shard("c")]
    made = initial_offset("arn@1", shards, start_at(12.3456))
    assert {name: one.start_s for name, one in made.shards.items()} == {"a": 12.345, "c": 12.345}


def test_offsets_go_through_json_and_back():
    ended = advanced(read(1, 5), "6", "9", 4, [child("b", "a", keys=LOW), child("c", "a", "d", keys=HIGH)])
    given = offset(a=ended, b=ShardProgress(LOW), e=ShardProgress(ALL, start_at(5.0)), f=read(3, 4))
    assert from_json(to_json(given), "arn@1") == given


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"version": 2}, "reads version 1"),
        ({}, "reads version 1"),
        ({"version": 1, "stream": "arn@1", "shards": {"a": {}}}, "not of this source"),
        ({"version": 1, "stream": "arn@2", "shards": {}}, "belongs to the stream arn@2"),
    ],
)
def test_foreign_offsets_are_refused(value, sentence):
    with pytest.raises(OffsetError, match=sentence):
        from_json(value, "arn@1")


def test_only_shards_that_moved_are_read():
    start = offset(a=read(1, 5), b=read(1, 5))
    end = offset(a=read(1, 5), b=read(6, 9), c=ShardProgress(ALL), d=read(2, 3))
    assert [(name, one.first, one.last) for name, one in to_read(start, end)] == [("b", "6", "9"), ("d", "2", "3")]


def test_the_first_batch_reads_the_same_whatever_its_query_would_start_with_now():
    end = offset(a=read(6, 9))
    for start in (offset(a=ShardProgress(ALL, start_at(1.0))), offset(a=ShardProgress(ALL, start_at(999.0))), offset()):
        assert to_read(start, end) == [("a", read(6, 9))]


def test_a_span_of_an_offset_says_how_it_must_begin_and_what_it_holds():
    span = span_of("a", read(6, 9))
    assert (span.start.sequence, span.first, span.through, span.count) == ("6", "6", Position("9", SUB_MAX), 4)


def ended(*children: ChildShard) -> ShardProgress:
    return advanced(read(1, 5), None, None, 0, children)


def test_children_of_a_split_come_when_their_parent_is_read():
    b, c = child("b", "a", keys=LOW), child("c", "a", keys=HIGH)
    made = admitted(offset(a=ended(b, c)), [])
    assert set(made.shards) == {"a", "b", "c"}
    assert made.shards["b"].keys == LOW
    assert set(pruned(made).shards) == {"b", "c"}


def test_a_query_that_starts_at_a_time_reads_nothing_older_from_the_children_of_shards_that_were_over_then():
    over = advanced(ShardProgress(ALL, start_at(5.0)), None, None, 0, [child("b", "a")])
    assert admitted(offset(a=over), []).shards["b"] == ShardProgress(ALL, start_at(5.0))
    read_first = advanced(ShardProgress(ALL, start_at(5.0)), "1", "2", 2, [child("b", "a")])
    assert admitted(offset(a=read_first), []).shards["b"] == ShardProgress(ALL)


def test_a_merged_shard_waits_for_both_parents():
    m = child("m", "a", "b")
    first = admitted(offset(a=ended(m), b=read(1, 2)), [])
    assert set(first.shards) == {"a", "b"}
    assert set(pruned(first).shards) == {"a", "b"}, "the child would be forgotten"
    second = admitted(offset(a=ended(m), b=ended(m)), [])
    assert set(second.shards) == {"a", "b", "m"}
    assert set(pruned(second).shards) == {"m"}


def test_a_merged_shard_waits_for_a_parent_that_is_yet_to_come():
    m = child("m", "a", "late")
    listed = [shard("root"), shard("late", "root"), shard("m", "a", "late")]
    waiting = admitted(offset(a=ended(m), root=read(1, 2)), listed)
    assert "m" not in waiting.shards
    late = admitted(offset(a=ended(m), root=ended(child("late", "root"))), listed)
    assert "late" in late.shards
    assert "m" not in late.shards
    assert "m" in admitted(offset(a=ended(m), late=ended(m)), listed).shards


def test_a_shard_that_the_stream_has_forgotten_is_followed_by_the_oldest_with_its_keys():
    listed = [
        shard("s-3", "s-2", keys=LOW),
        shard("s-4", "s-3", keys=LOW),
        shard("s-5", keys=HIGH),
        shard("s-0", keys=LOW),
    ]
    heirs = heirs_of_lost("s-1", ShardProgress(LOW), listed, {"s-1"})
    assert [heir.shard_id for heir in heirs] == ["s-3"]
