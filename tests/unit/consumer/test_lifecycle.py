"""The transition table of a shard consumer (shards#consumer-life-cycle)."""

import itertools

import pytest

from mld.consumer.lifecycle import _NEXT, ActivityOutcome, ConsumerState, StopReason, next_state


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("DONE DONE DONE SHARD_ENDED DONE", ConsumerState.FINISHED),
        ("RETRY DONE RETRY DONE DONE", ConsumerState.PROCESSING),
        ("DONE DONE CHILD_FAILED DONE DONE", ConsumerState.PROCESSING),
        ("DONE DONE SHARD_MISSING RETRY DONE", ConsumerState.PROCESSING),
        ("DONE DONE SHARD_MISSING SHARD_ENDED", ConsumerState.SHARD_ENDING),
        ("DONE DONE SHARD_ENDED CHILD_FAILED DONE", ConsumerState.INITIALIZING),
        ("DONE CHILD_FAILED GAVE_UP DONE", ConsumerState.FINISHED),
        ("ALREADY_COMPLETE", ConsumerState.FINISHED),
    ],
)
def test_an_undisturbed_life_follows_the_outcomes(path, end):
    state = ConsumerState.WAITING_ON_PARENTS
    for outcome in path.split():
        state = next_state(state, ActivityOutcome[outcome], None)
    assert state is end


@pytest.mark.parametrize(
    ("state", "outcome", "stop", "following"),
    [
        # shards#stops-of-a-consumer: waiting or failing consumers end at once instead of polling on
        (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.RETRY, StopReason.LEASE_LOST, ConsumerState.FINISHED),
        (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.RETRY, StopReason.REQUESTED, ConsumerState.RELEASING),
        (ConsumerState.INITIALIZING, ActivityOutcome.RETRY, StopReason.LEASE_LOST, ConsumerState.LEASE_LOST),
        (ConsumerState.BACKING_OFF, ActivityOutcome.DONE, StopReason.REQUESTED, ConsumerState.RELEASING),
        # a batch was answered; the stop comes before the next one
        (ConsumerState.PROCESSING, ActivityOutcome.DONE, StopReason.REQUESTED, ConsumerState.SHUTDOWN_REQUESTED),
        (ConsumerState.PROCESSING, ActivityOutcome.DONE, StopReason.LEASE_LOST, ConsumerState.LEASE_LOST),
        (ConsumerState.PROCESSING, ActivityOutcome.SHARD_ENDED, StopReason.REQUESTED, ConsumerState.SHUTDOWN_REQUESTED),
        # protocol#order-of-actions: shutdownRequested is always followed by leaseLost, then the lease is given back
        (ConsumerState.SHUTDOWN_REQUESTED, ActivityOutcome.DONE, StopReason.REQUESTED, ConsumerState.LEASE_LOST),
        (ConsumerState.LEASE_LOST, ActivityOutcome.DONE, StopReason.REQUESTED, ConsumerState.RELEASING),
        (ConsumerState.LEASE_LOST, ActivityOutcome.DONE, StopReason.LEASE_LOST, ConsumerState.FINISHED),
        # what is not ours any more is not given back
        (ConsumerState.SHUTDOWN_REQUESTED, ActivityOutcome.DONE, StopReason.LEASE_LOST, ConsumerState.LEASE_LOST),
        # leases#handoff-on-the-owner-side: without a child to tell, the lease is transferred at once
        (ConsumerState.WAITING_ON_PARENTS, ActivityOutcome.RETRY, StopReason.HANDOFF, ConsumerState.TRANSFERRING),
        (ConsumerState.BACKING_OFF, ActivityOutcome.DONE, StopReason.HANDOFF, ConsumerState.TRANSFERRING),
        # leases#handoff-on-the-owner-side: the running batch, then shutdownRequested, then the transfer, then leaseLost
        (ConsumerState.INITIALIZING, ActivityOutcome.DONE, StopReason.HANDOFF, ConsumerState.SHUTDOWN_REQUESTED),
        (ConsumerState.PROCESSING, ActivityOutcome.DONE, StopReason.HANDOFF, ConsumerState.SHUTDOWN_REQUESTED),
        (ConsumerState.PARKED, ActivityOutcome.RETRY, StopReason.HANDOFF, ConsumerState.SHUTDOWN_REQUESTED),
        (ConsumerState.SHARD_ENDING, ActivityOutcome.RETRY, StopReason.HANDOFF, ConsumerState.SHUTDOWN_REQUESTED),
        (ConsumerState.SHUTDOWN_REQUESTED, ActivityOutcome.DONE, StopReason.HANDOFF, ConsumerState.TRANSFERRING),
        (
            ConsumerState.SHUTDOWN_REQUESTED,
            ActivityOutcome.CHILD_FAILED,
            StopReason.HANDOFF,
            ConsumerState.TRANSFERRING,
        ),
        (ConsumerState.TRANSFERRING, ActivityOutcome.DONE, StopReason.HANDOFF, ConsumerState.LEASE_LOST),
        # the deadline has transferred the lease before the child was done
        (ConsumerState.SHUTDOWN_REQUESTED, ActivityOutcome.DONE, StopReason.LEASE_LOST, ConsumerState.LEASE_LOST),
        (ConsumerState.TRANSFERRING, ActivityOutcome.DONE, StopReason.LEASE_LOST, ConsumerState.LEASE_LOST),
        # a handoff that is asked for when a stop has come as far as this is completed by the release
        (ConsumerState.LEASE_LOST, ActivityOutcome.DONE, StopReason.HANDOFF, ConsumerState.RELEASING),
        # the end of the shard is final
        (ConsumerState.SHARD_ENDING, ActivityOutcome.DONE, StopReason.REQUESTED, ConsumerState.FINISHED),
        (ConsumerState.SHARD_ENDING, ActivityOutcome.DONE, StopReason.LEASE_LOST, ConsumerState.FINISHED),
    ],
)
def test_a_stop_decides_the_next_state(state, outcome, stop, following):
    assert next_state(state, outcome, stop) is following


