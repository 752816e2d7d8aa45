"""Rules: retrieval#starting-point, retrieval#restart-point and retrieval#restart-of-latest."""

from __future__ import annotations

import pytest

from mld.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, InitialPosition, Position
from mld.retrieval.rawpage import RawPage
from mld.retrieval.starting_points import (
    LATEST_MARGIN_S,
    ReadState,
    advanced,
    lacks_timestamp,
    restart_point,
    started,
    starting_point,
)
from mld.streams import IteratorType, StartingPoint
from protocol.messages import Record
from tests.support.pages import page_with

INITIAL = InitialPosition(AT_TIMESTAMP, 1_600_000_000.5)
NUMBER = "49590338271490256608559692538361571095921575989136588898"

AT_LATEST = StartingPoint(IteratorType.LATEST)
AT_HORIZON = StartingPoint(IteratorType.TRIM_HORIZON)
AT_TIME = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=1_600_000_000.5)
AT_NUMBER = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=NUMBER)


def page_of(*sequences: str, lag_ms: int | None = 0) -> RawPage:
    return page_with(tuple(Record(b"", "k", s, 0, 0) for s in sequences), "next", lag_ms)


def at_time(epoch_s: float) -> StartingPoint:
    return StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=epoch_s)


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (LATEST, AT_LATEST),
        (TRIM_HORIZON, AT_HORIZON),
        (AT_TIMESTAMP, AT_TIME),
        (Position(NUMBER), AT_NUMBER),
        (Position(NUMBER, 3), AT_NUMBER),
    ],
)
def test_the_checkpoint_chooses_the_first_iterator(checkpoint: Position, expected: StartingPoint) -> None:
    assert starting_point(checkpoint, INITIAL) == expected


def test_a_completed_lease_is_never_read() -> None:
    with pytest.raises(ValueError, match="SHARD_END"):
        starting_point(SHARD_END, INITIAL)


def test_only_the_checkpoint_counts_not_the_configured_initial_position() -> None:
    assert starting_point(LATEST, InitialPosition(TRIM_HORIZON)) == AT_LATEST


def test_at_timestamp_without_a_configured_time_reads_from_the_trim_horizon() -> None:
    initial = InitialPosition(LATEST)
    assert lacks_timestamp(AT_TIMESTAMP, initial)
    assert starting_point(AT_TIMESTAMP, initial) == AT_HORIZON


@pytest.mark.parametrize("checkpoint", [LATEST, TRIM_HORIZON, Position("7")])
def test_other_checkpoints_need_no_configured_time(checkpoint: Position) -> None:
    assert not lacks_timestamp(checkpoint, InitialPosition(LATEST))


def test_an_anchor_stands_in_for_latest() -> None:
    assert starting_point(LATEST, INITIAL, 1234.0) == at_time(1234.0)


@pytest.mark.parametrize(
    ("checkpoint", "expected"), [(TRIM_HORIZON, AT_HORIZON), (AT_TIMESTAMP, AT_TIME), (Position(NUMBER), AT_NUMBER)]
)
def test_an_anchor_matters_to_no_other_checkpoint(checkpoint: Position, expected: StartingPoint) -> None:
    assert starting_point(checkpoint, INITIAL, 1234.0) == expected


@pytest.mark.parametrize("start", [AT_HORIZON, AT_TIME, AT_NUMBER])
def test_a_restart_before_the_first_record_repeats_the_start(start: StartingPoint) -> None:
    assert restart_point(ReadState(start)) == start


@pytest.mark.parametrize("start", [AT_HORIZON, AT_TIME, AT_NUMBER])
def test_empty_answers_do_not_move_a_start_that_is_not_latest(start: StartingPoint) -> None:
    assert restart_point(advanced(ReadState(start), page_of(lag_ms=0), 5000.0)) == start


@pytest.mark.parametrize("checkpoint", [LATEST, TRIM_HORIZON, AT_TIMESTAMP, Position(NUMBER)])
def test_a_restart_goes_on_after_the_last_record_received(checkpoint: Position) -> None:
    state = started(checkpoint, starting_point(checkpoint, INITIAL), 5000.0, None)
    state = advanced(state, page_of("100", "101"), 5001.0)
    state = advanced(state, page_of(), 5002.0)
    assert restart_point(state) == StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence="101")


def test_a_latest_reader_restarts_by_the_time_of_its_start() -> None:
    assert restart_point(started(LATEST, AT_LATEST, 5000.0, None)) == at_time(5000.0 - LATEST_MARGIN_S)


def test_a_latest_reader_restarts_by_the_time_of_its_last_empty_answer() -> None:
    state = advanced(started(LATEST, AT_LATEST, 5000.0, None), page_of(lag_ms=0), 6000.0)
    assert restart_point(state) == at_time(6000.0 - LATEST_MARGIN_S)


def test_an_empty_answer_that_is_behind_proves_less() -> None:
    state = advanced(started(LATEST, AT_LATEST, 5000.0, None), page_of(lag_ms=2500), 6000.0)
    assert restart_point(state) == at_time(6000.0 - 2.5 - LATEST_MARGIN_S)


def test_an_empty_answer_without_lag_proves_nothing() -> None:
    state = started(LATEST, AT_LATEST, 5000.0, None)
    assert advanced(state, page_of(lag_ms=None), 6000.0) == state


def test_the_anchor_stands_still_once_a_record_was_received() -> None:
    state = advanced(started(LATEST, AT_LATEST, 5000.0, None), page_of("100"), 6000.0)
    state = advanced(state, page_of(), 7000.0)
    assert state.anchor_s == 5000.0 - LATEST_MARGIN_S


def test_a_reader_with_a_numeric_checkpoint_keeps_the_anchor_but_does_not_use_it() -> None:
    state = advanced(started(Position(NUMBER), AT_NUMBER, 9000.0, 1234.0), page_of(), 9001.0)
    assert state.anchor_s == 1234.0
    assert restart_point(state) == AT_NUMBER


def test_a_reader_that_never_saw_latest_has_no_anchor() -> None:
    assert started(TRIM_HORIZON, AT_HORIZON, 9000.0, None).anchor_s is None
