"""Where reading starts, and where it resumes after an iterator was lost. Pure.

Rules: retrieval#starting-point (AT_TIMESTAMP without a time reads from TRIM_HORIZON), retrieval#restart-point (AT until
something was received) and retrieval#restart-of-latest (no gap after a start at LATEST).

Only the sequence number of a checkpoint chooses the place; the checkpoint filter removes records already processed. So
everything here may start too early, and must never start too late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mld.core.positions import AT_TIMESTAMP_NAME, LATEST_NAME, TRIM_HORIZON_NAME, InitialPosition, Position
from mld.core.streams import IteratorType, Page, StartingPoint
from mld.properties.values import InitialPositionSetting

LATEST_MARGIN_S = 10.0
"""How far our clock may be ahead of Kinesis's before a restart of a LATEST reader, which goes by time, skips records.

The price: such a restart may deliver records up to this much older than LATEST was.
"""


def initial_position(configured: InitialPositionSetting) -> InitialPosition:
    """Return where leases without a number begin, by the settings."""
    return InitialPosition(Position(configured.kind.value), configured.timestamp_s)


def starting_point(checkpoint: Position, initial: InitialPosition, anchor_s: float | None = None) -> StartingPoint:
    """Return where the first iterator of a reader points (retrieval#starting-point).

    `anchor_s` (epoch seconds) is what an earlier reader of the same lease left (`ReadState.anchor_s`); it stands in for
    LATEST, which would skip what came in between. Raises ValueError for SHARD_END: a completed lease is never read.
    """
    if checkpoint.is_shard_end:
        raise ValueError("the checkpoint is SHARD_END: there is nothing to read")
    if checkpoint.sequence == LATEST_NAME:
        return StartingPoint(IteratorType.LATEST) if anchor_s is None else _at_time(anchor_s)
    if checkpoint.sequence == TRIM_HORIZON_NAME or lacks_timestamp(checkpoint, initial):
        return StartingPoint(IteratorType.TRIM_HORIZON)
    if checkpoint.sequence == AT_TIMESTAMP_NAME:
        return StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=initial.timestamp_s)
    return StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=checkpoint.sequence)


def lacks_timestamp(checkpoint: Position, initial: InitialPosition) -> bool:
    """Return whether the lease says AT_TIMESTAMP, but this worker is not configured with a time."""
    return checkpoint.sequence == AT_TIMESTAMP_NAME and initial.timestamp_s is None


FIRST_STEP_BACK_S = 60.0
"""How much earlier an anchor becomes that Kinesis refuses, because it lies in its future; doubled each time."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """How far a reader has come.

    `follows_tip`: it was started from LATEST, or from the anchor that stands for it. `anchor_s` (epoch seconds, margin
    deducted): reading from that time misses nothing since the first start at LATEST. It moves on while nothing is
    received, and stands still from the first record on, as that one may be delivered and never checkpointed. It moves
    by no more than the time that has passed since `anchored_at_s` (monotonic), whatever a clock says that was set.
    `last_sequence` is the last record of the last accepted answer that had records.
    """

    start: StartingPoint
    follows_tip: bool = False
    anchor_s: float | None = None
    tip_s: float | None = None
    """The anchor, had the last answer not been behind the tip."""
    anchored_at_s: float = 0.0
    last_sequence: str | None = None
    step_back_s: float = FIRST_STEP_BACK_S


def started(
    checkpoint: Position, start: StartingPoint, asked_wall_s: float, asked_s: float, anchor_s: float | None
) -> ReadState:
    """Return the state after the first iterator, asked for at `asked_wall_s` (epoch) and `asked_s` (monotonic).

    A given anchor is kept for later readers.
    """
    if start.type is IteratorType.LATEST:
        anchor_s = asked_wall_s - LATEST_MARGIN_S
    return ReadState(start, checkpoint.sequence == LATEST_NAME, anchor_s, anchor_s, asked_s)


def advanced(state: ReadState, page: Page, asked_wall_s: float, asked_s: float) -> ReadState:
    """Return the state after an accepted answer, asked for at `asked_wall_s` (epoch) and `asked_s` (monotonic)."""
    if page.last_sequence is not None:
        return replace(state, last_sequence=page.last_sequence)
    if not state.follows_tip or state.last_sequence is not None or page.millis_behind_latest is None:
        return state
    tip_s = asked_wall_s - LATEST_MARGIN_S
    if state.tip_s is not None:
        tip_s = min(tip_s, state.tip_s + asked_s - state.anchored_at_s)
    return replace(state, anchor_s=tip_s - page.millis_behind_latest / 1000, tip_s=tip_s, anchored_at_s=asked_s)


def refused(state: ReadState) -> ReadState:
    """Return the state after Kinesis has refused the anchor: it lies in its future, because our clock was ahead."""
    if not state.follows_tip or state.anchor_s is None:
        return state
    anchor_s = state.anchor_s - state.step_back_s
    return replace(state, anchor_s=anchor_s, tip_s=anchor_s, step_back_s=2 * state.step_back_s)


def begins_after_gap(state: ReadState, page: Page) -> bool:
    """Return whether the first records show that the one at the checkpoint is no longer in the stream.

    Rules: retrieval#checkpoint-past-retention. An iterator at a sequence number begins with that very record, or, if it
    was trimmed, silently with the oldest that is left. The records between the two are lost.
    """
    if state.start.sequence is None or state.last_sequence is not None or page.first_sequence is None:
        return False
    return int(page.first_sequence) > int(state.start.sequence)


def restart_point(state: ReadState) -> StartingPoint:
    """Return where a new iterator of the same reader points (retrieval#restart-point)."""
    if state.last_sequence is not None:
        return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=state.last_sequence)
    if state.follows_tip and state.anchor_s is not None:
        return _at_time(state.anchor_s)
    return state.start


def _at_time(epoch_s: float) -> StartingPoint:
    return StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=epoch_s)
