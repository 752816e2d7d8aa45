"""DynamoDB, CloudWatch, STS and Glue: moto's WSGI applications behind one lock.

moto's conditional writes are not atomic between threads. Everything it does, its import included, happens on the single
thread of one executor, which is the lock. Each service is an application of its own, and `mld.local.routing` chooses
the one for a request: moto's own dispatcher, which serves all of AWS and moto's controls, is not used.

What a request does to tables with a stream is told to the model of DynamoDB Streams (`TableChanges`). moto hands the
item before and after each write to the object that it makes of `StreamShard` for a table with a stream, whichever
operation it was: PutItem, UpdateItem, DeleteItem, BatchWriteItem, TransactWriteItems, PartiQL. `_Tap` takes that
object's place and copies the two items at once, because moto goes on to change them. When the request is over,
`TableChanges.finish` gives away what is in force: a transaction that moto takes back puts a copy of the table in the
place of the table that was written.

moto's own way with streams lacks three things, which are mended here: a stream that was disabled cannot be enabled
again, enabling twice is refused with another code than the service's, and a table without a view type is accepted.

moto is imported in the background after the start; meanwhile Kinesis answers.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

from mld.local.dynamo_streams import ItemChange, TableStreamKey, TableStreams, ViewType, coalesced
from mld.local.http import HttpRequest, HttpResponse
from mld.local.kinesis_errors import ServiceError
from mld.local.legacy_conditions import UnsupportedConditionError, rewrite_expected
from mld.local.routing import DYNAMODB, Call

log = logging.getLogger(__name__)

_SPECIFICATION = "StreamSpecification"
_WITH_TABLES = frozenset(("CreateTable", "UpdateTable", "DeleteTable"))
_TTL_PAST_S = 5 * 365 * 86_400.0
"""An expiry longer ago than five years is not taken for one, as in the service."""

TableEvent = Callable[[TableStreams], object]
"""What a request did, to be done to the model."""
_labels: set[str] = set()
"""ARNs of tables with the labels of their streams, so that none is given out twice."""

_HOP_BY_HOP = frozenset(("connection", "content-length", "content-type", "date", "server", "transfer-encoding"))

_ACCOUNT_HEADER = "x-moto-account-id"
"""Tells moto the account of a request; taken from clients, it would be another way to choose one."""
_CORS = "access-control-"
"""Headers by which moto lets every page read its answers; see `mld.core.webrule`."""

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class StreamSpecificationError(ValueError):
    """A request that the service refuses; the text is its message."""


class _Request(threading.local):
    """What the request in hand has done so far."""

    changes: list[tuple[Any, ItemChange]] | None = None
    now_s = 0.0
    by_ttl = False


_request = _Request()


class _Tap:
    """In the place of moto's `StreamShard`, one for each table with a stream."""

    def __init__(self, _account: str, table: Any) -> None:
        self.table = table
        at_ms = round(_request.now_s * 1000)
        while f"{table.table_arn} {_label(at_ms)}" in _labels:
            at_ms += 1
        _labels.add(f"{table.table_arn} {_label(at_ms)}")
        table.latest_stream_label = _label(at_ms)

    def add(self, old: Any, new: Any) -> None:
        if _request.changes is None or not _is_enabled(self.table):
            return
        before, after = _plain_item(old), _plain_item(new)
        either = after if before is None else before
        if either is not None:
            keys = {key["AttributeName"]: either[key["AttributeName"]] for key in self.table.schema}
            _request.changes.append((self.table, ItemChange(keys, before, after, _request.by_ttl)))


def install() -> None:
    """Put `_Tap` into moto, for the whole process."""
    from moto.dynamodb.models import table

    table.StreamShard = _Tap


