"""The Python SDK: what a processor is called with, and that no failure of it ever looks like success."""

from __future__ import annotations

import inspect
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mld.processors import checkpoint_errors, sdk
from mld.processors.checkpoint_errors import (
    CheckpointError,
    DaemonError,
    DependencyError,
    InvalidPositionError,
    InvalidStateError,
    ShutdownError,
    ThrottlingError,
)
from mld.processors.sdk import CHECKPOINT_ATTEMPTS_MAX, Checkpointer, Record, RecordProcessor, serve
from mld.protocol.codec import encode_action, encode_checkpoint_reply, encode_process_records
from mld.protocol.messages import (
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Initialize,
    LeaseLost,
    ShardEnded,
    ShutdownRequested,
    StreamLabel,
)
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
PROCESS_TIMEOUT_S = PATIENCE_S
RECORDS = (Record(b"\xff\x00", "k\u00e9y", "10", 0, 5), Record(b"", "key", "10", 1, 6))
INITIALIZE = encode_action(Initialize("shardId-1", "LATEST", 0), Dialect.KCL_2)
BATCH = b"".join(encode_process_records(RECORDS, 1500))
SUCCESS = encode_checkpoint_reply(CheckpointRequest(None, None), None)


def refusal(name: CheckpointErrorName) -> bytes:
    return encode_checkpoint_reply(CheckpointRequest(None, None), name)


class Recorder(RecordProcessor):
    """Records its calls, and checkpoints in those that `checkpoint_in` names."""

    def __init__(self, checkpoint_in: frozenset[str] = frozenset()) -> None:
        self.calls: list[object] = []
        self.checkpoint_in = checkpoint_in

    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
        self.calls.append(("initialize", shard_id, sequence_number, sub_sequence_number))

    def process_records(
        self, records: Sequence[Record], checkpointer: Checkpointer, millis_behind_latest: int | None
    ) -> None:
        self.calls.append(("process_records", tuple(records), millis_behind_latest))
        if "process_records" in self.checkpoint_in:
            checkpointer.checkpoint(records[-1])

    def shard_ended(self, checkpointer: Checkpointer) -> None:
        self.calls.append("shard_ended")
        checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        self.calls.append("shutdown_requested")

    def lease_lost(self) -> None:
        self.calls.append("lease_lost")


def served(processor: RecordProcessor, *lines: bytes) -> list[dict[str, object]]:
    """What the processor's program says when it is told these lines."""
    stdout = io.BytesIO()
    try:
        serve(processor, io.BytesIO(b"".join(lines)), stdout, sleep=lambda _: None, rng=random.Random(1))
    finally:
        said = [json.loads(line) for line in stdout.getvalue().splitlines()]
        if isinstance(processor, Recorder):
            processor.calls.append(said)
    return said


def test_each_message_becomes_one_call_and_one_status() -> None:
    processor = Recorder()
    actions = [ShutdownRequested(), LeaseLost()]
    said = served(processor, INITIALIZE, BATCH, *(encode_action(action, Dialect.KCL_2) for action in actions))
    assert processor.calls[:-1] == [
        ("initialize", "shardId-1", "LATEST", 0),
        ("process_records", RECORDS, 1500),
        "shutdown_requested",
        "lease_lost",
    ]
    names = ["initialize", "processRecords", "shutdownRequested", "leaseLost"]
    assert said == [{"action": "status", "responseFor": name} for name in names]


def test_a_processor_knows_which_of_several_streams_it_reads_and_what_records_say_beyond_java() -> None:
    class Knowing(Recorder):
        def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:
            self.calls.append(self.stream)

    stream = StreamLabel("orders", "arn:aws:kinesis:eu-west-1:1:stream/orders", "1:orders:2")
    record = Record(b"d", "key", "10", 0, 5, {"streamName": "orders"})
    processor = Knowing()
    lines = encode_action(Initialize("shardId-1", "1", 0, stream), Dialect.KCL_2)
    served(processor, lines, *encode_process_records([record, RECORDS[1]], 0))
    assert processor.calls[:2] == [stream, ("process_records", (record, RECORDS[1]), 0)]
    assert record.extra["streamName"] == "orders"


