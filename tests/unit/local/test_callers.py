"""Who is answered by the embedded AWS, and by which service, over HTTP/1.1 and HTTP/2: programs, and five services.

The rule for browsers is `mld.core.webrule`; these are its proofs on the wire. A real browser:
acceptance/test_web_pages.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset

from mld.local.embedded_server import EmbeddedServer, serve
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws, make_client

ALLOWED = "aws.internal"
LIST = {"x-amz-target": "Kinesis_20131202.ListStreams"}
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
Fields = list[tuple[str, str]]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server() -> AsyncIterator[EmbeddedServer]:
    running = await serve(allow_hosts=[ALLOWED])
    yield running
    await running.close()


async def http1(port: int, method: str, target: str, fields: Fields, body: bytes) -> tuple[int, Fields, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode() + body)
    async with asyncio.timeout(PATIENCE_S):
        head, _, answered = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *rest = head.decode().split("\r\n")
    return int(first.split(" ")[1]), [tuple(line.split(": ", 1)) for line in rest], answered  # type: ignore[misc]


async def http2(port: int, method: str, target: str, fields: Fields, body: bytes) -> tuple[int, Fields, bytes]:
    """The first `host` becomes ``:authority``. The status is 0 if the stream or the connection was cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    h2 = H2Connection(H2Configuration(header_encoding="utf-8", validate_outbound_headers=False))
    h2.initiate_connection()
    hosts = [value for name, value in fields if name == "host"]
    others = [(name.lower(), value) for name, value in fields if name != "host"] + [("host", h) for h in hosts[1:]]
    authority = [(":authority", host) for host in hosts[:1]]
    h2.send_headers(1, [(":method", method), (":scheme", "http"), *authority, (":path", target), *others])
    h2.send_data(1, body, end_stream=True)
    writer.write(h2.data_to_send())
    status, answered_fields, answered = 0, [], b""
    async with asyncio.timeout(PATIENCE_S):
        while data := await reader.read(65536):
            for event in h2.receive_data(data):
                match event:
                    case ResponseReceived():
                        answered_fields = [(str(name), str(value)) for name, value in event.headers]
                        status = int(dict(answered_fields)[":status"])
                    case DataReceived():
                        answered += event.data
                    case StreamEnded() | StreamReset():
                        writer.close()
                        return status, answered_fields, answered
    writer.close()
    return status, answered_fields, answered


SPEAK = pytest.mark.parametrize("speak", [http1, http2])
LOCAL = ("host", "localhost:4567")
PAGE = ("origin", "https://example.org")


@SPEAK
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:4567", "[::1]", "127.3.4.5", ALLOWED, f"{ALLOWED}:1"])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_program_is_answered(server: EmbeddedServer, speak: Any, host: str) -> None:
    status, fields, _ = await speak(server.port, "POST", "/", [("host", host), *LIST.items()], b"{}")
    assert status == 200
    assert not [name for name, _ in fields if name.lower().startswith("access-control-")]


