"""The embedded AWS behind one port: Kinesis and DynamoDB Streams from our models, the other services from moto.

A thin shell: it reads the clock, hands each request to the model, writes the answer, and wakes the subscriptions of
shards that changed. It listens on the loopback interface unless told otherwise. There is no authentication: of a
request's signature only the region and the access key are used (`mld.local.routing`). So `mld.core.webrule` keeps the
pages of browsers out.

`run_foreground` is `mld local` and, as ``python -m mld.local.server``, the same for programs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies

from mld.core.errors import MldError
from mld.core.installed import require
from mld.core.webrule import FORBIDDEN, WebRule
from mld.local import control, encodings, json_api, routing
from mld.local import dynamo_streams as table_streams
from mld.local.accounts import Accounts
from mld.local.control import Fault, FaultPlan
from mld.local.dynamo_streams import TableStreams
from mld.local.encodings import JSON, Encoding, encoding_of
from mld.local.fallback import OtherServices, TableEvent
from mld.local.http import Connections, HttpConnection, HttpRequest, HttpResponse, Peer
from mld.local.kinesis import REGION, SHARD_LIMIT, Kinesis, StateDelays
from mld.local.kinesis_errors import ACCOUNT, KinesisError, ServiceError
from mld.local.records import event_json
from mld.local.routing import DYNAMODB_STREAMS, KINESIS, NAMES, STS, Call, error_answer, identify, unknown_service
from mld.local.shard_subscription import Finished, Idle, ShardSubscription, SubscriptionEvent

log = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4567
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""The address by which its own machine calls a server that listens on all."""
_OPEN_CONNECTIONS_BACKLOG = 1024
_NO_FAULT = Fault()
_Key = tuple[str, str, str, str]
"""Account, region, stream, shard."""

_PROXIES_OF_HTTP = ("http", "all")
_FIRST_STREAM = re.compile(
    r"(?:arn:aws[a-z-]*:kinesis:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):stream/)?(?P<name>[a-zA-Z0-9_.-]{1,128})"
    r"(?::(?P<shards>[1-9]\d{0,4}))?"
)


