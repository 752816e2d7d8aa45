"""A pure model of DynamoDB Streams: values and `now` in, values out.

The tables are moto's, and `mld.local.fallback` reports what happens to their items. From that streams are made as the
service does: records of one item in order, shards that live four hours and are succeeded by children of one parent,
splits under load, trimming after 24 hours. Every shard is succeeded after four hours by one child; under load, or when
a test asks, by two. A child has one parent, shards are never merged. All records of one item are in order along that
line.

No clock, no I/O, no randomness: times are epoch seconds, passed as `now`. Refusals are `DynamoStreamsError`. Limits of
throughput are enforced only if asked; limits of form always. Items are as in DynamoDB's JSON: attribute name ->
``{"S": "text"}``, binary values as base64 text. `dispatch` has the four operations as AWS JSON 1.0. Rules: the API
reference of Amazon DynamoDB Streams; the developer guide, "Change data capture for DynamoDB Streams"; shared terms as
in `mld.local.kinesis`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any

from mld.local.json_api import OperationRequest, parse
from mld.local.kinesis_errors import ServiceError
from mld.local.shard_limits import Bucket
from mld.local.shard_log import ShardLog
from mld.local.tokens import pack, unpack
from mld.properties.values import partition_of

DynamoItem = Mapping[str, Any]

TTL_IDENTITY = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}
"""Who deletes an item whose time to live is over."""
_EVENT_VERSION = "1.1"
_NESTED_BYTES = 3
"""What a list or a map takes besides its elements."""

SHARD_LIFE_S = 4 * 3600.0
RETENTION_S = 24 * 3600.0
SPLIT_RECORDS = 1000
SPLIT_WINDOW_S = 60.0
"""A shard that gets `SPLIT_RECORDS` within this time splits; the service waits for far more."""
SPLIT_OPEN_MAX = 8
"""Load splits no shard of a stream that has so many open ones."""
DESCRIBE_PER_S = 10.0
GET_RECORDS_PER_S = 10.0
"""With enforced limits: two readers, each five times a second."""
_HASHES = 2**32
_COUNTER_UNIT = 10**20

CONTENT_TYPE = "application/x-amz-json-1.0"
ITERATOR_LIFE_S = 15 * 60.0
PAGE_RECORDS_MAX = 1000
PAGE_BYTES_MAX = 1024 * 1024
LIST_MAX = 100
_ITERATOR_KIND = "D"
_SEQUENCE_NUMBER = re.compile(r"[0-9]{21,40}")
_SHARD_ID = re.compile(r"[a-zA-Z0-9_.-]{28,65}")

TRIM_HORIZON, LATEST, AT, AFTER = _ITERATORS = "TRIM_HORIZON", "LATEST", "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"
"""The kinds of iterators: those of Kinesis, but for AT_TIMESTAMP."""


class ViewType(Enum):
    """Which images a record has besides the keys."""

    KEYS_ONLY = "KEYS_ONLY"
    NEW_IMAGE = "NEW_IMAGE"
    OLD_IMAGE = "OLD_IMAGE"
    NEW_AND_OLD_IMAGES = "NEW_AND_OLD_IMAGES"


@dataclass(frozen=True, slots=True)
class TableStreamKey:
    """Names one stream of one table; a table that enables its stream again gets another label."""

    account: str
    region: str
    table: str
    label: str

    @property
    def arn(self) -> str:
        place = f"arn:{partition_of(self.region)}:dynamodb:{self.region}:{self.account}"
        return f"{place}:table/{self.table}/stream/{self.label}"


@dataclass(frozen=True, slots=True)
class ItemChange:
    """One item before and after; None where it does not exist. `by_ttl`: its time to live was over."""

    keys: DynamoItem
    old: DynamoItem | None
    new: DynamoItem | None
    by_ttl: bool = False

    @property
    def event_name(self) -> str | None:
        """INSERT, MODIFY or REMOVE; None if nothing changed, of which there is no record."""
        if self.old is None:
            return None if self.new is None else "INSERT"
        if self.new is None:
            return "REMOVE"
        return None if _comparable({"M": self.old}) == _comparable({"M": self.new}) else "MODIFY"


def coalesced(changes: Iterable[ItemChange]) -> list[ItemChange]:
    """Return the changes of one request, one for each item: from before its first to after its last. A request of
    the API writes an item once; moto writes a new item of UpdateItem in two steps.
    """
    found: dict[str, ItemChange] = {}
    for change in changes:
        first = found.get(name := canonical(change.keys))
        old = change.old if first is None else first.old
        found[name] = ItemChange(change.keys, old, change.new, change.by_ttl)
    return list(found.values())


def canonical(value: DynamoItem) -> str:
    """Return equal texts for equal keys."""
    return json.dumps(_comparable({"M": value}), sort_keys=True, default=str)


def hash_of(value: DynamoItem) -> int:
    """Return 32 bits of a partition key, which choose the shard."""
    return int.from_bytes(hashlib.blake2s(canonical(value).encode(), digest_size=4).digest(), "big")


def record_json(
    change: ItemChange, event_name: str, key: TableStreamKey, view: ViewType, number: int, at_s: float
) -> tuple[dict[str, Any], int]:
    """Return the record as GetRecords shows it, and its size in bytes."""
    images: dict[str, Any] = {}
    if view in (ViewType.NEW_IMAGE, ViewType.NEW_AND_OLD_IMAGES) and change.new is not None:
        images["NewImage"] = change.new
    if view in (ViewType.OLD_IMAGE, ViewType.NEW_AND_OLD_IMAGES) and change.old is not None:
        images["OldImage"] = change.old
    size = item_bytes(change.keys) + sum(item_bytes(image) for image in images.values())
    record: dict[str, Any] = {
        "eventID": hashlib.blake2s(f"{key.arn} {number}".encode(), digest_size=16).hexdigest(),
        "eventName": event_name,
        "eventVersion": _EVENT_VERSION,
        "eventSource": "aws:dynamodb",
        "awsRegion": key.region,
        "dynamodb": {
            "ApproximateCreationDateTime": int(at_s),
            "Keys": change.keys,
            **images,
            "SequenceNumber": str(number),
            "SizeBytes": size,
            "StreamViewType": view.value,
        },
    }
    if change.by_ttl:
        record["userIdentity"] = TTL_IDENTITY
    return record, size


def item_bytes(item: DynamoItem) -> int:
    """Return names and values, as DynamoDB counts the size of an item."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: DynamoItem) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return (len(content.strip("-").replace(".", "").strip("0")) + 1) // 2 + 1
        case "B":
            return len(base64.b64decode(content))
        case "SS" | "NS" | "BS":
            return sum(_value_bytes({kind[0]: element}) for element in content)
        case "L":
            return _NESTED_BYTES + sum(1 + _value_bytes(element) for element in content)
        case "M":
            return _NESTED_BYTES + len(content) + item_bytes(content)
        case _:
            return 1  # a truth value or null


