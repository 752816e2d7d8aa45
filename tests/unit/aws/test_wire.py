"""The lean wire client against a scripted server, and its parts against botocore's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.loaders import create_loader

from mld.aws.botocore_answers import keep_raw_body
from mld.aws.client import BotoService
from mld.aws.service_time import ServiceTime
from mld.aws.wire.answers import Answer, Incoming
from mld.aws.wire.blueprints import Canned
from mld.aws.wire.chunks import BrokenAnswerError
from mld.aws.wire.client import WireService
from mld.aws.wire.connection import Connection, Origin
from mld.aws.wire.json_bodies import decode_answer, encode_params
from mld.aws.wire.requests import KEYS_AGE_MAX_S
from mld.aws.wire.signing import Scope, Signer
from mld.aws.wire.trust import tls_context
from mld.aws.wire.unusual import UnusualError
from mld.core.errors import AwsError, AwsUnreachableError, MldError, StreamError
from tests.support.certificates import write_certificate
from tests.support.patience import PATIENCE_S

KEYS = Credentials("AKID", "secret", None)
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
HANG_S = PATIENCE_S
LOADER = create_loader()  # keeps the models of the services, which take long to read


class Server:
    """Answers the n-th request with the n-th script: bytes to send (then keep), or a function of the socket."""

    def __init__(
        self, *scripts: bytes | Callable[[socket.socket], None], context: ssl.SSLContext | None = None
    ) -> None:
        self._context = context
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self.requests: list[bytes] = []
        self.connections = 0

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(peer)
            self._threads.append(threading.Thread(target=self._serve, args=(peer,), daemon=True))
            self._threads[-1].start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            peer = plain if self._context is None else self._context.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            return
        with peer:
            try:
                while (request := read_request(peer)) is not None:
                    with self._lock:
                        self.requests.append(request)
                        script = self._scripts.pop(0) if self._scripts else GOOD
                    if isinstance(script, bytes):
                        peer.sendall(script)
                    else:
                        script(peer)
                        return
            except OSError:
                return

    def __enter__(self) -> Server:
        self._threads.append(threading.Thread(target=self._accept, daemon=True))
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self._open:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in self._threads:
            thread.join(HANG_S)


def read_request(peer: socket.socket) -> bytes | None:
    request = b""
    while b"\r\n\r\n" not in request:
        piece = peer.recv(65536)
        if not piece:
            return None
        request += piece
    head, _, body = request.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < length:
        piece = peer.recv(65536)
        body += piece
        request += piece
    return request


def then_close(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda peer: peer.sendall(answer)


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def answer(body: bytes, *headers: str, status: str = "200 OK", length: bool = True) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, *([f"content-length: {len(body)}"] if length else []), "", ""]
    return "\r\n".join(lines).encode() + body


def refusal(code: str, message: str = "no", *headers: str, status: str = "400 Bad Request", **fields: Any) -> bytes:
    body = json.dumps({"__type": f"com.amazonaws#{code}", "message": message, **fields}).encode()
    return answer(body, *headers, status=status)


# --- a connection ----------------------------------------------------------------------------------------------------


@contextmanager
def connection_to(server: Server) -> Iterator[Connection]:
    connection = Connection(Origin("127.0.0.1", server.port, None), connect_timeout_s=2, read_timeout_s=2)
    try:
        yield connection
    finally:
        connection.close()


REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"


def exchanged(connection: Connection) -> Answer:
    connection.socket.sendall(REQUEST)
    return connection.receive(Incoming())


def test_an_answer_without_a_length_is_read_to_the_end_of_its_connection() -> None:
    with Server(then_close(answer(b"abc", length=False))) as server, connection_to(server) as connection:
        got = exchanged(connection)
    assert (got.body, got.keep) == (b"abc", False)


BIG = answer(b"x" * 3_000_000)


Script = bytes | Callable[[socket.socket], None]


@pytest.fixture(params=["plain", "tls"])
def contexts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Of a server and of its client."""
    if request.param == "plain":
        return None, None
    trusted, context = certificate(tmp_path, "127.0.0.1")
    return context, ssl.create_default_context(cafile=str(trusted))