class EmbeddedServer:
    """Made by `serve`; `endpoint` is its URL. `close` ends every connection."""

    def __init__(self, host: str, *, allow_hosts: Iterable[str], enforce: bool, delays: StateDelays) -> None:
        self.faults = FaultPlan()
        self.calls: dict[str, int] = {}
        self.host = host
        names = {name.lower() for name in (host, *allow_hosts)} - _ANY_ADDRESS.keys()
        self._web_rule = WebRule(frozenset(names), "start `mld local` with --allow-host and that name")
        self.port = 0
        self.offset_s = 0.0
        self.delays = delays
        self._enforce = enforce
        self._kinesis_models: dict[tuple[str, str], Kinesis] = {}
        self.dynamo_streams = TableStreams(enforce=enforce)
        self._accounts = Accounts()
        self._watchers: dict[_Key, set[asyncio.Event]] = {}
        self._connections: Connections = set()
        self._requests = 0
        self._others: OtherServices
        self._listener: asyncio.Server

    @property
    def endpoint(self) -> str:
        host = _ANY_ADDRESS.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        from mld.local.http2 import Http2Connection  # its library comes with the extra `local`

        self._listener = await loop.create_server(
            lambda: HttpConnection(self.handle, self._connections, Http2Connection),
            self.host,
            port,
            backlog=_OPEN_CONNECTIONS_BACKLOG,
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._others = OtherServices(self.port, self.now, self._tables_changed)

    async def close(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.abort()
        self._others.close()

    # --- controls ----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return time.time() + self.offset_s

    def set_offset(self, seconds: float) -> None:
        self.offset_s = seconds
        self._wake_all()

    def set_delays(self, delays: StateDelays) -> None:
        self.delays = delays
        for kinesis in self._kinesis_models.values():
            kinesis.delays = delays

    def set_enforce(self, enforce: bool) -> None:
        self._enforce = enforce
        self.dynamo_streams.enforce = enforce
        for kinesis in self._kinesis_models.values():
            kinesis.enforce = enforce

    def kinesis(self, region: str = REGION, account: str = ACCOUNT) -> Kinesis:
        """Return the model of one account in one region."""
        place = (account, region)
        if place not in self._kinesis_models:
            self._kinesis_models[place] = Kinesis(
                region=region, account=account, enforce=self._enforce, delays=self.delays
            )
        return self._kinesis_models[place]

    def _tables_changed(self, events: Sequence[TableEvent]) -> None:
        for event in events:
            event(self.dynamo_streams)

    # --- requests ----------------------------------------------------------------------------------------------------

    def handle(self, request: HttpRequest, peer: Peer) -> HttpResponse | Coroutine[None, None, None]:
        if (reason := self._web_rule.refusal(request.target, request.headers, request.arrived_at)) is not None:
            return error_answer(request.headers, "AccessDeniedException", reason, FORBIDDEN)
        if request.target.startswith(control.PREFIX):
            return self._expire(peer) if control.is_expiry(request) else control.handle(self, request)
        if (call := identify(request, self._accounts)) is None:
            return unknown_service(request)
        service, operation = call.service.name, call.operation
        name = f"{service}.{operation}"
        self.calls[name] = self.calls.get(name, 0) + 1
        if service == KINESIS:
            try:
                request.body = encoding_of(request.headers).read(request.body)
            except KinesisError as error:
                return self._answer(JSON, error.body, error.status)
        fault = self.faults.take(service, operation, request.body) or _NO_FAULT
        if service == KINESIS and operation == "SubscribeToShard":
            return self._subscribe(call, request, peer, fault)
        if call.service.is_ours and fault is _NO_FAULT:
            return self._modelled(call, request)
        return self._answer_later(call, request, peer, fault)

    def _modelled(self, call: Call, request: HttpRequest, *, empty: bool = False) -> HttpResponse:
        """Return the answer of one of our models."""
        try:
            if call.service.name == KINESIS:
                return self._kinesis(call, request, empty=empty)
            body = table_streams.dispatch(
                self.dynamo_streams,
                call.operation,
                request.body,
                self.now(),
                account=call.account,
                region=call.region,
                empty=empty,
            )
            return HttpResponse(body, 200, table_streams.CONTENT_TYPE, self._request_id())
        except ServiceError as error:
            return self._refusal(call, request, error)
        except Exception:
            # A bug of the model must not look like a network failure to the client.
            service, operation = call.service.name, call.operation
            fields = {"action": "local_model_failed", "service": service, "operation": operation}
            log.exception("The embedded AWS failed", extra=fields)
            code = "InternalFailure" if service == KINESIS else "InternalServerError"
            return self._refusal(call, request, ServiceError(code, f"{operation} failed; see the server's log", 500))

    def _kinesis(self, call: Call, request: HttpRequest, *, empty: bool) -> HttpResponse:
        def find(account: str | None) -> Kinesis:
            return self.kinesis(call.region, account or call.account)

        answer = json_api.dispatch(find, call.operation, request.body, self.now(), empty=empty)
        if call.operation not in json_api.READ_ONLY:
            self._wake_all()
        for stream, shard_id in answer.touched:
            self._wake((answer.account, call.region, stream, shard_id))
        return self._answer(encoding_of(request.headers), answer.body)

    async def _expire(self, peer: Peer) -> None:
        peer.respond(control.json_answer({"expired": await self._others.expire()}))

    async def _answer_later(self, call: Call, request: HttpRequest, peer: Peer, fault: Fault) -> None:
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        response = None
        if fault.empty or fault.after or fault.is_late_only:
            if call.service.is_ours:
                response = self._modelled(call, request, empty=fault.empty)
            else:
                response = await self._others.answer(call, request)
                if call.service.name == STS:
                    self._accounts.learn(response.body)
        if fault.drop:
            peer.abort()
        elif fault.code:
            peer.respond(self._refusal(call, request, fault.refusal))
        elif response is not None:
            peer.respond(response)

    def _answer(self, encoding: Encoding, body: bytes, status: int = 200) -> HttpResponse:
        return HttpResponse(encoding.write(body), status, encoding.content_type, self._request_id())

    def _refusal(self, call: Call, request: HttpRequest, error: ServiceError) -> HttpResponse:
        if call.service.name == DYNAMODB_STREAMS:
            body = table_streams.DynamoStreamsError(error.code, error.message).body
            return HttpResponse(body, error.status, table_streams.CONTENT_TYPE, self._request_id())
        return self._answer(encoding_of(request.headers), error.body, error.status)

    def _request_id(self) -> list[tuple[str, str]]:
        self._requests += 1
        return [("x-amzn-RequestId", f"00000000-0000-4000-8000-{self._requests:012d}")]

    # --- subscriptions -----------------------------------------------------------------------------------------------

    async def _subscribe(self, call: Call, request: HttpRequest, peer: Peer, fault: Fault) -> None:
        encoding = encoding_of(request.headers)
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.after_events is None and not fault.is_late_only:
            if fault.drop:
                peer.abort()
            else:
                peer.respond(self._refusal(call, request, fault.refusal))
            return
        try:
            fields = json_api.parse(request.body)
            account = fields.account() or call.account
            subscription, watch = json_api.open_subscription(self.kinesis(call.region, account), fields, self.now())
        except KinesisError as error:
            peer.respond(self._refusal(call, request, error))
            return
        # Another subscription may just have been taken over: its own stream has to notice.
        self._wake((account, call.region, *watch))
        async with self._watching((account, call.region, *watch)) as wake:
            try:
                await self._stream(subscription, peer, encoding, wake, fault)
            finally:
                subscription.stop()

    async def _stream(
        self, subscription: ShardSubscription, peer: Peer, encoding: Encoding, wake: asyncio.Event, fault: Fault
    ) -> None:
        peer.start_stream(routing.EVENT_STREAM, self._request_id())
        await peer.send(encodings.initial_response(encoding))
        sent = 0
        while peer.is_open:
            if fault.after_events is not None and sent >= fault.after_events:
                if not fault.code:
                    peer.abort()
                    return
                subscription.stop(fault.refusal)
            wake.clear()
            match subscription.next_step(self.now()):
                case SubscriptionEvent() as event:
                    await peer.send(encodings.event("SubscribeToShardEvent", event_json(event), encoding))
                    sent += 1
                case Idle(until_s):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, until_s - self.now())):
                            await wake.wait()
                case Finished(error):
                    if error is not None:
                        await peer.send(encodings.exception(error.code, error.body, encoding))
                    peer.end_stream()
                    return

    @contextlib.asynccontextmanager
    async def _watching(self, key: _Key) -> AsyncIterator[asyncio.Event]:
        wake = asyncio.Event()
        watchers = self._watchers.setdefault(key, set())
        watchers.add(wake)
        try:
            yield wake
        finally:
            watchers.discard(wake)
            if not watchers and self._watchers.get(key) is watchers:
                del self._watchers[key]

    def _wake(self, key: _Key) -> None:
        for event in self._watchers.get(key, ()):
            event.set()

    def _wake_all(self) -> None:
        for key in self._watchers:
            self._wake(key)


