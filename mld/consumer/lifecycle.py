"""The life of one shard consumer as a table: which state follows which, and why. Pure; the shell is `consumer`.

Rules: shards#consumer-life-cycle, shards#stops-of-a-consumer, protocol#order-of-actions and
leases#handoff-on-the-owner-side.

Theory. A consumer exists for one holding of one lease. In each state it performs one activity, whose `Outcome` leads to
the next state. Three things may also come from outside at any time, and the strongest one wins: the worker asks it to
stop (`Stop.REQUESTED`), another worker waits for the lease (`Stop.HANDOFF`), or the lease is gone (`Stop.LEASE_LOST`).
An activity is told, ends where it safely can (a batch in
the child's hands is always answered first), and the stop decides the next state instead of the outcome::

    WAITING_ON_PARENTS -> INITIALIZING -> PROCESSING -> SHARD_ENDING -> FINISHED
                              ^            |    ^ |          |
                              |            |    | v          |
                              |            |   PARKED -------+  (Kinesis says "not found": over, or the wrong stream?)
                              |            v                 v
                              +------- BACKING_OFF <---------+  (the child failed: restart from the last checkpoint,
                              ^                              |   after a pause, or with one record set aside)
                              +------------------------------+  (the end proves nothing: it is read again)

    stop requested: SHUTDOWN_REQUESTED -----------------> LEASE_LOST -> RELEASING -> FINISHED
    handoff:        SHUTDOWN_REQUESTED -> TRANSFERRING -> LEASE_LOST -> RELEASING -> FINISHED  (nothing left to release)
    lease lost:                                           LEASE_LOST --------------> FINISHED

A handoff transfers the lease before the child hears `leaseLost`, because the next owner is waiting. A consumer that has
no child to tell transfers at once.

Nothing here may turn an error into progress: only SHARD_ENDING, entered by an end the service named or by positive
evidence, leads to a SHARD_END checkpoint.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class State(Enum):
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


class Outcome(Enum):
    """How an activity ended."""

    DONE = "done"
    RETRY = "retry"  # an error of the world; the same activity again after its back-off
    ALREADY_COMPLETE = "already complete"  # the row is at SHARD_END: nothing to read, only to clean up
    SHARD_ENDED = "shard ended"
    END_DOUBTED = "end doubted"  # what was read as the end proves nothing: read it again from the checkpoint
    SHARD_MISSING = "shard missing"
    CHILD_FAILED = "child failed"
    GAVE_UP = "gave up"


class Stop(IntEnum):
    """Why a consumer must end; the higher rank wins and is never taken back."""

    REQUESTED = 1
    HANDOFF = 2
    LEASE_LOST = 3


_NEXT: dict[tuple[State, Outcome], State] = {
    (State.WAITING_ON_PARENTS, Outcome.DONE): State.INITIALIZING,
    (State.WAITING_ON_PARENTS, Outcome.RETRY): State.WAITING_ON_PARENTS,
    (State.WAITING_ON_PARENTS, Outcome.ALREADY_COMPLETE): State.FINISHED,
    (State.INITIALIZING, Outcome.DONE): State.PROCESSING,
    (State.INITIALIZING, Outcome.RETRY): State.INITIALIZING,
    (State.INITIALIZING, Outcome.ALREADY_COMPLETE): State.FINISHED,
    (State.INITIALIZING, Outcome.CHILD_FAILED): State.BACKING_OFF,
    (State.PROCESSING, Outcome.DONE): State.PROCESSING,
    (State.PROCESSING, Outcome.RETRY): State.INITIALIZING,
    (State.PROCESSING, Outcome.SHARD_ENDED): State.SHARD_ENDING,
    (State.PROCESSING, Outcome.SHARD_MISSING): State.PARKED,
    (State.PROCESSING, Outcome.CHILD_FAILED): State.BACKING_OFF,
    (State.SHARD_ENDING, Outcome.DONE): State.FINISHED,
    (State.SHARD_ENDING, Outcome.RETRY): State.SHARD_ENDING,
    (State.SHARD_ENDING, Outcome.END_DOUBTED): State.INITIALIZING,
    (State.SHARD_ENDING, Outcome.CHILD_FAILED): State.BACKING_OFF,
    (State.BACKING_OFF, Outcome.DONE): State.INITIALIZING,
    (State.BACKING_OFF, Outcome.GAVE_UP): State.RELEASING,
    (State.PARKED, Outcome.DONE): State.PROCESSING,
    (State.PARKED, Outcome.RETRY): State.PARKED,
    (State.PARKED, Outcome.SHARD_ENDED): State.SHARD_ENDING,
    (State.SHUTDOWN_REQUESTED, Outcome.DONE): State.LEASE_LOST,
    (State.SHUTDOWN_REQUESTED, Outcome.CHILD_FAILED): State.LEASE_LOST,
    (State.TRANSFERRING, Outcome.DONE): State.LEASE_LOST,
    (State.LEASE_LOST, Outcome.DONE): State.FINISHED,
    (State.LEASE_LOST, Outcome.CHILD_FAILED): State.FINISHED,
    (State.RELEASING, Outcome.DONE): State.FINISHED,
}

# A stop that arrived before or during the activity replaces the outcome's next state. States without an entry go on:
# they already are the way out.
_STOPPED: dict[tuple[State, Stop], State] = {
    (State.WAITING_ON_PARENTS, Stop.REQUESTED): State.RELEASING,
    (State.WAITING_ON_PARENTS, Stop.HANDOFF): State.TRANSFERRING,
    (State.WAITING_ON_PARENTS, Stop.LEASE_LOST): State.FINISHED,
    (State.INITIALIZING, Stop.REQUESTED): State.SHUTDOWN_REQUESTED,
    (State.INITIALIZING, Stop.HANDOFF): State.SHUTDOWN_REQUESTED,
    (State.INITIALIZING, Stop.LEASE_LOST): State.LEASE_LOST,
    (State.PROCESSING, Stop.REQUESTED): State.SHUTDOWN_REQUESTED,
    (State.PROCESSING, Stop.HANDOFF): State.SHUTDOWN_REQUESTED,
    (State.PROCESSING, Stop.LEASE_LOST): State.LEASE_LOST,
    (State.SHARD_ENDING, Stop.REQUESTED): State.SHUTDOWN_REQUESTED,
    (State.SHARD_ENDING, Stop.HANDOFF): State.SHUTDOWN_REQUESTED,
    (State.SHARD_ENDING, Stop.LEASE_LOST): State.LEASE_LOST,
    (State.BACKING_OFF, Stop.REQUESTED): State.RELEASING,
    (State.BACKING_OFF, Stop.HANDOFF): State.TRANSFERRING,
    (State.BACKING_OFF, Stop.LEASE_LOST): State.FINISHED,
    (State.PARKED, Stop.REQUESTED): State.SHUTDOWN_REQUESTED,
    (State.PARKED, Stop.HANDOFF): State.SHUTDOWN_REQUESTED,
    (State.PARKED, Stop.LEASE_LOST): State.LEASE_LOST,
    (State.SHUTDOWN_REQUESTED, Stop.HANDOFF): State.TRANSFERRING,
    # A requested shutdown is always followed by leaseLost; the lease is released only if it is still ours.
    (State.LEASE_LOST, Stop.REQUESTED): State.RELEASING,
    (State.LEASE_LOST, Stop.HANDOFF): State.RELEASING,
    (State.RELEASING, Stop.LEASE_LOST): State.FINISHED,
}

# Reaching the end is final: a stop that arrives together with it changes nothing.
_FINAL = frozenset({(State.SHARD_ENDING, Outcome.DONE), (State.RELEASING, Outcome.DONE)})


def next_state(state: State, outcome: Outcome, stop: Stop | None) -> State:
    """The state after `state`'s activity ended with `outcome` while `stop` was (or was not) set.

    Raises KeyError for a pair that cannot happen: that is a bug, not an event.
    """
    following = _NEXT[state, outcome]
    if stop is None or (state, outcome) in _FINAL or outcome is Outcome.ALREADY_COMPLETE:
        return following
    return _STOPPED.get((state, stop), following)