class TableChanges:
    """`now` is the server's clock; `publish` is called with what one request did, before it is answered."""

    def __init__(self, now: Callable[[], float], publish: Callable[[Sequence[TableEvent]], None]) -> None:
        self._now = now
        self._publish = publish
        self._enabled: dict[str, TableStreamKey] = {}

    def begin(self, operation: str, body: bytes, account: str, region: str) -> None:
        """Begin before moto has the request. Raises StreamSpecificationError."""
        _request.changes, _request.now_s, _request.by_ttl = [], self._now(), False
        if operation in ("CreateTable", "UpdateTable") and _SPECIFICATION.encode() in body:
            _check_specification(operation, body, account, region)

    def finish(self, operation: str, account: str, region: str) -> None:
        """Finish after moto has answered, whatever it said."""
        changes, now = _request.changes or [], _request.now_s
        _request.changes = None
        events: list[TableEvent] = []
        if operation in _WITH_TABLES or operation.startswith(("Restore", "Import")):
            events += self._streams_changed(account, region, now)
        events += self._items_changed(changes, now)
        if events:
            self._publish(events)

    def expire(self) -> int:
        """Delete the items whose time to live is over; how many."""
        count = 0
        for backend in _backends():
            for table in list(backend.tables.values()):
                self.begin("", b"", backend.account_id, backend.region_name)
                _request.by_ttl = True
                for item in _expired(table, _request.now_s):
                    table.delete_item(item.hash_key, item.range_key)
                    count += 1
                self.finish("", backend.account_id, backend.region_name)
        return count

    def _streams_changed(self, account: str, region: str, now: float) -> Iterator[TableEvent]:
        found = {_key(table).arn: table for table in _tables(account, region).values() if _is_enabled(table)}
        here = {arn for arn, key in self._enabled.items() if (key.account, key.region) == (account, region)}
        for arn in here - found.keys():
            del self._enabled[arn]
            yield partial(TableStreams.disable, arn=arn, now=now)
        for arn in found.keys() - here:
            yield self._enable(found[arn], now)

    def _items_changed(self, changes: Sequence[tuple[Any, ItemChange]], now: float) -> Iterator[TableEvent]:
        by_table: dict[str, list[ItemChange]] = {}
        for table, change in changes:
            if _tables(table.account_id, table.region_name).get(table.name) is not table:
                continue  # a transaction that was taken back
            arn = _key(table).arn
            if arn not in self._enabled:
                yield self._enable(table, now)
            by_table.setdefault(arn, []).append(change)
        for arn, found in by_table.items():
            yield partial(TableStreams.record, arn=arn, changes=coalesced(found), now=now)

    def _enable(self, table: Any, now: float) -> TableEvent:
        key = _key(table)
        self._enabled[key.arn] = key
        view = ViewType(table.stream_specification["StreamViewType"])
        schema = [dict(part) for part in table.schema]
        return partial(TableStreams.enable, key=key, view=view, key_schema=schema, now=now)


# --- moto's objects --------------------------------------------------------------------------------------------------


def _check_specification(operation: str, body: bytes, account: str, region: str) -> None:
    try:
        request = json.loads(body)
        wanted, name = request.get(_SPECIFICATION), str(request.get("TableName"))
    except (ValueError, AttributeError):
        return  # moto has an answer to that
    if not isinstance(wanted, dict):
        return
    view, enabled = wanted.get("StreamViewType"), wanted.get("StreamEnabled")
    if not isinstance(enabled, bool):
        raise StreamSpecificationError(
            "1 validation error detected: Value null at 'streamSpecification.streamEnabled' failed to satisfy "
            "constraint: Member must not be null"
        )
    if enabled and view not in {known.value for known in ViewType}:
        raise StreamSpecificationError(
            "One or more parameter values were invalid: StreamViewType must be one of "
            f"{', '.join(known.value for known in ViewType)} if StreamEnabled is true"
        )
    if not enabled and view is not None:
        raise StreamSpecificationError(
            "One or more parameter values were invalid: StreamViewType must not be given if StreamEnabled is false"
        )
    if operation == "UpdateTable" and (table := _tables(account, region).get(name.rpartition("/")[2])) is not None:
        if enabled and _is_enabled(table):
            raise StreamSpecificationError(f"Table already has an enabled stream: TableName: {table.name}")
        if not enabled and not _is_enabled(table):
            raise StreamSpecificationError(f"Table has no enabled stream: TableName: {table.name}")
        if enabled:
            table.latest_stream_label = None  # or else moto refuses


def _backends() -> list[Any]:
    from moto.dynamodb.models import dynamodb_backends

    return [backend for regions in list(dynamodb_backends.values()) for backend in list(regions.values())]


def _tables(account: str, region: str) -> dict[str, Any]:
    from moto.dynamodb.models import dynamodb_backends

    found: dict[str, Any] = dynamodb_backends[account][region].tables
    return found


def _is_enabled(table: Any) -> bool:
    return bool((table.stream_specification or {}).get("StreamEnabled")) and isinstance(table.stream_shard, _Tap)


def _key(table: Any) -> TableStreamKey:
    return TableStreamKey(table.account_id, table.region_name, table.name, table.latest_stream_label)


def _label(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}"


def _expired(table: Any, now_s: float) -> list[Any]:
    if table.ttl.get("TimeToLiveStatus") != "ENABLED":
        return []
    name = table.ttl["AttributeName"]

    def is_over(item: Any) -> bool:
        value = item.attrs.get(name)
        return value is not None and value.type == "N" and now_s - _TTL_PAST_S <= float(value.value) <= now_s

    return [item for item in table.all_items() if is_over(item)]


