"""Decisions: retrieval#subscription-starting-point, retrieval#subscription-renewal, retrieval#subscription-errors."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import pytest

from mld.core import errors
from mld.core.positions import LATEST, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import IteratorType, StartingPoint
from mld.protocol.messages import Record
from mld.retrieval import fanout, pacing, starting_points, subscriptions
from mld.retrieval.rawpage import RawPage
from mld.retrieval.subscriptions import Course, SubscriptionReaction
from tests.support.pages import page_with

WALL_S = 1_700_000_000.0
INITIAL = InitialPosition(TRIM_HORIZON)
OPENING, READING = False, True  # whether the subscription was open
BROKEN = errors.StreamUnavailableError("scripted")


def course_from(checkpoint: Position, anchor_s: float | None = None) -> Course:
    start = starting_points.starting_point(checkpoint, INITIAL, anchor_s)
    return Course(starting_points.started(checkpoint, start, WALL_S, 0.0, anchor_s))


def event(*sequences: int, continuation: int | None) -> RawPage:
    records = tuple(Record(b"x", "key", str(number), 0, 1) for number in sequences)
    return page_with(records, None if continuation is None else str(continuation), 0)


def after(number: int) -> StartingPoint:
    return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=str(number))


def at(number: int) -> StartingPoint:
    return StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=str(number))


def point_of(course: Course, now_s: float = 1.0) -> StartingPoint:
    return subscriptions.point_of(course, now_s, WALL_S + now_s)


def accepted(course: Course, page: RawPage, now_s: float = 0.0) -> Course:
    return subscriptions.accepted(course, page, now_s, WALL_S + now_s)


AT_7 = StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence="7")
HORIZON = StartingPoint(IteratorType.TRIM_HORIZON)
TIP = StartingPoint(IteratorType.LATEST)
SINCE = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=WALL_S - starting_points.LATEST_MARGIN_S)


@pytest.mark.parametrize(
    ("checkpoint", "first", "again_without_event"),
    [
        (Position("7", 3), AT_7, AT_7),  # the rest of an aggregate is not skipped
        (TRIM_HORIZON, HORIZON, HORIZON),
        (LATEST, TIP, SINCE),  # what came while the subscription failed is not skipped
    ],
)
def test_a_subscription_without_events_leaves_the_place_where_it_was(
    checkpoint: Position, first: StartingPoint, again_without_event: StartingPoint
) -> None:
    course = course_from(checkpoint)
    assert point_of(course) == first
    course = subscriptions.called(course, 0.0)
    assert point_of(course) == again_without_event
    assert point_of(subscriptions.failed(course, BROKEN, 1.0, was_open=READING)) == again_without_event


def test_an_anchor_that_kinesis_refuses_becomes_earlier() -> None:
    course = subscriptions.called(course_from(LATEST, WALL_S), 0.0)
    course = subscriptions.failed(course, errors.InvalidStreamArgumentError("in the future"), 1.0, was_open=OPENING)
    assert point_of(course).timestamp_s == WALL_S - starting_points.FIRST_STEP_BACK_S


@pytest.mark.parametrize(
    ("events", "point"),
    [
        ([event(8, 9, continuation=9)], after(9)),
        ([event(8, 9, continuation=12)], after(12)),  # the continuation, not the record
        ([event(continuation=30)], after(30)),  # it moves on without records
        ([event(8, continuation=8), event(continuation=30)], after(30)),
        ([event(8, continuation=30), event(continuation=20)], after(20)),  # a renewal begins before it was switched to
    ],
)
@pytest.mark.parametrize("checkpoint", [Position("7", 3), TRIM_HORIZON, LATEST])
def test_after_an_event_it_is_the_continuation_that_counts(
    checkpoint: Position, events: list[RawPage], point: StartingPoint
) -> None:
    course = reduce(accepted, events, subscriptions.called(course_from(checkpoint), 0.0))
    assert point_of(course) == point
    assert point_of(subscriptions.failed(course, BROKEN, 1.0, was_open=READING)) == point


def test_a_refused_continuation_is_forgotten() -> None:
    refused = errors.PositionRefusedError("not of this stream")
    idle = accepted(subscriptions.called(course_from(TRIM_HORIZON), 0.0), event(continuation=30))
    assert point_of(subscriptions.failed(idle, refused, 1.0, was_open=OPENING)) == idle.read.start
    read = accepted(idle, event(35, continuation=40))
    assert point_of(subscriptions.failed(read, refused, 1.0, was_open=OPENING)) == at(35)


def test_the_anchor_of_a_start_at_the_tip_stays_where_it_was() -> None:
    course = accepted(course_from(LATEST), event(continuation=30))
    assert course.read.anchor_s == WALL_S - starting_points.LATEST_MARGIN_S


@pytest.mark.parametrize(
    ("error", "was_open", "failures", "reaction"),
    [
        (errors.StreamNotFoundError("x"), OPENING, 0, SubscriptionReaction.ASK),
        (errors.StreamNotFoundError("x"), READING, 0, SubscriptionReaction.ASK),
        (errors.StreamInUseError("x"), OPENING, 0, SubscriptionReaction.IN_TURN),
        (errors.StreamInUseError("x"), OPENING, subscriptions.IN_USE_MAX - 1, SubscriptionReaction.IN_TURN),
        (errors.StreamInUseError("x"), OPENING, subscriptions.IN_USE_MAX, SubscriptionReaction.ASK),
        (errors.StreamInUseError("x"), READING, 0, SubscriptionReaction.YIELD),
        (errors.StreamThrottledError("x"), OPENING, 0, SubscriptionReaction.SLOWER),
        (errors.StreamThrottledError("x"), READING, 0, SubscriptionReaction.SLOWER),
        (errors.StreamUnavailableError("x"), OPENING, 0, SubscriptionReaction.AGAIN),
        (errors.StreamUnavailableError("x"), READING, 0, SubscriptionReaction.AGAIN),
        (errors.InvalidStreamArgumentError("x"), OPENING, 0, SubscriptionReaction.AGAIN),
        (errors.PositionRefusedError("x"), OPENING, 0, SubscriptionReaction.ASK),
        (errors.InvalidStreamResponseError("x"), READING, 0, SubscriptionReaction.AGAIN),
    ],
)
def test_what_an_error_means(
    error: errors.StreamError, was_open: bool, failures: int, reaction: SubscriptionReaction
) -> None:
    assert subscriptions.reaction_to(error, failures, was_open=was_open) is reaction


@pytest.mark.parametrize(
    ("error", "was_open", "failures", "shortest_s", "longest_s"),
    [
        (BROKEN, READING, 1, pacing.ERROR_BACKOFF_S / 2, pacing.ERROR_BACKOFF_S),
        (BROKEN, READING, 3, pacing.ERROR_BACKOFF_S * 2, pacing.ERROR_BACKOFF_S * 4),
        (BROKEN, OPENING, 30, pacing.BACKOFF_MAX_S / 2, pacing.BACKOFF_MAX_S),
        (errors.StreamThrottledError("x"), OPENING, 1, 0.5, 1.0),
        (errors.StreamThrottledError("x"), OPENING, 4, 4.0, 8.0),
        (errors.StreamInUseError("x"), OPENING, 1, 1.0, 1.25),
        (errors.StreamInUseError("x"), OPENING, 5, 1.0, 1.25),  # the window is 5 s
        (errors.StreamInUseError("x"), READING, 1, subscriptions.YIELD_S, subscriptions.YIELD_S * 1.25),
    ],
)
def test_how_long_an_error_is_waited_out(
    error: errors.StreamError, was_open: bool, failures: int, shortest_s: float, longest_s: float
) -> None:
    course = subscriptions.called(course_from(TRIM_HORIZON), -100.0)
    for _ in range(failures):
        course = subscriptions.failed(course, error, 0.0, was_open=was_open)
    assert subscriptions.delay_s(course, 0.0, 0.0) == pytest.approx(shortest_s)
    assert subscriptions.delay_s(course, 0.0, 0.999_999_9) == pytest.approx(longest_s)
    assert subscriptions.delay_s(course, shortest_s / 2, 0.0) == pytest.approx(shortest_s / 2)
    assert subscriptions.delay_s(course, 1000.0, 0.5) == 0.0


def test_an_accepted_event_forgives_errors() -> None:
    course = subscriptions.failed(course_from(TRIM_HORIZON), BROKEN, 0.0, was_open=READING)
    assert subscriptions.delay_s(accepted(course, event(continuation=3)), 0.0, 0.5) == 0.0


def test_the_first_call_is_immediate_and_no_two_are_within_a_second() -> None:
    course = course_from(TRIM_HORIZON)
    assert subscriptions.delay_s(course, 5.0, 0.5) == 0.0
    course = subscriptions.called(course, 5.0)
    assert subscriptions.delay_s(course, 5.25, 0.5) == 0.75
    assert subscriptions.delay_s(course, 6.0, 0.5) == 0.0  # after an ordinary end at once
    course = subscriptions.failed(course, BROKEN, 5.1, was_open=OPENING)
    assert subscriptions.delay_s(course, 5.1, 0.0) == pytest.approx(0.9)


def test_renewals_come_before_the_end_and_not_all_together() -> None:
    due = [subscriptions.renewal_due_s(100.0, jitter / 10) - 100.0 for jitter in range(10)]
    heartbeat_s = 5.0
    assert all(before < after for before, after in pairwise(due))
    assert due[0] >= subscriptions.TAKEOVER_S
    assert due[-1] + heartbeat_s + fanout.RENEW_RETRY_S < subscriptions.LIFE_S
