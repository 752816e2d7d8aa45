"""A limit that is said is in force: the time that passed beside the text, on each way to a table.

The server takes connections and says nothing. Sockets have no virtual time, so the limits are short.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ConnectTimeoutError

from mld.aws.aws_failures import limit_words
from mld.aws.client import BotoService
from mld.aws.service import Service
from mld.aws.service_time import ServiceTime
from mld.aws.table_calls import TableCalls
from mld.aws.wire.client import WireService
from mld.core.errors import AwsUnreachableError, TableUnavailableError
from tests.support.servers import ACCOUNT, make_client

SHORT_S, LONG_S = 0.4, 20.0
LATE_S_MAX = 8.0
"""A machine that is busy."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield f"http://127.0.0.1:{mute.getsockname()[1]}"


def service_of(
    kind: str, endpoint: str, read_timeout_s: float, connect_timeout_s: float = LONG_S
) -> BotoService | WireService:
    client = make_client("dynamodb", endpoint, timeout_s=read_timeout_s, connect_timeout_s=connect_timeout_s)
    plain = BotoService(lambda: client, threads_max=2, name="dynamodb", source_of=lambda _: "dynamoDBEndpoint")
    if kind == "botocore":
        return plain
    return WireService(
        plain,
        credentials=lambda: Credentials(ACCOUNT, "local"),
        ca_bundle=lambda: None,
        threads_max=2,
        calls_max=2,
        name="dynamodb",
        read_timeout_s=read_timeout_s,
        connect_timeout_s=connect_timeout_s,
        service_time=ServiceTime(),
    )


@pytest.mark.parametrize("kind", ["wire", "botocore"])
@pytest.mark.parametrize("by_table", [False, True], ids=["call", "table"])
@pytest.mark.parametrize(("call_s", "read_s"), [(SHORT_S, LONG_S), (LONG_S, SHORT_S)], ids=["of-call", "of-client"])
async def test_the_text_names_the_limit_that_ended_the_call(
    endpoint: str, kind: str, by_table: bool, call_s: float, read_s: float
) -> None:
    await _fails_by_the_short_limit(
        service_of(kind, endpoint, read_s), call_s, r"no answer within ([0-9.]+) s", by_table=by_table
    )


@pytest.mark.parametrize("kind", ["wire", "botocore"])
@pytest.mark.parametrize("by_table", [False, True], ids=["call", "table"])
async def test_a_tls_handshake_that_hangs_is_told_by_the_limit_of_a_connection(
    endpoint: str, kind: str, by_table: bool
) -> None:
    secured = endpoint.replace("http:", "https:")
    service = service_of(kind, secured, LONG_S, connect_timeout_s=SHORT_S)
    words = r"connect.* within ([0-9.]+) s.*; check dynamoDBEndpoint$"
    await _fails_by_the_short_limit(service, LONG_S, words, by_table=by_table)


async def _fails_by_the_short_limit(
    service: BotoService | WireService, call_s: float, words: str, *, by_table: bool
) -> None:
    """Expect that a call ends after the time that its error names."""
    await service.open()
    try:
        began_s = time.monotonic()
        with pytest.raises((AwsUnreachableError, TableUnavailableError)) as raised:
            await _ask(service, call_s, by_table=by_table)
        took_s = time.monotonic() - began_s
    finally:
        await service.close()
    said = re.search(words, str(raised.value))
    assert said is not None, raised.value
    assert float(said[1]) == SHORT_S
    assert SHORT_S * 0.9 <= took_s <= LATE_S_MAX


async def _ask(service: Service, call_s: float, *, by_table: bool) -> None:
    if by_table:
        await TableCalls(service, "t", call_s).get({"leaseKey": {"S": "k"}})
    else:
        await service.call("GetItem", {"TableName": "t", "Key": {"leaseKey": {"S": "k"}}}, timeout_s=call_s)


def test_a_connection_that_does_not_come_is_said_with_its_limit(endpoint: str) -> None:
    client = make_client("dynamodb", endpoint)
    words = limit_words(client, ConnectTimeoutError(endpoint_url=endpoint), 0.0)
    assert words is not None and words.startswith(f"no connection within {client.meta.config.connect_timeout:g} s")