@contextmanager
def turn_takers(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None], *scripts: Script, read_timeout_s: float = HANG_S
) -> Iterator[list[Connection]]:
    """A connection for each script, to a server of its own; they take turns with large bodies."""
    turn = threading.Lock()
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(script, context=contexts[0])) for script in scripts]
        origins = [Origin("127.0.0.1", server.port, contexts[1]) for server in servers]
        made = [Connection(each, connect_timeout_s=2, read_timeout_s=read_timeout_s, turn=turn) for each in origins]
        for connection in made:
            stack.callback(connection.close)
        yield made


def received_whole(connection: Connection) -> int:
    return len(exchanged(connection).body)


def received_in_parts(connection: Connection) -> int:
    parts: list[bytes] = []
    connection.socket.sendall(REQUEST)
    incoming = Incoming()
    assert incoming.feed(connection.socket.recv(1000)) is None
    connection.receive_parts(incoming, parts.append)
    return sum(map(len, parts))


BOTH_WAYS = pytest.mark.parametrize("received", [received_whole, received_in_parts])


@BOTH_WAYS
def test_a_body_that_does_not_come_keeps_nobody_from_theirs(
    contexts: Any, received: Callable[[Connection], int]
) -> None:
    half_came, may_go_on = threading.Event(), threading.Event()

    def halting(peer: socket.socket) -> None:
        peer.sendall(BIG[:2_000_000])
        half_came.set()
        assert may_go_on.wait(HANG_S)
        peer.sendall(BIG[2_000_000:])

    with turn_takers(contexts, halting, BIG) as (slow, fast), ThreadPoolExecutor(1) as threads:
        later = threads.submit(received, slow)
        try:
            assert half_came.wait(HANG_S)
            assert received(fast) == 3_000_000
            assert not later.done()
        finally:
            may_go_on.set()
        assert later.result(HANG_S) == 3_000_000


@BOTH_WAYS
def test_a_body_that_does_not_go_on_is_a_time_out_and_ends_the_turn(
    contexts: Any, received: Callable[[Connection], int]
) -> None:
    over = threading.Event()

    def halting(peer: socket.socket) -> None:
        peer.sendall(BIG[:2_000_000])
        over.wait(HANG_S)

    with turn_takers(contexts, halting, BIG, read_timeout_s=0.2) as (slow, fast):
        with pytest.raises(TimeoutError):
            received(slow)
        over.set()
        assert received(fast) == 3_000_000


@BOTH_WAYS
def test_a_body_that_is_cut_off_is_a_broken_answer_and_ends_the_turn(
    contexts: Any, received: Callable[[Connection], int]
) -> None:
    with turn_takers(contexts, then_close(BIG[:2_000_000]), BIG) as (broken, fast):
        with pytest.raises(BrokenAnswerError):
            received(broken)
        assert received(fast) == 3_000_000


def test_a_connection_closed_while_idle_is_stale() -> None:
    with Server(then_close(GOOD)) as server, connection_to(server) as connection:
        exchanged(connection)
        deadline = time.monotonic() + HANG_S
        while not connection.is_stale() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert connection.is_stale()


