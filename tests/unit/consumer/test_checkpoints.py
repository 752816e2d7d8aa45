"""Which checkpoints are legal and what they write (protocol#checkpoint-range)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.consumer.checkpoint_range import CheckpointRange, Illegal, NoWrite, Write
from mld.core.positions import SHARD_END, TRIM_HORIZON, Position

LAST, LARGEST = Position("100", 2), Position("200", 5)
FIRST = Position("120")
RUNNING = CheckpointRange.starting_at(LAST).deliver(FIRST, LARGEST)
ENDED = RUNNING.at_shard_end()
ILLEGAL = "illegal"


@pytest.mark.parametrize(
    ("sequence", "sub", "expected"),
    [
        (None, None, Write(LARGEST)),
        (None, -7, Write(LARGEST)),  # without a sequence number the sub number is ignored
        ("150", None, Write(Position("150", 0))),
        ("150", 9, Write(Position("150", 9))),
        ("200", 5, Write(LARGEST)),
        ("200", None, Write(Position("200", 0))),
        ("0150", 1, Write(Position("150", 1))),
        ("120", None, Write(FIRST)),
        ("119", 9, ILLEGAL),  # after the checkpoint, and before all that this child was given
        ("0", None, NoWrite()),  # no record has it: a child with an empty buffer names it
        ("000", 7, NoWrite()),
        ("1", None, ILLEGAL),
        ("9" * 56, None, ILLEGAL),
        ("200", 6, ILLEGAL),
        ("201", 0, ILLEGAL),
        ("100", 2, NoWrite()),
        ("100", 1, ILLEGAL),
        ("100", None, ILLEGAL),
        ("99", None, ILLEGAL),
        ("150", -1, ILLEGAL),
        ("", None, ILLEGAL),
        ("abc", None, ILLEGAL),
        ("-150", None, ILLEGAL),
        ("1.5", None, ILLEGAL),
        ("\u0661\u0665\u0660", None, ILLEGAL),  # digits, but not ASCII
        ("9" * 5000, None, ILLEGAL),
        ("0" * 5000, None, ILLEGAL),
        ("TRIM_HORIZON", None, ILLEGAL),
        ("LATEST", None, ILLEGAL),
        ("AT_TIMESTAMP", None, ILLEGAL),
        ("SHARD_END", None, ILLEGAL),
    ],
)
def test_while_processing(sequence: str | None, sub: int | None, expected: object) -> None:
    answer = RUNNING.resolve(sequence, sub)
    assert isinstance(answer, Illegal) if expected == ILLEGAL else answer == expected


@pytest.mark.parametrize(
    ("sequence", "sub", "expected"),
    [
        (None, None, Write(SHARD_END)),
        ("SHARD_END", None, Write(SHARD_END)),
        ("SHARD_END", 5, Write(SHARD_END)),
        ("200", 5, Write(SHARD_END)),
        ("200", None, Write(Position("200", 0))),
        ("100", 2, NoWrite()),
        ("0", None, NoWrite()),  # records after the checkpoint are unfinished
        ("99", None, ILLEGAL),
        ("1", None, ILLEGAL),
        ("201", None, ILLEGAL),
        ("9" * 56, None, ILLEGAL),
        ("LATEST", None, ILLEGAL),
    ],
)
def test_at_the_end_of_the_shard(sequence: str | None, sub: int | None, expected: object) -> None:
    answer = ENDED.resolve(sequence, sub)
    assert isinstance(answer, Illegal) if expected == ILLEGAL else answer == expected


def test_the_last_position_checkpointed_before_the_end_still_becomes_shard_end() -> None:
    ended = RUNNING.written(LARGEST).at_shard_end()
    assert ended.resolve("200", 5) == Write(SHARD_END)
    assert ended.written(SHARD_END).is_complete


def test_a_stored_shard_end_is_not_written_again() -> None:
    assert ENDED.written(SHARD_END).resolve(None, None) == NoWrite()


def test_a_checkpoint_before_any_record_writes_nothing() -> None:
    assert CheckpointRange.starting_at(TRIM_HORIZON).resolve(None, None) == NoWrite()


def test_only_the_sentinel_of_the_start_is_in_range_and_loses_its_sub_number() -> None:
    started = CheckpointRange.starting_at(TRIM_HORIZON).deliver(FIRST, LARGEST)
    assert started.resolve("TRIM_HORIZON", 3) == NoWrite()
    assert isinstance(started.resolve("LATEST", None), Illegal), "a restart would skip records"
    assert isinstance(started.resolve("1", None), Illegal), "above TRIM_HORIZON, and of no record"


def test_an_empty_shard_ends_with_shard_end() -> None:
    ended = CheckpointRange.starting_at(TRIM_HORIZON).at_shard_end()
    assert ended.resolve(None, None) == Write(SHARD_END)
    assert ended.resolve("TRIM_HORIZON", None) == Write(SHARD_END)


@pytest.mark.parametrize("number", ["1", "150", "9" * 56])
def test_a_number_means_nothing_to_a_child_that_was_given_no_record(number: str) -> None:
    started = CheckpointRange.starting_at(TRIM_HORIZON)
    assert isinstance(started.resolve(number, None), Illegal)
    assert isinstance(started.at_shard_end().resolve(number, None), Illegal)


@pytest.mark.parametrize("last", [TRIM_HORIZON, LARGEST])
def test_zero_ends_a_shard_of_which_nothing_is_left(last: Position) -> None:
    assert CheckpointRange.starting_at(last).at_shard_end().resolve("0", None) == Write(SHARD_END)


def test_nothing_is_stored_over_the_end() -> None:
    complete = ENDED.written(SHARD_END)
    assert complete.resolve("0", None) == NoWrite()
    assert all(isinstance(complete.resolve(number, None), Illegal) for number in ("150", "200"))


def test_telling_the_end_twice_changes_nothing() -> None:
    assert ENDED.at_shard_end() == ENDED


def test_a_smaller_batch_does_not_lower_the_bound() -> None:
    assert RUNNING.deliver(Position("140"), Position("150")) == RUNNING


positions = st.builds(Position, st.integers(0, 300).map(str), st.integers(0, 3))


@given(st.lists(st.tuples(st.sampled_from(["deliver", "checkpoint"]), positions)))
def test_checkpoints_never_go_back_nor_beyond_what_was_delivered(steps: list[tuple[str, Position]]) -> None:
    state = CheckpointRange.starting_at(LAST)
    given: list[Position] = []
    for step, position in steps:
        if step == "deliver":
            state = state.deliver(position, position)
            given.append(position)
            continue
        answer = state.resolve(position.sequence, position.sub)
        is_within = bool(given) and max(state.last, min(given)) <= position <= max(LAST, *given)
        if isinstance(answer, Write):
            assert state.last < answer.position
            assert is_within
            state = state.written(answer.position)
        else:
            assert position == state.last or position.number == 0 or not is_within
