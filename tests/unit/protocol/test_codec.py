"""Every byte the daemon sends (protocol#actions-of-the-daemon), and each line of a child (protocol#tolerated-lines)."""

from __future__ import annotations

import base64
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.protocol import child_lines, codec
from mld.protocol.messages import (
    ActionStatus,
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Ignored,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    ShardEnded,
    ShutdownRequested,
    StreamLabel,
)

# --- daemon to child


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (
            Initialize("shardId-000000000000", "TRIM_HORIZON", 0),
            b'{"action":"initialize","shardId":"shardId-000000000000","sequenceNumber":"TRIM_HORIZON",'
            b'"subSequenceNumber":0}\n',
        ),
        (
            Initialize("s", None, None),
            b'{"action":"initialize","shardId":"s","sequenceNumber":null,"subSequenceNumber":null}\n',
        ),
        (
            Initialize("s", "7", 1, StreamLabel("orders", "arn:aws:kinesis:x:1:stream/orders", "1:orders:2")),
            b'{"action":"initialize","shardId":"s","sequenceNumber":"7","subSequenceNumber":1,"streamName":"orders",'
            b'"streamArn":"arn:aws:kinesis:x:1:stream/orders","streamId":"1:orders:2"}\n',
        ),
        (LeaseLost(), b'{"action":"leaseLost"}\n'),
        (ShardEnded(), b'{"action":"shardEnded","checkpoint":"SHARD_END"}\n'),
        (ShutdownRequested("7"), b'{"action":"shutdownRequested","checkpoint":"7"}\n'),
    ],
)
def test_actions_are_javas_with_flat_keys_for_one_of_several_streams_and_the_checkpoints_that_amazon_documents(
    action: Initialize, line: bytes
) -> None:
    assert codec.encode_action(action, Dialect.KCL_2) == line


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (LeaseLost(), b'{"action":"shutdown","reason":"ZOMBIE"}\n'),
        (ShardEnded(), b'{"action":"shutdown","reason":"TERMINATE"}\n'),
        (ShutdownRequested("7"), b'{"action":"shutdownRequested","checkpoint":"7"}\n'),
    ],
)
def test_the_1x_dialect_says_shutdown_with_a_reason(action: LeaseLost | ShardEnded, line: bytes) -> None:
    assert codec.encode_action(action, Dialect.KCL_1) == line


def test_a_batch_is_the_bytes_of_the_java_daemon() -> None:
    batch = ProcessRecords((Record(b"x", "p", "4959", 3, 1476889707123),), 5000)
    assert b"".join(codec.encode_process_records(batch.records, batch.millis_behind_latest)) == (
        b'{"action":"processRecords","records":[{"data":"eA==","partitionKey":"p","sequenceNumber":"4959",'
        b'"approximateArrivalTimestamp":1476889707123,"subSequenceNumber":3,"action":"record"}],'
        b'"millisBehindLatest":5000}\n'
    )


def test_an_empty_batch_with_an_unknown_lag_keeps_its_keys() -> None:
    assert b"".join(codec.encode_process_records((), None)) == (
        b'{"action":"processRecords","records":[],"millisBehindLatest":null}\n'
    )


def test_a_reply_echoes_the_position_and_names_the_error() -> None:
    assert codec.encode_checkpoint_reply(CheckpointRequest("49", 2), CheckpointErrorName.INVALID_STATE) == (
        b'{"action":"checkpoint","sequenceNumber":"49","subSequenceNumber":2,"error":"InvalidStateException"}\n'
    )


def test_a_reply_to_a_request_for_everything_keeps_its_nulls() -> None:
    assert codec.encode_checkpoint_reply(CheckpointRequest(None, None), None) == (
        b'{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null,"error":null}\n'
    )


def test_a_reply_to_a_1x_request_uses_the_key_of_the_request() -> None:
    assert codec.encode_checkpoint_reply(CheckpointRequest("49", None, legacy_key=True), None) == (
        b'{"action":"checkpoint","checkpoint":"49","error":null}\n'
    )