def test_the_kernel_ends_a_connection_on_which_nothing_is_acknowledged() -> None:
    with Server() as server:
        connection = Connection(Origin("127.0.0.1", server.port, None), connect_timeout_s=2, read_timeout_s=6)
        options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        values = [connection.socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
        assert connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert values == [3, 1, 3, 6000]
        connection.close()


# --- signatures and documents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "session/token+="])
def test_a_signature_is_that_of_botocore(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    moment = datetime(2026, 3, 1, 23, 59, 59, tzinfo=UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda remove_tzinfo=True: moment.replace(tzinfo=None))
    keys = Credentials("AKID", "secret/+", token)
    body = b'{"ShardIterator":"x"}'
    request = AWSRequest(
        "POST",
        "https://kinesis.eu-west-1.amazonaws.com/",
        {"X-Amz-Target": "Kinesis_20131202.GetRecords", "Content-Type": "application/x-amz-json-1.1"},
        body,
    )
    SigV4Auth(keys, "kinesis", "eu-west-1").add_auth(request)
    signer = Signer(Scope("eu-west-1", "kinesis"))
    for _ in range(2):
        ours = signer.headers(
            keys.get_frozen_credentials(),
            moment.timestamp(),
            content_type="application/x-amz-json-1.1",
            host="kinesis.eu-west-1.amazonaws.com",
            target="Kinesis_20131202.GetRecords",
            body=body,
        )
        expected = {name: request.headers[name] for name in ("X-Amz-Date", "Authorization")}
        if token:
            expected["X-Amz-Security-Token"] = token
        assert dict(line.split(": ", 1) for line in ours.splitlines()) == expected


def test_the_key_is_made_anew_with_another_day_or_secret() -> None:
    signer = Signer(Scope("r", "s"))
    signatures = {
        signer.headers(keys.get_frozen_credentials(), at, content_type="c", host="h", target="t", body=b"")[-70:]
        for keys in (KEYS, Credentials("AKID", "other"))
        for at in (0.0, 86_400.0)
    }
    assert len(signatures) == 4


def test_parameters_are_written_as_json_with_times_rounded_down() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=UTC)
    whole = when.replace(microsecond=999)
    assert encode_params({"a": b"\xff", "t": when, "w": whole, "n": [True, None, "\u00e9"]}) == (
        b'{"a":"/w==","t":1767323045.678,"w":1767323045,"n":[true,null,"\\u00e9"]}'
    )


def test_bytes_in_attribute_values_are_decoded_and_nothing_else() -> None:
    body = b'{"Attributes":{"B":{"S":"B"},"x":{"B":"/w=="},"l":{"L":[{"BS":["AA==",""]},{"M":{"BS":{"SS":["B"]}}}]}}}'
    assert decode_answer(body) == {
        "Attributes": {
            "B": {"S": "B"},
            "x": {"B": b"\xff"},
            "l": {"L": [{"BS": [b"\x00", b""]}, {"M": {"BS": {"SS": ["B"]}}}]},
        }
    }


# --- the service -----------------------------------------------------------------------------------------------------


def boto_client(service: str, url: str, credentials: Any = KEYS, **config: Any) -> Any:
    session = botocore.session.Session()
    session.register_component("credential_provider", _Fixed(credentials))
    session.register_component("data_loader", LOADER)
    client = session.create_client(
        service,
        region_name="eu-west-1",
        endpoint_url=url,
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=2, **config),
    )
    if service == "kinesis":
        keep_raw_body(client, "GetRecords")
    return client


class _Fixed:
    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def load_credentials(self) -> Any:
        return self._credentials


@asynccontextmanager
async def wire(
    server: Server,
    service: str = "kinesis",
    *,
    credentials: Any = KEYS,
    wall: Callable[[], float] = time.time,
    threads_max: int = 2,
    ca_bundle: str | None = None,
    path: str = "",
    **config: Any,
) -> AsyncIterator[WireService]:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    scheme = "http" if server_is_plain(server) else "https"
    client = boto_client(service, f"{scheme}://127.0.0.1:{server.port}{path}", credentials, **config)
    made = WireService(
        BotoService(lambda: client, threads_max=1, name=service),
        credentials=lambda: credentials,
        ca_bundle=lambda: ca_bundle,
        threads_max=threads_max,
        calls_max=threads_max,
        name=service,
        read_timeout_s=2,
        connect_timeout_s=2,
        service_time=ServiceTime(wall),
    )
    await made.open()
    try:
        yield made
    finally:
        await made.close()
        gc.collect()
        assert unheard == [], "an exception nobody fetched"


def server_is_plain(server: Server) -> bool:
    return server._context is None


def headers_of(request: bytes) -> dict[str, str]:
    lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}


async def test_a_request_is_what_botocore_would_have_sent() -> None:
    with Server(answer(b'{"ShardIterator":"i"}'), answer(b'{"ShardIterator":"i"}')) as server:
        params = {"StreamName": "clicks", "ShardId": "s", "ShardIteratorType": "LATEST"}
        async with wire(server) as service:
            assert await service.call("GetShardIterator", params) == {"ShardIterator": "i"}
        boto_client("kinesis", f"http://127.0.0.1:{server.port}").get_shard_iterator(**params)
        ours, theirs = server.requests
    for name in ("host", "x-amz-target", "content-type", "user-agent"):
        assert headers_of(ours)[name].split(" ua/")[0] == headers_of(theirs)[name].split(" ua/")[0], name
    assert json.loads(ours.partition(b"\r\n\r\n")[2]) == json.loads(theirs.partition(b"\r\n\r\n")[2])
    assert headers_of(ours)["authorization"].split("/")[2:4] == headers_of(theirs)["authorization"].split("/")[2:4]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(StreamError("no page"), StreamError), (ValueError("no page"), AwsUnreachableError)],
)
async def test_what_reading_raises_comes_out_as_an_error_of_ours(raised: Exception, expected: type[MldError]) -> None:
    def refuse(body: bytes) -> str:
        raise raised

    with Server() as server:
        async with wire(server, threads_max=1) as service:
            for _ in range(3):
                with pytest.raises(expected, match="no page"):
                    await service.fetch("GetRecords", {"ShardIterator": "i"}, refuse)
        assert server.connections == 1


