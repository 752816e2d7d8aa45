"""`ReadState`: how far a reader has come. Decides where a reader starts, where it goes on with a new iterator, and
whether records are missing there. Pure.

Rules: retrieval#starting-point (AT_TIMESTAMP without a time reads from TRIM_HORIZON), retrieval#restart-point (AT the
last record), retrieval#lost-to-retention and retrieval#restart-of-latest (no gap after a start at LATEST).

Where reading starts depends only on the sequence number of the checkpoint, not on its sub-sequence number. The
checkpoint filter removes records that were already processed. So a reader may start too early, but never too late.

Two words for what follows. The *anchor* of a reader that started at LATEST is a time. If this reader, or a later one of
the lease, has to start again without the position of a record, it starts at this time, because a second LATEST would
skip what arrived in between. A *proof* shows that no record was lost: the reader asks for its last record again, and
the stream still has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mld.core.positions import AT_TIMESTAMP_NAME, LATEST_NAME, TRIM_HORIZON_NAME, InitialPosition, Position
from mld.core.streams import IteratorType, Page, StartingPoint
from mld.properties.values import InitialPositionSetting

LATEST_MARGIN_S = 10.0
"""If a reader that started at LATEST has to start again, it starts at a time by our clock (the anchor), minus this. So
no record is skipped if our clock is ahead of the clock of Kinesis by less than this.