def _comparable(value: DynamoItem) -> Any:
    """Return something that is equal for values that DynamoDB takes for equal: numbers by value, sets in any order."""
    ((kind, content),) = value.items()
    match kind:
        case "N":
            return [kind, _number(content)]
        case "NS":
            return [kind, sorted(map(_number, content))]
        case "SS" | "BS":
            return [kind, sorted(content)]
        case "L":
            return [kind, [_comparable(element) for element in content]]
        case "M":
            return [kind, {name: _comparable(element) for name, element in content.items()}]
        case _:
            return [kind, content]


def _number(text: str) -> str:
    try:
        return str(Decimal(text).normalize())
    except InvalidOperation:
        return text


# --- shards and streams -----------------------------------------------------------------------------------------------


class DynamoStreamsError(ServiceError):
    """An operation was refused, with the code that AWS uses. Do not match on the message."""

    namespace = "com.amazonaws.dynamodb.v20120810#"


def not_found(what: str) -> DynamoStreamsError:
    return DynamoStreamsError("ResourceNotFoundException", f"Requested resource not found: {what}")


def sequence_number(counter: int, index: int) -> int:
    """Return a number of at least 21 digits, increasing over the whole stream; the lower ones name the shard."""
    return counter * _COUNTER_UNIT + index


def index_of(number: int) -> int:
    """Return the index of the shard that a number was given to."""
    return number % _COUNTER_UNIT


