"""Unmodified amazon_kclpy under a bare `Conversation`: what the processor sees is what the daemon sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mld.protocol.codec import encode_process_records
from mld.protocol.conversation import ActionDone, CheckpointAsked, Conversation
from mld.protocol.messages import (
    ActionName,
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Ignored,
    Initialize,
    LeaseLost,
    Record,
    ShardEnded,
    ShutdownRequested,
    StreamLabel,
)
from mld.protocol.phases import Phase
from tests.support.fetch_kclpy import LEGACY_VERSION, VERSION, installed
from tests.support.patience import PATIENCE_S

CHILDREN = Path(__file__).parent / "children"
END_TIMEOUT_S = PATIENCE_S
RECORDS = (
    Record(b"", "schl\u00fcssel", "49590338271490256608559692538361571095", 0, 1_476_889_707_123),
    Record(b"\xff\x00\r\n", '"\\\u2028\U0001f511', "49590338271490256608559692538361571096", 7, 1),
)


@contextmanager
def started(program: str, version: str) -> Iterator[subprocess.Popen[bytes]]:
    directory = installed(version)
    if directory is None:
        pytest.skip(f"amazon_kclpy {version} is not fetched: run python tests/support/fetch_kclpy.py")
    environment = {**os.environ, "PYTHONPATH": str(directory), "LC_ALL": "C", "PYTHONUTF8": "0"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(CHILDREN / program)], env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with started("echo_v3.py", VERSION) as process:
        yield process


class Daemon:
    """The daemon's half over blocking pipes."""

    def __init__(self, process: subprocess.Popen[bytes], dialect: Dialect = Dialect.KCL_2) -> None:
        assert process.stdin and process.stdout
        self.stdin, self.stdout = process.stdin, process.stdout
        self.conversation = Conversation(dialect)
        self.requests: list[CheckpointRequest] = []

    def exchange(self, line: bytes, error: CheckpointErrorName | None = None) -> None:
        self.write(line)
        while True:
            match self.conversation.receive_line(self.stdout.readline().decode().rstrip("\n")):
                case ActionDone():
                    return
                case CheckpointAsked(request):
                    self.requests.append(request)
                    self.write(self.conversation.reply(error))
                case event:
                    assert isinstance(event, Ignored), event
                    assert event.quiet, event

    def write(self, line: bytes) -> None:
        self.stdin.write(line)
        self.stdin.flush()


def said_by(process: subprocess.Popen[bytes]) -> list[dict[str, object]]:
    _, errors = process.communicate(timeout=END_TIMEOUT_S)
    return [json.loads(line) for line in errors.splitlines()]


def test_kclpy_sees_every_field_of_every_record_as_it_was_sent_even_in_the_c_locale(
    child: subprocess.Popen[bytes],
) -> None:
    daemon = Daemon(child)
    daemon.exchange(daemon.conversation.send(Initialize("shardId-000000000000", "TRIM_HORIZON", 0)))
    daemon.conversation.begin(ActionName.PROCESS_RECORDS)
    daemon.exchange(b"".join(encode_process_records(RECORDS, None)))
    initialized, processed = said_by(child)
    assert initialized == {"call": "initialize", "shard": "shardId-000000000000", "sequence": "TRIM_HORIZON", "sub": 0}
    assert processed["lag"] is None
    assert processed["records"] == [
        [r.data.hex(), r.partition_key, r.sequence_number, r.sub_sequence_number, r.approximate_arrival_ms]
        for r in RECORDS
    ]


def test_kclpy_takes_the_flat_keys_of_several_streams(child: subprocess.Popen[bytes]) -> None:
    stream = StreamLabel("orders", "arn:aws:kinesis:eu-west-1:111111111111:stream/orders", "111111111111:orders:17")
    daemon = Daemon(child)
    daemon.exchange(daemon.conversation.send(Initialize("shardId-000000000000", "LATEST", 0, stream)))
    daemon.conversation.begin(ActionName.PROCESS_RECORDS)
    daemon.exchange(b"".join(encode_process_records(RECORDS, 0)))
    initialized, processed = said_by(child)
    assert initialized["shard"] == "shardId-000000000000"
    assert [record[0] for record in processed["records"]] == [record.data.hex() for record in RECORDS]


def test_kclpy_gets_the_error_name_of_a_checkpoint_and_lives_to_lose_its_lease(child: subprocess.Popen[bytes]) -> None:
    daemon = Daemon(child)
    daemon.exchange(daemon.conversation.send(Initialize("shardId-000000000000", "LATEST", 0)))
    daemon.conversation.begin(ActionName.PROCESS_RECORDS)
    daemon.exchange(b"".join(encode_process_records(RECORDS, 0)), CheckpointErrorName.SHUTDOWN)
    daemon.exchange(daemon.conversation.send(ShutdownRequested("7")))
    daemon.exchange(daemon.conversation.send(LeaseLost()))
    assert daemon.conversation.phase is Phase.LEASE_LOST
    assert daemon.requests == [CheckpointRequest(None, None)] * 2
    calls = said_by(child)
    assert {"call": "checkpoint", "error": "ShutdownException"} in calls
    assert calls[-1] == {"call": "lease_lost"}
    assert child.returncode == 0


@pytest.mark.parametrize(("last", "reason"), [(ShardEnded(), "TERMINATE"), (LeaseLost(), "ZOMBIE")])
def test_kclpy_of_the_1x_generation_understands_the_1x_dialect(last: ShardEnded | LeaseLost, reason: str) -> None:
    with started("kclpy_1x.py", LEGACY_VERSION) as process:
        daemon = Daemon(process, Dialect.KCL_1)
        daemon.exchange(daemon.conversation.send(Initialize("shardId-000000000000", "TRIM_HORIZON", 0)))
        daemon.conversation.begin(ActionName.PROCESS_RECORDS)
        daemon.exchange(b"".join(encode_process_records(RECORDS, 0)))
        daemon.exchange(daemon.conversation.send(ShutdownRequested("7")))
        daemon.exchange(daemon.conversation.send(last))
        calls = said_by(process)
    assert [call["call"] for call in calls] == ["initialize", "process_records", "shutdown_requested", "shutdown"]
    assert calls[-1]["reason"] == reason
    expected = [(RECORDS[-1].sequence_number, RECORDS[-1].sub_sequence_number)]
    assert [(r.sequence_number, r.sub_sequence_number) for r in daemon.requests][:1] == expected
    assert len(daemon.requests) == (2 if reason == "TERMINATE" else 1)
    assert process.returncode == 0