async def serve(
    host: str = DEFAULT_HOST,
    port: int = 0,
    *,
    allow_hosts: Iterable[str] = (),
    enforce: bool = False,
    delays: StateDelays | None = None,
) -> EmbeddedServer:
    """Listen (port 0: any free one) and answer until `close`. `allow_hosts` are names by which clients may call besides
    localhost and addresses (`mld.core.webrule`), `enforce` switches the throughput limits on, `delays` say how long
    streams and consumers show their passing states. Raises OSError if the port is taken."""
    server = EmbeddedServer(host, allow_hosts=allow_hosts, enforce=enforce, delays=delays or StateDelays())
    await server.start(port)
    return server


class FirstStreamError(MldError):
    """The text is no stream to make at the start; it says what would be one."""


@dataclass(frozen=True, slots=True)
class FirstStream:
    """A stream that is made at the start."""

    name: str
    shards: int = 1
    account: str = ACCOUNT
    region: str = REGION


def first_stream(text: str) -> FirstStream:
    """Parse ``NAME``, ``NAME:SHARDS``, or an ARN in place of the name, for another account or region. Raises
    FirstStreamError."""
    found = _FIRST_STREAM.fullmatch(text)
    if found is None or int(found["shards"] or 1) > SHARD_LIMIT:
        raise FirstStreamError(
            f"{text!r} is no stream: write NAME:SHARDS, as in orders:4, or the ARN of a Kinesis stream before the "
            f"colon; at most {SHARD_LIMIT} shards"
        )
    account, region = found["account"] or ACCOUNT, found["region"] or REGION
    return FirstStream(found["name"], int(found["shards"] or 1), account, region)


