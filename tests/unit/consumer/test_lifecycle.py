"""The transition table of a shard consumer (shards#consumer-life-cycle)."""

import itertools

import pytest

from mld.consumer.lifecycle import _NEXT, Outcome, State, Stop, next_state


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ([Outcome.DONE, Outcome.DONE, Outcome.DONE, Outcome.SHARD_ENDED, Outcome.DONE], State.FINISHED),
        ([Outcome.RETRY, Outcome.DONE, Outcome.RETRY, Outcome.DONE, Outcome.DONE], State.PROCESSING),
        ([Outcome.DONE, Outcome.DONE, Outcome.CHILD_FAILED, Outcome.DONE, Outcome.DONE], State.PROCESSING),
        ([Outcome.DONE, Outcome.DONE, Outcome.SHARD_MISSING, Outcome.RETRY, Outcome.DONE], State.PROCESSING),
        ([Outcome.DONE, Outcome.DONE, Outcome.SHARD_MISSING, Outcome.SHARD_ENDED], State.SHARD_ENDING),
        ([Outcome.DONE, Outcome.DONE, Outcome.SHARD_ENDED, Outcome.CHILD_FAILED, Outcome.DONE], State.INITIALIZING),
        ([Outcome.DONE, Outcome.CHILD_FAILED, Outcome.GAVE_UP, Outcome.DONE], State.FINISHED),
        ([Outcome.ALREADY_COMPLETE], State.FINISHED),
    ],
)
def test_an_undisturbed_life_follows_the_outcomes(path, end):
    state = State.WAITING_ON_PARENTS
    for outcome in path:
        state = next_state(state, outcome, None)
    assert state is end


@pytest.mark.parametrize(
    ("state", "outcome", "stop", "following"),
    [
        # shards#stops-of-a-consumer: waiting or failing consumers end at once instead of polling on
        (State.WAITING_ON_PARENTS, Outcome.RETRY, Stop.LEASE_LOST, State.FINISHED),
        (State.WAITING_ON_PARENTS, Outcome.RETRY, Stop.REQUESTED, State.RELEASING),
        (State.INITIALIZING, Outcome.RETRY, Stop.LEASE_LOST, State.LEASE_LOST),
        (State.BACKING_OFF, Outcome.DONE, Stop.REQUESTED, State.RELEASING),
        # a batch was answered; the stop comes before the next one
        (State.PROCESSING, Outcome.DONE, Stop.REQUESTED, State.SHUTDOWN_REQUESTED),
        (State.PROCESSING, Outcome.DONE, Stop.LEASE_LOST, State.LEASE_LOST),
        (State.PROCESSING, Outcome.SHARD_ENDED, Stop.REQUESTED, State.SHUTDOWN_REQUESTED),
        # protocol#order-of-actions: shutdownRequested is always followed by leaseLost, then the lease is given back
        (State.SHUTDOWN_REQUESTED, Outcome.DONE, Stop.REQUESTED, State.LEASE_LOST),
        (State.LEASE_LOST, Outcome.DONE, Stop.REQUESTED, State.RELEASING),
        (State.LEASE_LOST, Outcome.DONE, Stop.LEASE_LOST, State.FINISHED),
        # what is not ours any more is not given back
        (State.SHUTDOWN_REQUESTED, Outcome.DONE, Stop.LEASE_LOST, State.LEASE_LOST),
        # leases#handoff-on-the-owner-side: without a child to tell, the lease is transferred at once
        (State.WAITING_ON_PARENTS, Outcome.RETRY, Stop.HANDOFF, State.TRANSFERRING),
        (State.BACKING_OFF, Outcome.DONE, Stop.HANDOFF, State.TRANSFERRING),
        # leases#handoff-on-the-owner-side: the running batch, then shutdownRequested, then the transfer, then leaseLost
        (State.INITIALIZING, Outcome.DONE, Stop.HANDOFF, State.SHUTDOWN_REQUESTED),
        (State.PROCESSING, Outcome.DONE, Stop.HANDOFF, State.SHUTDOWN_REQUESTED),
        (State.PARKED, Outcome.RETRY, Stop.HANDOFF, State.SHUTDOWN_REQUESTED),
        (State.SHARD_ENDING, Outcome.RETRY, Stop.HANDOFF, State.SHUTDOWN_REQUESTED),
        (State.SHUTDOWN_REQUESTED, Outcome.DONE, Stop.HANDOFF, State.TRANSFERRING),
        (State.SHUTDOWN_REQUESTED, Outcome.CHILD_FAILED, Stop.HANDOFF, State.TRANSFERRING),
        (State.TRANSFERRING, Outcome.DONE, Stop.HANDOFF, State.LEASE_LOST),
        # the deadline has transferred the lease before the child was done
        (State.SHUTDOWN_REQUESTED, Outcome.DONE, Stop.LEASE_LOST, State.LEASE_LOST),
        (State.TRANSFERRING, Outcome.DONE, Stop.LEASE_LOST, State.LEASE_LOST),
        # a handoff that is asked for when a stop has come as far as this is completed by the release
        (State.LEASE_LOST, Outcome.DONE, Stop.HANDOFF, State.RELEASING),
        # the end of the shard is final
        (State.SHARD_ENDING, Outcome.DONE, Stop.REQUESTED, State.FINISHED),
        (State.SHARD_ENDING, Outcome.DONE, Stop.LEASE_LOST, State.FINISHED),
    ],
)
def test_a_stop_decides_the_next_state(state, outcome, stop, following):
    assert next_state(state, outcome, stop) is following


def test_shard_end_is_reached_only_by_an_end_that_was_named_or_proven():
    sources = {pair for pair, following in _NEXT.items() if following is State.SHARD_ENDING}
    assert sources == {
        (State.PROCESSING, Outcome.SHARD_ENDED),
        (State.PARKED, Outcome.SHARD_ENDED),
        (State.SHARD_ENDING, Outcome.RETRY),
    }


@pytest.mark.parametrize("stop", list(Stop))
def test_every_life_ends_in_a_few_steps_once_a_stop_is_set(stop):
    longest = 0
    for start in State:
        frontier, steps = {start}, 0
        while frontier - {State.FINISHED}:
            steps += 1
            assert steps < 10, f"{start} does not come to an end"
            frontier = {
                next_state(state, outcome, stop)
                for state, outcome in itertools.product(frontier - {State.FINISHED}, Outcome)
                if (state, outcome) in _NEXT
            }
        longest = max(longest, steps)
    assert longest <= 5


def test_a_handoff_is_stronger_than_a_stop_and_weaker_than_a_loss():
    assert sorted(Stop) == [Stop.REQUESTED, Stop.HANDOFF, Stop.LEASE_LOST]


def test_only_a_handoff_transfers():
    reached = {
        (outcome, stop)
        for (state, outcome), stop in itertools.product(_NEXT, [None, *Stop])
        if next_state(state, outcome, stop) is State.TRANSFERRING
    }
    assert {stop for _, stop in reached} == {Stop.HANDOFF}


def test_an_impossible_pair_is_a_bug():
    with pytest.raises(KeyError):
        next_state(State.RELEASING, Outcome.SHARD_ENDED, None)
