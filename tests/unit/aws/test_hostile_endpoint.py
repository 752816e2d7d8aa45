"""What a hostile endpoint or proxy may answer: each is an error of ours, and the peer is hung up on before it costs."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from botocore.utils import ContainerMetadataFetcher

from mld.aws import botocore_answers
from mld.aws.client import BotoService
from mld.aws.client_factory import client_factory
from mld.aws.credentials import CredentialsUnavailableError
from mld.aws.wire import answers
from mld.aws.wire.frame_stream import FRAME_BYTES_MAX
from mld.aws.wire.proxies import Proxy, open_tunnel
from mld.core.errors import AwsError, AwsUnreachableError, StartupError
from tests.support.patience import PATIENCE_S
from tests.support.tiers import sliced
from tests.unit.aws.conftest import Configure
from tests.unit.aws.test_wire import SUBSCRIPTION, Server, answer, certificate, wire

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BURST = 64 * 1024
MEGABYTE = 1024 * 1024
SENT_MAX = 16 * MEGABYTE
"""Above what sockets hold; who gets rid of more was not hung up on."""
BODY_MAX = MEGABYTE
GET = ("GetShardIterator", {"StreamName": "s", "ShardId": "i", "ShardIteratorType": "LATEST"})


class Endless:
    """Sends `first`, then `piece` for ever; `sent` is how much that was until somebody hung up."""

    def __init__(self, first: bytes, piece: bytes) -> None:
        self.first = first
        self.burst = piece * (BURST // len(piece) + 1)
        self.sent = 0

    def __call__(self, peer: socket.socket) -> None:
        peer.sendall(self.first)
        while self.sent <= SENT_MAX:
            self.sent += peer.send(self.burst)


ENDLESS = {
    "answers that answer nothing": (b"", b"HTTP/1.1 100\n\n"),
    "headers": (OK, b"a:\n"),
    "a header": (OK, b"a"),
    "trailers": (CHUNKED + b"0\r\n", b"a\n"),
    "chunks of a byte": (CHUNKED, b"1\nx\n"),
    "the line of a chunk": (CHUNKED, b"0"),
    "chunks": (CHUNKED, b"%x\r\n%s\r\n" % (BURST, b"x" * BURST)),
    "a body without a length": (OK + b"\r\n", b"x" * BURST),
    "more than was announced": (OK + b"Content-Length: 2\r\n\r\n{}x", b"x" * BURST),
}


class PouringFirst(Server):
    """Answers the first hello with messages that a handshake skips, without end; from the second connection on it is as
    it should be."""

    HELLO_REQUEST = b"\x16\x03\x03\x00\x04\x00\x00\x00\x00"

    def _serve(self, plain: socket.socket) -> None:
        if self.connections > 1:
            super()._serve(plain)
            return
        with plain, contextlib.suppress(OSError):
            plain.recv(BURST)
            while True:
                plain.sendall(self.HELLO_REQUEST * 1000)


async def test_a_handshake_without_an_end_keeps_its_thread_no_longer_than_its_caller_waits(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    with PouringFirst(context=context) as server:
        async with wire(server, threads_max=1, ca_bundle=str(trusted)) as service:
            with pytest.raises(AwsUnreachableError):
                await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes, timeout_s=1.0)
            read = await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes, timeout_s=PATIENCE_S)
            assert read == b"{}"


@pytest.mark.parametrize("is_kept", sliced([False, True], False), ids=["new connection", "kept connection"])
@pytest.mark.parametrize(
    ("first", "piece"),
    [
        pytest.param(*parts, id=name, marks=pytest.mark.full if name == "chunks of a byte" else ())
        for name, parts in ENDLESS.items()
    ],
)
async def test_an_answer_without_an_end_is_hung_up_on(
    first: bytes, piece: bytes, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "BODY_BYTES_MAX", BODY_MAX)
    attack = Endless(first, piece)
    with Server(*([answer(b"{}")] * is_kept), attack) as server:
        async with wire(server) as service:
            if is_kept:
                await service.call(*GET)
            if b"{}" in first:
                assert await service.call(*GET) == {}, "as announced"
            else:
                with pytest.raises(AwsUnreachableError) as raised:
                    await service.call(*GET)
                assert "no answer within" not in str(raised.value)
            assert await service.call(*GET) == {}, "nothing of it is left on the next connection"
    assert attack.sent <= SENT_MAX


def kinesis_client(configure: Configure, provider: str, *lines: str, region: str | None = "eu-west-1") -> Any:
    factory = client_factory(configure(provider, *lines, region=region))
    return factory.create_client("kinesis", read_timeout_s=2, connect_timeout_s=2, pool_connections_max=1)


@asynccontextmanager
async def botocore_at(
    server: Server, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BotoService]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SKENV")
    endpoint = f"kinesisEndpoint=http://127.0.0.1:{server.port}"
    client = kinesis_client(configure, "EnvironmentVariableCredentialsProvider", endpoint)
    service = BotoService(lambda: client, threads_max=1, name="kinesis")
    yield service
    await service.close()


@pytest.mark.parametrize(
    "name", ["headers", "a header", "chunks of a byte", "the line of a chunk", "chunks", "a body without a length"]
)
async def test_botocore_hangs_up_on_an_answer_without_an_end(
    name: str, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(botocore_answers, "BODY_BYTES_MAX", BODY_MAX)
    attack = Endless(*ENDLESS[name])
    with Server(attack) as server:
        async with botocore_at(server, configure, monkeypatch) as service:
            with pytest.raises(AwsUnreachableError) as raised:
                await service.call(*GET)
            assert "no answer within" not in str(raised.value)
            assert await service.call(*GET) == {"ResponseMetadata": ANY}
    assert attack.sent <= SENT_MAX


async def test_botocore_refuses_an_answer_that_was_cut_off(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table read by half would look like one without those rows."""
    with Server(lambda peer: peer.sendall(OK + b"Content-Length: 200\r\n\r\n{}")) as server:
        async with botocore_at(server, configure, monkeypatch) as service:
            with pytest.raises(AwsUnreachableError, match="cut off, 198 bytes are missing"):
                await service.call(*GET)


