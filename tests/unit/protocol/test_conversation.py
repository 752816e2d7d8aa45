"""The exchange with one child: whose turn it is, what may be sent, whose fault it was (protocol#half-duplex-turns)."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mld.protocol.conversation import (
    PHASES,
    ActionDone,
    CheckpointAsked,
    Conversation,
    ProcessorError,
    ProtocolMisuse,
    StaleAnswer,
)
from mld.protocol.messages import (
    ActionName,
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Ignored,
    Initialize,
    LeaseLost,
    ShardEnded,
    ShutdownRequested,
)
from mld.protocol.phases import Phase

INITIALIZE = Initialize("shardId-000000000000", "LATEST", 0)
REQUEST = '{"action":"checkpoint","sequenceNumber":"7","subSequenceNumber":1}'


def status(name: str) -> str:
    return f'{{"action":"status","responseFor":"{name}"}}'


def ready(dialect: Dialect = Dialect.KCL_2) -> Conversation:
    conversation = Conversation(dialect)
    conversation.send(INITIALIZE)
    conversation.receive_line(status("initialize"))
    return conversation


def processing() -> Conversation:
    conversation = ready()
    conversation.begin(ActionName.PROCESS_RECORDS)
    return conversation


def test_a_whole_life_from_initialize_to_lease_lost() -> None:
    conversation = Conversation()
    assert conversation.send(INITIALIZE).startswith(b'{"action":"initialize"')
    assert conversation.receive_line(status("initialize")) == ActionDone(ActionName.INITIALIZE)
    conversation.begin(ActionName.PROCESS_RECORDS)
    assert conversation.awaited is ActionName.PROCESS_RECORDS
    assert conversation.receive_line(status("processRecords")) == ActionDone(ActionName.PROCESS_RECORDS)
    assert conversation.send(ShutdownRequested("7")) == b'{"action":"shutdownRequested","checkpoint":"7"}\n'
    assert conversation.receive_line(status("shutdownRequested")) == ActionDone(ActionName.SHUTDOWN_REQUESTED)
    assert conversation.send(LeaseLost()) == b'{"action":"leaseLost"}\n'
    assert conversation.receive_line(status("leaseLost")) == ActionDone(ActionName.LEASE_LOST)
    conversation.eof()
    assert conversation.phase is Phase.CLOSED


def test_any_number_of_checkpoints_fits_into_one_action() -> None:
    conversation = processing()
    for _ in range(3):
        asked = conversation.receive_line(REQUEST)
        assert asked == CheckpointAsked(CheckpointRequest("7", 1), ActionName.PROCESS_RECORDS)
        assert conversation.reply() == (
            b'{"action":"checkpoint","sequenceNumber":"7","subSequenceNumber":1,"error":null}\n'
        )
    assert conversation.receive_line(status("processRecords")) == ActionDone(ActionName.PROCESS_RECORDS)


def test_a_line_is_taken_after_the_reply_to_the_request_before_it() -> None:
    conversation = processing()
    conversation.receive_line(REQUEST)
    with pytest.raises(ProtocolMisuse, match="before the reply"):
        conversation.receive_line(status("processRecords"))
    conversation.reply()
    assert conversation.receive_line(status("processRecords")) == ActionDone(ActionName.PROCESS_RECORDS)


def test_a_checkpoint_may_be_asked_for_between_two_actions_and_answered_in_the_next() -> None:
    conversation = ready()
    assert conversation.receive_line(REQUEST) == CheckpointAsked(CheckpointRequest("7", 1), None)
    assert conversation.awaited is None
    conversation.begin(ActionName.PROCESS_RECORDS)
    assert b'"sequenceNumber":"7"' in conversation.reply()
    assert conversation.receive_line(status("processRecords")) == ActionDone(ActionName.PROCESS_RECORDS)


def test_a_status_that_nobody_waits_for_is_stale_and_does_not_answer_the_next_action() -> None:
    conversation = ready()
    assert isinstance(conversation.receive_line(status("initialize")), StaleAnswer)
    assert conversation.awaited is None
    conversation.begin(ActionName.PROCESS_RECORDS)
    assert conversation.awaited is ActionName.PROCESS_RECORDS


@pytest.mark.parametrize(
    ("line", "is_quiet"), [("hello", False), ("null", False), ('{"action":"leaseLost"}', False), ("", True)]
)
def test_noise_changes_nothing_in_any_state(line: str, is_quiet: bool) -> None:
    for conversation in (ready(), processing()):
        before = conversation.phase, conversation.awaited
        noise = conversation.receive_line(line)
        assert isinstance(noise, Ignored) and noise.quiet is is_quiet
        assert (conversation.phase, conversation.awaited) == before


@pytest.mark.parametrize("line", [status("initialize"), status("ProcessRecords"), '{"action":"status"}'])
def test_a_wrong_status_is_the_fault_of_the_child(line: str) -> None:
    conversation = processing()
    with pytest.raises(ProcessorError, match="answered processRecords with"):
        conversation.receive_line(line)
    assert conversation.phase is Phase.CLOSED
    assert conversation.awaited is None


def test_the_end_of_output_is_the_fault_of_the_child_and_says_what_was_due() -> None:
    conversation = processing()
    assert str(conversation.eof()) == "closed its output before it answered processRecords"
    assert conversation.phase is Phase.CLOSED
    assert str(ready().eof()) == "ended while there was nothing to do for it"


@pytest.mark.parametrize("action", [LeaseLost(), ShardEnded()])
def test_a_child_that_ends_at_what_kcl_1x_does_not_know_is_told_the_key(action: LeaseLost | ShardEnded) -> None:
    for dialect, is_told in ((Dialect.KCL_2, True), (Dialect.KCL_1, False)):
        conversation = ready(dialect)
        conversation.send(action)
        assert ("mld.protocolVersion = 1" in str(conversation.eof())) is is_told


@pytest.mark.parametrize("action", [INITIALIZE, LeaseLost()])
def test_a_checkpoint_is_refused_in_initialize_and_lease_lost(action: Initialize | LeaseLost) -> None:
    conversation = Conversation() if isinstance(action, Initialize) else ready()
    conversation.send(action)
    asked = conversation.receive_line(REQUEST)
    assert asked == CheckpointAsked(CheckpointRequest("7", 1), action.name, CheckpointErrorName.INVALID_STATE)
    with pytest.raises(ProtocolMisuse, match="cannot succeed"):
        conversation.reply()
    conversation.reply(CheckpointErrorName.INVALID_STATE)
    assert conversation.receive_line(status(action.name.value)) == ActionDone(action.name)


@pytest.mark.parametrize("path", [[], [INITIALIZE, LeaseLost()]])
def test_a_checkpoint_is_refused_before_initialize_and_after_lease_lost(path: list[Initialize | LeaseLost]) -> None:
    conversation = Conversation()
    for action in path:
        conversation.send(action)
        conversation.receive_line(status(action.name.value))
    asked = conversation.receive_line(REQUEST)
    assert asked == CheckpointAsked(CheckpointRequest("7", 1), None, CheckpointErrorName.INVALID_STATE)


def test_shard_ended_may_be_repeated_for_a_second_chance_to_checkpoint() -> None:
    conversation = ready()
    for _ in range(2):
        conversation.send(ShardEnded())
        assert conversation.receive_line(status("shardEnded")) == ActionDone(ActionName.SHARD_ENDED)
    assert conversation.phase is Phase.SHARD_ENDED


@pytest.mark.parametrize(
    ("path", "forbidden"),
    [
        ([], {ActionName.PROCESS_RECORDS, ActionName.LEASE_LOST, ActionName.SHARD_ENDED}),
        ([ActionName.INITIALIZE], {ActionName.INITIALIZE}),
        (
            [ActionName.INITIALIZE, ActionName.SHUTDOWN_REQUESTED],
            {ActionName.PROCESS_RECORDS, ActionName.SHUTDOWN_REQUESTED, ActionName.INITIALIZE},
        ),
        ([ActionName.INITIALIZE, ActionName.LEASE_LOST], set(ActionName)),
        ([ActionName.INITIALIZE, ActionName.SHARD_ENDED], set(ActionName) - {ActionName.SHARD_ENDED}),
    ],
)
def test_what_the_phase_forbids_is_our_misuse_and_changes_nothing(
    path: list[ActionName], forbidden: set[ActionName]
) -> None:
    conversation = Conversation()
    for action in path:
        conversation.begin(action)
        conversation.receive_line(status(action.value))
    before = conversation.phase
    for action in forbidden:
        with pytest.raises(ProtocolMisuse):
            conversation.begin(action)
    assert (conversation.awaited, conversation.phase) == (None, before)


def test_a_reply_nobody_asked_for_is_our_misuse() -> None:
    with pytest.raises(ProtocolMisuse, match="without a request"):
        processing().reply()


@pytest.mark.parametrize("action", [LeaseLost(), ShardEnded()])
def test_in_the_1x_dialect_the_last_action_is_answered_as_shutdown(action: LeaseLost | ShardEnded) -> None:
    conversation = ready(Dialect.KCL_1)
    assert b'"action":"shutdown"' in conversation.send(action)
    assert conversation.receive_line(status("shutdown")) == ActionDone(action.name)


def test_in_the_2x_dialect_shutdown_is_a_wrong_answer() -> None:
    conversation = ready()
    conversation.send(LeaseLost())
    with pytest.raises(ProcessorError):
        conversation.receive_line(status("shutdown"))


class AnyTraffic(RuleBasedStateMachine):
    """Whatever a child says, only its own faults close the conversation, and never more than one action is open."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation()
        self.open = 0
        self.asked: CheckpointAsked | None = None

    @rule(action=st.sampled_from(ActionName))
    def begin(self, action: ActionName) -> None:
        idle = self.conversation.awaited is None
        allowed = idle and (self.conversation.phase, action) in PHASES
        try:
            self.conversation.begin(action)
        except ProtocolMisuse:
            assert not allowed
        else:
            assert allowed
            self.open += 1

    @precondition(lambda self: self.asked is None)
    @rule(line=st.sampled_from(["", "x", REQUEST, "{}", *(status(action.value) for action in ActionName)]))
    def child_says(self, line: str) -> None:
        try:
            event = self.conversation.receive_line(line)
        except ProcessorError:
            assert self.conversation.phase is Phase.CLOSED
            self.open = 0
        else:
            self.open -= isinstance(event, ActionDone)
            self.asked = event if isinstance(event, CheckpointAsked) else None

    @precondition(lambda self: self.asked is not None)
    @rule()
    def daemon_replies(self) -> None:
        assert self.asked is not None
        assert self.conversation.reply(self.asked.refused).endswith(b"\n")
        self.asked = None

    @invariant()
    def at_most_one_action_is_open(self) -> None:
        assert self.open == (self.conversation.awaited is not None)
        assert self.open in (0, 1)


TestAnyTraffic = AnyTraffic.TestCase
