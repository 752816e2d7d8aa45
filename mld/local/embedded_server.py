"""`EmbeddedServer`: the embedded AWS behind one port. Kinesis and DynamoDB Streams are our models, the rest is moto.

The server has no rules of AWS in it: it reads the clock, passes each request to a model, sends the answer, and wakes
the subscriptions of shards that changed. By default it listens on the loopback interface. It checks no signatures: only
the region and the access key in a request's signature are used (`mld.local.routing`). So `mld.core.webrule` must refuse
requests that a web page in a browser sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

from mld.core.webrule import FORBIDDEN, WebRule
from mld.local import control, dynamo_streams, event_frames, json_api, routing
from mld.local.accounts import Accounts
from mld.local.change_stream import DynamoStreamsError
from mld.local.encodings import JSON, Encoding, encoding_of
from mld.local.fallback import OtherServices
from mld.local.faults import Fault, FaultPlan
from mld.local.http import Connections, HttpConnection, HttpRequest, HttpResponse, Peer
from mld.local.kinesis import REGION, Kinesis, StateDelays
from mld.local.kinesis_errors import ACCOUNT, KinesisError, ServiceError
from mld.local.moto_tables import TableEvent
from mld.local.operation_request import parse
from mld.local.records import event_json
from mld.local.routing import DYNAMODB_STREAMS, KINESIS, STS, Call, error_answer, identify, unknown_service
from mld.local.shard_subscription import Finished, Idle, ShardSubscription, SubscriptionEvent
from mld.local.table_streams import TableStreams

log = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""The address at which this machine reaches a server that listens on all addresses."""
_OPEN_CONNECTIONS_BACKLOG = 1024
_NO_FAULT = Fault()
_Key = tuple[str, str, str, str]
"""Account, region, stream name and shard id."""