def shard_id(created_ms: int, arn: str, index: int) -> str:
    """Return a shard's id as the service writes it: milliseconds in 20 digits, then eight hexadecimal digits."""
    return f"shardId-{created_ms:020d}-{zlib.crc32(f'{arn} {index}'.encode()):08x}"


class ChangeShard:
    """Open until `close` is called; times are epoch seconds. `span` are the hashes of its partition keys, which clients
    do not see."""

    __slots__ = (
        "closed_s",
        "created_s",
        "ending",
        "index",
        "log",
        "parent_id",
        "reads",
        "shard_id",
        "span",
        "starting",
        "window_records",
        "window_s",
    )

    def __init__(
        self, identity: str, index: int, span: range, starting: int, created_s: float, parent_id: str | None
    ) -> None:
        self.shard_id = identity
        self.index = index
        self.span = span
        self.starting = starting
        self.created_s = created_s
        self.parent_id = parent_id
        self.ending: int | None = None
        self.closed_s: float | None = None
        self.window_s = created_s
        self.window_records = 0
        self.reads = Bucket(GET_RECORDS_PER_S)
        self.log = ShardLog()

    @property
    def is_open(self) -> bool:
        return self.closed_s is None

    @property
    def trimmed_through(self) -> int:
        """The number of the newest record that is gone."""
        return self.starting - 1 if self.log.trimmed_through is None else self.log.trimmed_through

    @property
    def halves(self) -> tuple[range, range]:
        middle = (self.span.start + self.span.stop) // 2
        return range(self.span.start, middle), range(middle, self.span.stop)

    def close(self, ending: int, closed_s: float) -> None:
        assert self.is_open and ending >= self.starting
        self.ending = ending
        self.closed_s = max(closed_s, self.created_s)

    def count_write(self, now: float, window_s: float) -> int:
        """Count a record; the number of them since the current window of time began."""
        if not 0 <= now - self.window_s <= window_s:
            self.window_s, self.window_records = now, 0
        self.window_records += 1
        return self.window_records


