"""The shell: HTTP, controls, faults on the wire, start and stop of the process."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import botocore.session
import pytest
import pytest_asyncio
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from mld.local.embedded_server import EmbeddedServer, serve
from mld.local.http import HttpConnection, HttpRequest
from mld.local.http2 import Http2Connection
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws

ANSWER_TIMEOUT_S = PATIENCE_S


@pytest.fixture(scope="module")
def aws() -> Iterator[EmbeddedAws]:
    with EmbeddedAws(streams={"s": 1}) as server:
        yield server


@pytest.fixture
def kinesis(aws: EmbeddedAws) -> Iterator[Any]:
    client = aws.client("kinesis", timeout_s=ANSWER_TIMEOUT_S)
    yield client
    client.close()
    aws.clear_faults()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[EmbeddedServer]:
    running = await serve()
    yield running
    await running.close()


def post(operation: str, body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    target = f"Kinesis_20131202.{operation}"
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: %s\r\nContent-Length: %d\r\n\r\n%s" % (
        target.encode(),
        len(text),
        text,
    )


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("Content-Length")))
        body = await reader.readexactly(length)
    return int(head.split(" ")[1]), json.loads(body) if body else None


async def test_requests_on_one_connection_are_answered_in_order(server: EmbeddedServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post("CreateStream", {"StreamName": "a", "ShardCount": 1}) + post("ListStreams", {}))
    assert await answer(reader) == (200, None)
    assert (await answer(reader))[1]["StreamNames"] == ["a"]
    writer.close()


async def test_the_answer_to_head_has_no_body(server: EmbeddedServer) -> None:
    """A client would take its bytes for the next answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"HEAD /_mld/health HTTP/1.1\r\nHost: localhost\r\n\r\n" + post("ListStreams", {}))
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        head = await reader.readuntil(b"\r\n\r\n")
    assert b"Content-Length: 0" not in head
    assert await answer(reader) == (200, {"StreamNames": [], "HasMoreStreams": False, "StreamSummaries": []})
    writer.close()


async def test_a_request_in_single_bytes_is_understood(server: EmbeddedServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for byte in post("ListStreams", {}):
        writer.write(bytes((byte,)))
        await writer.drain()
    assert (await answer(reader))[0] == 200
    writer.close()


async def test_a_body_in_chunks_is_read(server: EmbeddedServer) -> None:
    head, _, body = post("ListStreams", {}).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b"%x" % len(body), body, b"0", b"", b""]))
    assert (await answer(reader))[1]["StreamNames"] == []
    writer.close()


async def test_a_client_that_waits_for_100_is_told_to_go_on(server: EmbeddedServer) -> None:
    head, _, body = post("ListStreams", {}).partition(b"\r\n\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head + b"\r\nExpect: 100-continue\r\n\r\n")
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    writer.write(body)
    assert (await answer(reader))[0] == 200
    writer.close()


@pytest.mark.parametrize("head", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"])
async def test_an_unreadable_request_is_refused_and_its_connection_closed(server: EmbeddedServer, head: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head)
    assert (await answer(reader))[0] == 400
    assert await reader.read() == b""
    writer.close()


async def test_an_endless_head_ends_the_connection(server: EmbeddedServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"x" * 100_000)
    assert (await answer(reader))[0] == 400
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_a_client_that_sends_on_and_on_while_it_is_answered_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mld.local.http.BODY_BYTES_MAX", 0)

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    listening = await asyncio.get_running_loop().create_server(
        lambda: HttpConnection(never, set(), Http2Connection), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.sockets[0].getsockname()[1])
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * 200_000)
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    listening.close()


@pytest.mark.parametrize(
    ("operation", "body", "code"),
    [
        ("GetRecords", {}, "ValidationException"),
        ("GetRecords", {"ShardIterator": 5}, "SerializationException"),
        ("PutRecord", {"StreamName": "s", "PartitionKey": "k", "Data": "%%%"}, "SerializationException"),
        ("PutRecord", {"StreamName": "s", "PartitionKey": "\ud800", "Data": ""}, "SerializationException"),
        ("PutRecords", {"StreamName": "s", "Records": ["x"]}, "SerializationException"),
        ("CreateStream", {"StreamName": "a b", "ShardCount": 1}, "ValidationException"),
        ("InventTime", {}, "UnknownOperationException"),
        ("ListShards", {"StreamARN": "arn:aws:kinesis:us-east-1:1:stream/x"}, "InvalidArgumentException"),
    ],
)
async def test_bad_input_gets_the_error_of_the_service(
    server: EmbeddedServer, operation: str, body: dict[str, Any], code: str
) -> None:
    server.kinesis().create_stream("s", now=server.now(), shard_count=1)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(operation, body))
    status, error = await answer(reader)
    writer.close()
    assert (status, error["__type"]) == (400, code)
    assert error["message"]


async def test_moto_that_cannot_be_imported_is_a_failure_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moto.moto_server.werkzeug_app", None)
    running = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(post("x", {}).replace(b"Kinesis_20131202.x", b"DynamoDB_20120810.ListTables"))
    status, error = await answer(reader)
    writer.close()
    await running.close()
    assert status == 500
    assert "moto.moto_server.werkzeug_app" in error["message"]


def put(kinesis: Any, data: bytes) -> None:
    kinesis.put_record(StreamName="s", Data=data, PartitionKey="k")


def iterator(kinesis: Any, kind: str = "LATEST") -> str:
    answer = kinesis.get_shard_iterator(StreamName="s", ShardId="shardId-000000000000", ShardIteratorType=kind)
    return str(answer["ShardIterator"])


