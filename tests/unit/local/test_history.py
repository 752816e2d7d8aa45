"""Any history of puts, splits, merges and scalings of a stream, checked against what every reader relies on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from mld.core.streams import HASH_KEY_MAX, IteratorType, StartingPoint
from mld.local.kinesis import Kinesis, KinesisError, PutEntry
from mld.local.shard_filter import FilterType, ListFilter
from mld.local.shard_reading import LogPage
from mld.local.stream_state import ShardState
from tests.twins.kinesis_model import records_in

START_S = 1_700_000_000.0
STREAM = "s"
HOUR_S = 3600.0
TRIM_HORIZON = StartingPoint(IteratorType.TRIM_HORIZON)

HASHES = st.integers(0, HASH_KEY_MAX)
STEPS = st.one_of(
    st.tuples(st.just("put"), HASHES, st.integers(1, 4)),
    st.tuples(st.just("split"), st.integers(0, 50), HASHES),
    st.tuples(st.just("merge"), st.integers(0, 50), st.booleans()),
    st.tuples(st.just("scale"), st.integers(1, 12), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 5000), st.just(0)),
)


class History:
    """A stream with the steps applied; remembers what was put, and where the model said it went."""

    def __init__(self, shards: int) -> None:
        self.kinesis = Kinesis()
        self.now = START_S
        self.kinesis.create_stream(STREAM, now=self.now, shard_count=shards)
        self.put: list[tuple[bytes, str, int]] = []

    @property
    def open_shards(self) -> list[ShardState]:
        return self.kinesis.stream(STREAM, self.now).open_shards

    def apply(self, step: tuple[str, int, int]) -> None:
        match step:
            case ("put", hash_key, count):
                entries = [PutEntry.of(b"%d" % (len(self.put) + i), "k", hash_key) for i in range(count)]
                for entry, placed in zip(entries, self.kinesis.put_records(STREAM, entries, now=self.now), strict=True):
                    self.put.append((b"%d" % len(self.put), placed.shard_id, int(placed.sequence)))
                    assert entry.explicit_hash_key == hash_key
            case ("split", which, where):
                shard = self.open_shards[which % len(self.open_shards)]
                width = shard.hash_range.end - shard.hash_range.start
                if width > 0:
                    border = shard.hash_range.start + 1 + where % width
                    self.kinesis.split_shard(STREAM, shard.shard_id, border, now=self.now)
            case ("merge", which, backwards):
                if len(self.open_shards) > 1:
                    place = which % (len(self.open_shards) - 1)
                    pair = [shard.shard_id for shard in self.open_shards[place : place + 2]]
                    first, second = reversed(pair) if backwards else pair
                    self.kinesis.merge_shards(STREAM, first, second, now=self.now)
            case ("scale", target, _):
                try:
                    self.kinesis.update_shard_count(STREAM, target, now=self.now)
                except KinesisError as error:
                    assert error.code == "InvalidArgumentException"
            case ("wait", milliseconds, _):
                self.now += milliseconds / 1000

    def all_shards(self) -> list[ShardState]:
        return self.kinesis.list_shards(STREAM, now=self.now).shards

    def pages(self, shard_id: str, limit: int) -> Iterator[LogPage]:
        iterator: str | None = self.kinesis.get_shard_iterator(STREAM, shard_id, TRIM_HORIZON, now=self.now)
        while iterator is not None:
            page, iterator = self.kinesis.get_records(iterator, now=self.now, limit=limit)
            yield page
            if not page.span.more:
                return


def history_of(shards: int, steps: list[tuple[str, int, int]]) -> History:
    history = History(shards)
    for step in steps:
        history.apply(step)
    return history


HISTORIES = st.builds(history_of, st.integers(1, 5), st.lists(STEPS, max_size=25))


@settings(max_examples=150)
@given(HISTORIES)
def test_open_shards_always_partition_the_hash_keys(history: History) -> None:
    assert_partition(history.open_shards)


def assert_partition(shards: list[ShardState]) -> None:
    ranges = sorted((shard.hash_range.start, shard.hash_range.end) for shard in shards)
    assert ranges[0][0] == 0 and ranges[-1][1] == HASH_KEY_MAX
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ranges))


@settings(max_examples=150)
@given(HISTORIES, st.integers(1, 5))
def test_a_reader_that_follows_the_children_reads_each_record_once_and_in_order(history: History, limit: int) -> None:
    read: list[tuple[bytes, str, int]] = []
    done: set[str] = set()
    waiting = [shard.shard_id for shard in history.all_shards() if shard.parent is None]
    while waiting:
        shard_id = waiting.pop(0)
        pages = list(history.pages(shard_id, limit))
        read += [(r.data, shard_id, int(r.sequence_number)) for page in pages for r in records_in(page)]
        done.add(shard_id)
        assert all(not page.children for page in pages[:-1])
        # A child is begun by the parent that finishes last, as a reader of a whole fleet does.
        waiting += [child.shard_id for child in pages[-1].children if child.parents <= done]
    assert done == {shard.shard_id for shard in history.all_shards()}
    assert sorted(read, key=lambda r: r[2]) == history.put
    for _, records in itertools.groupby(read, key=lambda r: r[1]):
        numbers = [record[2] for record in records]
        assert numbers == sorted(numbers)


@settings(max_examples=150)
@given(HISTORIES)
def test_only_closed_shards_end_and_their_children_are_named_with_their_parents(history: History) -> None:
    for shard in history.all_shards():
        last = list(history.pages(shard.shard_id, 1000))[-1]
        assert (last.position is None) is (not shard.is_open)
        assert bool(last.children) is (not shard.is_open)
        assert all(shard.shard_id in child.parents for child in last.children)


@settings(max_examples=150)
@given(HISTORIES)
def test_sequence_numbers_increase_over_the_stream_and_over_generations(history: History) -> None:
    numbers = [number for _, _, number in history.put]
    assert all(a < b for a, b in itertools.pairwise(numbers))
    assert all(len(str(number)) == 56 for number in numbers)
    shards = {shard.index: shard for shard in history.all_shards()}
    for shard in shards.values():
        own = [number for _, where, number in history.put if where == shard.shard_id]
        assert all(number > shard.starting for number in own)
        assert shard.ending is None or all(
            shard.starting < number < shard.ending for number in [*own, shard.starting + 1]
        )
        for parent in (shard.parent, shard.adjacent_parent):
            if parent is not None:
                ending = shards[parent].ending
                assert ending is not None and shard.starting > ending


@settings(max_examples=150)
@given(HISTORIES, st.data())
def test_any_sequence_number_of_a_shard_is_a_place_to_start(history: History, data: st.DataObject) -> None:
    if not history.put:
        return
    content, shard_id, number = data.draw(st.sampled_from(history.put))
    found = {}
    for kind in (IteratorType.AT_SEQUENCE_NUMBER, IteratorType.AFTER_SEQUENCE_NUMBER):
        iterator = history.kinesis.get_shard_iterator(
            STREAM, shard_id, StartingPoint(kind, sequence=str(number)), now=history.now
        )
        found[kind] = [r.data for r in records_in(history.kinesis.get_records(iterator, now=history.now)[0])]
    assert found[IteratorType.AT_SEQUENCE_NUMBER][0] == content
    assert found[IteratorType.AT_SEQUENCE_NUMBER][1:] == found[IteratorType.AFTER_SEQUENCE_NUMBER]


@settings(max_examples=200)
@given(HISTORIES, st.sampled_from(FilterType), st.integers(-2_000, 60_000), st.integers(0, 12), st.integers(1, 4))
def test_a_filtered_listing_in_pages_is_what_the_definition_says(
    history: History, kind: FilterType, offset_ms: int, after: int, page_size: int
) -> None:
    everything = history.all_shards()
    moment = START_S + offset_ms / 1000
    wanted = ListFilter(
        kind,
        shard_id=f"shardId-{after:012d}" if kind is FilterType.AFTER_SHARD_ID else None,
        timestamp_s=moment if kind in (FilterType.AT_TIMESTAMP, FilterType.FROM_TIMESTAMP) else None,
    )
    # The stream is young: its trim horizon is its birth.
    moment = max(moment, START_S)

    def is_wanted(shard: ShardState) -> bool:
        end = shard.closed_s if shard.closed_s is not None else float("inf")
        return {
            FilterType.AFTER_SHARD_ID: shard.index > after,
            FilterType.AT_TRIM_HORIZON: shard.created_s == START_S,
            FilterType.FROM_TRIM_HORIZON: True,
            FilterType.AT_LATEST: end == float("inf"),
            FilterType.AT_TIMESTAMP: shard.created_s <= moment <= end,
            FilterType.FROM_TIMESTAMP: moment <= end,
        }[kind]

    page = history.kinesis.list_shards(STREAM, now=history.now, shard_filter=wanted, limit=page_size)
    found = [shard.shard_id for shard in page.shards]
    while page.next_token is not None:
        page = history.kinesis.list_shards(None, token=page.next_token, now=history.now, limit=page_size)
        assert len(page.shards) <= page_size
        found += [shard.shard_id for shard in page.shards]
    assert found == [shard.shard_id for shard in everything if is_wanted(shard)]


@settings(max_examples=100)
@given(HISTORIES)
def test_at_trim_horizon_is_an_exact_partition_whatever_the_age(history: History) -> None:
    for age_s in (0.0, 24 * HOUR_S - 1, 24 * HOUR_S + 3, 30 * HOUR_S):
        shards = history.kinesis.list_shards(
            STREAM, now=history.now + age_s, shard_filter=ListFilter(FilterType.AT_TRIM_HORIZON)
        ).shards
        assert_partition(shards)