class TableStream:
    """Mutable. `now` is epoch seconds; every method that takes it first lets that time come."""

    def __init__(
        self, key: TableStreamKey, view: ViewType, key_schema: Sequence[dict[str, str]], created_s: float
    ) -> None:
        self.key = key
        self.arn = key.arn
        self.view = view
        self.key_schema = list(key_schema)
        self.created_s = created_s
        self.disabled_s: float | None = None
        self.describes = Bucket(DESCRIBE_PER_S)
        self._partition_key = next(k["AttributeName"] for k in key_schema if k["KeyType"] == "HASH")
        self._shards: dict[str, ChangeShard] = {}
        self._counter = 0
        self._made = 0
        self._make(range(_HASHES), created_s, None)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def is_enabled(self) -> bool:
        return self.disabled_s is None

    def is_gone(self, now: float) -> bool:
        """Return whether it is gone: a disabled stream can be read for as long as its records would live."""
        return self.disabled_s is not None and now >= self.disabled_s + RETENTION_S

    def shards(self, now: float) -> list[ChangeShard]:
        """Return the shards in order of their ids, which is the order of their creation."""
        self._advance(now)
        return [self._shards[name] for name in sorted(self._shards)]

    def shard(self, name: str, now: float) -> ChangeShard:
        """Return the shard of this name. Raises ResourceNotFound."""
        self._advance(now)
        if (found := self._shards.get(name)) is None:
            raise not_found(f"Shard: {name} does not exist")
        return found

    def tip(self) -> int:
        """Return a number above every number given out so far, and below all to come."""
        return sequence_number(self._counter + 1, 0)

    # --- time and load -----------------------------------------------------------------------------------------------

    def record(self, change: ItemChange, now: float) -> None:
        """Note a change; without one, or when disabled, nothing happens."""
        self._advance(now)
        event_name = change.event_name
        if event_name is None or not self.is_enabled:
            return
        place = hash_of({self._partition_key: change.keys[self._partition_key]})
        shard = next(s for s in self._open() if place in s.span)
        number = self._take(shard.index)
        fields, size = record_json(change, event_name, self.key, self.view, number, now)
        # A clock that was set back must not change the order in which records expire.
        shard.log.append(number, max(now, shard.log.last_arrival), size, json.dumps(fields).encode())
        if shard.count_write(now, SPLIT_WINDOW_S) >= SPLIT_RECORDS and len(self._open()) < SPLIT_OPEN_MAX:
            self._succeed(shard, shard.halves, now)

    def split(self, name: str | None, now: float) -> list[str]:
        """Split this open shard, or the first one, into two; the ids of the children. Raises ResourceNotFound."""
        self._advance(now)
        found = [s for s in self._open() if name in (None, s.shard_id)]
        if not found:
            raise not_found(f"Shard: {name or 'any'} (open) does not exist")
        return self._succeed(found[0], found[0].halves, now)

    def roll(self, now: float) -> list[str]:
        """Let every open shard be succeeded by one child, as after four hours; the ids of the children."""
        self._advance(now)
        return [child for shard in self._open() for child in self._succeed(shard, (shard.span,), now)]

    def disable(self, now: float) -> None:
        """Take no more records; the open shards end without children."""
        self._advance(now)
        for shard in self._open():
            shard.close(self._take(shard.index), now)
        self.disabled_s = now

    def _advance(self, now: float) -> None:
        horizon = now - RETENTION_S
        if self.is_enabled:
            for shard in self._open():
                self._grow_old(shard, now, horizon)
        for shard in list(self._shards.values()):
            shard.log.trim(horizon)
            if shard.closed_s is not None and shard.closed_s <= horizon:
                del self._shards[shard.shard_id]

    def _grow_old(self, shard: ChangeShard, now: float, horizon: float) -> None:
        """Make the successors up to now. After a leap of the clock, those that would be gone already are left out."""
        while now >= shard.created_s + SHARD_LIFE_S:
            at = max(shard.created_s + SHARD_LIFE_S, horizon - SHARD_LIFE_S)
            (child,) = self._succeed(shard, (shard.span,), at)
            shard = self._shards[child]

    def _succeed(self, shard: ChangeShard, spans: Sequence[range], now: float) -> list[str]:
        shard.close(self._take(shard.index), now)
        return [self._make(span, max(now, shard.created_s + 0.001), shard.shard_id) for span in spans]

    def _make(self, span: range, created_s: float, parent_id: str | None) -> str:
        self._made += 1
        name = shard_id(round(created_s * 1000), self.arn, self._made)
        self._shards[name] = ChangeShard(name, self._made, span, self._take(self._made), created_s, parent_id)
        return name

    def _open(self) -> list[ChangeShard]:
        return [shard for shard in self._shards.values() if shard.is_open]

    def _take(self, index: int) -> int:
        self._counter += 1
        return sequence_number(self._counter, index)


# --- all streams of all tables, and their operations ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ChangeIterator:
    """`position` is the lowest number to deliver; `walked` pages of the empty stretch before it were answered."""

    arn: str
    shard_id: str
    position: int
    issued_s: float
    walked: int = 0

    @classmethod
    def decode(cls, text: str) -> _ChangeIterator:
        arn, _, packed = text.partition("|1|")
        fields = unpack(_ITERATOR_KIND, packed)
        if fields is None:
            raise _invalid("Invalid ShardIterator")
        return cls(arn, *fields)

    def __str__(self) -> str:
        packed = pack(_ITERATOR_KIND, self.shard_id, self.position, self.issued_s, self.walked)
        return f"{self.arn}|1|{packed}"


