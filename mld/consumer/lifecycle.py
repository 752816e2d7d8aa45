"""`next_state`: the life cycle of a shard's consumer, as a table of states. Pure; `consumer` is the shell.

Rules: shards#consumer-life-cycle, shards#stops-of-a-consumer, protocol#order-of-actions and
leases#handoff-on-the-owner-side.

Theory. A consumer exists for one holding of one lease. In each state it performs one activity, and the
`ActivityOutcome` leads to the next state. A stop may be requested at any time, for one of three reasons, of which the
strongest wins: the worker asks the consumer to stop (`StopReason.REQUESTED`), another worker waits for the lease
(`StopReason.HANDOFF`), or the lease is lost (`StopReason.LEASE_LOST`). Then the activity ends as soon as it safely can
(it waits for the child's answer to its batch), and the stop decides the next state instead of the outcome::

    WAITING_ON_PARENTS -> INITIALIZING -> PROCESSING -> SHARD_ENDING -> FINISHED
                              ^            |    ^ |          |
                              |            |    | v          |
                              |            |   PARKED -------+  (Kinesis says "not found": over, or the wrong stream?)
                              |            v                 v
                              +------- BACKING_OFF <---------+  (the child failed: restart from the last checkpoint,
                              ^                              |   after a pause, or with one record set aside)
                              +------------------------------+  (the end proves nothing: it is read again)

    odd row:        WAITING_ON_PARENTS -> PARKED -> WAITING_ON_PARENTS  (no record was read, and no child started)
    stop requested: SHUTDOWN_REQUESTED -----------------> LEASE_LOST -> RELEASING -> FINISHED
    handoff:        SHUTDOWN_REQUESTED -> TRANSFERRING -> LEASE_LOST -> RELEASING -> FINISHED  (nothing left to release)
    lease lost:                                           LEASE_LOST --------------> FINISHED

In a handoff the lease is transferred before the child gets `leaseLost`, because the next owner is waiting. A consumer
without a child transfers the lease at once.

An error must never count as the end of a shard: only SHARD_ENDING leads to a SHARD_END checkpoint, and it is entered
only if the service reported the end, or if there is positive evidence that the shard has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum

from mld.metrics.activity import ShardActivity

PARKED = "Kinesis does not know this shard; nothing is skipped, the log says what may be wrong"
"""The error that pages show for a parked shard."""


class ConsumerState(Enum):
    """The state of a consumer, which decides its activity. The header of this module shows the ways between states."""

    WAITING_ON_PARENTS = "waiting on parents"
    INITIALIZING = "initializing"
    PROCESSING = "processing"
    SHARD_ENDING = "shard ending"
    BACKING_OFF = "backing off"
    PARKED = "parked"
    SHUTDOWN_REQUESTED = "shutdown requested"
    TRANSFERRING = "transferring"
    LEASE_LOST = "lease lost"
    RELEASING = "releasing"
    FINISHED = "finished"


class ActivityOutcome(Enum):
    """How an activity ended."""

    DONE = "done"
    RETRY = "retry"  # an error outside of the consumer: perform the same activity again, after a back-off
    ALREADY_COMPLETE = "already complete"  # the row is at SHARD_END: nothing to read, only to clean up
    SHARD_ENDED = "shard ended"
    END_DOUBTED = "end doubted"  # the end that was read proves nothing: read again from the checkpoint
    SHARD_MISSING = "shard missing"
    ROW_ODD = "row odd"  # the row cannot be of this shard: nothing is read from its position
    ROW_JUDGED = "row judged"  # the row is no longer odd, or the shard no longer listed; nothing was read yet
    CHILD_FAILED = "child failed"
    GAVE_UP = "gave up"


class StopReason(IntEnum):
    """Why a consumer must end. The highest reason wins, and none is ever withdrawn."""

    REQUESTED = 1
    HANDOFF = 2
    LEASE_LOST = 3


# The state that follows an outcome if no stop was requested.
_NEXT: dict[tuple[ConsumerState, ActivityOutcome], ConsumerState] = {
    (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.DONE): ConsumerState.INITIALIZING,
    (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.RETRY): ConsumerState.WAITING_ON_PARENTS,
    (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.ROW_ODD): ConsumerState.PARKED,
    (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.ALREADY_COMPLETE): ConsumerState.FINISHED,
    (ConsumerState.INITIALIZING, ActivityOutcome.DONE): ConsumerState.PROCESSING,
    (ConsumerState.INITIALIZING, ActivityOutcome.RETRY): ConsumerState.INITIALIZING,
    (ConsumerState.INITIALIZING, ActivityOutcome.ALREADY_COMPLETE): ConsumerState.FINISHED,
    (ConsumerState.INITIALIZING, ActivityOutcome.CHILD_FAILED): ConsumerState.BACKING_OFF,
    (ConsumerState.PROCESSING, ActivityOutcome.DONE): ConsumerState.PROCESSING,
    (ConsumerState.PROCESSING, ActivityOutcome.RETRY): ConsumerState.INITIALIZING,
    (ConsumerState.PROCESSING, ActivityOutcome.SHARD_ENDED): ConsumerState.SHARD_ENDING,
    (ConsumerState.PROCESSING, ActivityOutcome.SHARD_MISSING): ConsumerState.PARKED,
    (ConsumerState.PROCESSING, ActivityOutcome.CHILD_FAILED): ConsumerState.BACKING_OFF,
    (ConsumerState.SHARD_ENDING, ActivityOutcome.DONE): ConsumerState.FINISHED,
    (ConsumerState.SHARD_ENDING, ActivityOutcome.RETRY): ConsumerState.SHARD_ENDING,
    (ConsumerState.SHARD_ENDING, ActivityOutcome.END_DOUBTED): ConsumerState.INITIALIZING,
    (ConsumerState.SHARD_ENDING, ActivityOutcome.CHILD_FAILED): ConsumerState.BACKING_OFF,
    (ConsumerState.BACKING_OFF, ActivityOutcome.DONE): ConsumerState.INITIALIZING,
    (ConsumerState.BACKING_OFF, ActivityOutcome.GAVE_UP): ConsumerState.RELEASING,
    (ConsumerState.PARKED, ActivityOutcome.DONE): ConsumerState.PROCESSING,
    (ConsumerState.PARKED, ActivityOutcome.ROW_JUDGED): ConsumerState.WAITING_ON_PARENTS,
    (ConsumerState.PARKED, ActivityOutcome.RETRY): ConsumerState.PARKED,
    (ConsumerState.PARKED, ActivityOutcome.SHARD_ENDED): ConsumerState.SHARD_ENDING,
    (ConsumerState.SHUTDOWN_REQUESTED, ActivityOutcome.DONE): ConsumerState.LEASE_LOST,
    (ConsumerState.SHUTDOWN_REQUESTED, ActivityOutcome.CHILD_FAILED): ConsumerState.LEASE_LOST,
    (ConsumerState.TRANSFERRING, ActivityOutcome.DONE): ConsumerState.LEASE_LOST,
    (ConsumerState.LEASE_LOST, ActivityOutcome.DONE): ConsumerState.FINISHED,
    (ConsumerState.LEASE_LOST, ActivityOutcome.CHILD_FAILED): ConsumerState.FINISHED,
    (ConsumerState.RELEASING, ActivityOutcome.DONE): ConsumerState.FINISHED,
}

# Before a stop: the states in which a child may run, to which the stop is then announced, and those without a child.
_CHILD_RUNS = (
    ConsumerState.INITIALIZING,
    ConsumerState.PROCESSING,
    ConsumerState.SHARD_ENDING,
    ConsumerState.PARKED,
)
_NO_CHILD = (ConsumerState.WAITING_ON_PARENTS, ConsumerState.BACKING_OFF)

# The state that follows if a stop was requested before or during the activity. Pairs without an entry are already part
# of stopping, and follow `_NEXT`.
_STOPPED: dict[tuple[ConsumerState, StopReason], ConsumerState] = {
    **{(state, StopReason.REQUESTED): ConsumerState.SHUTDOWN_REQUESTED for state in _CHILD_RUNS},
    **{(state, StopReason.HANDOFF): ConsumerState.SHUTDOWN_REQUESTED for state in _CHILD_RUNS},
    **{(state, StopReason.LEASE_LOST): ConsumerState.LEASE_LOST for state in _CHILD_RUNS},
    **{(state, StopReason.REQUESTED): ConsumerState.RELEASING for state in _NO_CHILD},
    **{(state, StopReason.HANDOFF): ConsumerState.TRANSFERRING for state in _NO_CHILD},
    **{(state, StopReason.LEASE_LOST): ConsumerState.FINISHED for state in _NO_CHILD},
    (ConsumerState.SHUTDOWN_REQUESTED, StopReason.HANDOFF): ConsumerState.TRANSFERRING,
    # A requested shutdown is always followed by leaseLost; the lease is released only if it is still ours.
    (ConsumerState.LEASE_LOST, StopReason.REQUESTED): ConsumerState.RELEASING,
    (ConsumerState.LEASE_LOST, StopReason.HANDOFF): ConsumerState.RELEASING,
    (ConsumerState.RELEASING, StopReason.LEASE_LOST): ConsumerState.FINISHED,
}

# After these outcomes a stop changes nothing: SHARD_END is checkpointed, or the lease was released.
_FINAL = frozenset(
    {(ConsumerState.SHARD_ENDING, ActivityOutcome.DONE), (ConsumerState.RELEASING, ActivityOutcome.DONE)}
)


def next_state(state: ConsumerState, outcome: ActivityOutcome, stop: StopReason | None) -> ConsumerState:
    """Return the state that follows when the activity of `state` has ended with `outcome`; `stop` is the requested
    stop, if any.

    Raises KeyError for a pair that cannot happen, which would be a bug.
    """
    following = _NEXT[state, outcome]
    if stop is None or (state, outcome) in _FINAL or outcome is ActivityOutcome.ALREADY_COMPLETE:
        return following
    return _STOPPED.get((state, stop), following)


ACTIVITIES: Mapping[ConsumerState, ShardActivity] = {
    ConsumerState.PARKED: ShardActivity.PARKED,
    ConsumerState.SHARD_ENDING: ShardActivity.ENDING,
    ConsumerState.BACKING_OFF: ShardActivity.FAILING,
}
"""What pages and metrics show for a shard in these states. In any other state, its work decides (`ShardMetrics`)."""
ENDINGS = frozenset({ConsumerState.SHARD_ENDING, ConsumerState.SHUTDOWN_REQUESTED})
"""The states in which a checkpoint also counts as one at the end (`ShardMetrics.ending_checkpoints`)."""