The price: after such a restart, records may come that are up to this much older than LATEST was."""

SAFE_AGE_S = 300.0
"""Records younger than this are in every stream. If a reader had read everything so recently, it has lost nothing."""
PROOF_EVERY_S = 5.0
"""How often a reader that is further behind than SAFE_AGE_S proves that it has lost nothing: it asks for its last
record again. This is necessary because the iterators in answers skip trimmed records silently. Each proof costs a
GetShardIterator and one record that is read twice.
"""
FIRST_STEP_BACK_S = 60.0
"""How much earlier an anchor becomes when Kinesis refuses it because it is in the future; doubled with each refusal."""


def initial_position(configured: InitialPositionSetting) -> InitialPosition:
    """Return the configured starting point of leases whose checkpoint has no sequence number."""
    return InitialPosition(Position(configured.kind.value), configured.timestamp_s)


def starting_point(checkpoint: Position, initial: InitialPosition, anchor_s: float | None = None) -> StartingPoint:
    """Return where a reader starts (retrieval#starting-point).

    `anchor_s` (epoch seconds) comes from an earlier reader of the same lease (`ReadState.anchor_s`). It replaces
    LATEST, which would skip the records that arrived since that reader. Raises ValueError for SHARD_END, because there
    is nothing to read.
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
    """Return whether the checkpoint is AT_TIMESTAMP, but no time is configured for this worker."""
    return checkpoint.sequence == AT_TIMESTAMP_NAME and initial.timestamp_s is None


@dataclass(frozen=True, slots=True)
class ReadState:
    """How far a reader has come.

    `follows_tip`: the reader started from LATEST, or from the anchor that replaces LATEST.

    `anchor_s` (epoch seconds; LATEST_MARGIN_S is deducted): a reader that starts at this time misses no record that
    arrived since the first start at LATEST. The anchor advances while no record comes. It stops at the first record,
    because that record may be delivered and never checkpointed. It never advances by more than the time that has passed
    since `anchored_at_s` (monotonic), in case somebody sets the wall clock.

    `last_sequence`: sequence number of the last record of the last accepted answer that had records.

    `asked`: sequence number of the record with which the next answer should begin. If the start names no record, but
    everything that arrived since `read_to_s` is wanted, `asked` is the type of the start. It is None once that answer
    has come.

    `read_to_s` (epoch seconds): everything that had arrived by then was received, or is not wanted; None if unknown.

    `is_at_record`: the last answer had records, so the reader is just after `last_sequence`. From `prove_at_s`
    (monotonic) on it should ask for that record again.

    `step_back_s`: how much earlier the anchor becomes if Kinesis refuses it.
    """

    start: StartingPoint
    follows_tip: bool = False
    anchor_s: float | None = None
    tip_s: float | None = None
    """What `anchor_s` would be if the last answer had reported no lag."""
    anchored_at_s: float = 0.0
    last_sequence: str | None = None
    step_back_s: float = FIRST_STEP_BACK_S
    asked: str | None = None
    read_to_s: float | None = None
    is_at_record: bool = False
    prove_at_s: float = 0.0


def started(
    checkpoint: Position,
    start: StartingPoint,
    asked_wall_s: float,
    asked_s: float,
    anchor_s: float | None,
    read_to_s: float | None = None,
) -> ReadState:
    """Return the state of a reader that starts now: at `asked_wall_s` (epoch) and `asked_s` (monotonic).

    `anchor_s`, the anchor of an earlier reader, is kept for later readers. A start at LATEST sets a new anchor.
    Everything that had arrived by `read_to_s` is before the checkpoint.

    The field `asked` of the state is for `lacks_record`, which sees from the first answer whether records are missing:

    * after a start at a record it is that record's sequence number: the answer should begin with this record;
    * after a start at a time or at TRIM_HORIZON it is the iterator type, which stands for a comparison of times: the
      first record should not be newer than `read_to_s`, or than the time of the start if that is later;
    * it is None if neither of these times is known, or after a start at LATEST: nothing can be missing, or nothing
      shows it.
    """
    asked = start.sequence
    if start.type is IteratorType.LATEST:
        anchor_s = asked_wall_s - LATEST_MARGIN_S
    elif asked is None:
        read_to_s = max((time_s for time_s in (start.timestamp_s, read_to_s) if time_s is not None), default=None)
        asked = None if read_to_s is None else start.type.value
    follows_tip = checkpoint.sequence == LATEST_NAME
    return ReadState(start, follows_tip, anchor_s, anchor_s, asked_s, asked=asked, read_to_s=read_to_s)


def advanced(state: ReadState, page: Page, asked_wall_s: float, asked_s: float) -> ReadState:
    """Return the state after an accepted answer. The request was sent at `asked_wall_s` (epoch), `asked_s`
    (monotonic).

    If the answer has records, the reader is just after the last of them. If it has none, the anchor advances, as long
    as the reader follows the tip and has had no record at all. If the answer reports the lag, everything that had
    arrived that long before the request was read (`read_to_s`).
    """
    lag_ms, last_sequence = page.millis_behind_latest, page.last_sequence
    asked, read_to_s = state.asked, state.read_to_s
    if asked is not None and (last_sequence is not None or _has_nothing_more(page)):
        asked = None
    # As long as the record `asked` has not come, it may be older than the time below, so not everything was read.
    if lag_ms is not None and asked is None:
        read_to_s = asked_wall_s - lag_ms / 1000
    if last_sequence is not None:
        # An answer to `asked` is itself a proof, or makes the reader look for a loss; so the next proof is due later.
        prove_at_s = state.prove_at_s if state.asked is None else asked_s + PROOF_EVERY_S
        return replace(
            state,
            last_sequence=last_sequence,
            asked=None,
            read_to_s=read_to_s,
            is_at_record=True,
            prove_at_s=prove_at_s,
        )
    if not state.follows_tip or state.last_sequence is not None or lag_ms is None:
        return replace(state, asked=asked, read_to_s=read_to_s, is_at_record=False)
    tip_s = asked_wall_s - LATEST_MARGIN_S
    if state.tip_s is not None:  # advance by no more than the time that has passed, even if the wall clock was set
        tip_s = min(tip_s, state.tip_s + asked_s - state.anchored_at_s)
    return replace(
        state,
        anchor_s=tip_s - lag_ms / 1000,
        tip_s=tip_s,
        anchored_at_s=asked_s,
        asked=asked,
        read_to_s=read_to_s,
        is_at_record=False,
    )


def refused(state: ReadState) -> ReadState:
    """Return the state after Kinesis refused the anchor because it is in the future: our clock is ahead."""
    if not state.follows_tip or state.anchor_s is None:
        return state
    anchor_s = state.anchor_s - state.step_back_s
    return replace(state, anchor_s=anchor_s, tip_s=anchor_s, step_back_s=2 * state.step_back_s)


def positioned(state: ReadState, point: StartingPoint) -> ReadState:
    """Return the state after a new iterator or subscription was opened at `point`.

    Meanwhile the subscription that it replaces may have brought records. The next answer should then begin with the
    last of these.
    """
    if point.type is not IteratorType.AT_SEQUENCE_NUMBER:
        return state
    return replace(state, asked=state.last_sequence or point.sequence)


def lacks_record(state: ReadState, page: Page) -> bool:
    """Return whether an answer shows that records may be missing from the stream.

    An iterator at a sequence number begins with that record. If the record is gone, the iterator begins with the oldest
    later record, without an error (retrieval#lost-to-retention). If the start named no record, records that arrived
    between `read_to_s` and the first record of the answer may be missing.
    """
    if state.asked is None:
        return False
    if not state.asked.isdigit():
        arrival_ms, since_s = page.first_arrival_ms, state.read_to_s
        return arrival_ms is not None and since_s is not None and arrival_ms / 1000 > since_s
    if page.first_sequence is None:
        return _has_nothing_more(page)
    return int(page.first_sequence) > int(state.asked)


def is_proof_alone(state: ReadState, page: Page) -> bool:
    """Return whether the only record of an answer is the last received record, which was asked for again as a proof."""
    return page.count == 1 and page.first_sequence == state.asked == state.last_sequence


def needs_proof(state: ReadState, now_s: float, wall_s: float) -> bool:
    """Return whether to ask for the last record again, because later records may have been trimmed since it was read.

    That is done only right after an answer with records. Otherwise a reader that crosses a long stretch of the shard
    without records would go back to the beginning of the stretch again and again, and never reach its end.
    """
    if not state.is_at_record or now_s < state.prove_at_s:
        return False
    return state.read_to_s is None or wall_s - state.read_to_s >= SAFE_AGE_S


def restart_point(state: ReadState) -> StartingPoint:
    """Return where the reader goes on with a new iterator (retrieval#restart-point)."""
    if state.last_sequence is not None:
        return StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=state.last_sequence)
    if state.follows_tip and state.anchor_s is not None:
        return _at_time(state.anchor_s)
    return state.start


def _has_nothing_more(page: Page) -> bool:
    """Return whether no record follows this answer in the shard, as far as Kinesis has reported it."""
    return page.millis_behind_latest == 0 or page.next_iterator is None


def _at_time(epoch_s: float) -> StartingPoint:
    return StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=epoch_s)
