"""The search for the record that kills its processor, against a model of processors of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.consumer.bisecting import ROUNDS_MAX, Bisecting
from mld.core.positions import TRIM_HORIZON, Position

LIVES_MAX = 5_000
Kills = Callable[[list[Position]], bool]


def positions(count: int, subs: int = 1) -> list[Position]:
    return [Position(str(1000 + number // subs), number % subs) for number in range(count)]


@dataclass
class Shard:
    """A stream, a processor that dies of batches for which `kills` is true, and a daemon that does what it is told."""

    records: list[Position]
    kills: Kills
    attempts_max: int = 3
    checkpoints: bool = True
    """After each batch; else only when asked to shut down."""
    obeys: bool = True
    """Checkpoints when asked to shut down."""
    page: Callable[[], int] = lambda: 1_000
    state: Bisecting = field(init=False)
    checkpoint: Position = TRIM_HORIZON
    delivered: Position = TRIM_HORIZON
    accepted: set[Position] = field(default_factory=set)
    aside: list[Position] = field(default_factory=list)
    failures: list[list[Position]] = field(default_factory=list)
    lives: int = 0
    asked: Position | None = None

    def __post_init__(self) -> None:
        self.state = Bisecting(self.attempts_max)

    def run(self, lives_max: int = LIVES_MAX) -> bool:
        """Whether all was delivered in the end."""
        for _ in range(lives_max):
            self.lives += 1
            if self.live():
                return True
        return False

    def live(self) -> bool:
        """One life of a child; True if it came to the end of the stream."""
        self.delivered = self.checkpoint
        while rest := [record for record in self.records if record > self.delivered][: self.page()]:
            while rest:
                if self.asked != rest[0] and self.state.needs_checkpoint(self.checkpoint, self.delivered, rest):
                    self.asked = rest[0]
                    if self.obeys:
                        self._move(self.delivered)
                    return False
                count = self.state.take(rest)
                assert 1 <= count <= len(rest)
                part, rest = rest[:count], rest[count:]
                if not self._deliver(part):
                    return False
        return True

    def _deliver(self, part: list[Position]) -> bool:
        before, self.delivered = self.delivered, part[-1]
        assert before < part[0]
        if self.kills(part):
            self.failures.append(part)
            is_next_alone = len(part) == 1 and before == self.checkpoint
            self.state = self.state.failed(before, part[0], part[-1], is_next_alone=is_next_alone)
            if (culprit := self.state.culprit) is not None:
                assert is_next_alone
                assert culprit == part[0]
                self.aside.append(culprit)
                self.checkpoint = culprit
                self.state = self.state.set_aside(culprit)
            return False
        self.accepted.update(part)
        self.state = self.state.passed(part[-1])
        if self.checkpoints:
            self._move(part[-1])
        return True

    def _move(self, to: Position) -> None:
        assert to >= self.checkpoint
        if to > self.checkpoint:
            self.checkpoint = to
            self.state = self.state.moved(to)


def poisoned_by(poison: set[Position]) -> Kills:
    return lambda part: not poison.isdisjoint(part)


@given(st.data())
def test_exactly_the_poison_is_set_aside_and_all_else_is_processed_in_order(data: st.DataObject) -> None:
    records = positions(data.draw(st.integers(1, 60)), subs=data.draw(st.sampled_from([1, 1, 7])))
    poison = data.draw(st.sets(st.sampled_from(records)))
    pages = st.integers(1, 60)
    shard = Shard(
        records,
        poisoned_by(poison),
        attempts_max=data.draw(st.integers(2, 4)),
        checkpoints=data.draw(st.booleans()),
        page=lambda: data.draw(pages),
    )
    assert shard.run()
    assert shard.aside == sorted(poison)
    assert shard.accepted == set(records) - poison
    assert not shard.state.is_given_up


@given(st.integers(2, 3_000), st.data())
def test_one_poison_record_is_found_in_a_logarithm_of_failures(count: int, data: st.DataObject) -> None:
    records = positions(count)
    poison = data.draw(st.sampled_from(records))
    shard = Shard(records, poisoned_by({poison}), page=lambda: 3_000)
    assert shard.run()
    assert shard.aside == [poison]
    assert len(shard.failures) <= 3 + count.bit_length() + 3


@given(st.integers(2, 60), st.data(), st.booleans())
def test_a_combination_that_fails_only_together_passes_in_parts(
    count: int, data: st.DataObject, checkpoints: bool
) -> None:
    records = positions(count)
    pair = data.draw(st.sets(st.sampled_from(records), min_size=2, max_size=4))
    shard = Shard(records, lambda part: pair <= set(part), checkpoints=checkpoints)
    assert shard.run()
    assert shard.aside == []
    assert shard.accepted == set(records)


def test_a_batch_of_one_record_is_set_aside_after_so_many_failures() -> None:
    shard = Shard(positions(1), poisoned_by(set(positions(1))), attempts_max=3)
    assert shard.run()
    assert len(shard.failures) == 3


def test_a_record_that_was_found_in_a_batch_has_to_fail_alone_as_often() -> None:
    first, second = positions(2)
    state = Bisecting(attempts_max=2)
    for _ in range(2):
        state = state.failed(TRIM_HORIZON, first, second, is_next_alone=False)
    state = state.failed(TRIM_HORIZON, first, first, is_next_alone=True)
    assert state.culprit is None
    assert state.failed(TRIM_HORIZON, first, first, is_next_alone=True).culprit == first


def test_without_a_number_of_attempts_nothing_is_ever_searched_for() -> None:
    records = positions(20)
    shard = Shard(records, poisoned_by({records[7]}), attempts_max=0)
    assert not shard.run(200)
    assert shard.failures == [records] * 200
    assert shard.aside == []


def test_nothing_is_set_aside_behind_records_that_the_processor_has_not_vouched_for() -> None:
    """It accepts, and never checkpoints: what it accepted may be in its memory only."""
    records = positions(20)
    shard = Shard(records, poisoned_by({records[7]}), checkpoints=False, obeys=False)
    assert not shard.run(500)
    assert shard.aside == []
    assert shard.state.is_given_up
    assert shard.failures[-1] == records, "given up: whole batches again"


def test_what_keeps_failing_in_new_ways_is_given_up_until_there_is_progress() -> None:
    records = positions(40)
    failed = Bisecting(2)
    for _ in range(ROUNDS_MAX + 2):
        failed = failed.failed(TRIM_HORIZON, records[0], records[-1], is_next_alone=False)
    assert failed.is_given_up
    assert not failed.is_searching
    assert failed.culprit is None
    assert failed.take(records) == 40
    assert not failed.moved(records[3]).is_given_up


def test_what_fails_with_any_other_gets_through_alone() -> None:
    records = positions(40)
    shard = Shard(records, lambda part: len(part) > 1)
    assert shard.run()
    assert shard.aside == []
    assert shard.accepted == set(records)


def test_failures_of_batches_without_a_common_record_are_counted_apart() -> None:
    records = positions(9)
    state = Bisecting(2).failed(TRIM_HORIZON, records[0], records[2], is_next_alone=False)
    state = state.failed(records[2], records[3], records[5], is_next_alone=False)
    assert state.attempts == 1
    assert not state.is_searching
    state = state.failed(records[4], records[5], records[8], is_next_alone=False)
    assert state.attempts == 2
    assert state.is_searching


def test_the_next_owner_goes_on_counting_from_the_first_record_of_the_batch() -> None:
    records = positions(9)
    state = Bisecting(3).resumed(records[4], 2)
    assert not state.is_searching
    state = state.failed(records[1], records[2], records[8], is_next_alone=False)
    assert state.attempts == 3
    assert state.is_searching


@pytest.mark.parametrize("checkpoint", [4, 8])
def test_a_checkpoint_is_progress_and_ends_the_search_only_past_its_end(checkpoint: int) -> None:
    records = positions(9)
    state = Bisecting(2)
    for _ in range(2):
        state = state.failed(TRIM_HORIZON, records[0], records[8], is_next_alone=False)
    moved = state.moved(records[checkpoint])
    assert moved.is_searching == (checkpoint < 8)
    assert moved.rounds == 0