class TableStreams:
    """Mutable; `enforce` and `stretch_pages` may be changed at any time.

    So many pages without records are answered before each one with records, and before the end of a shard: the service
    leads through the parts of a shard in which nothing happened.
    """

    def __init__(self, *, enforce: bool = False) -> None:
        self.enforce = enforce
        self.stretch_pages = 0
        self._streams: dict[str, TableStream] = {}

    def enable(
        self, key: TableStreamKey, view: ViewType, key_schema: Sequence[dict[str, str]], *, now: float
    ) -> TableStream:
        return self._streams.setdefault(key.arn, TableStream(key, view, key_schema, now))

    def disable(self, arn: str, *, now: float) -> None:
        stream = self._streams.get(arn)
        if stream is not None and stream.is_enabled:
            stream.disable(now)

    def record(self, arn: str, changes: Sequence[ItemChange], *, now: float) -> None:
        for change in changes:
            self._streams[arn].record(change, now)

    def all(self, now: float) -> list[TableStream]:
        """Return all streams, in order of their ARNs."""
        for arn in [arn for arn, stream in self._streams.items() if stream.is_gone(now)]:
            del self._streams[arn]
        return [self._streams[arn] for arn in sorted(self._streams)]

    def stream(self, arn: str, now: float, region: str | None = None) -> TableStream:
        """Return a stream by its ARN, or by `region` the refusal of an endpoint elsewhere. Raises ResourceNotFound."""
        found = self._streams.get(arn)
        if found is None or found.is_gone(now) or region not in (None, found.key.region):
            raise not_found(f"Stream: {arn} not found")
        return found

    def newest_of(self, table: str, now: float) -> TableStream:
        """Return the newest stream of a table of this name, in any account and region. Raises ResourceNotFound."""
        found = [s for s in self.all(now) if s.key.table == table]
        if not found:
            raise not_found(f"Stream: of table {table} not found")
        return max(found, key=lambda stream: stream.created_s)

    def admit(self, bucket: Bucket, what: str, now: float) -> None:
        """Spend one call. Raises LimitExceeded if limits are enforced and this one is reached."""
        if not self.enforce:
            return
        if not bucket.has(1, now):
            raise DynamoStreamsError("LimitExceededException", f"Rate exceeded for {what}")
        bucket.take(1)


def dispatch(
    streams: TableStreams, operation: str, body: bytes, now: float, *, account: str, region: str, empty: bool = False
) -> bytes:
    """Carry out one request to the endpoint of a region; with `empty`, GetRecords finds no records. Raises
    ServiceError."""
    request = parse(body)
    match operation:
        case "ListStreams":
            fields = _list_streams(streams, request, now, account, region)
        case "DescribeStream":
            fields = _describe_stream(streams, request, now, region)
        case "GetShardIterator":
            fields = _get_shard_iterator(streams, request, now, region)
        case "GetRecords":
            return _get_records(streams, request, now, region, empty=empty)
        case _:
            raise DynamoStreamsError(
                "UnknownOperationException", f"{operation} is not supported by the embedded DynamoDB Streams."
            )
    return json.dumps(fields).encode()


def _list_streams(
    streams: TableStreams, request: OperationRequest, now: float, account: str, region: str
) -> dict[str, Any]:
    limit = request.integer("Limit", 1, LIST_MAX) or LIST_MAX
    table, after = request.text("TableName"), request.text("ExclusiveStartStreamArn") or ""
    found = [
        stream
        for stream in streams.all(now)
        if (stream.key.account, stream.key.region) == (account, region)
        and table in (None, stream.key.table)
        and stream.arn > after
    ]
    fields: dict[str, Any] = {
        "Streams": [{"StreamArn": s.arn, "TableName": s.key.table, "StreamLabel": s.key.label} for s in found[:limit]]
    }
    return fields if len(found) <= limit else fields | {"LastEvaluatedStreamArn": found[limit - 1].arn}


def _describe_stream(streams: TableStreams, request: OperationRequest, now: float, region: str) -> dict[str, Any]:
    limit = request.integer("Limit", 1, LIST_MAX) or LIST_MAX
    children_of = None
    if (nested := request.nested("ShardFilter")) is not None:
        nested.choice("Type", ("CHILD_SHARDS",), "shardFilter.type")
        children_of = nested.required("ShardId", _SHARD_ID)
    stream = streams.stream(request.required("StreamArn"), now, region)
    after = request.text("ExclusiveStartShardId", _SHARD_ID) or ""
    streams.admit(stream.describes, f"DescribeStream of {stream.arn}", now)
    found = [s for s in stream.shards(now) if s.shard_id > after and children_of in (None, s.parent_id)]
    description: dict[str, Any] = {
        "StreamArn": stream.arn,
        "StreamLabel": stream.key.label,
        "StreamStatus": "ENABLED" if stream.is_enabled else "DISABLED",
        "StreamViewType": stream.view.value,
        "CreationRequestDateTime": round(stream.created_s, 3),
        "TableName": stream.key.table,
        "KeySchema": stream.key_schema,
        "Shards": [_shard_json(shard) for shard in found[:limit]],
    }
    if len(found) > limit:
        description["LastEvaluatedShardId"] = found[limit - 1].shard_id
    return {"StreamDescription": description}