async def test_small_answers_are_read_on_the_loop_and_large_ones_in_a_thread() -> None:
    def where(body: bytes) -> tuple[int, bool]:
        return len(body), threading.current_thread() is threading.main_thread()

    sizes = [2, 1000, 50_000, 3, 3_000_000, 8_000]
    with Server(*(answer(b"x" * size) for size in sizes)) as server:
        async with wire(server, threads_max=1) as service:
            seen = [await service.fetch("GetRecords", {"ShardIterator": "i"}, where) for _ in sizes]
        assert server.connections == 1
    on_loop = [True, True, False, True, False, True]
    assert seen == list(zip(sizes, on_loop, strict=True))


async def test_work_that_waits_for_its_turn_takes_no_threads_from_calls() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def work() -> None:
        begun.release()
        assert go_on.wait(PATIENCE_S)

    with Server(*[answer(b"{}")] * 8) as server:
        async with wire(server, threads_max=3) as service:
            working = [asyncio.create_task(service.in_thread("SubscribeToShard", work)) for _ in range(12)]
            try:
                calls = [service.fetch("GetRecords", {"ShardIterator": "i"}, len) for _ in range(8)]
                assert await asyncio.wait_for(asyncio.gather(*calls), PATIENCE_S) == [2] * 8
                assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
            finally:
                go_on.set()
            await asyncio.gather(*working)


async def test_keys_are_asked_for_again_after_a_while_and_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(Credentials):
        asked = 0

        def get_frozen_credentials(self) -> Any:
            self.asked += 1
            return Credentials(f"AKID{self.asked}", "secret").get_frozen_credentials()

    keys = Counted("AKID", "secret")
    with Server(GOOD, GOOD, refusal("ExpiredTokenException"), GOOD, GOOD, GOOD) as server:
        async with wire(server, credentials=keys, threads_max=1) as service:
            for number in range(6):
                with contextlib.suppress(AwsError):
                    await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)
                if number == 4:
                    later = SimpleNamespace(**vars(time) | {"monotonic": lambda: time.monotonic() + KEYS_AGE_MAX_S})
                    monkeypatch.setattr("mld.aws.wire.requests.time", later)
        used = [headers_of(request)["authorization"].partition("Credential=")[2][:5] for request in server.requests]
    assert used[0] == used[1] == used[2] != used[3] == used[4] != used[5]


async def test_a_refusal_on_a_kept_connection_costs_only_itself() -> None:
    refused = refusal("ProvisionedThroughputExceededException")
    with Server(GOOD, refused, GOOD, answer(b"<html>", status="500 Oh"), GOOD) as server:
        async with wire(server, threads_max=1) as service:
            outcomes: list[str] = []
            for _ in range(5):
                try:
                    outcomes.append(str(await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)))
                except (AwsError, AwsUnreachableError) as error:
                    outcomes.append(type(error).__name__)
        assert (server.connections, len(server.requests)) == (1, 5)
    assert outcomes[0::2] == ["b'{}'"] * 3 and outcomes[1] == "AwsError"


async def test_unsigned_requests_carry_no_signature() -> None:
    from botocore import UNSIGNED

    with Server() as server:
        async with wire(server, credentials=None, signature_version=UNSIGNED) as service:
            await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)
        assert "authorization" not in headers_of(server.requests[0])