NESTED = b"[" * 30_000 + b"]" * 30_000
"""Python 3.14 reads it, and refuses only what is nested deeper."""
BOMB = gzip.compress(bytes(100 * MEGABYTE), 9)
LYING = {
    "a gzip bomb": answer(BOMB, "Content-Encoding: gzip"),
    "nested": answer(b"[" * 5_000),
    "nested, and ends": answer(b'{"Records":%s,"B":{"BS":%s}}' % (NESTED, NESTED)),
    "nested, large": answer(b'{"a":' * 300_000),
    "a number of a million digits": answer(b'{"a":' + b"9" * MEGABYTE + b"}"),
    "no document": answer(b"<html>"),
    "no object": answer(b"[]"),
    "a string": answer(b'"ShardIterator"'),
    "not of this world": answer(b'{"ShardIterator":"\xff\xfe"}'),
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a negative length": OK + b"Content-Length: -2\r\n\r\n{}",
    "petabytes": OK + b"Content-Length: 1000000000000000\r\n\r\n{}",
    "another encoding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "HTTP 9": b"HTTP/9.9 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "a refusal that is a bomb": answer(BOMB, "Content-Encoding: gzip", status="400 No"),
    "a failure of nothing": answer(b"", status="503 Service Unavailable"),
    "a failure that is half a document": answer(b"{", status="503 Service Unavailable"),
    "a refusal that is a page": answer(b"<html>" + b"x" * 50_000, status="403 Forbidden"),
    "a refusal of many words": answer(b'{"message":"' + b"x" * 50_000 + b'"}', status="400 Bad Request"),
    "a refusal with a long code": answer(b'{"__type":"' + b"x" * 50_000 + b'"}', status="400 Bad Request"),
    "a refusal that is nested": answer(b"[" * 50_000, status="400 Bad Request"),
    "a refusal that is nested and ends": answer(NESTED, status="400 Bad Request"),
    "a refusal with nested words": answer(b'{"message":%s}' % NESTED, status="400 Bad Request"),
    "a refusal with a nested code": answer(b'{"__type":%s}' % NESTED, status="400 Bad Request"),
}


@pytest.mark.parametrize("said", LYING.values(), ids=LYING)
async def test_an_answer_that_lies_is_none(said: bytes) -> None:
    with Server(said) as server:
        async with wire(server) as service:
            with pytest.raises((AwsUnreachableError, AwsError)) as raised:
                await service.call(*GET)
            assert "no answer within" not in str(raised.value)
            assert len(str(raised.value)) < 2_000
            assert await service.call(*GET) == {}


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent"])
async def test_nobody_is_sent_elsewhere(status: str) -> None:
    with (
        Server() as elsewhere,
        Server(answer(b"", f"Location: http://127.0.0.1:{elsewhere.port}/", status=status)) as server,
    ):
        async with wire(server) as service:
            with pytest.raises((AwsUnreachableError, AwsError)):
                await service.call(*GET)
        assert elsewhere.connections == 0


@pytest.mark.parametrize("body", [b"{}", b'{"x":"%s"}' % (b"x" * MEGABYTE)], ids=["small", "large"])
async def test_an_answer_that_nobody_asked_for_answers_no_later_request(body: bytes) -> None:
    mine = b'{"ShardIterator":"mine"}'
    with Server(answer(b"{}"), answer(body) + answer(b'{"ShardIterator":"theirs"}'), answer(mine)) as server:
        async with wire(server) as service:
            await service.call(*GET)
            await service.call(*GET)
            assert await service.call(*GET) == json.loads(mine)


