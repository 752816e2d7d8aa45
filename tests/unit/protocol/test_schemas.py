"""The JSON Schemas say of every message what the codec and the child's half say."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.check.message_schemas import FLAW_CHARS_MAX, flaw, validator
from mld.processors import daemon_lines
from mld.protocol import child_lines, codec
from mld.protocol.messages import (
    ActionName,
    ActionStatus,
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    ShardEnded,
    ShutdownRequested,
    StreamLabel,
)

POSITIONS = st.none() | st.sampled_from(["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"]) | st.integers(0, 2**190).map(str)
INT64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(
    Record,
    st.binary(max_size=50),
    st.text(max_size=10),
    st.integers(0, 2**190).map(str),
    st.integers(0, 1000),
    st.integers(0, 2**45),
    st.fixed_dictionaries(
        {},
        optional={
            name: st.text(max_size=10) for name in ("schemaVersionId", "schemaName", "schemaFile", "schemaError")
        },
    ),
)
ARN = "arn:aws:kinesis:eu-west-1:1:stream/s"
STREAMS = st.builds(StreamLabel, st.text(min_size=1, max_size=10), st.just(ARN), st.just("1:s:2"))
ACTIONS = (
    st.builds(
        Initialize, st.text(min_size=1, max_size=20), POSITIONS, st.none() | st.integers(0, 1000), st.none() | STREAMS
    )
    | st.just(LeaseLost())
    | st.just(ShardEnded())
    | st.builds(ShutdownRequested, POSITIONS)
)
INITIALIZE = {"action": "initialize", "shardId": "s", "sequenceNumber": "1", "subSequenceNumber": 0}
OUT = {Dialect.KCL_1: "daemon-to-child-1", Dialect.KCL_2: "daemon-to-child"}
IN = {Dialect.KCL_1: "child-to-daemon-1", Dialect.KCL_2: "child-to-daemon"}
SCHEMAS = sorted(
    file.name.removesuffix(".schema.json")
    for file in files("mld.protocol").joinpath("schemas").iterdir()
    if ".schema" in file.name
)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_a_valid_schema_of_2020_12(name: str) -> None:
    schema = validator(name).schema
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    validator(name).check_schema(schema)


@given(
    sequence=st.none() | st.text(max_size=10),
    sub=st.none() | INT64,
    error=st.none() | st.sampled_from(CheckpointErrorName),
    dialect=st.sampled_from(Dialect),
    legacy=st.booleans(),
)
def test_every_reply_the_codec_writes_follows_the_schema(
    sequence: str | None, sub: int | None, error: CheckpointErrorName | None, dialect: Dialect, legacy: bool
) -> None:
    request = CheckpointRequest(sequence, sub, legacy_key=legacy and dialect is Dialect.KCL_1)
    line = codec.encode_checkpoint_reply(request, error)
    assert flaw(OUT[dialect], json.loads(line)) is None


@given(
    message=st.fixed_dictionaries({"action": st.just("status"), "responseFor": st.sampled_from(["initialize", "x", 5])})
    | st.fixed_dictionaries(
        {"action": st.just("checkpoint")},
        optional={
            "sequenceNumber": st.none() | st.text(max_size=5) | st.just([]),
            "subSequenceNumber": st.none() | INT64 | st.just("x"),
            "checkpoint": st.none() | st.text(max_size=5),
            "error": st.none(),
            "other": st.none(),
        },
    ),
    dialect=st.sampled_from(Dialect),
)
def test_every_message_that_follows_the_schema_is_accepted_by_the_codec(
    message: dict[str, object], dialect: Dialect
) -> None:
    if flaw(IN[dialect], message) is None:
        accepted = child_lines.parse_child_line(json.dumps(message), dialect)
        assert isinstance(accepted, ActionStatus | CheckpointRequest)


def test_a_flaw_quotes_no_more_than_its_beginning_of_a_long_value() -> None:
    found = flaw("status", {"action": "status", "responseFor": ["x"] * 100_000})
    assert found is not None and len(found) <= FLAW_CHARS_MAX


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("status", {"action": "status"}),
        ("status", {"action": "status", "responseFor": "INITIALIZE"}),
        ("status", {"action": "status", "responseFor": "initialize", "extra": 1}),
        ("checkpoint-request", {"action": "checkpoint", "sequenceNumber": 5}),
        ("checkpoint-request", {"action": "checkpoint", "checkpoint": "5"}),
        ("checkpoint-reply", {"action": "checkpoint", "sequenceNumber": "5", "subSequenceNumber": 0}),
        ("process-records", {"action": "processRecords", "records": [{}], "millisBehindLatest": 1}),
        ("initialize", {"action": "initialize", "shardId": "s", "sequenceNumber": "SHARD_END", "subSequenceNumber": 0}),
        ("initialize", INITIALIZE | {"streamName": "orders"}),
        ("initialize", INITIALIZE | {"streamName": "s", "streamArn": ARN, "streamId": "orders"}),
        ("initialize", INITIALIZE | {"stream": {"streamName": "orders"}}),
    ],
)
def test_a_message_with_a_flaw_is_refused_by_its_schema(name: str, message: dict[str, object]) -> None:
    assert flaw(name, message) is not None


# --- the child's half speaks the same language


@given(records=st.lists(RECORDS, max_size=5), lag=st.none() | st.integers(0, 10**9))
def test_a_batch_follows_the_schema_and_comes_out_of_the_childs_half_as_it_went_in(
    records: list[Record], lag: int | None
) -> None:
    line = b"".join(codec.encode_process_records(records, lag))
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert flaw("daemon-to-child", json.loads(line)) is None
    assert daemon_lines.parse_daemon_line(line) == daemon_lines.ReceivedAction(
        ProcessRecords(tuple(records), lag), "processRecords"
    )


@given(action=ACTIONS, dialect=st.sampled_from(Dialect))
def test_an_action_follows_the_schema_and_comes_out_of_the_childs_half_as_it_went_in(
    action: Initialize, dialect: Dialect
) -> None:
    line = codec.encode_action(action, dialect)
    assert flaw(OUT[dialect], json.loads(line)) is None
    received = daemon_lines.parse_daemon_line(line)
    assert isinstance(received, daemon_lines.ReceivedAction)
    assert received.action == action


@given(sequence=POSITIONS, sub=st.none() | INT64)
def test_a_request_of_the_childs_half_is_understood_by_the_codec(sequence: str | None, sub: int | None) -> None:
    line = daemon_lines.encode_checkpoint_request(sequence, sub).decode()
    assert child_lines.parse_child_line(line) == CheckpointRequest(sequence, sub)
    assert flaw("checkpoint-request", json.loads(line)) is None


@pytest.mark.parametrize("action", [*(action.value for action in ActionName), "shutdown"])
def test_a_status_of_the_childs_half_is_understood_by_the_codec(action: str) -> None:
    line = daemon_lines.encode_status(action).decode()
    assert child_lines.parse_child_line(line) == ActionStatus(action)
    assert flaw("status", json.loads(line)) is None


def test_a_record_of_a_daemon_before_1_7_2_has_defaults() -> None:
    line = b'{"action":"processRecords","records":[{"data":"eA==","partitionKey":"p","sequenceNumber":"1"}]}\n'
    received = daemon_lines.parse_daemon_line(line)
    assert isinstance(received, daemon_lines.ReceivedAction)
    assert received.action == ProcessRecords((Record(b"x", "p", "1", 0, daemon_lines.UNKNOWN_ARRIVAL_MS),), None)


@pytest.mark.parametrize(
    "line", [b"\n", b"[]\n", b'{"action":"x"}\n', b'{"action":"initialize"}\n', b'{"action":"shutdown"}\n', b"\xff\n"]
)
def test_a_line_that_is_no_message_of_a_daemon_is_an_error(line: bytes) -> None:
    with pytest.raises(daemon_lines.DaemonMessageError):
        daemon_lines.parse_daemon_line(line)