def test_shard_end_is_reached_only_by_an_end_that_was_named_or_proven():
    sources = {pair for pair, following in _NEXT.items() if following is ConsumerState.SHARD_ENDING}
    assert sources == {
        (ConsumerState.PROCESSING, ActivityOutcome.SHARD_ENDED),
        (ConsumerState.PARKED, ActivityOutcome.SHARD_ENDED),
        (ConsumerState.SHARD_ENDING, ActivityOutcome.RETRY),
    }


@pytest.mark.parametrize("stop", list(StopReason))
def test_every_life_ends_in_a_few_steps_once_a_stop_is_set(stop):
    longest = 0
    for start in ConsumerState:
        frontier, steps = {start}, 0
        while frontier - {ConsumerState.FINISHED}:
            steps += 1
            assert steps < 10, f"{start} does not come to an end"
            frontier = {
                next_state(state, outcome, stop)
                for state, outcome in itertools.product(frontier - {ConsumerState.FINISHED}, ActivityOutcome)
                if (state, outcome) in _NEXT
            }
        longest = max(longest, steps)
    assert longest <= 5


def test_a_handoff_is_stronger_than_a_stop_and_weaker_than_a_loss():
    assert sorted(StopReason) == [StopReason.REQUESTED, StopReason.HANDOFF, StopReason.LEASE_LOST]


def test_only_a_handoff_transfers():
    reached = {
        (outcome, stop)
        for (state, outcome), stop in itertools.product(_NEXT, [None, *StopReason])
        if next_state(state, outcome, stop) is ConsumerState.TRANSFERRING
    }
    assert {stop for _, stop in reached} == {StopReason.HANDOFF}


def test_an_impossible_pair_is_a_bug():
    with pytest.raises(KeyError):
        next_state(ConsumerState.RELEASING, ActivityOutcome.SHARD_ENDED, None)