EVENTS = {
    "chunks of a byte": (CHUNKED, b"1\n\0\n"),
    "trailers": (CHUNKED + b"0\r\n", b"a\n"),
    "a frame of 4 GB": (OK + b"\r\n", b"\xff" * BURST),
    "frames of nothing": (OK + b"\r\n", b"\0\0\0\x01" * BURST),
}


@pytest.mark.parametrize(("first", "piece"), EVENTS.values(), ids=EVENTS)
async def test_a_stream_of_nothing_ends(first: bytes, piece: bytes) -> None:
    attack = Endless(first, piece)
    with Server(attack) as server:
        async with wire(server) as service:
            stream = await service.open_stream("SubscribeToShard", SUBSCRIPTION)
            try:
                with pytest.raises(answers.BrokenAnswerError):
                    while await stream.next() is not None:
                        pass
            finally:
                stream.close()
    assert attack.sent <= SENT_MAX
    assert FRAME_BYTES_MAX < 32 * MEGABYTE


PROXIES: dict[str, Callable[[], Endless]] = {
    "endless": lambda: Endless(b"", b"x"),
    "a page": lambda: Endless(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"x"),
    "headers": lambda: Endless(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
}


@pytest.mark.parametrize("make", PROXIES.values(), ids=PROXIES)
def test_a_proxy_that_goes_on_talking_connects_nobody(make: Callable[[], Endless]) -> None:
    attack = make()

    def talk(peer: socket.socket) -> None:
        attack(peer)

    with Server() as server:
        server._scripts = [talk]
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as to_proxy:
            to_proxy.sendall(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            with pytest.raises(OSError, match="proxy"):
                open_tunnel(to_proxy, Proxy("127.0.0.1", server.port), "aws", 443, timeout_s=5)
    assert attack.sent <= SENT_MAX


def test_a_region_of_the_instance_that_does_not_end_is_hung_up_on(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = Endless(*ENDLESS["a body without a length"])
    with Server(answer(b"token"), attack) as server:
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.port}")
        with pytest.raises(StartupError, match="more than 65536 bytes"):
            kinesis_client(configure, "AnonymousCredentialsProvider", region=None)
    assert attack.sent <= SENT_MAX


def assert_no_credentials(server: Server, provider: str, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a client gets no credentials from this metadata service."""
    address = f"http://127.0.0.1:{server.port}"
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", address)
    with pytest.raises(CredentialsUnavailableError, match=provider):
        kinesis_client(configure, provider)


@pytest.mark.parametrize("provider", ["InstanceProfileCredentialsProvider", "ContainerCredentialsProvider"])
@pytest.mark.parametrize("name", ["chunks", "a body without a length", "a header"])
def test_a_metadata_service_that_does_not_end_yields_no_credentials_and_is_hung_up_on(
    name: str, provider: str, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacks = [Endless(*ENDLESS[name]) for _ in range(4)]
    with Server(*attacks) as server:
        assert_no_credentials(server, provider, configure, monkeypatch)
    assert all(attack.sent <= SENT_MAX for attack in attacks)


@pytest.mark.parametrize(
    ("broken", "waits"),
    [
        (OK + b"Content-Length: 200\r\n\r\n{}", False),
        (CHUNKED + b"5\r\nab", False),
        (OK + b"Content-Length: 200\r\n\r\n{}", True),
    ],
    ids=["cut off", "cut off in a chunk", "stopped"],
)
def test_a_metadata_service_whose_answer_does_not_come_whole_is_asked_again(
    broken: bytes, waits: bool, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0)

    def part(peer: socket.socket) -> None:
        peer.sendall(broken)
        if waits:
            peer.recv(1)  # until it is hung up on

    keys = {"AccessKeyId": "AK", "SecretAccessKey": "SK", "Token": "T", "Expiration": "2099-01-01T00:00:00Z"}
    with Server(part, answer(json.dumps(keys).encode())) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.port}")
        credentials = client_factory(configure("ContainerCredentialsProvider")).credentials_of("kinesis")
        assert credentials is not None
        assert credentials.get_frozen_credentials().access_key == "AK"
    assert server.connections == 2


@pytest.mark.parametrize("provider", ["InstanceProfileCredentialsProvider", "ContainerCredentialsProvider"])
def test_a_metadata_service_that_redirects_is_not_followed(
    provider: str, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server() as elsewhere:
        redirect = b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n"
        with Server(*[redirect % elsewhere.port] * 9) as server:
            assert_no_credentials(server, provider, configure, monkeypatch)
            assert server.requests
        assert elsewhere.connections == 0


@pytest.mark.parametrize("host", ["192.0.2.1", "metadata.example", "127.0.0.1.example"])
def test_keys_of_a_container_are_asked_for_at_no_other_machine_in_plain_http(
    host: str, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket, "getaddrinfo", connect)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://{host}/creds")
    with pytest.raises(CredentialsUnavailableError, match="Unsupported host"):
        kinesis_client(configure, "ContainerCredentialsProvider")
