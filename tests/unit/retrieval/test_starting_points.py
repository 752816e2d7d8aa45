"""Rules: retrieval#starting-point, retrieval#restart-point and retrieval#restart-of-latest."""

from __future__ import annotations

import pytest

from mld.core.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import IteratorType, StartingPoint
from mld.protocol.messages import Record
from mld.retrieval.rawpage import RawPage
from mld.retrieval.starting_points import (
    FIRST_STEP_BACK_S,
    LATEST_MARGIN_S,
    ReadState,
    advanced,
    lacks_timestamp,
    refused,
    restart_point,
    started,
    starting_point,
)
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
    ("checkpoint", "initial", "anchor_s", "expected"),
    [
        pytest.param(LATEST, INITIAL, None, AT_LATEST, id="at the tip"),
        pytest.param(TRIM_HORIZON, INITIAL, None, AT_HORIZON, id="from the oldest record"),
        pytest.param(AT_TIMESTAMP, INITIAL, None, AT_TIME, id="from a time"),
        pytest.param(Position(NUMBER), INITIAL, None, AT_NUMBER, id="at the checkpoint"),
        pytest.param(Position(NUMBER, 3), INITIAL, None, AT_NUMBER, id="at the record of a user record"),
        pytest.param(LATEST, InitialPosition(TRIM_HORIZON), None, AT_LATEST, id="the checkpoint before the setting"),
        pytest.param(AT_TIMESTAMP, InitialPosition(LATEST), None, AT_HORIZON, id="no time configured"),
        pytest.param(LATEST, INITIAL, 1234.0, at_time(1234.0), id="an anchor stands in for LATEST"),
        pytest.param(TRIM_HORIZON, INITIAL, 1234.0, AT_HORIZON, id="an anchor, but the oldest record"),
        pytest.param(AT_TIMESTAMP, INITIAL, 1234.0, AT_TIME, id="an anchor, but a time"),
        pytest.param(Position(NUMBER), INITIAL, 1234.0, AT_NUMBER, id="an anchor, but a checkpoint"),
    ],
)
def test_the_checkpoint_chooses_the_first_iterator(
    checkpoint: Position, initial: InitialPosition, anchor_s: float | None, expected: StartingPoint
) -> None:
    assert starting_point(checkpoint, initial, anchor_s) == expected
    assert lacks_timestamp(checkpoint, initial) == (checkpoint == AT_TIMESTAMP and initial.timestamp_s is None)


def test_a_completed_lease_is_never_read() -> None:
    with pytest.raises(ValueError, match="SHARD_END"):
        starting_point(SHARD_END, INITIAL)


@pytest.mark.parametrize("start", [AT_HORIZON, AT_TIME, AT_NUMBER])
def test_a_restart_before_the_first_record_repeats_the_start_whatever_empty_answers_came(start: StartingPoint) -> None:
    assert restart_point(ReadState(start)) == start
    assert restart_point(advanced(ReadState(start), page_of(lag_ms=0), 5000.0, 5000.0)) == start


@pytest.mark.parametrize("checkpoint", [LATEST, TRIM_HORIZON, AT_TIMESTAMP, Position(NUMBER)])
def test_a_restart_asks_for_the_last_record_received(checkpoint: Position) -> None:
    state = started(checkpoint, starting_point(checkpoint, INITIAL), 5000.0, 5000.0, None)
    state = advanced(state, page_of("100", "101"), 5001.0, 5001.0)
    state = advanced(state, page_of(), 5002.0, 5002.0)
    assert restart_point(state) == StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence="101")


@pytest.mark.parametrize(
    ("empty_answers", "since_s"),
    [
        pytest.param([], 5000.0, id="the time of its start"),
        pytest.param([0], 6000.0, id="the time of its last empty answer"),
        pytest.param([2500], 5997.5, id="an empty answer that is behind proves less"),
        pytest.param([None], 5000.0, id="an empty answer without lag proves nothing"),
    ],
)
def test_a_latest_reader_restarts_by_time(empty_answers: list[int | None], since_s: float) -> None:
    state = started(LATEST, AT_LATEST, 5000.0, 5000.0, None)
    for lag_ms in empty_answers:
        state = advanced(state, page_of(lag_ms=lag_ms), 6000.0, 6000.0)
    assert restart_point(state) == at_time(since_s - LATEST_MARGIN_S)


def test_the_anchor_stands_still_once_a_record_was_received() -> None:
    state = advanced(started(LATEST, AT_LATEST, 5000.0, 5000.0, None), page_of("100"), 6000.0, 6000.0)
    state = advanced(state, page_of(), 7000.0, 7000.0)
    assert state.anchor_s == 5000.0 - LATEST_MARGIN_S


def test_a_reader_with_a_numeric_checkpoint_keeps_the_anchor_but_does_not_use_it() -> None:
    state = advanced(started(Position(NUMBER), AT_NUMBER, 9000.0, 9000.0, 1234.0), page_of(), 9001.0, 9001.0)
    assert state.anchor_s == 1234.0
    assert restart_point(state) == AT_NUMBER


def test_a_reader_that_never_saw_latest_has_no_anchor() -> None:
    assert started(TRIM_HORIZON, AT_HORIZON, 9000.0, 9000.0, None).anchor_s is None


@pytest.mark.parametrize(
    ("wall_s", "since_s"),
    [
        pytest.param(9_000.0, 5_030.0, id="set ahead: no more time has passed than by the monotonic clock"),
        pytest.param(5_030.0, 5_030.0, id="left alone"),
        pytest.param(1_000.0, 1_000.0, id="set back: it was ahead before"),
    ],
)
def test_a_clock_that_is_set_makes_the_anchor_earlier_at_most(wall_s: float, since_s: float) -> None:
    state = advanced(started(LATEST, AT_LATEST, 5_000.0, 100.0, None), page_of(lag_ms=0), wall_s, 130.0)
    assert state.anchor_s == since_s - LATEST_MARGIN_S


def test_the_lag_of_one_answer_is_not_that_of_the_next() -> None:
    state = started(LATEST, AT_LATEST, 5_000.0, 100.0, None)
    for number in (1, 2, 3):
        state = advanced(state, page_of(lag_ms=2_000), 5_000.0 + number, 100.0 + number)
    assert state.anchor_s == 5_003.0 - 2.0 - LATEST_MARGIN_S


def test_an_anchor_in_the_future_of_kinesis_goes_back_in_growing_steps() -> None:
    state = started(LATEST, AT_LATEST, 5_000.0, 100.0, None)
    state = refused(refused(state))
    assert state.anchor_s == 5_000.0 - LATEST_MARGIN_S - 3 * FIRST_STEP_BACK_S


@pytest.mark.parametrize("start", [AT_TIME, AT_NUMBER, AT_HORIZON])
def test_a_place_that_somebody_chose_stays_when_it_is_refused(start: StartingPoint) -> None:
    state = ReadState(start)
    assert refused(state) == state
