"""`TrackedList`: the list of streams that all workers of an application follow. It is in one row of the lease table.
Pure.

Rules: shards#list-of-streams, shards#epoch-of-a-stream. The leader writes the row from its own settings, and the other
workers read it. So a worker with old settings does not treat new streams as *former* streams (those that the settings
do not name any more), and does not delete their leases.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mld.core.stream_ids import StreamId, parse_stream_id
from mld.leases.own_attribute import OwnAttribute, Row, integer

KEY = "mldStreams"
ENTITY = "MLD_STREAMS"
"""The `entityType` of the row. KCL skips rows of types that it does not know."""
FIELDS = ("entityType", "version", "streams")
"""The attributes of the row, except for its key."""
INTEGER_MAX = 2**63 - 1
DYNAMODB_EPOCH = 1
"""The epoch of all DynamoDB streams, as in the adapter for the KCL. An epoch distinguishes streams that were created
one after the other under one name. DynamoDB streams need none for that, because each has a label of its own.
"""
_ARN = re.compile(
    r"arn:aws[^:]*:(?:kinesis:[-a-z0-9]*:(?P<account1>\d+):stream/(?P<stream>[^:/]+)"
    r"|dynamodb:(?P<region>[-a-z0-9]+):(?P<account2>\d+):table/(?P<table>[^:/]+)/stream/(?P<label>.+))",
    re.ASCII,
)
ROW_BYTES_MAX = 380_000  # DynamoDB's limit of 400 KB, less the other attributes
_VERSION = OwnAttribute("version", "N", integer(INTEGER_MAX - 1, low=1), "7")


@dataclass(frozen=True, slots=True)
class ListedStream:
    """One stream of the list. `label` is how the settings name it."""

    stream: str
    """The identifier, ``account:name:epoch``."""
    label: str
    arn: str
    """Its ARN; empty for a former stream that is known only from its leases."""
    created_ms: int | None = None
    """When the stream was created, according to the service; None if unknown."""
    former_since_s: int | None = None
    """When the stream was first missing from the settings, in epoch seconds; None while it is in them."""

    @property
    def id(self) -> StreamId:
        found = parse_stream_id(self.stream)
        assert found is not None, "lists are read and made with valid identifiers only"
        return found


@dataclass(frozen=True, slots=True)
class TrackedList:
    """The contents of the row. `version` is 0 if there is no row, or if it cannot be read. `seen` has the attributes of
    the row as they were read.
    """

    version: int = 0
    streams: tuple[ListedStream, ...] = ()
    seen: Row = field(default_factory=dict, compare=False, repr=False)

    def followed_by(self, streams: Iterable[ListedStream]) -> TrackedList:
        """Return a list with these streams and the next version, to replace this list."""
        return replace(self, version=self.version + 1, streams=tuple(streams))

    def current(self) -> Mapping[str, ListedStream]:
        """Return the streams of the list that are not former ones, by label."""
        return {one.label: one for one in self.streams if one.former_since_s is None}

    def newest(self) -> Mapping[tuple[str, str], ListedStream]:
        """Return the newest incarnation of each stream (the one with the highest epoch), by account and name, whatever
        its label is, and even if it is a former stream.
        """
        found = sorted(((one.id, one) for one in self.streams), key=lambda pair: pair[0].epoch)
        return {(stream.account, stream.name): one for stream, one in found}

    def is_former(self, stream: str) -> bool:
        """Return whether the list has this identifier as a former stream."""
        return any(one.stream == stream and one.former_since_s is not None for one in self.streams)


def identify(
    label: str,
    arn: str,
    created_ms: int | None,
    *,
    epoch: int | None,
    listed: ListedStream | None,
    in_table: Collection[StreamId],
) -> StreamId | str:
    """Return the identifier of a stream in the lease table (shards#epoch-of-a-stream), or a sentence that says why the
    stream cannot be tracked.

    `arn` and `created_ms` come from the service, `epoch` from the settings. `listed` is the stream in the present list.
    `in_table` has the identifiers of the streams of all leases.

    The epoch is the first of these that exists:

    1. for a DynamoDB stream: `DYNAMODB_EPOCH`
    2. the epoch in the settings, which must not contradict the listed stream and the leases
    3. the epoch of the listed stream
    4. the newest epoch in the keys of leases
    5. the time at which the stream was created, in seconds

    If the stream was deleted and created again, 3 and 4 are not used, and 5 is raised above the epochs of all leases.
    """
    account, name = account_and_name(arn)
    if arn.split(":")[2] == "dynamodb":
        return StreamId(account, name, DYNAMODB_EPOCH)
    key = f"mld.stream.{label}.epoch"
    same = listed if listed is not None and (listed.id.account, listed.id.name) == (account, name) else None
    remade = same is not None and None not in (created_ms, same.created_ms) and created_ms != same.created_ms
    known = None if same is None or remade else same.id.epoch
    leased = sorted(one.epoch for one in in_table if (one.account, one.name) == (account, name))
    if epoch is not None:
        if remade and same is not None and epoch == same.id.epoch:
            return (
                f"stream {label} was deleted and made again, but {key} still is {epoch}, which its old leases have; "
                "remove the key, or give another epoch"
            )
        expected = [known] if known is not None else [] if remade else leased
        if expected and epoch not in expected:
            return (
                f"{key} is {epoch}, but the leases of stream {label} in the table have the epoch {expected[-1]}; "
                f"remove the key, or set it to {expected[-1]}"
            )
        return StreamId(account, name, epoch)
    if known is not None:
        return StreamId(account, name, known)
    if leased and not remade:
        return StreamId(account, name, leased[-1])
    if created_ms is None:
        return f"the service does not say when stream {label} was made; set {key}"
    made_s = max(1, created_ms // 1000)
    return StreamId(account, name, made_s if not leased else max(made_s, leased[-1] + 1))


def account_and_name(arn: str) -> tuple[str, str]:
    """Return the account and the name of the stream with this ARN, in the form in which lease keys contain them. The
    name of a DynamoDB stream is ``REGION$ACCOUNT$TABLE$LABEL``, with each colon of the label replaced by an underscore.

    Raises ValueError if `arn` is not the ARN of a stream.
    """
    found = _ARN.fullmatch(arn)
    if found is None:
        raise ValueError(f"{arn!r} is no ARN of a stream of Kinesis or DynamoDB")
    if found["stream"]:
        return found["account1"], found["stream"]
    account, label = found["account2"], found["label"].replace(":", "_")
    return account, f"{found['region']}${account}${found['table']}${label}"


def next_list(
    before: TrackedList, wanted: Sequence[ListedStream], in_table: Iterable[StreamId], now_s: float
) -> TrackedList | None:
    """Return the list to write when the settings name the streams `wanted`; None if the list need not change. `before`
    is the present list.

    A stream that is not wanted, but is in the present list or has leases (`in_table`), becomes a former stream.
    """
    wanted_ids = {one.stream for one in wanted}
    former = {one.stream: one for one in before.streams if one.stream not in wanted_ids}
    for one in in_table:
        if str(one) not in wanted_ids and str(one) not in former:
            former[str(one)] = ListedStream(str(one), one.name, "")
    since_s = int(now_s)
    streams = (
        *sorted(wanted, key=lambda one: one.stream),
        *(
            one if one.former_since_s is not None else replace(one, former_since_s=since_s)
            for _, one in sorted(former.items())
        ),
    )
    return None if streams == before.streams else before.followed_by(streams)


def without(before: TrackedList, gone: Collection[str]) -> TrackedList:
    """Return the list `before` without the former streams `gone`, which have no leases any more."""
    return before.followed_by(one for one in before.streams if one.stream not in gone)


def labels_of(streams: TrackedList) -> dict[str, str]:
    """Return a name for people for each stream of the list, by identifier. No two streams have the same name.

    The name is the label; but a former stream whose label another stream has, too, is named by its identifier.
    """
    count = Counter(one.label for one in streams.streams)
    return {
        one.stream: one.stream if one.former_since_s is not None and count[one.label] > 1 else one.label
        for one in streams.streams
    }


def due_for_deletion(streams: TrackedList, wait_s: float, now_s: float) -> tuple[str, ...]:
    """Return the identifiers of the streams that have been former ones for `wait_s` at `now_s` (epoch seconds), so that
    their leases may be deleted.
    """
    return tuple(
        one.stream for one in streams.streams if one.former_since_s is not None and now_s - one.former_since_s >= wait_s
    )


# --- the row ----------------------------------------------------------------------------------------------------------


def parse(row: Row) -> TrackedList:
    """Return the list in a row. This never raises: a damaged row counts as missing, until a leader overwrites it."""
    seen = {name: row[name] for name in FIELDS if name in row}
    entity, version, streams = _ENTITY.read(row), _VERSION.read(row), _STREAMS.read(row)
    if entity is None or version is None or streams is None:
        return TrackedList(seen=seen)
    return TrackedList(version, streams, seen)


def _entity(found: str) -> str:
    """Return the type of the row. Raises ValueError if it is not that of the list of streams."""
    if found != ENTITY:
        raise ValueError("a row of another kind")
    return found


def _streams(text: str) -> tuple[ListedStream, ...]:
    """Return the streams in the row's attribute `streams`. Raises ValueError or another error if the text is no list of
    streams.
    """
    items = json.loads(text)
    streams = {one.stream: one for one in (ListedStream(**item) for item in items)}
    if not isinstance(items, list) or len(streams) < len(items) or not all(map(_is_sound, streams.values())):
        raise ValueError("no list of streams")
    return tuple(streams.values())


def _is_sound(one: ListedStream) -> bool:
    """Return whether each field has its declared type, and the identifier agrees with the ARN."""
    texts, numbers = (one.stream, one.label, one.arn), (one.created_ms, one.former_since_s)
    if not all(isinstance(text, str) for text in texts):
        return False
    if not all(number is None or (type(number) is int and 0 <= number <= INTEGER_MAX) for number in numbers):
        return False
    found = parse_stream_id(one.stream)
    try:
        "".join(texts).encode()  # JSON may contain half of a surrogate pair, which cannot be encoded
        name = account_and_name(one.arn) if one.arn or one.former_since_s is None else None
    except ValueError:
        return False
    return found is not None and name in (None, (found.account, found.name))


def unchanged(seen: Row) -> dict[str, Any]:
    """Return request parameters for the condition that the row still has the attributes `seen`, or is still missing."""
    terms = (f"#{name} = :{name}" if name in seen else f"attribute_not_exists(#{name})" for name in FIELDS)
    values = {f":{name}": value for name, value in seen.items()}
    return {
        "ConditionExpression": " AND ".join(terms),
        "ExpressionAttributeNames": {f"#{name}": name for name in FIELDS},
        **({"ExpressionAttributeValues": values} if values else {}),
    }


def values_of(streams: TrackedList) -> dict[str, dict[str, Any]]:
    """Return the attributes of the row, except for its key. Raises ValueError if the list is too long for a row."""
    items = [{name: value for name, value in asdict(one).items() if value is not None} for one in streams.streams]
    text = json.dumps(items, separators=(",", ":"))
    if len(text) > ROW_BYTES_MAX:
        raise ValueError(
            f"{len(streams.streams)} streams do not fit into one row of the table ({len(text)} of {ROW_BYTES_MAX} "
            "bytes); spread them over several applications"
        )
    return {"entityType": {"S": ENTITY}, "version": {"N": str(streams.version)}, "streams": {"S": text}}


_ENTITY = OwnAttribute("entityType", "S", _entity, ENTITY)
_STREAMS = OwnAttribute(
    "streams",
    "S",
    _streams,
    '[{"stream":"1:a:9","label":"a","arn":"arn:aws:kinesis:us-east-1:1:stream/a","created_ms":9000},'
    '{"stream":"1:b:1","label":"b","arn":"","former_since_s":9}]',
)