def test_a_processor_of_one_stream_has_none_and_may_use_the_name_itself() -> None:
    class Own(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.stream = "mine"  # type: ignore[assignment]

    processor, own = Recorder(), Own()
    for one in (processor, own):
        served(one, INITIALIZE)
    assert processor.stream is None
    assert own.stream == "mine"


def test_a_checkpoint_at_a_record_names_its_sub_sequence_number() -> None:
    said = served(Recorder(frozenset({"process_records"})), BATCH, SUCCESS)
    assert said == [
        {"action": "checkpoint", "sequenceNumber": "10", "subSequenceNumber": 1},
        {"action": "status", "responseFor": "processRecords"},
    ]


@pytest.mark.parametrize(
    ("action", "call", "replies"), [(ShardEnded(), "shard_ended", [SUCCESS]), (LeaseLost(), "lease_lost", [])]
)
def test_a_1x_daemon_is_answered_as_it_expects(action: ShardEnded | LeaseLost, call: str, replies: list[bytes]) -> None:
    processor = Recorder()
    said = served(processor, encode_action(action, Dialect.KCL_1), *replies)
    assert processor.calls[0] == call
    assert said[-1] == {"action": "status", "responseFor": "shutdown"}


def test_an_exception_in_a_processor_passes_and_no_status_is_sent() -> None:
    class Failing(Recorder):
        def process_records(self, *_: object) -> None:
            raise KeyError("user code")

    processor = Failing()
    with pytest.raises(KeyError):
        served(processor, INITIALIZE, BATCH, BATCH)
    assert processor.calls[-1] == [{"action": "status", "responseFor": "initialize"}]


def test_when_the_lease_is_gone_the_rest_is_answered_but_not_worked_on() -> None:
    processor = Recorder(frozenset({"process_records"}))
    lost = refusal(CheckpointErrorName.SHUTDOWN)
    said = served(processor, BATCH, lost, BATCH, encode_action(LeaseLost(), Dialect.KCL_2))
    assert processor.calls[:-1] == [("process_records", RECORDS, 1500), "lease_lost"]
    assert [message["action"] for message in said] == ["checkpoint", "status", "status", "status"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("InvalidStateException", InvalidStateError),
        ("IllegalArgumentException", InvalidPositionError),
        ("ShutdownException", ShutdownError),
        ("NullPointerException", CheckpointError),
    ],
)
def test_a_lasting_error_is_raised_at_once(name: str, error: type[CheckpointError]) -> None:
    asked = []
    checkpointer = Checkpointer(lambda *position: asked.append(position) or name)
    with pytest.raises(error) as caught:
        checkpointer.checkpoint("5", 2)
    assert type(caught.value) is error
    assert caught.value.name == name
    assert asked == [("5", 2)]


@pytest.mark.parametrize(
    ("name", "error"),
    [("ThrottlingException", ThrottlingError), ("KinesisClientLibDependencyException", DependencyError)],
)
def test_a_passing_error_is_retried_with_growing_delays_and_a_bound(name: str, error: type[CheckpointError]) -> None:
    delays: list[float] = []
    asked = []
    checkpointer = Checkpointer(
        lambda *position: asked.append(position) or name, sleep=delays.append, rng=random.Random(7)
    )
    with pytest.raises(error):
        checkpointer.checkpoint()
    assert asked == [(None, None)] * CHECKPOINT_ATTEMPTS_MAX
    limits = [0.5, 1, 2, 4, 8]
    assert all(limit / 2 <= delay <= limit for delay, limit in zip(delays, limits, strict=True))


def test_a_retry_that_succeeds_is_a_success() -> None:
    answers = ["ThrottlingException", None]
    Checkpointer(lambda *_: answers.pop(0), sleep=lambda _: None).checkpoint()
    assert answers == []


@pytest.mark.parametrize(
    "lines",
    [
        [BATCH[:-1]],
        [SUCCESS],
        [b"\n"],
        [b'{"action":"dance"}\n'],
    ],
)
def test_a_daemon_that_breaks_the_protocol_is_an_error_not_an_end(lines: list[bytes]) -> None:
    with pytest.raises(Exception, match="daemon"):
        served(Recorder(), *lines)


@pytest.mark.parametrize("reply", [b"", SUCCESS[:-1], BATCH])
def test_a_checkpoint_without_a_reply_is_an_error(reply: bytes) -> None:
    with pytest.raises(DaemonError):
        served(Recorder(frozenset({"process_records"})), BATCH, reply)


# --- as a program

PROGRAM = """
import os, subprocess, sys
from mld.sdk import RecordProcessor, run
class Noisy(RecordProcessor):
    def initialize(self, *_):
        print("printed")
        os.write(1, b"written\\n")
        subprocess.run(["sh", "-c", "echo echoed; cat"])
    def process_records(self, records, checkpointer, lag):
        raise SystemError("broken")
    def shard_ended(self, checkpointer):
        pass
run(Noisy)
"""


def run_program(*lines: bytes) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(
        command, input=b"".join(lines), env=environment, capture_output=True, timeout=PROCESS_TIMEOUT_S, check=False
    )


def test_prints_of_any_kind_go_to_standard_error_and_the_end_of_input_is_a_good_end() -> None:
    ended = run_program(INITIALIZE)
    assert ended.stdout == b'{"action":"status","responseFor":"initialize"}\n'
    assert {b"printed", b"written", b"echoed"} <= set(ended.stderr.split())
    assert ended.returncode == 0


def test_a_failing_processor_ends_with_status_1_and_a_traceback() -> None:
    ended = run_program(INITIALIZE, BATCH)
    assert ended.stdout == b'{"action":"status","responseFor":"initialize"}\n'
    assert b"SystemError: broken" in ended.stderr
    assert ended.returncode == 1


def test_importing_the_sdk_imports_nothing_slow() -> None:
    code = "import sys, mld.sdk; print(*sorted(set(sys.modules) & {'asyncio', 'jsonschema', 'boto3', 'mld.core'}))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True)
    assert ended.stdout.strip() == ""


def test_the_page_of_the_module_says_something_of_every_public_name_and_of_each_error() -> None:
    public = [getattr(sdk, name) for name in sdk.__all__]
    methods = [one for kind in public if isinstance(kind, type) for name, one in vars(kind).items() if name[0] != "_"]
    for one in (*public, *filter(inspect.isfunction, methods)):
        assert inspect.getdoc(one), one
    raised = inspect.getdoc(sdk.Checkpointer.checkpoint) or ""
    for error in (
        checkpoint_errors.CheckpointError,
        *checkpoint_errors.CheckpointError.__subclasses__(),
        checkpoint_errors.DaemonError,
    ):
        assert f"{error.__name__}: " in raised
    assert "\n::: mld.sdk\n" in (ROOT / "docs/use/sdk.md").read_text("utf-8")