def test_keys_beyond_ascii_are_escaped_so_that_no_locale_can_damage_them() -> None:
    key = 'sch\u00fc\u2028\U0001f511\x7f"\\\n'
    line = b"".join(codec.encode_process_records((Record(b"", key, "1", 0, 1),), 0))
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert json.loads(line)["records"][0]["partitionKey"] == key


@pytest.mark.parametrize("size", [codec.SLICE_DATA_BYTES + extra for extra in (-1, 0, 1, 2, 3)] + [1_000_001])
def test_many_records_come_in_pieces_and_a_large_payload_in_slices_that_join_to_valid_base64(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    small = [Record(b"small" * 200, "a", "1", 0, 1)] * 200
    records = [*small, Record(data[:size], "b", "2", 0, 1), *small]
    pieces = list(codec.encode_process_records(records, 0))
    decoded = [base64.b64decode(record["data"], validate=True) for record in json.loads(b"".join(pieces))["records"]]
    assert decoded == [record.data for record in records]
    assert max(map(len, pieces)) < 2 * codec.PIECE_BYTES


# --- child to daemon


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"action":"status","responseFor":"initialize"}', ActionStatus("initialize")),
        (' \t{ "responseFor" : "x" , "action" : "status" } ', ActionStatus("x")),
        ('\ufeff{"action":"status","responseFor":"x"}', ActionStatus("x")),
        ('{"action":"status","responseFor":"a","responseFor":"b"}', ActionStatus("b")),
        ('{"action":"\\u0073tatus","responseFor":"x"}', ActionStatus("x")),
        ('{"action":"status","responseFor":"x"} and garbage }', ActionStatus("x")),
        ('{"action":"status","responseFor":"x","extra":{"a":[1]}}', ActionStatus("x")),
        ('{"action":"status"}', ActionStatus(None)),
        ('{"action":"status","responseFor":null}', ActionStatus(None)),
        ('{"action":"status","responseFor":5}', ActionStatus("5")),
        ('{"action":"status","responseFor":1.50}', ActionStatus("1.50")),
        ('{"action":"status","responseFor":true}', ActionStatus("true")),
        ('{"action":"status","responseFor":"x","extra":' + "9" * 10_000 + "}", ActionStatus("x")),
        ('{"action":"checkpoint"}', CheckpointRequest(None, None)),
        ('{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null}', CheckpointRequest(None, None)),
        ('{"action":"checkpoint","sequenceNumber":"12","subSequenceNumber":3}', CheckpointRequest("12", 3)),
        ('{"action":"checkpoint","sequenceNumber":"12","error":"x"}', CheckpointRequest("12", None)),
        ('{"action":"checkpoint","sequenceNumber":"12","traceId":"x"}', CheckpointRequest("12", None)),
        (
            '{"action":"checkpoint","sequenceNumber":49590338271490256608559692538361571095921575989136588898}',
            CheckpointRequest("49590338271490256608559692538361571095921575989136588898", None),
        ),
        ('{"action":"checkpoint","sequenceNumber":false}', CheckpointRequest("false", None)),
        ('{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":"7"}', CheckpointRequest("1", 7)),
        ('{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":7.9}', CheckpointRequest("1", 7)),
        ('{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":-7.9}', CheckpointRequest("1", -7)),
        ('{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":""}', CheckpointRequest("1", None)),
        (
            '{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":9223372036854775807}',
            CheckpointRequest("1", 2**63 - 1),
        ),
    ],
)
def test_lines_java_or_its_better_understands(line: str, message: ActionStatus | CheckpointRequest) -> None:
    assert child_lines.parse_child_line(line) == message