def usage_lines(endpoint: str, *, behind_proxy: bool = False) -> str:
    """Return what a user pastes into a shell and into a properties file to use the server.

    The region twice: boto3 reads only the second variable, the other SDKs the first. A profile would bring keys and
    endpoints of its own. `behind_proxy`: the shell has a proxy for http, which cannot reach this machine's loopback.
    """
    host = urlsplit(endpoint).hostname
    direct = f"  export no_proxy={host}${{no_proxy:+,$no_proxy}} NO_PROXY={host}${{NO_PROXY:+,$NO_PROXY}}\n"
    return f"""\
The embedded AWS listens on {endpoint} ({NAMES}; nothing is kept after it stops).

For a shell:
  export AWS_ENDPOINT_URL={endpoint} AWS_REGION={REGION} AWS_DEFAULT_REGION={REGION}
  export AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local; unset AWS_PROFILE AWS_SESSION_TOKEN
{direct if behind_proxy else ""}
For a .properties file:
  regionName = {REGION}
  kinesisEndpoint = {endpoint}
  dynamoDBEndpoint = {endpoint}
  cloudWatchEndpoint = {endpoint}

Stop it with Ctrl-C.
"""


def check_extra() -> None:
    """Raise NotReadyError without the packages of the extra `local`."""
    require("local", "the embedded AWS", "moto", "flask", "flask_cors", "cbor2", "h2")


def run_foreground(
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    *,
    allow_hosts: Sequence[str] = (),
    enforce: bool = False,
    streams: Sequence[FirstStream] = (),
    as_json: bool = False,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status, 0.

    `port` 0 takes any free one. Clients may also call by the names in `allow_hosts`. `streams` are made at the start.
    Once the server listens, stdout gets the lines to paste, or with `as_json` one JSON line:
    ``{"endpoint": ..., "host": ..., "port": ..., "pid": ...}``. Raises NotReadyError without the extra `local`, OSError
    if the port is taken, and KinesisError for two streams of one name in one place.
    """
    check_extra()

    async def until_signal() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        server = await serve(host, port, allow_hosts=allow_hosts, enforce=enforce)
        try:
            for stream in streams:
                kinesis = server.kinesis(stream.region, stream.account)
                kinesis.create_stream(stream.name, now=time.time(), shard_count=stream.shards)
            sys.stdout.write(_announcement(server, as_json=as_json))
            sys.stdout.flush()
            await stop.wait()
        finally:
            await server.close()

    asyncio.run(until_signal())
    return 0


def _announcement(server: EmbeddedServer, *, as_json: bool) -> str:
    if as_json:
        facts = {"endpoint": server.endpoint, "host": server.host, "port": server.port, "pid": os.getpid()}
        return json.dumps(facts) + "\n"
    behind_proxy = not getproxies().keys().isdisjoint(_PROXIES_OF_HTTP)
    return usage_lines(server.endpoint, behind_proxy=behind_proxy)


def main() -> int:
    parser = argparse.ArgumentParser(description="The embedded AWS, for programs: one line of JSON once it listens.")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--enforce", action="store_true", help="enforce the throughput limits of a shard")
    parser.add_argument("--stream", action="append", default=[], metavar="NAME:SHARDS", help="made at the start")
    given = parser.parse_args()
    streams = [first_stream(text) for text in given.stream]
    return run_foreground(port=given.port, enforce=given.enforce, streams=streams, as_json=True)


if __name__ == "__main__":
    sys.exit(main())