async def test_refreshed_credentials_are_used_at_once() -> None:
    fetched = iter(("second", "third"))
    expired = datetime(2000, 1, 1, tzinfo=UTC)

    def metadata(key: str, expiry: datetime) -> dict[str, Any]:
        return {"access_key": key, "secret_key": "s", "token": f"token-{key}", "expiry_time": expiry.isoformat()}

    credentials = RefreshableCredentials.create_from_metadata(
        metadata("first", expired),
        refresh_using=lambda: metadata(next(fetched), datetime(2099, 1, 1, tzinfo=UTC)),
        method="test",
    )
    with Server() as server:
        async with wire(server, credentials=credentials) as service:
            await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)
        sent = headers_of(server.requests[0])
    assert "Credential=second/" in sent["authorization"]
    assert sent["x-amz-security-token"] == "token-second"


async def test_a_refusal_is_what_botocore_makes_of_it() -> None:
    refused = refusal("ConditionalCheckFailedException", Item={"leaseCounter": {"N": "7"}, "x": {"B": "/w=="}})
    with Server(refused) as server:
        async with wire(server, "dynamodb") as service:
            with pytest.raises(AwsError) as caught:
                await service.call("UpdateItem", {"TableName": "t", "Key": {"leaseKey": {"S": "a"}}})
    error = caught.value
    assert (error.code, error.status, error.operation) == ("ConditionalCheckFailedException", 400, "UpdateItem")
    assert error.item == {"leaseCounter": {"N": "7"}, "x": {"B": b"\xff"}}


@pytest.mark.parametrize("body", [b"<html>", b'{"a":', b"[]", b'"x"'])
async def test_a_good_answer_that_is_no_document_is_no_answer(body: bytes) -> None:
    with Server(answer(body)) as server:
        async with wire(server, "dynamodb") as service:
            with pytest.raises(AwsUnreachableError, match="the answer is no JSON"):
                await service.call("GetItem", {"TableName": "t", "Key": {"leaseKey": {"S": "a"}}})


async def test_parameters_that_botocore_refuses_are_refused() -> None:
    with Server() as server:
        async with wire(server, "dynamodb") as service:
            with pytest.raises(AwsError) as caught:
                await service.call("UpdateItem", {"TableName": "t"})
        assert (caught.value.code, server.requests) == ("ParamValidationError", [])


async def test_a_read_on_a_connection_that_was_closed_meanwhile_is_sent_again() -> None:
    with Server(GOOD, then_close(b""), GOOD) as server:
        async with wire(server, threads_max=1) as service:
            for _ in range(2):
                await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)
        assert (server.connections, len(server.requests)) == (2, 3)


async def test_a_write_whose_connection_ends_is_never_sent_again() -> None:
    with Server(answer(b"{}"), then_close(b"")) as server:
        async with wire(server, "dynamodb", threads_max=1) as service:
            params = {"TableName": "t", "Key": {"leaseKey": {"S": "a"}}}
            await service.call("UpdateItem", params)
            with pytest.raises(AwsUnreachableError):
                await service.call("UpdateItem", params)
        assert len(server.requests) == 2


def hang(peer: socket.socket) -> None:
    peer.recv(1)


def trickle(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        peer.sendall(b"x")
        time.sleep(0.005)


@pytest.mark.parametrize("script", [hang, trickle])
async def test_a_call_is_given_up_after_its_time_out_and_its_thread_is_free_at_once(
    script: Callable[[socket.socket], None],
) -> None:
    with Server(*[script] * 100) as server:
        async with wire(server, threads_max=1) as service:
            while not server.requests:  # on a slow machine a call is given up before it is sent, or heard
                with pytest.raises(AwsUnreachableError, match=r"no answer within 0\.05 s"):
                    await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes, timeout_s=0.05)
            server._scripts = []
            assert await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes, timeout_s=PATIENCE_S) == b"{}"


async def test_a_call_given_up_in_the_queue_is_never_sent() -> None:
    with Server(hang) as server:
        async with wire(server, threads_max=1) as service:
            first = asyncio.create_task(service.fetch("GetRecords", {"ShardIterator": "1"}, bytes))
            while not server.requests:
                await asyncio.sleep(0.001)
            with pytest.raises(AwsUnreachableError):
                await service.fetch("GetRecords", {"ShardIterator": "2"}, bytes, timeout_s=0.02)
            first.cancel()
        assert len(server.requests) == 1