def _shard_json(shard: ChangeShard) -> dict[str, Any]:
    numbers = {"StartingSequenceNumber": str(shard.starting)}
    if shard.ending is not None:
        numbers["EndingSequenceNumber"] = str(shard.ending)
    fields: dict[str, Any] = {"ShardId": shard.shard_id, "SequenceNumberRange": numbers}
    return fields if shard.parent_id is None else fields | {"ParentShardId": shard.parent_id}


def _get_shard_iterator(streams: TableStreams, request: OperationRequest, now: float, region: str) -> dict[str, Any]:
    kind = request.choice("ShardIteratorType", _ITERATORS)
    name = request.required("ShardId", _SHARD_ID)
    sequence = request.text("SequenceNumber", _SEQUENCE_NUMBER)
    stream = streams.stream(request.required("StreamArn"), now, region)
    shard = stream.shard(name, now)
    if kind == TRIM_HORIZON:
        position = shard.trimmed_through + 1
    elif kind == LATEST:
        position = stream.tip()
    else:
        position = _own_number(stream, shard, sequence) + (kind == AFTER)
        _require_untrimmed(shard, position)
    return {"ShardIterator": str(_ChangeIterator(stream.arn, name, position, now))}


def _get_records(streams: TableStreams, request: OperationRequest, now: float, region: str, *, empty: bool) -> bytes:
    """Return a page, with the next iterator unless a closed shard ends here."""
    place = _ChangeIterator.decode(request.required("ShardIterator"))
    limit = request.integer("Limit", 1, PAGE_RECORDS_MAX) or PAGE_RECORDS_MAX
    stream = streams.stream(place.arn, now, region)
    if now - place.issued_s > ITERATOR_LIFE_S:
        raise DynamoStreamsError(
            "ExpiredIteratorException",
            "The provided iterator exceeds the maximum age allowed (15 minutes after it was given out).",
        )
    shard = stream.shard(place.shard_id, now)
    streams.admit(shard.reads, f"GetRecords of {shard.shard_id}", now)
    _require_untrimmed(shard, place.position)
    found = shard.log.span(place.position, limit=limit, bytes_max=PAGE_BYTES_MAX)
    ended = not shard.is_open and not found.more
    if empty or (place.walked < streams.stretch_pages and (found.fragments or ended)):
        return _page_json([], replace(place, issued_s=now, walked=place.walked + 1))
    if found.last is not None:
        place = replace(place, position=found.last + 1, walked=0)
    return _page_json(found.fragments, None if ended else replace(place, issued_s=now))


def _page_json(fragments: list[bytes], following: _ChangeIterator | None) -> bytes:
    end = b"" if following is None else b',"NextShardIterator":' + json.dumps(str(following)).encode()
    return b'{"Records":[' + b",".join(fragments) + b"]" + end + b"}"


def _require_untrimmed(shard: ChangeShard, position: int) -> None:
    if position <= shard.trimmed_through:
        raise DynamoStreamsError(
            "TrimmedDataAccessException", "The operation attempted to read past the oldest stream record in a shard."
        )


def _own_number(stream: TableStream, shard: ChangeShard, text: str | None) -> int:
    if text is None:
        raise _invalid("SequenceNumber is required for this ShardIteratorType")
    number = int(text)
    top = stream.tip() if shard.ending is None else shard.ending
    if index_of(number) != shard.index or not shard.starting <= number <= top:
        raise _invalid(f"Invalid SequenceNumber: {text} is not of {shard.shard_id}")
    return number


def _invalid(message: str) -> DynamoStreamsError:
    return DynamoStreamsError("ValidationException", message)