def test_an_injected_error_is_answered_as_often_as_asked(aws: EmbeddedAws, kinesis: Any) -> None:
    aws.inject_faults({"operation": "ListStreams", "count": 2, "code": "LimitExceededException", "message": "slow"})
    codes = []
    for _ in range(3):
        try:
            kinesis.list_streams()
            codes.append("")
        except ClientError as error:
            codes.append(error.response["Error"]["Code"])
    assert codes == ["LimitExceededException", "LimitExceededException", ""]


@pytest.mark.parametrize(("after", "left"), [(False, []), (True, [b"x"])])
def test_a_dropped_call_is_carried_out_only_if_asked(
    aws: EmbeddedAws, kinesis: Any, after: bool, left: list[bytes]
) -> None:
    place = iterator(kinesis)
    aws.inject_faults({"operation": "PutRecord", "count": 1, "drop": True, "after": after})
    with pytest.raises(ConnectionClosedError):
        put(kinesis, b"x")
    assert [r["Data"] for r in kinesis.get_records(ShardIterator=place)["Records"]] == left


def test_faults_reach_the_services_of_moto_too(aws: EmbeddedAws) -> None:
    dynamodb = aws.client("dynamodb")
    dynamodb.create_table(
        TableName="t",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    item = {"leaseKey": {"S": "a"}}
    aws.inject_faults(
        {"service": "dynamodb", "operation": "PutItem", "count": 1, "code": "InternalServerError", "status": 500}
        | {"after": True}
    )
    with pytest.raises(ClientError, match="InternalServerError"):
        dynamodb.put_item(TableName="t", Item=item)
    assert dynamodb.get_item(TableName="t", Key=item)["Item"] == item
    dynamodb.close()


def test_an_empty_page_stays_at_its_place_and_tells_the_lag(aws: EmbeddedAws, kinesis: Any) -> None:
    place = iterator(kinesis)
    put(kinesis, b"x")
    put(kinesis, b"y")
    aws.inject_faults({"operation": "GetRecords", "count": 1, "empty": True})
    empty = kinesis.get_records(ShardIterator=place)
    full = kinesis.get_records(ShardIterator=empty["NextShardIterator"])
    assert (len(empty["Records"]), len(full["Records"])) == (0, 2)


def test_an_empty_page_is_asked_of_get_records_only(aws: EmbeddedAws, kinesis: Any) -> None:
    aws.inject_faults({"empty": True})
    assert "s" in kinesis.list_streams()["StreamNames"]


def test_a_late_answer_is_late(aws: EmbeddedAws) -> None:
    impatient = aws.client("kinesis", timeout_s=0.2)
    aws.inject_faults({"operation": "ListStreams", "delay_s": 1.0})
    with pytest.raises(ReadTimeoutError):
        impatient.list_streams()
    impatient.close()
    aws.clear_faults()


def test_a_subscription_can_be_cut_after_some_events(aws: EmbeddedAws, kinesis: Any) -> None:
    arn = aws.client("kinesis").describe_stream_summary(StreamName="s")["StreamDescriptionSummary"]["StreamARN"]
    consumer = kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="cut")["Consumer"]["ConsumerARN"]
    aws.inject_faults({"operation": "SubscribeToShard", "after_events": 1, "code": "InternalFailureException"})
    events = kinesis.subscribe_to_shard(
        ConsumerARN=consumer, ShardId="shardId-000000000000", StartingPosition={"Type": "LATEST"}
    )["EventStream"]
    received = iter(events)
    assert next(received)["SubscribeToShardEvent"]["Records"] == []
    with pytest.raises(Exception, match="InternalFailureException"):
        next(received)
    events.close()


def test_each_answer_has_one_date_which_is_that_of_this_machine_as_aws_s_have(aws: EmbeddedAws, kinesis: Any) -> None:
    tables = aws.client("dynamodb", timeout_s=ANSWER_TIMEOUT_S)
    for answered in (kinesis.list_shards(StreamName="s"), tables.list_tables()):
        date = answered["ResponseMetadata"]["HTTPHeaders"]["date"]
        assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 60.0
    tables.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("target", "field", "value"),
    [
        ("/", "x-amz-target", "DynamoDB_20120810.ListTables"),
        ("/_mld/dynamodb/expire", "content-type", "application/json"),
    ],
)
async def test_a_request_that_comes_as_the_server_ends_gets_no_answer(
    server: EmbeddedServer, target: str, field: str, value: str
) -> None:
    headers = {"host": "localhost", field: value}
    gone = HttpConnection(server.handle, set(), Http2Connection)
    answering = server.handle(HttpRequest("POST", target, headers, b"{}", "127.0.0.1"), gone)
    assert inspect.iscoroutine(answering)
    await server.close()
    await answering


def test_calls_are_counted_by_operation(aws: EmbeddedAws, kinesis: Any) -> None:
    aws.clear_log()
    for _ in range(3):
        kinesis.list_streams()
    assert aws.log() == {"kinesis.ListStreams": 3}


def test_the_import_of_the_package_leaves_moto_and_botocore_alone() -> None:
    check = "import sys, mld.local.server; print([m for m in ('moto', 'botocore', 'flask') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_unsigned_requests_reach_their_service(aws: EmbeddedAws) -> None:
    client = botocore.session.Session().create_client(
        "dynamodb", region_name="us-east-1", endpoint_url=aws.endpoint, config=Config(signature_version=UNSIGNED)
    )
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        client.put_item(TableName="absent", Item={"key": {"S": "value"}})