async def test_a_closed_service_answers_with_an_error_and_ends_calls_under_way() -> None:
    with Server(hang) as server:
        async with wire(server) as service:
            caller = asyncio.create_task(service.fetch("GetRecords", {"ShardIterator": "1"}, bytes))
            while not server.requests:
                await asyncio.sleep(0.001)
            await service.close()
            with pytest.raises(AwsUnreachableError):
                await caller
            with pytest.raises(AwsUnreachableError, match="closed"):
                await service.fetch("GetRecords", {"ShardIterator": "1"}, bytes)


async def test_nobody_listening_is_unreachable() -> None:
    with Server() as server:
        pass
    async with wire(server) as service:
        with pytest.raises(AwsUnreachableError, match=r"cannot connect to 127\.0\.0\.1:\d+: ConnectionRefusedError"):
            await service.fetch("GetRecords", {"ShardIterator": "1"}, bytes)


async def test_operations_of_other_kinds_go_through_botocore() -> None:
    with Server(answer(b'{"Table":{"CreationDateTime":0}}')) as server:
        async with wire(server, "dynamodb") as service:
            table = (await service.call("DescribeTable", {"TableName": "a"}))["Table"]
    assert table["CreationDateTime"].timestamp() == 0, "of a type that only botocore knows"


# --- what is left to botocore ----------------------------------------------------------------------------------------


async def test_an_endpoint_with_a_path_goes_through_botocore(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with Server(*[answer(b'{"ShardIterator":"i"}')] * 2) as server:
        async with wire(server, path="/gate") as service:
            for _ in range(2):
                params = {"StreamName": "s", "ShardId": "s", "ShardIteratorType": "LATEST"}
                assert (await service.call("GetShardIterator", params))["ShardIterator"] == "i"
            assert not service.can_stream
        assert [request.split()[1] for request in server.requests] == [b"/gate"] * 2
    (record,) = [one for one in caplog.records if getattr(one, "action", "") == "wire_client"]
    assert "/gate" in record.getMessage()


def test_what_only_botocore_honours_is_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto_client("kinesis", "https://kinesis.eu-west-1.amazonaws.com")
    assert tls_context(client, None).check_hostname
    with pytest.raises(UnusualError, match="CA bundle /nowhere"):
        tls_context(client, "/nowhere")
    with pytest.raises(UnusualError, match="client certificate"):
        tls_context(boto_client("kinesis", "https://x", client_cert="/c"), None)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/elsewhere")
    with pytest.raises(UnusualError, match="CA bundle /elsewhere"):
        tls_context(client, None)


@pytest.mark.parametrize(
    ("params", "host"),
    [
        ({"ShardIterator": "i"}, "kinesis.eu-west-1.amazonaws.com"),
        (
            {"ShardIterator": "i", "StreamARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/s"},
            "123456789012.data-kinesis.eu-west-1.amazonaws.com",
        ),
    ],
)
def test_endpoints_are_those_of_botocore(params: dict[str, Any], host: str) -> None:
    session = botocore.session.Session()
    session.register_component("credential_provider", _Fixed(KEYS))
    blueprint = Canned(session.create_client("kinesis", region_name="eu-west-1")).blueprint("GetRecords", params, None)
    assert (blueprint.host, blueprint.origin.host, blueprint.origin.port) == (host, host, 443)
    assert blueprint.scope == Scope("eu-west-1", "kinesis")


def test_canned_answers_stay_in_their_thread() -> None:
    with Server(answer(b'{"ShardIterator":"real"}')) as server:
        client = boto_client("kinesis", f"http://127.0.0.1:{server.port}")
        canned = Canned(client)
        params = {"StreamName": "s", "ShardId": "s", "ShardIteratorType": "LATEST"}
        inside = canned.explain("GetShardIterator", params, Answer(200, {}, b'{"ShardIterator":"canned"}'))
        assert inside["ShardIterator"] == "canned"
        assert client.get_shard_iterator(**params)["ShardIterator"] == "real"


# --- TLS --------------------------------------------------------------------------------------------------------------


def certificate(directory: Path, address: str) -> tuple[Path, ssl.SSLContext]:
    """For an address: the file to trust, and the server's context."""
    public, secret = write_certificate(directory, address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, secret)
    return public, context


async def test_over_tls_a_truncated_answer_and_a_time_out_are_no_answers(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.1")
    with Server(then_close(answer(b"x" * 100_000)[:-1]), trickle, GOOD, context=context) as server:
        async with wire(server, threads_max=1, ca_bundle=str(trusted)) as service:
            for limit_s in (PATIENCE_S, 1.0):
                with pytest.raises(AwsUnreachableError):
                    await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes, timeout_s=limit_s)
            assert await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes) == b"{}"


