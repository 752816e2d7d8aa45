"""`TableChanges`: reports what each request changes in moto's tables, for our model of DynamoDB Streams.

For every operation that writes (PutItem, UpdateItem, DeleteItem, BatchWriteItem, TransactWriteItems, PartiQL), moto
passes the item before and after each write to the `StreamShard` object of a table with a stream. `_ChangeRecorder`
replaces that class, and copies both items at once, because moto may change them later. When the request is over,
`TableChanges.finish` publishes the changes. Changes of a transaction that was rolled back are left out. They are
recognized by their table: for a rollback, moto replaces the table that was written by an older copy.

Three faults of moto are corrected here: a disabled stream cannot be enabled again; enabling a stream twice is refused
with a wrong code; and a stream without a view type is accepted.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from mld.local.item_changes import ItemChange, TableStreamKey, ViewType, coalesced
from mld.local.table_streams import TableStreams

_SPECIFICATION = "StreamSpecification"
_WITH_TABLES = frozenset(("CreateTable", "UpdateTable", "DeleteTable"))
"""After these operations, and those that restore or import a table, a stream may be enabled or disabled."""
_TTL_PAST_S = 5 * 365 * 86_400.0
"""As in DynamoDB, items that expired more than five years ago are not deleted."""

TableEvent = Callable[[TableStreams], object]
"""A change that a request made, as a function that makes the same change in the model."""
_labels: set[str] = set()
"""Texts that consist of the ARN of a table and a label of its stream, so that no label is used twice for a table."""


class StreamSpecificationError(ValueError):
    """DynamoDB would refuse this request; the text is DynamoDB's message."""


class _Request(threading.local):
    """The request that is being handled: its changes (None: no request), its time, and whether it expires items."""

    changes: list[tuple[Any, ItemChange]] | None = None
    now_s = 0.0
    by_ttl = False


_request = _Request()


class _ChangeRecorder:
    """Replaces moto's `StreamShard`; there is one for each table with a stream."""

    def __init__(self, _account: str, table: Any) -> None:
        """Give the stream a label that no earlier stream of the table had: the time of the request, or a later one."""
        self.table = table
        at_ms = round(_request.now_s * 1000)
        while f"{table.table_arn} {_label(at_ms)}" in _labels:
            at_ms += 1
        _labels.add(f"{table.table_arn} {_label(at_ms)}")
        table.latest_stream_label = _label(at_ms)

    def add(self, old: Any, new: Any) -> None:
        """Note a write: the item before and after it; None where there is none. moto calls this. Changes outside a
        request, and while the stream is disabled, are not noted.
        """
        if _request.changes is None or not _is_enabled(self.table):
            return
        before, after = _plain_item(old), _plain_item(new)
        either = after if before is None else before
        if either is not None:
            keys = {key["AttributeName"]: either[key["AttributeName"]] for key in self.table.schema}
            _request.changes.append((self.table, ItemChange(keys, before, after, _request.by_ttl)))


def install() -> None:
    """Replace moto's `StreamShard` by `_ChangeRecorder` in this process."""
    from moto.dynamodb.models import table

    table.StreamShard = _ChangeRecorder