def _plain_item(item: Any) -> dict[str, Any] | None:
    return None if item is None else {name: _plain(value) for name, value in item.attrs.items()}


def _plain(value: Any) -> dict[str, Any]:
    """Return a DynamoType as DynamoDB's JSON, sharing nothing with it."""
    content = value.value
    if value.is_list():
        content = [_plain(element) for element in content]
    elif value.is_map():
        content = {name: _plain(element) for name, element in content.items()}
    elif value.is_set():
        content = [_text(element) for element in content]
    elif isinstance(content, bytes) or value.is_number():
        content = _text(content)
    return {value.type: content}


def _text(content: Any) -> str:
    return base64.b64encode(content).decode() if isinstance(content, bytes) else str(content)


class OtherServices:
    """Begins the import at once; an answer waits for it on the same thread."""

    def __init__(self, port: int, now: Callable[[], float], publish: Callable[[Sequence[TableEvent]], None]) -> None:
        """Prepare moto: `now` is the server's clock. `publish` is called on the loop, in the order of the requests,
        and before the answer to the request that did these things.
        """
        loop = asyncio.get_running_loop()
        self._port = port

        def tell(events: Sequence[TableEvent]) -> None:
            with contextlib.suppress(RuntimeError):  # the server is closed, and its loop with it
                loop.call_soon_threadsafe(publish, events)

        self._changes = TableChanges(now, tell)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="moto")
        self._apps: dict[str, WsgiApp] = {}
        self._importing = self._executor.submit(_import)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def answer(self, call: Call, request: HttpRequest) -> HttpResponse:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._answer, call, request)

    async def expire(self) -> int:
        """Delete the items of all tables whose time to live is over; how many."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._changes.expire)

    # --- on the one thread -------------------------------------------------------------------------------------------

    def _answer(self, call: Call, request: HttpRequest) -> HttpResponse:
        if call.service.name != DYNAMODB:
            return self._call(call, request)
        try:
            self._changes.begin(call.operation, request.body, call.account, call.region)
        except StreamSpecificationError as error:
            return _error("ValidationException", str(error))
        try:
            return self._call(call, request)
        finally:
            self._changes.finish(call.operation, call.account, call.region)

    def _call(self, call: Call, request: HttpRequest) -> HttpResponse:
        if call.operation == "DeleteItem":
            try:
                body = json.dumps(rewrite_expected(json.loads(request.body))).encode()
            except (UnsupportedConditionError, ValueError, KeyError, IndexError) as error:
                return _error("ValidationException", str(error))
            headers = request.headers | {"content-length": str(len(body))}
            request = HttpRequest(request.method, request.target, headers, body)
        try:
            backend = call.service.backend
            assert backend is not None, "the others have models of ours"
            app = self._apps.get(backend) or self._apps.setdefault(backend, self._importing.result()(backend))
            response = self._run(app, request, call.account)
        except Exception as error:
            # Whatever moto raises becomes an answer, and the one thread goes on.
            log.exception("moto failed", extra={"action": "local_moto_failed"})
            return HttpResponse(ServiceError("InternalFailure", str(error)).body, 500)
        if response.status == 400 and b"Invalid index: " in response.body:
            # For moto, a query of an index that does not exist finds no resource.
            return _error("ValidationException", "The table does not have the specified index")
        return response

    def _run(self, app: WsgiApp, request: HttpRequest, account: str) -> HttpResponse:
        from werkzeug.test import EnvironBuilder, run_wsgi_app

        # In WSGI a name with an underscore would stand for the one with a dash.
        headers = [(name, value) for name, value in request.headers.items() if "_" not in name]
        headers = [(name, value) for name, value in headers if name != _ACCOUNT_HEADER] + [(_ACCOUNT_HEADER, account)]
        builder = EnvironBuilder(
            request.target,
            f"http://127.0.0.1:{self._port}",
            method=request.method,
            headers=headers,
            data=request.body,
            errors_stream=sys.stderr,
        )
        pieces, status, answered = run_wsgi_app(app, builder.get_environ(), buffered=True)
        kept = [
            (name, value)
            for name, value in answered
            if name.lower() not in _HOP_BY_HOP and not name.lower().startswith(_CORS)
        ]
        return HttpResponse(b"".join(pieces), int(status.split(" ", 1)[0]), answered.get("content-type", ""), kept)


def _import() -> Callable[[str], WsgiApp]:
    """Return what makes the application of a service."""
    from moto.moto_server.werkzeug_app import create_backend_app

    install()
    make_app: Callable[[str], WsgiApp] = create_backend_app
    return make_app


def _error(code: str, message: str) -> HttpResponse:
    return HttpResponse(ServiceError(code, message).body, 400, "application/x-amz-json-1.0")
