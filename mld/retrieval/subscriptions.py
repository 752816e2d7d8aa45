"""`Course`: the subscriptions to one shard by enhanced fan-out. Decides where and when the next subscription starts,
and what an error means. Pure.

Rules: retrieval#subscription-starting-point, retrieval#subscription-renewal and retrieval#subscription-errors. A
`Course` is what a reader knows about its subscriptions. Functions return the next course after each step. The
"continuation" is the ContinuationSequenceNumber of the last accepted event, that is an event passed to the consumer.

=====================  ===============================================================================================
step                   what follows
=====================  ===============================================================================================
an event is accepted   later subscriptions start at its continuation; earlier errors are forgotten
the ordinary end       at once a new subscription AFTER the continuation
`RENEW_AFTER_S`        a second subscription AFTER the continuation; the old one is read until the new one is open, and
                       the checkpoint filter removes records that come twice, as after each restart
no event for long      a new subscription AT the last record: later records may have been trimmed meanwhile
an error               a wait, then a new subscription from the same place
a refused place        a wait, then a new subscription AT the last record, or at the start if no record has come: the
                       continuation may be of a stream that was deleted
=====================  ===============================================================================================

The place moves only when an event is accepted. If a subscription is closed before all its events were read, the next
subscription sends these events again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from mld.core.errors import (
    InvalidStreamArgumentError,
    PositionRefusedError,
    StreamError,
    StreamInUseError,
    StreamNotFoundError,
    StreamThrottledError,
)
from mld.core.streams import IteratorType, Page, StartingPoint
from mld.retrieval import pacing, starting_points

SUBSCRIBE_INTERVAL_MIN_S = 1.0
"""Kinesis allows one SubscribeToShard a second for each consumer and shard."""
TAKEOVER_S = 5.0
"""For this long after a successful call, Kinesis refuses another call for the same consumer and shard
(ResourceInUse).
"""
IN_USE_MAX = 8
"""If a call is refused as ResourceInUse this often in a row, which takes longer than TAKEOVER_S, the consumer is not
ACTIVE."""
YIELD_S = TAKEOVER_S + 1.0
"""Pause after another worker took over our subscription. Most likely it has the lease, which we soon learn."""
CONTESTED_TAKEOVERS = 3
CONTESTED_WITHIN_S = 900.0
"""If CONTESTED_TAKEOVERS happen within this time while we keep the lease, two applications use one consumer."""
LIFE_S = 300.0
"""Longest life of a subscription."""
RENEW_AFTER_S = 270.0
"""Age at which a subscription is renewed, before its end."""
RENEW_SPREAD_S = 15.0
"""A random part of this is added to that age, so that subscriptions opened together are not all renewed together."""


class SubscriptionReaction(Enum):
    """What a fan-out reader does about an error, before it subscribes again."""

    AGAIN = "a new subscription"
    SLOWER = "a new subscription, slower"
    IN_TURN = "a new subscription once the other one may be taken over"
    YIELD = "a new subscription unless the lease is lost"
    ASK = "a look at the consumer"


def reaction_to(error: StreamError, failures: int, *, was_open: bool) -> SubscriptionReaction:
    """Return what to do about an error. `was_open` says that the subscription was open; otherwise it could not be
    opened. `failures` is the number of errors in a row before this one.
    """
    match error:
        case StreamNotFoundError():
            return SubscriptionReaction.ASK
        case StreamInUseError() if was_open:
            return SubscriptionReaction.YIELD
        case StreamInUseError():
            return SubscriptionReaction.ASK if failures >= IN_USE_MAX else SubscriptionReaction.IN_TURN
        case StreamThrottledError():
            return SubscriptionReaction.SLOWER
        case _:
            return SubscriptionReaction.AGAIN


@dataclass(frozen=True, slots=True)
class Course:
    """How far a reader has come, and how its subscriptions went. Times are monotonic seconds.

    `continuation` is that of the last accepted event, which came at `accepted_s`. `called_s` is the time of the last
    SubscribeToShard. `failures` counts errors in a row, `failed_s` is the time of the last error, and `reaction` what
    to do about it. `yield_s` is the pause after another subscriber took over.
    """

    read: starting_points.ReadState
    continuation: str | None = None
    accepted_s: float = 0.0
    called_s: float | None = None
    failures: int = 0
    failed_s: float = 0.0
    reaction: SubscriptionReaction = SubscriptionReaction.AGAIN
    yield_s: float = YIELD_S
    takeovers_s: tuple[float, ...] = ()
    """Times at which others took over our last subscriptions."""


def is_contested(course: Course) -> bool:
    """Return whether others keep taking the subscription over, although this worker still has the lease."""
    times = course.takeovers_s
    return len(times) == CONTESTED_TAKEOVERS and times[-1] - times[0] <= CONTESTED_WITHIN_S


def point_of(course: Course, now_s: float, wall_s: float) -> StartingPoint:
    """Return where the next subscription starts.

    It starts AFTER the continuation if an event was accepted less than `LIFE_S` ago, and the last record need not be
    asked for again (`needs_proof`). Otherwise it starts where the reader starts, if this is the first subscription,
    else at the restart point.
    """
    is_fresh = now_s - course.accepted_s < LIFE_S
    is_proved = course.read.last_sequence is None or not starting_points.needs_proof(course.read, now_s, wall_s)
    if course.continuation is not None and is_fresh and is_proved:
        return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=course.continuation)
    if course.called_s is None:
        return course.read.start
    return starting_points.restart_point(course.read)


def called(course: Course, now_s: float) -> Course:
    """Return the course after SubscribeToShard was sent."""
    return replace(course, called_s=now_s)


def opened(course: Course, point: StartingPoint) -> Course:
    """Return the course after a subscription from `point` was opened."""
    return replace(course, read=starting_points.positioned(course.read, point))


def accepted(course: Course, page: Page, now_s: float, wall_s: float) -> Course:
    """Return the course after an event, received just now, was passed to the consumer."""
    # An event may have waited unread for any length of time, so the anchor of a start at LATEST does not move.
    read = replace(starting_points.advanced(course.read, page, wall_s, now_s), anchor_s=course.read.anchor_s)
    continuation = page.next_iterator or course.continuation
    return replace(course, read=read, continuation=continuation, accepted_s=now_s, failures=0)


def failed(course: Course, error: StreamError, now_s: float, *, was_open: bool) -> Course:
    """Return the course after an error. `was_open` is false if the subscription could not be opened.

    If the position was refused, the next subscription does not start at the continuation. If a starting time was
    refused, our clock is ahead, and the anchor becomes earlier. If another subscriber took over, the time is noted
    (`is_contested`).
    """
    reaction = reaction_to(error, course.failures, was_open=was_open)
    continuation, read = course.continuation, course.read
    if isinstance(error, PositionRefusedError):
        continuation = None
    elif isinstance(error, InvalidStreamArgumentError) and not was_open:
        read = starting_points.refused(read)
    takeovers_s = course.takeovers_s
    if reaction is SubscriptionReaction.YIELD:
        takeovers_s = (*takeovers_s, now_s)[-CONTESTED_TAKEOVERS:]
    return replace(
        course,
        read=read,
        failures=course.failures + 1,
        failed_s=now_s,
        reaction=reaction,
        continuation=continuation,
        takeovers_s=takeovers_s,
    )


def delay_s(course: Course, now_s: float, jitter: float) -> float:
    """Return how many seconds to wait before the next SubscribeToShard. `jitter` is a fresh random number in [0, 1)."""
    pace_s = 0.0 if course.called_s is None else course.called_s + SUBSCRIBE_INTERVAL_MIN_S - now_s
    if not course.failures:
        return max(0.0, pace_s)
    return max(0.0, pace_s, course.failed_s + _backoff_s(course, jitter) - now_s)


def renewal_due_s(opened_s: float, jitter: float) -> float:
    """Return the time at which to renew a subscription that was opened at `opened_s`."""
    return opened_s + RENEW_AFTER_S + RENEW_SPREAD_S * jitter


def _backoff_s(course: Course, jitter: float) -> float:
    """Return how long to wait after the last error. A part of it is random, so that readers do not act together."""
    match course.reaction:
        case SubscriptionReaction.YIELD:
            return course.yield_s * (1 + jitter / 4)
        case SubscriptionReaction.IN_TURN:
            return SUBSCRIBE_INTERVAL_MIN_S * (1 + jitter / 4)
        case SubscriptionReaction.SLOWER:
            return pacing.backoff_s(pacing.THROTTLE_BACKOFF_S, course.failures, jitter)
        case SubscriptionReaction.AGAIN | SubscriptionReaction.ASK:
            return pacing.backoff_s(pacing.ERROR_BACKOFF_S, course.failures, jitter)