class TableChanges:
    """Collects the changes of each request. `now` is the server's clock. `publish` is called with the changes before
    the answer is sent.
    """

    def __init__(self, now: Callable[[], float], publish: Callable[[Sequence[TableEvent]], None]) -> None:
        self._now = now
        self._publish = publish
        self._enabled: dict[str, TableStreamKey] = {}

    def begin(self, operation: str, body: bytes, account: str, region: str) -> None:
        """Begin a request. Call this before moto gets it. Raises StreamSpecificationError."""
        _request.changes, _request.now_s, _request.by_ttl = [], self._now(), False
        if operation in ("CreateTable", "UpdateTable") and _SPECIFICATION.encode() in body:
            _check_specification(operation, body, account, region)

    def finish(self, operation: str, account: str, region: str) -> None:
        """Publish the changes of the request. Call this after moto has answered it, with success or not."""
        changes, now = _request.changes or [], _request.now_s
        _request.changes = None
        events: list[TableEvent] = []
        if operation in _WITH_TABLES or operation.startswith(("Restore", "Import")):
            events += self._streams_changed(account, region, now)
        events += self._items_changed(changes, now)
        if events:
            self._publish(events)

    def expire(self) -> int:
        """Delete the items whose time to live is over, in all tables. Return how many were deleted."""
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
        """Yield events for the streams that were enabled or disabled since the last call."""
        found = {_key(table).arn: table for table in _tables(account, region).values() if _is_enabled(table)}
        known = {arn for arn, key in self._enabled.items() if (key.account, key.region) == (account, region)}
        for arn in known - found.keys():
            del self._enabled[arn]
            yield partial(TableStreams.disable, arn=arn, now=now)
        for arn in found.keys() - known:
            yield self._enable(found[arn], now)

    def _items_changed(self, changes: Sequence[tuple[Any, ItemChange]], now: float) -> Iterator[TableEvent]:
        """Yield an event for each table whose items have changed. Changes of a transaction that was rolled back are
        left out. If our model does not have the stream of a table yet, an event that makes it comes first.
        """
        by_table: dict[str, list[ItemChange]] = {}
        for table, change in changes:
            if _tables(table.account_id, table.region_name).get(table.name) is not table:
                continue  # the transaction was rolled back
            arn = _key(table).arn
            if arn not in self._enabled:
                yield self._enable(table, now)
            by_table.setdefault(arn, []).append(change)
        for arn, of_table in by_table.items():
            yield partial(TableStreams.record, arn=arn, changes=coalesced(of_table), now=now)

    def _enable(self, table: Any, now: float) -> TableEvent:
        """Note the table's stream as enabled, and return the event that makes it in the model."""
        key = _key(table)
        self._enabled[key.arn] = key
        view = ViewType(table.stream_specification["StreamViewType"])
        schema = [dict(part) for part in table.schema]
        return partial(TableStreams.enable, key=key, view=view, key_schema=schema, now=now)


# --- moto's objects --------------------------------------------------------------------------------------------------


def _check_specification(operation: str, body: bytes, account: str, region: str) -> None:
    """Raise StreamSpecificationError if DynamoDB would refuse the StreamSpecification of a request."""
    try:
        request = json.loads(body)
        wanted, name = request.get(_SPECIFICATION), str(request.get("TableName"))
    except (ValueError, AttributeError):
        return  # moto will refuse this request
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
            table.latest_stream_label = None  # with a label, moto would refuse to enable the stream again


def _backends() -> list[Any]:
    """Return moto's models of DynamoDB, one for each account and region."""
    from moto.dynamodb.models import dynamodb_backends

    return [backend for regions in list(dynamodb_backends.values()) for backend in list(regions.values())]


def _tables(account: str, region: str) -> dict[str, Any]:
    """Return the tables of an account in a region, by name."""
    from moto.dynamodb.models import dynamodb_backends

    found: dict[str, Any] = dynamodb_backends[account][region].tables
    return found


def _is_enabled(table: Any) -> bool:
    """Return whether a table has a stream that is enabled, and that reports its changes to us."""
    return bool((table.stream_specification or {}).get("StreamEnabled")) and isinstance(
        table.stream_shard, _ChangeRecorder
    )


def _key(table: Any) -> TableStreamKey:
    """Return what identifies the stream of a table in our model."""
    return TableStreamKey(table.account_id, table.region_name, table.name, table.latest_stream_label)


def _label(at_ms: int) -> str:
    """Return the label of a stream that was enabled at this time (epoch milliseconds), as DynamoDB writes it."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}"


def _expired(table: Any, now_s: float) -> list[Any]:
    """Return the items of a table whose time to live is over, as the attribute named in the table's settings says.
    Items that expired more than `_TTL_PAST_S` ago stay.
    """
    if table.ttl.get("TimeToLiveStatus") != "ENABLED":
        return []
    name = table.ttl["AttributeName"]

    def is_over(item: Any) -> bool:
        value = item.attrs.get(name)
        return value is not None and value.type == "N" and now_s - _TTL_PAST_S <= float(value.value) <= now_s

    return [item for item in table.all_items() if is_over(item)]


def _plain_item(item: Any) -> dict[str, Any] | None:
    """Return a copy of one of moto's items as DynamoDB JSON; None if there is no item."""
    return None if item is None else {name: _plain(value) for name, value in item.attrs.items()}


def _plain(value: Any) -> dict[str, Any]:
    """Return a copy of one of moto's attribute values as DynamoDB JSON."""
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
    """Return the content of a value as text: bytes as base64, a number in digits."""
    return base64.b64encode(content).decode() if isinstance(content, bytes) else str(content)