@pytest.mark.parametrize(
    "line",
    [
        "   ",
        "hello",
        "[]",
        "{}",
        "5",
        "true",
        '"text"',
        "null",
        "{'action':'status'}",
        '{"action":"status","responseFor":"x",}',
        '// comment {"action":"status","responseFor":"x"}',
        'garbage {"action":"status","responseFor":"x"}',
        '["status",{"responseFor":"x"}]',
        '{"responseFor":"x"}',
        '{"action":null}',
        '{"action":"STATUS","responseFor":"x"}',
        '{"action":["status"]}',
        '{"action":"status","responseFor":["x"]}',
        '{"action":"status","responseFor":NaN}',
        '{"action":"checkpoint","sequenceNumber":["1"]}',
        '{"action":"checkpoint","sequenceNumber":{}}',
        '{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":"x"}',
        '{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":"7.9"}',
        '{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":true}',
        '{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":[]}',
        '{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":9223372036854775808}',
        '{"action":"checkpoint","sequenceNumber":"1","subSequenceNumber":1e999}',
        '{"action":"initialize","shardId":"s"}',
        '{"action":"leaseLost"}',
        '{"action":"shutdown","reason":"ZOMBIE"}',
        '{"action":"processRecords","records":[]}',
        '{"action":"sta',
        "[" * 100_000,
        '{"action":"status","x":' + "[" * 100_000,
    ],
)
def test_lines_that_are_no_message_are_ignored_with_a_short_reason(line: str) -> None:
    ignored = child_lines.parse_child_line(line)
    assert isinstance(ignored, Ignored)
    assert not ignored.quiet
    assert 0 < len(ignored.reason) < 400
    assert ignored.reason.isascii()


def test_the_empty_line_kclpy_sends_before_each_message_is_quiet() -> None:
    assert child_lines.parse_child_line("") == Ignored("an empty line", quiet=True)


@pytest.mark.parametrize(
    "line",
    [
        '{"action":"checkpoint","checkpoint":"5"}',
        '{"action":"checkpoint","sequenceNumber":null,"checkpoint":"5"}',
        '{"action":"checkpoint","SequenceNumber":"5"}',
        '{"action":"checkpoint","position":"5"}',
    ],
)
def test_a_position_under_an_unknown_key_is_never_taken_for_everything_delivered(line: str) -> None:
    assert isinstance(child_lines.parse_child_line(line, Dialect.KCL_2), Ignored)


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ('{"action":"checkpoint","checkpoint":"5"}', CheckpointRequest("5", None, legacy_key=True)),
        ('{"action":"checkpoint","checkpoint":null}', CheckpointRequest(None, None, legacy_key=True)),
        ('{"action":"checkpoint","sequenceNumber":"5","subSequenceNumber":1}', CheckpointRequest("5", 1)),
    ],
)
def test_the_1x_dialect_takes_both_keys_of_a_position(line: str, request_: CheckpointRequest) -> None:
    assert child_lines.parse_child_line(line, Dialect.KCL_1) == request_


@settings(max_examples=300)
@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["action", "responseFor", "sequenceNumber", "subSequenceNumber", "checkpoint"]),
                inner | st.sampled_from(["status", "checkpoint"]),
            )
        ),
    ).map(json.dumps),
    st.sampled_from(Dialect),
)
def test_no_line_whatsoever_raises(line: str, dialect: Dialect) -> None:
    assert isinstance(child_lines.parse_child_line(line, dialect), ActionStatus | CheckpointRequest | Ignored)


@pytest.mark.parametrize(
    "line",
    [
        "[" + "1," * 500_000 + "1]",
        '{"action":"status","responseFor":"initialize","more":[' + "1," * 500_000 + "1]}",
        '{"action":"status",' + '"action":"status",' * 50_000 + '"responseFor":"initialize"}',
        '{"a":' * 200_000,
        '{"a":' * 160_000 + "1" + "}" * 160_000,
        "[" * 1_000_000,
        "9" * 1_000_000,
    ],
    ids=[
        "numbers",
        "a crowded message",
        "a member again and again",
        "deep objects",
        "deep and ended",
        "deep arrays",
        "one number",
    ],
)
def test_a_line_of_a_mebibyte_that_is_no_message_costs_no_more_than_itself(line: str) -> None:
    tracemalloc.start()
    try:
        assert isinstance(child_lines.parse_child_line(line), Ignored)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(line)


def test_a_message_before_crowded_noise_and_a_long_message_stay_messages() -> None:
    status = '{"action":"status","responseFor":"initialize"'
    assert child_lines.parse_child_line(status + "}" + "1," * 500_000) == ActionStatus("initialize")
    assert child_lines.parse_child_line(status + ',"more":"' + "x" * 1_000_000 + '"}') == ActionStatus("initialize")
