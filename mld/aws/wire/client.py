"""`WireService`: the `Service` port for the calls made all the time, over own sockets; the rest goes to botocore.

A call is one attempt, as with `BotoService`. It is sent a second time only where the first cannot have counted: on a
kept connection that turns out to be closed, for calls that only read; and after the service has refused a signature
because our clock is off, which its `Date` header then corrects.

Whatever is unusual about a client (a proxy, a client certificate, another path or signature) is left to botocore; the
log says so once. Connections belong to threads, not to shards.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mld.aws.client import CALL_TIMEOUT_S, BotoService, aws_failure
from mld.aws.wire import documents
from mld.aws.wire.botocore_side import Blueprint, Canned, UnusualError, tls_context
from mld.aws.wire.connection import Answer, BrokenAnswerError, Connection, NothingSentBackError, Origin
from mld.aws.wire.sigv4 import Keys, Signer
from mld.aws.wire.source import FrameSource
from mld.aws.wire.workers import Job, Workers
from mld.errors import AwsUnreachableError, StartupError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials

logger = logging.getLogger(__name__)

T = TypeVar("T")
Exchange = Callable[[Job, str, Mapping[str, Any], bytes], Answer]
Taken = tuple[socket.socket, bytes, bool]
"""A connected socket, what was read ahead from it, and whether what comes is chunked."""

READS = frozenset({"GetRecords", "GetShardIterator", "GetItem", "Query", "Scan"})
"""May be repeated on a new connection: they change nothing."""
OPERATIONS = READS | {"UpdateItem", "PutItem", "DeleteItem"}
"""Those whose parameters and answers are JSON but for bytes and times that `documents` knows."""
ENDPOINT_PARAMS = ("StreamARN", "TableName", "ConsumerARN")
"""Parameters that an endpoint may depend on: accounts have their own."""
BLUEPRINTS_MAX = 64
"""A daemon has a handful of operations on a handful of tables."""
SKEW_MIN_S = 60.0
"""A signature is good for five minutes; a smaller difference is not why one was refused."""
SKEWED_CODES = frozenset(
    {
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "RequestInTheFuture",
        "ExpiredToken",
        "ExpiredTokenException",
        "AuthFailure",
    }
)
GATE_BYTES_MIN = 256 * 1024
"""Bodies above this are taken apart one at a time: threads that all want the interpreter only hinder each other."""


class WireService:
    """One service. `plain` makes the client; `credentials` and `ca_bundle` are asked for once it has, in a thread."""

    def __init__(
        self,
        plain: BotoService,
        *,
        credentials: Callable[[], Credentials | None],
        ca_bundle: Callable[[], str | None],
        threads_max: int,
        name: str,
        read_timeout_s: float,
        connect_timeout_s: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._plain = plain
        self._credentials_of = credentials
        self._ca_bundle = ca_bundle
        self._name = name
        self._read_timeout_s = read_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._wall = wall
        self._workers = Workers(threads_max=threads_max, name=name, at_end=self._end_thread)
        self._here = threading.local()
        self._gate = threading.Lock()
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._canned: Canned | None = None
        self._credentials: Credentials | None = None
        self._context: ssl.SSLContext | None = None
        self._blueprints: dict[tuple[object, ...], tuple[Blueprint, Signer | None]] = {}
        self._skew_s = 0.0

    async def open(self) -> None:
        """Create the client, and find out whether it may be done without. Raises StartupError."""
        await self._plain.open()
        try:
            await self._plain.with_client(self._prepare)
        except UnusualError as why:
            self._give_way(why)
        except Exception as error:
            raise StartupError(
                f"the {self._name} wire client cannot be made: {type(error).__name__}: {error}"
            ) from error

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """See `mld.aws.service.Service.call`."""
        if self._canned is not None and operation in OPERATIONS:
            try:
                return await self._send(operation, params, partial(_decoded, operation), timeout_s)
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.call(operation, params, timeout_s=timeout_s)

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """See `mld.aws.service.RawService.fetch`."""
        if self._canned is not None and operation in OPERATIONS:
            try:
                return await self._send(operation, params, read, timeout_s)
            except UnusualError as why:
                self._give_way(why)
        return await self._plain.fetch(operation, params, read, timeout_s=timeout_s)

    @property
    def can_stream(self) -> bool:
        """Whether `open_stream` is to be had; known once the service is open."""
        return self._canned is not None

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> FrameSource:
        """See `mld.aws.service.StreamService.open_stream`."""
        work = partial(self._open_in_thread, operation=operation, params=params)
        try:
            taken, ahead, chunked = await self._run(operation, work, timeout_s, unwanted=_close_socket)
        except UnusualError as why:
            raise AwsUnreachableError(operation, f"not without the wire client: {why}") from why
        return FrameSource(taken, ahead, chunked=chunked)

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """See `mld.aws.service.StreamService.in_thread`; one at a time, as with large bodies."""

        def gated(_: Job) -> T:
            with self._gate:
                return work()

        return await self._run(operation, gated, None)

    def _give_way(self, why: UnusualError) -> None:
        self._canned = None
        logger.info(
            "%s is called through botocore: %s",
            self._name,
            why,
            extra={"action": "wire_client", "service": self._name, "reason": str(why)},
        )

    async def _send(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], timeout_s: float | None
    ) -> T:
        return await self._run(operation, lambda job: self._perform(job, operation, params, read), timeout_s)

    async def _run(
        self,
        operation: str,
        work: Callable[[Job], T],
        timeout_s: float | None,
        unwanted: Callable[[T], None] | None = None,
    ) -> T:
        if self._workers.is_closed:
            raise AwsUnreachableError(operation, f"the {self._name} client is closed")
        limit_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s
        job = Job(work, unwanted)
        timer = asyncio.get_running_loop().call_later(limit_s, _expire, job, operation, limit_s)
        self._workers.submit(job)
        try:
            value: T = await job.outcome
            return value
        except asyncio.CancelledError:
            job.give_up()
            raise
        finally:
            timer.cancel()

    async def close(self) -> None:
        """End the threads and their connections; calls under way fail. May be called again."""
        self._workers.close()
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            connection.abort()
        await self._plain.close()

    # --- below: in the threads ---------------------------------------------------------------------------------------

    def _prepare(self, client: BaseClient) -> None:
        if client.meta.endpoint_url.startswith("https:"):
            self._context = tls_context(client, self._ca_bundle())
        else:
            tls_context(client, None)
        self._credentials = self._credentials_of()
        self._canned = Canned(client)

    def _perform(self, job: Job, operation: str, params: dict[str, Any], read: Callable[[bytes], T]) -> T:
        answer = _as_ours(operation, lambda: self._answer(job, operation, params, self._exchange))
        if len(answer.body) < GATE_BYTES_MIN:
            return read(answer.body)
        with self._gate:
            return read(answer.body)

    def _open_in_thread(self, job: Job, operation: str, params: dict[str, Any]) -> Taken:
        """The connection on which the answer to `operation` comes in, its head read."""
        taken: list[Taken] = []

        def open_one(job: Job, operation: str, params: Mapping[str, Any], body: bytes) -> Answer:
            origin, request = self._request(operation, params, body)
            connection = self._connected(operation, origin)
            try:
                job.uses(connection)
                status, headers = connection.begin(request)
                if status >= 300:
                    return connection.rest(status, headers)
                job.uses(None)
                taken.append((*connection.detach(), b"transfer-encoding" in headers))
                return Answer(status, headers, b"")
            finally:
                job.uses(None)
                if not taken:
                    self._discard(connection)
                with self._lock:
                    self._connections.discard(connection)

        _as_ours(operation, lambda: self._answer(job, operation, params, open_one))
        return taken[0]

    def _answer(self, job: Job, operation: str, params: dict[str, Any], exchange: Exchange) -> Answer:
        """A good answer; what botocore raises for a bad one."""
        canned = self._canned
        if canned is None:
            raise UnusualError("found out a moment ago")
        body = documents.encode(params)
        answer = exchange(job, operation, params, body)
        if answer.status < 300:
            return answer
        try:
            canned.explain(operation, params, answer)
        except Exception as error:
            if not self._corrected_clock(error, answer):
                raise
        else:
            raise AwsUnreachableError(operation, f"HTTP status {answer.status}")
        answer = exchange(job, operation, params, body)
        if answer.status >= 300:
            canned.explain(operation, params, answer)
            raise AwsUnreachableError(operation, f"HTTP status {answer.status}")
        return answer

    def _request(self, operation: str, params: Mapping[str, Any], body: bytes) -> tuple[Origin, bytes]:
        """A whole request, signed, and where it goes."""
        keys: Any = None if self._credentials is None else self._credentials.get_frozen_credentials()
        blueprint, signer = self._blueprint(operation, params, keys)
        signature = ""
        if signer is not None and keys is not None:
            signature = signer.headers(
                keys,
                self._wall() + self._skew_s,
                content_type=blueprint.content_type,
                host=blueprint.host,
                target=blueprint.target,
                body=body,
            )
        request = f"{blueprint.head}{signature}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
        return blueprint.origin, request

    def _exchange(self, job: Job, operation: str, params: Mapping[str, Any], body: bytes) -> Answer:
        origin, request = self._request(operation, params, body)
        connection = self._kept(origin)
        if connection is not None:
            try:
                return self._exchange_on(job, connection, origin, request)
            except NothingSentBackError:
                if operation not in READS or job.given_up:
                    raise
        return self._exchange_on(job, self._connected(operation, origin), origin, request)

    def _connected(self, operation: str, origin: Origin) -> Connection:
        try:
            connection = Connection(
                origin, connect_timeout_s=self._connect_timeout_s, read_timeout_s=self._read_timeout_s
            )
        except OSError as error:
            reason = f"cannot connect to {origin.host}:{origin.port}: {type(error).__name__}: {error}"
            raise AwsUnreachableError(operation, reason) from error
        with self._lock:
            self._connections.add(connection)
        return connection

    def _exchange_on(self, job: Job, connection: Connection, origin: Origin, request: bytes) -> Answer:
        keep = False
        job.uses(connection)
        try:
            answer, keep = connection.exchange(request)
            return answer
        finally:
            job.uses(None)
            if keep and not job.given_up and not self._workers.is_closed:
                self._mine()[origin] = connection
            else:
                self._discard(connection)

    def _kept(self, origin: Origin) -> Connection | None:
        connection = self._mine().pop(origin, None)
        if connection is not None and connection.is_stale():
            self._discard(connection)
            return None
        return connection

    def _mine(self) -> dict[Origin, Connection]:
        try:
            mine: dict[Origin, Connection] = self._here.connections
        except AttributeError:
            mine = self._here.connections = {}
        return mine

    def _discard(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def _end_thread(self) -> None:
        for connection in self._mine().values():
            self._discard(connection)

    def _blueprint(
        self, operation: str, params: Mapping[str, Any], keys: Keys | None
    ) -> tuple[Blueprint, Signer | None]:
        """From botocore, anew with every change of the keys, as an endpoint may depend on their account."""
        account = None if keys is None else keys.access_key
        wanted = (operation, account, *(params.get(name) for name in ENDPOINT_PARAMS))
        known = self._blueprints.get(wanted)
        if known is not None:
            return known
        if self._canned is None:
            raise UnusualError("found out a moment ago")
        blueprint = self._canned.blueprint(operation, params, self._context)
        made = blueprint, None if blueprint.scope is None else Signer(blueprint.scope)
        if len(self._blueprints) >= BLUEPRINTS_MAX:
            self._blueprints = {}
        self._blueprints[wanted] = made
        return made

    def _corrected_clock(self, error: Exception, answer: Answer) -> bool:
        """Whether the error was about time, and the time is known better now."""
        response: Any = getattr(error, "response", {})
        date = answer.headers.get(b"date")
        if date is None or response.get("Error", {}).get("Code") not in SKEWED_CODES:
            return False
        try:
            skew_s = parsedate_to_datetime(date.decode("latin-1")).timestamp() - self._wall()
        except ValueError:
            return False
        if abs(skew_s - self._skew_s) < SKEW_MIN_S:
            return False
        logger.warning(
            "our clock is %+.0f s off that of %s: requests are signed with its time", -skew_s, self._name,
            extra={"action": "clock_skew", "skew_s": round(skew_s, 1)},
        )  # fmt: skip
        self._skew_s = skew_s
        return True


def _as_ours(operation: str, work: Callable[[], T]) -> T:
    """Raises errors of our own tree for those of sockets, of botocore and of providers of credentials."""
    try:
        return work()
    except (AwsUnreachableError, UnusualError):
        raise
    except (OSError, BrokenAnswerError, NothingSentBackError, ssl.SSLError) as error:
        raise AwsUnreachableError(operation, f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise aws_failure(operation, error) from error


def _close_socket(taken: Taken) -> None:
    taken[0].close()


def _decoded(operation: str, body: bytes) -> dict[str, Any]:
    try:
        return documents.decode(body)
    except (ValueError, RecursionError) as error:
        raise AwsUnreachableError(operation, f"the answer is no JSON: {error}") from error


def _expire(job: Job, operation: str, limit_s: float) -> None:
    if not job.outcome.done():
        job.outcome.set_exception(AwsUnreachableError(operation, f"no answer within {limit_s:g} s"))
        job.give_up()