def streaming(
    *pieces: bytes, pause_s: float = 0.0, before: Callable[[], object] = lambda: None
) -> Callable[[socket.socket], None]:
    """Answers with a stream in these chunks, then ends the connection. Calls `before` ahead of each chunk."""

    def serve(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            time.sleep(pause_s)
            before()
            peer.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        peer.sendall(b"0\r\n\r\n")

    return serve


SUBSCRIPTION = {
    "ConsumerARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/s/consumer/c:1",
    "ShardId": "shardId-0",
    "StartingPosition": {"Type": "AT_TIMESTAMP", "Timestamp": datetime(2026, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("pause_s", [0.0, 0.02])
async def test_a_stream_comes_frame_by_frame(tmp_path: Path, tls: bool, pause_s: float) -> None:
    """Frames of many sizes in chunks of many sizes: nothing that TLS has decrypted already is left lying."""
    trusted, context = certificate(tmp_path, "127.0.0.1")
    frames = [
        (16 + size).to_bytes(4, "big") + bytes(12) + bytes(size) for size in (0, 1, 20_000, 3, 700_000, 5, 70_000)
    ]
    body = b"".join(frames)
    cuts = [0, 3, 40, 16_000, 40_000, 41_000, 600_000, len(body)]
    pieces = [body[start:end] for start, end in pairwise(cuts)]
    with Server(streaming(*pieces, pause_s=pause_s), context=context if tls else None) as server:
        async with wire(server, ca_bundle=str(trusted)) as service:
            assert service.can_stream
            source = await service.open_stream("SubscribeToShard", SUBSCRIPTION)
            async with asyncio.timeout(HANG_S):
                for frame in frames:
                    assert b"".join(await source.next() or ()) == frame
                assert await source.next() is None
            source.close()
        asked = server.requests[0]
        assert b"Kinesis_20131202.SubscribeToShard" in asked
        assert b'"Timestamp":1767225600' in asked
        assert b"Authorization: AWS4-HMAC-SHA256" in asked


async def test_a_refused_stream_is_an_error_of_aws() -> None:
    with Server(refusal("ResourceInUseException", "told")) as server:
        async with wire(server) as service:
            with pytest.raises(AwsError, match="SubscribeToShard: ResourceInUseException: told"):
                await service.open_stream("SubscribeToShard", SUBSCRIPTION)


async def test_a_stream_that_nobody_waits_for_any_more_is_closed() -> None:
    closed = threading.Event()

    def late(peer: socket.socket) -> None:
        time.sleep(0.3)
        with contextlib.suppress(OSError):
            peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            peer.recv(1)
        closed.set()

    with Server(late) as server:
        async with wire(server) as service:
            with pytest.raises(AwsUnreachableError, match="no answer within"):
                await service.open_stream("SubscribeToShard", SUBSCRIPTION, timeout_s=0.1)
            assert await asyncio.to_thread(closed.wait, HANG_S)


async def test_a_stream_that_is_just_being_opened_ends_with_the_client() -> None:
    heard, over = threading.Event(), threading.Event()

    def silent(_: socket.socket) -> None:
        heard.set()
        over.wait(HANG_S)

    with Server(silent) as server:
        async with wire(server) as service:
            opening = asyncio.create_task(service.open_stream("SubscribeToShard", SUBSCRIPTION))
            try:
                assert await asyncio.to_thread(heard.wait, HANG_S)
                await service.close()
                with pytest.raises(AwsUnreachableError) as caught:
                    await opening
            finally:
                over.set()
    assert "closed" in str(caught.value)


async def test_a_server_whose_certificate_is_for_another_address_gets_nothing(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "127.0.0.2")
    with Server(context=context) as server:
        async with wire(server, ca_bundle=str(trusted)) as service:
            with pytest.raises(AwsUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
                await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)
        assert server.requests == []