class EmbeddedServer:
    """The server. Call `serve` to make one. `endpoint` is its URL."""

    def __init__(self, host: str, *, allow_hosts: Iterable[str], enforce: bool, delays: StateDelays) -> None:
        self.faults = FaultPlan()
        self.calls: dict[str, int] = {}  # how many calls each operation got, by names like `kinesis.GetRecords`
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
        self._watchers: dict[_Key, set[asyncio.Event]] = {}  # the events that wake the subscriptions of each shard
        self._connections: Connections = set()
        self._requests = 0
        self._others: OtherServices
        self._listener: asyncio.Server

    @property
    def endpoint(self) -> str:
        host = _ANY_ADDRESS.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self, port: int) -> None:
        """Begin to listen on this port (0: any free one). Importing moto begins, too, and goes on in the background."""
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
        """Stop listening and end every connection."""
        self._listener.close()
        for connection in self._connections:
            connection.abort()
        self._others.close()

    # --- controls ----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time of the streams and tables, in epoch seconds. Tests may shift it."""
        return time.time() + self.offset_s

    def set_offset(self, seconds: float) -> None:
        """Set the server's clock `seconds` ahead of this machine's clock. Wake all subscriptions, because by the new
        time they may have something to send.
        """
        self.offset_s = seconds
        self._wake_all()

    def set_delays(self, delays: StateDelays) -> None:
        """Set how long streams and consumers stay in states like CREATING."""
        self.delays = delays
        for kinesis in self._kinesis_models.values():
            kinesis.delays = delays

    def set_enforce(self, enforce: bool) -> None:
        """Set whether the limits of throughput are enforced."""
        self._enforce = enforce
        self.dynamo_streams.enforce = enforce
        for kinesis in self._kinesis_models.values():
            kinesis.enforce = enforce

    def kinesis(self, region: str = REGION, account: str = ACCOUNT) -> Kinesis:
        """Return the model of Kinesis for one account in one region."""
        place = (account, region)
        if place not in self._kinesis_models:
            self._kinesis_models[place] = Kinesis(
                region=region, account=account, enforce=self._enforce, delays=self.delays
            )
        return self._kinesis_models[place]

    def _tables_changed(self, events: Sequence[TableEvent]) -> None:
        """Make the changes that a request made to tables in the model of DynamoDB Streams."""
        for event in events:
            event(self.dynamo_streams)

    # --- requests ----------------------------------------------------------------------------------------------------

    def handle(self, request: HttpRequest, peer: Peer) -> HttpResponse | Coroutine[None, None, None]:
        """Return the answer to a request, or a coroutine that answers it through `peer`: if it is a subscription, if
        moto answers it, or if a test has injected a fault for it.
        """
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
        """Return the answer of one of our models. With `empty`, GetRecords returns no records."""
        try:
            if call.service.name == KINESIS:
                return self._kinesis(call, request, empty=empty)
            body = dynamo_streams.dispatch(
                self.dynamo_streams,
                call.operation,
                request.body,
                self.now(),
                account=call.account,
                region=call.region,
                empty=empty,
            )
            return HttpResponse(body, 200, dynamo_streams.CONTENT_TYPE, self._request_id())
        except ServiceError as error:
            return self._refusal(call, request, error)
        except Exception:
            # The client must not take a bug of the model for a network failure.
            service, operation = call.service.name, call.operation
            fields = {"action": "local_model_failed", "service": service, "operation": operation}
            log.exception("The embedded AWS failed", extra=fields)
            code = "InternalFailure" if service == KINESIS else "InternalServerError"
            return self._refusal(call, request, ServiceError(code, f"{operation} failed; see the server's log", 500))

    def _kinesis(self, call: Call, request: HttpRequest, *, empty: bool) -> HttpResponse:
        """Return the answer of Kinesis, and wake the subscriptions that it may concern."""

        def find(account: str | None) -> Kinesis:
            return self.kinesis(call.region, account or call.account)

        answer = json_api.dispatch(find, call.operation, request.body, self.now(), empty=empty)
        if call.operation not in json_api.READ_ONLY:
            self._wake_all()
        for stream, shard_id in answer.touched:
            self._wake((answer.account, call.region, stream, shard_id))
        return self._answer(encoding_of(request.headers), answer.body)

    async def _expire(self, peer: Peer) -> None:
        """Delete the items of all tables whose time to live is over, and answer how many there were."""
        peer.respond(control.json_answer({"expired": await self._others.expire()}))

    async def _answer_later(self, call: Call, request: HttpRequest, peer: Peer, fault: Fault) -> None:
        """Answer a request that moto answers, or that has a fault.

        The operation is performed unless the fault replaces it: by an error, or by closing the connection. With
        `fault.after` the operation is performed first, and only its answer is replaced. With `fault.empty` GetRecords
        returns no records.
        """
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        response = None
        if fault.empty or fault.after or fault.is_late_only:
            if call.service.is_ours:
                response = self._modelled(call, request, empty=fault.empty)
            else:
                response = await self._others.answer(call, request)
                if response is not None and call.service.name == STS:
                    self._accounts.learn(response.body)
        if fault.drop:
            peer.abort()
        elif fault.code:
            peer.respond(self._refusal(call, request, fault.refusal))
        elif response is not None:
            peer.respond(response)

    def _answer(self, encoding: Encoding, body: bytes, status: int = 200) -> HttpResponse:
        """Return an answer of Kinesis in the encoding of its client; `body` is JSON."""
        return HttpResponse(encoding.write(body), status, encoding.content_type, self._request_id())

    def _refusal(self, call: Call, request: HttpRequest, error: ServiceError) -> HttpResponse:
        """Return an error as the service of the call would send it."""
        if call.service.name == DYNAMODB_STREAMS:
            body = DynamoStreamsError(error.code, error.message).body
            return HttpResponse(body, error.status, dynamo_streams.CONTENT_TYPE, self._request_id())
        return self._answer(encoding_of(request.headers), error.body, error.status)

    def _request_id(self) -> list[tuple[str, str]]:
        """Return the header with the id of the next request."""
        self._requests += 1
        return [("x-amzn-RequestId", f"00000000-0000-4000-8000-{self._requests:012d}")]

    # --- subscriptions -----------------------------------------------------------------------------------------------

    async def _subscribe(self, call: Call, request: HttpRequest, peer: Peer, fault: Fault) -> None:
        """Answer SubscribeToShard by a stream of events, until the subscription ends or the client leaves. A fault may
        delay the answer, replace it by an error, or close the connection; a fault with `after_events` takes effect
        later (`_stream`).
        """
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
            fields = parse(request.body)
            account = fields.account() or call.account
            subscription, watch = json_api.open_subscription(self.kinesis(call.region, account), fields, self.now())
        except KinesisError as error:
            peer.respond(self._refusal(call, request, error))
            return
        # The new subscription may have taken over an older one. Wake the older one, because its answer must end now.
        self._wake((account, call.region, *watch))
        async with self._watching((account, call.region, *watch)) as wake:
            try:
                await self._stream(subscription, peer, encoding, wake, fault)
            finally:
                subscription.stop()

    async def _stream(
        self, subscription: ShardSubscription, peer: Peer, encoding: Encoding, wake: asyncio.Event, fault: Fault
    ) -> None:
        """Send the events of a subscription. `wake` is set when its shard has changed. After as many events as
        `fault.after_events` says, close the connection, or end the subscription with the error of the fault.
        """
        peer.start_stream(routing.EVENT_STREAM, self._request_id())
        await peer.send(event_frames.initial_response(encoding))
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
                    await peer.send(event_frames.event("SubscribeToShardEvent", event_json(event), encoding))
                    sent += 1
                case Idle(until_s):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(0.0, until_s - self.now())):
                            await wake.wait()
                case Finished(error):
                    if error is not None:
                        await peer.send(event_frames.exception(error.code, error.body, encoding))
                    peer.end_stream()
                    return

    @contextlib.asynccontextmanager
    async def _watching(self, key: _Key) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set whenever this shard changes inside the context."""
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
        """Wake the subscriptions of a shard that has changed."""
        for event in self._watchers.get(key, ()):
            event.set()

    def _wake_all(self) -> None:
        """Wake all subscriptions."""
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
    """Start a server on `port` (0: any free port), and return it. It answers until its `close` is called.

    `allow_hosts` are host names by which clients may call the server, besides localhost and IP addresses
    (`mld.core.webrule`). `enforce` switches the throughput limits on. `delays` says how long streams and consumers stay
    in states like CREATING. Raises OSError if the port is taken.
    """
    server = EmbeddedServer(host, allow_hosts=allow_hosts, enforce=enforce, delays=delays or StateDelays())
    await server.start(port)
    return server