@SPEAK
@pytest.mark.parametrize(
    ("method", "target", "fields", "body"),
    [
        ("POST", "/", [LOCAL, PAGE, *LIST.items()], "{}"),
        ("POST", "/", [LOCAL, PAGE, *FORM.items()], "Action=GetCallerIdentity&Version=2011-06-15"),
        ("OPTIONS", "/", [LOCAL, PAGE, ("access-control-request-method", "POST")], ""),
        ("OPTIONS", "/_mld/clock", [LOCAL, PAGE, ("access-control-request-method", "POST")], ""),
        ("GET", "/_mld/health", [LOCAL, PAGE], ""),
        ("GET", "/_mld/health", [LOCAL, ("sec-fetch-site", "cross-site")], ""),
        ("GET", "/_mld/health", [("host", "rebound.test:4567")], ""),
        ("POST", "/_mld/clock", [LOCAL, PAGE, *JSON.items()], '{"advance_s": 1}'),
        ("POST", "/_mld/faults", [LOCAL, PAGE, ("content-type", "text/plain")], '{"code": "X"}'),
        ("POST", "/_mld/delays", [("host", "rebound.test"), *JSON.items()], '{"create_s": 1}'),
        ("DELETE", "/_mld/faults", [("host", "rebound.test")], ""),
        ("POST", "/moto-api/reset", [LOCAL, PAGE], ""),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_gets_403_and_a_sentence(
    server: EmbeddedServer, speak: Any, method: str, target: str, fields: Fields, body: str
) -> None:
    calls, faults, offset, delays = dict(server.calls), len(server.faults), server.offset_s, server.delays
    status, answered, text = await speak(server.port, method, target, fields, body.encode())
    assert status == 403
    assert b"not served" in text or b"Host header" in text
    assert not [name for name, _ in answered if name.lower().startswith("access-control-")]
    assert (calls, faults, offset, delays) == (server.calls, len(server.faults), server.offset_s, server.delays)


@SPEAK
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("hosts", [[], [LOCAL, ("host", "rebound.test")], [("host", "rebound.test"), LOCAL]])
async def test_no_host_and_two_hosts_are_refused(server: EmbeddedServer, speak: Any, hosts: Fields) -> None:
    status, _, _ = await speak(server.port, "POST", "/", [*hosts, *LIST.items()], b"{}")
    assert status in (403, 400, 0)  # the library h11 refuses some itself, and h2 ends the connection


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("POST http://localhost/ HTTP/1.1\r\nHost: localhost", 403),
        ("POST http://rebound.test/ HTTP/1.1\r\nHost: localhost", 403),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost", 403),
        ("CONNECT localhost:4567 HTTP/1.1\r\nHost: localhost", 403),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
        ("POST / HTTP/1.0", 403),
        ("POST / HTTP/1.1\r\nHost : localhost", 400),
        ("POST / HTTP/1.1\r\nHost: localhost\r\n Origin: null", 403),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nX-Y: z\nOrigin: null", 403),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nOrigin", 400),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nContent-Length: 9", 400),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_can_be_read_in_two_ways_is_refused(server: EmbeddedServer, head: str, status: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"{head}\r\nX-Amz-Target: Kinesis_20131202.ListStreams\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        line = await reader.readline()
    writer.close()
    assert line.split(b" ")[1] == str(status).encode()


@SPEAK
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_control_takes_json_only(server: EmbeddedServer, speak: Any, kind: str | None) -> None:
    fields = [LOCAL, *([("content-type", kind)] if kind else [])]
    status, _, text = await speak(server.port, "POST", "/_mld/clock", fields, b'{"offset_s": 5}')
    assert (status, server.offset_s) == (415, 0.0)
    assert "application/json" in json.loads(text)["error"]


@SPEAK
@pytest.mark.asyncio(loop_scope="module")
async def test_a_control_with_json_is_obeyed(server: EmbeddedServer, speak: Any) -> None:
    kind = ("Content-Type", "application/json; charset=utf-8")
    status, _, _ = await speak(server.port, "POST", "/_mld/clock", [LOCAL, kind], b'{"offset_s": 0}')
    assert status == 200


BODIES = [b"", b"{", b"[" * 100_000, b"null", b"7", b"[]", b"{}", b'[{"operation":"*"},7]', b'{"what":1}']
SECONDS = [b"null", b'"1"', b"true", b"NaN", b"Infinity", b"-1e10", b"9" * 400, b"[1]"]


@pytest.mark.parametrize(
    ("target", "body"),
    [
        *((target, body) for target in ("clock", "delays", "enforce") for body in BODIES),
        *(("faults", body) for body in BODIES if body not in (b"[]", b"{}")),
        *(("clock", b'{"advance_s":%s}' % seconds) for seconds in SECONDS),
        *(("delays", b'{"create_s":%s}' % seconds) for seconds in SECONDS),
        ("enforce", b'{"enforce":"false"}'),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_control_that_cannot_be_understood_is_named_and_changes_nothing(
    server: EmbeddedServer, target: str, body: bytes
) -> None:
    before = (server.offset_s, server.delays, len(server.faults))
    status, _, text = await http1(server.port, "POST", f"/_mld/{target}", [LOCAL, *JSON.items()], body)
    assert (status, json.loads(text).keys()) == (400, {"error"})
    assert (server.offset_s, server.delays, len(server.faults)) == before


SIGNED = "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/{}/aws4_request, SignedHeaders=host, Signature=0"


@SPEAK
@pytest.mark.parametrize(
    ("method", "target", "fields"),
    [
        ("GET", "/", {}),
        ("GET", "/favicon.ico", {}),
        ("POST", "/moto-api/reset", {}),
        ("GET", "/moto-api/data.json", {}),
        ("GET", "//moto-api/data.json", {}),
        ("GET", "/x/../moto-api/data.json", {}),
        ("GET", "/%6doto-api/data.json", {}),
        ("GET", "/moto%2dapi/data.json", {}),
        ("POST", "/moto-api/reset", {"x-amz-target": "DynamoDB_20120810.ListTables"}),
        ("POST", "/moto-api/reset", {"authorization": SIGNED.format("dynamodb")}),
        ("POST", "/?x", {"x-amz-target": "DynamoDB_20120810.ListTables"}),
        ("GET", "/", {"x-amz-target": "DynamoDB_20120810.ListTables"}),
        ("POST", "/v1/createjobqueue", {"authorization": SIGNED.format("batch")}),
        ("POST", "/v1/createjobqueue", {"authorization": SIGNED.format("dynamodb")}),
        ("GET", "/latest/meta-data/iam/", {}),
        ("PUT", "/bucket", {"authorization": SIGNED.format("s3")}),
        ("POST", "/", {"authorization": SIGNED.format("ec2"), **FORM}),
        ("POST", "/", {"authorization": SIGNED.format("dynamodb"), "x-amz-target": "AWSEvents.PutRule"}),
        ("POST", "/", {"x_amz_target": "DynamoDB_20120810.ListTables", "authorization": SIGNED.format("dynamodb")}),
        ("POST", "/service/GraniteServiceVersion20100801/operation/ListMetrics", {}),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_else_of_moto_is_served(
    server: EmbeddedServer, speak: Any, method: str, target: str, fields: dict[str, str]
) -> None:
    calls = dict(server.calls)
    status, _, text = await speak(server.port, method, target, [LOCAL, *fields.items()], b"")
    assert (status, server.calls) == (400, calls)
    assert (
        b"UnknownServiceException" in text
        and b"serves Kinesis, DynamoDB, DynamoDB Streams, CloudWatch, STS and Glue" in text
    )


@pytest.mark.parametrize(
    ("service", "operation"),
    [
        ("kinesis", "list_streams"),
        ("dynamodb", "list_tables"),
        ("cloudwatch", "list_metrics"),
        ("sts", "get_caller_identity"),
        ("glue", "get_databases"),
    ],
)
def test_an_sdk_is_served_and_told_nothing_about_origins(aws: EmbeddedAws, service: str, operation: str) -> None:
    headers = getattr(aws.client(service), operation)()["ResponseMetadata"]["HTTPHeaders"]
    assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("service", "operation"),
    [("s3", "list_buckets"), ("sqs", "list_queues"), ("ec2", "describe_instances"), ("batch", "describe_job_queues")],
)
def test_the_sdk_of_another_service_reads_why_it_is_not_served(aws: EmbeddedAws, service: str, operation: str) -> None:
    with pytest.raises(ClientError, match=r"UnknownServiceException.*serves Kinesis, .* not the service '"):
        getattr(aws.client(service), operation)()


@pytest.mark.parametrize("service", ["kinesis", "dynamodb", "cloudwatch", "sts"])
@pytest.mark.asyncio(loop_scope="module")
async def test_an_sdk_that_calls_by_a_strange_name_reads_what_to_do(server: EmbeddedServer, service: str) -> None:
    client = make_client(service, f"http://127.0.0.1:{server.port}")

    def call_by_name(request: Any, **_: Any) -> None:
        request.headers["Host"] = "compose:4567"

    client.meta.events.register("before-send", call_by_name)
    operation = {"kinesis": "list_streams", "dynamodb": "list_tables", "cloudwatch": "list_metrics"}.get(service)
    with pytest.raises(ClientError, match=r"AccessDeniedException.*--allow-host"):
        await asyncio.to_thread(getattr(client, operation or "get_caller_identity"))
    client.close()


async def test_a_server_on_all_addresses_prints_one_that_can_be_called() -> None:
    running = await serve("0.0.0.0")
    assert running.endpoint == f"http://127.0.0.1:{running.port}"
    statuses = {
        host: (await http1(running.port, "POST", "/", [("host", host), *LIST.items()], b"{}"))[0]
        for host in ("127.0.0.1", "0.0.0.0", "192.168.1.5")
    }
    await running.close()
    # The one that stands for all is none: pages have used it to reach loopback.
    assert statuses == {"127.0.0.1": 200, "0.0.0.0": 403, "192.168.1.5": 403}
