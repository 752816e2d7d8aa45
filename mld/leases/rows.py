"""Converts lease rows between DynamoDB JSON (typed attribute values) and `Lease`. Pure.

Rules: leases#row-attributes, leases#row-kinds, leases#lenient-reading (one bad row never prevents others from being
read) and leases#strict-creation. `new_row` returns a whole row, and is only for creation. An existing row is never
written as a whole: `writes` changes single attributes of it.

A row may contain anything that DynamoDB accepts: any type, 38 digits, exponents up to 125, 400 KB of text. A value that
is out of bounds makes the row corrupt; if no decision depends on the value, it is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any

from mld.core.errors import TableError
from mld.core.positions import SHARD_END, SUB_MAX, TRIM_HORIZON, Position
from mld.core.stream_ids import parse_stream_id, stream_of_key
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.leases.lease import ChildFigures, Failing, Lease, PendingCheckpoint, ShardStatus
from mld.leases.own_attribute import OwnAttribute, Row, integer, some_text, text_cut_to
from mld.metrics.trend import TREND_STEPS

LEASE_TABLE_KEY = KEY = "leaseKey"
COORDINATOR_TABLE_KEY = "key"
REPORTS_TABLE_KEY = "wid"
COUNTER = "leaseCounter"
OWNER = "leaseOwner"
CHECKPOINT_OWNER = "checkpointOwner"
OWNER_SWITCHES = "ownerSwitchesSinceCheckpoint"
CHECKPOINT = "checkpoint"
CHECKPOINT_SUB = "checkpointSubSequenceNumber"
PENDING = "pendingCheckpoint"
PENDING_SUB = "pendingCheckpointSubSequenceNumber"
PENDING_STATE = "pendingCheckpointState"
PARENTS = "parentShardId"
CHILDREN = "childShardIds"
HASH_START = "startingHashKey"
HASH_END = "endingHashKey"
THROUGHPUT = "throughputKBps"
ENTITY_TYPE = "entityType"
STREAM = "streamName"
SHARD = "shardId"
"""Only the rows of a table of several streams have STREAM (the stream's identifier) and SHARD (the shard's id)."""
HEARTBEAT = "mldHeartbeat"
"""Only mld 0.2 writes this, with `mld.heartbeat=worker`. In a report it is the worker's heartbeat: an epoch, a dot and
a growing number. In a lease it is the *mark*: the epoch of the heartbeat that the owner writes instead of renewals."""

FAILING = "mldFailing"
"""Added by mld: the record processor keeps failing, see `lease.Failing`. Java workers ignore and preserve it."""

PAUSED = "mldPaused"
"""Added by mld: the shard is paused, and an operator's note about it. Java workers ignore and preserve it."""

LEFT_OUT = "mldLeftOut"
"""Added by mld: records that must not be delivered, because an operator has saved them; each is ``SEQUENCE`` or
``SEQUENCE/SUB``."""

RESTART = "mldRestart"
"""Added by mld: the note of the operator who last asked for a new child."""

PINNED_UNTIL = "mldPinnedUntil"
"""Added by mld: the time (epoch seconds) until which no mld leader moves the lease to balance the load."""

STATUS = ("mldState", "mldBehindAt", "mldBehindMs", "mldDelivered", "mldWhy", "mldTrend", "mldChild")
STATE, BEHIND_AT, BEHIND_MS, DELIVERED, WHY, TREND, CHILD = STATUS
"""Added by mld: the holder's status for people, see `lease.ShardStatus`. Java workers preserve these."""

UNKNOWN_KEY = "(no leaseKey)"
NUMBER_EXPONENT_MAX = 40  # DynamoDB numbers have at most 38 digits; a larger exponent is damage
INTEGER_MAX = 2**63 - 1  # the highest `long` of Java; DynamoDB can store higher numbers
THROUGHPUT_KBPS_MAX = 1e9  # a terabyte a second; a larger or a negative value cannot be a measurement
HASH_KEY_DIGITS_MAX = len(str(HASH_KEY_MAX))
SHOWN_MAX = 100  # how many characters of a value a message shows; an attribute may have 400 KB
PLAIN_DIGITS_MAX = 18  # a number of at most this many digits is converted without Decimal
FAILURES_KEPT_MAX = 10**9  # the highest count of failures; restarts every 5 minutes never reach it
WORDS_CHARACTERS_MAX = 200  # the longest text of an operator that is kept
LEFT_OUT_MAX = 100
_RECORD = re.compile(r"[0-9]{1,129}(/[0-9]{1,19})?", re.ASCII)
_CHILD_TEXT = re.compile(r"([0-9]{1,12}) (-|[0-9]{1,12}\.[0-9]) (-|[0-9]{1,12}) ([0-9]{1,12})", re.ASCII)
NO_FIGURE = "-"
_PLACEHOLDER = re.compile(r"#(\w+)")
WHY_CHARACTERS_MAX = 200  # the longest text about an error; it keeps the row within one write unit
SINCE_S_MAX = 253_402_300_799  # the end of the year 9999, the last that `datetime` can express
RANGES_KEPT_MAX = 16_384  # size of a cache: more than the leases of one table; some 3 MB when full

HEARTBEAT_OF = OwnAttribute(HEARTBEAT, "S", some_text(), "00c0ffee00c0ffee")
# A damaged note still counts as a pause, or as a request for a new child.
_PAUSE = OwnAttribute(PAUSED, "S", text_cut_to(WORDS_CHARACTERS_MAX), "by ops", if_damaged="paused")
_RESTART = OwnAttribute(RESTART, "S", text_cut_to(WORDS_CHARACTERS_MAX), "by ops", if_damaged="asked for")
_PIN = OwnAttribute(PINNED_UNTIL, "N", integer(INTEGER_MAX), "1763661600")
_ACTIVITY = OwnAttribute(STATE, "S", some_text(SHOWN_MAX), "processing")
_AT = OwnAttribute(BEHIND_AT, "N", integer(SINCE_S_MAX), "1763661600")
_BEHIND = OwnAttribute(BEHIND_MS, "N", integer(INTEGER_MAX), "340")
_WHY = OwnAttribute(WHY, "S", text_cut_to(WHY_CHARACTERS_MAX), "failed twice")
_TREND = OwnAttribute(TREND, "S", some_text(TREND_STEPS), "--00147A")


class EntityType(Enum):
    """`entityType` of a row of the lease table."""

    LEASE = "LEASE"
    LEADER = "LEADER"
    CLIENT_VERSION_MIGRATION = "CLIENT_VERSION_MIGRATION"
    TABLE_MIGRATION = "TABLE_MIGRATION"
    STREAM = "STREAM"
    WORKER_METRIC_STATS = "WORKER_METRIC_STATS"


@dataclass(frozen=True, slots=True)
class Place:
    """A table that holds rows of the fleet, and the name of its hash key."""

    table: str
    key: str


def names_in(expressions: str) -> dict[str, str]:
    """Return `ExpressionAttributeNames` for expressions in which `#name` stands for the attribute `name`."""
    return {f"#{name}": name for name in _PLACEHOLDER.findall(expressions)}


class CorruptRowError(TableError):
    """A row claims to be a lease but cannot be read. `key` is the row's key; `reason` names the attribute and the
    fault.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"lease row {key} cannot be read: {reason}; repair or delete the row")
        self.key = key
        self.reason = reason


def is_lease(row: Row) -> bool:
    """Return whether the row is a lease: `entityType` absent or LEASE (leases#row-kinds)."""
    return ENTITY_TYPE not in row or row[ENTITY_TYPE].get("S") == EntityType.LEASE.value


def heartbeats_in(others: Iterable[Row]) -> dict[str, str]:
    """Return the heartbeats in reports, by worker; see `HEARTBEAT`. `others` are the rows that are not leases."""
    found = ((row.get(KEY, {}).get("S"), HEARTBEAT_OF.read(row)) for row in others if HEARTBEAT in row)
    return {worker: value for worker, value in found if worker and value}


def parse_row(row: Row) -> Lease | None:
    """Return the lease of a row; None if the row is something else.

    Raises CorruptRowError if the row cannot be read. It accepts exponents in numbers, missing sub-sequence numbers
    (read as 0), empty texts (read as absent), a hash range of one key, half a hash range (read as absent), and unknown
    attributes.
    """
    if not is_lease(row):
        return None
    key: str | None = None
    try:
        key = _text(row, KEY)
        return _parse(row, key)
    except ValueError as error:
        raise CorruptRowError(key or UNKNOWN_KEY, str(error)) from error


def new_row(lease: Lease) -> dict[str, dict[str, Any]]:
    """Return the full row to create for `lease` (leases#strict-creation).

    Raises ValueError for values that no new row may have. A hash range of one key is left out: Java refuses a row with
    such a range, and can read a row without a range.
    """
    if not lease.key:
        raise ValueError("a lease needs a key")
    if lease.counter or lease.owner_switches or lease.checkpoint_owner is not None or lease.pending is not None:
        raise ValueError(f"lease {lease.key} is not new: counter, switches, handoff, pending must be empty")
    if lease.checkpoint.sub < 0 or (lease.checkpoint.is_sentinel and lease.checkpoint.sub):
        raise ValueError(f"lease {lease.key}: sub number {lease.checkpoint.sub} does not fit {lease.checkpoint}")
    if lease.owner == "":
        raise ValueError(f"lease {lease.key}: an empty owner means no owner; use None")
    row: dict[str, dict[str, Any]] = {
        KEY: {"S": lease.key},
        COUNTER: {"N": "0"},
        OWNER_SWITCHES: {"N": "0"},
        CHECKPOINT: {"S": lease.checkpoint.sequence},
        CHECKPOINT_SUB: {"N": str(lease.checkpoint.sub)},
        ENTITY_TYPE: {"S": EntityType.LEASE.value},
    }
    if lease.stream is not None:
        if parse_stream_id(lease.stream) is None or lease.key != f"{lease.stream}:{lease.shard_id}":
            raise ValueError(f"lease {lease.key} is no lease of a stream {lease.stream}")
        row |= {STREAM: {"S": lease.stream}, SHARD: {"S": lease.shard_id}}
    if lease.owner is not None:
        row[OWNER] = {"S": lease.owner}
    if lease.parents:
        row[PARENTS] = {"SS": sorted(lease.parents)}
    if lease.children:
        row[CHILDREN] = {"SS": sorted(lease.children)}
    if lease.hash_range is not None:
        row.update(_hash_attributes(lease.key, lease.hash_range))
    if lease.paused is not None:
        row[PAUSED] = {"S": lease.paused}
    return row


def reborn(lease: Lease) -> Lease:
    """Return the lease to create again if the row of `lease` is lost. It has the same checkpoint, stream, parents,
    children, hash range and pause, but no owner.
    """
    keeps = ("key", "checkpoint", "parents", "children", "hash_range", "paused", "stream")
    return Lease(**{name: getattr(lease, name) for name in keeps})


def number_text(value: float) -> str:
    """Return a throughput as the text of a DynamoDB number, with at most six decimals and no exponent."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _parse(row: Row, key: str | None) -> Lease:
    """Return the lease of a row with this key. Raises ValueError if the row is corrupt."""
    if key is None:
        raise ValueError(f"{KEY} is missing")
    checkpoint = _position(row, CHECKPOINT, CHECKPOINT_SUB)
    if checkpoint is None:
        raise ValueError(f"{CHECKPOINT} is missing")
    return Lease(
        key=key,
        checkpoint=checkpoint,
        counter=_required_integer(row, COUNTER),
        owner=_text(row, OWNER),
        checkpoint_owner=_text(row, CHECKPOINT_OWNER),
        owner_switches=_required_integer(row, OWNER_SWITCHES),
        pending=_pending(row),
        parents=_string_set(row, PARENTS),
        children=_string_set(row, CHILDREN),
        hash_range=_hash_range(row),
        throughput_kbps=_throughput(row),
        heartbeat=HEARTBEAT_OF.read(row),
        failing=_FAILING.read(row),
        paused=_PAUSE.read(row),
        left_out=_LEFT_OUT.read(row) or frozenset(),
        restart=_RESTART.read(row),
        pinned_until_s=_PIN.read(row),
        stream=_stream(row, key),
        status=_status(row),
    )


def _stream(row: Row, key: str) -> str | None:
    """Return the identifier of the stream that a row names; None in a table of one stream. Raises ValueError if the
    row's key does not consist of that stream and the row's shard.
    """
    stream = row[STREAM].get("S") if STREAM in row else None
    if not isinstance(stream, str) or parse_stream_id(stream) is None:
        return None
    if stream_of_key(key) != stream:
        raise ValueError(f"{STREAM} is {stream[:SHOWN_MAX]}, with which the key does not begin")
    shard_id = _text(row, SHARD)
    if shard_id is not None and key != f"{stream}:{shard_id}":
        raise ValueError(f"{SHARD} is {shard_id[:SHOWN_MAX]}, with which the key does not end")
    return stream


def _typed(row: Row, name: str, kind: str, what: str) -> Any:
    """Return the value of an attribute of DynamoDB's type `kind`; None if it is absent or NULL. Raises ValueError if it
    has another type; `what` names the type in the error.
    """
    value = row.get(name)
    if value is None or "NULL" in value:
        return None
    if kind not in value:
        raise ValueError(f"{name} is not {what}")
    return value[kind]


def _text(row: Row, name: str) -> str | None:
    """Return an S attribute; None if it is absent, NULL or empty."""
    return _typed(row, name, "S", "a string") or None


def _integer(row: Row, name: str) -> int | None:
    """Return an N attribute as an integer; None if it is absent. Raises ValueError unless it is an integer of 64
    bits.
    """
    value = _typed(row, name, "N", "a number")
    if value is None:
        return None
    text = str(value)
    if len(text) <= PLAIN_DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)  # the usual form
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{name} is not a number: {text[:SHOWN_MAX]}") from None
    if not number.is_finite() or number.adjusted() > NUMBER_EXPONENT_MAX or number != int(number):
        raise ValueError(f"{name} is not an integer: {text[:SHOWN_MAX]}")
    if abs(number) > INTEGER_MAX:
        raise ValueError(f"{name} is out of range: {text[:SHOWN_MAX]}")
    return int(number)


def _required_integer(row: Row, name: str) -> int:
    """Return an integer of a row. Raises ValueError if it is missing."""
    number = _integer(row, name)
    if number is None:
        raise ValueError(f"{name} is missing")
    return number


def _position(row: Row, name: str, sub_name: str) -> Position | None:
    """Return the position in two attributes, of a sequence number and of a sub-sequence number; None if the first is
    absent. Raises ValueError if the position is damaged.
    """
    text = _text(row, name)
    if text is None:
        return None
    sub = _integer(row, sub_name) or 0
    if not 0 <= sub <= SUB_MAX:
        raise ValueError(f"{sub_name} is out of range: {sub}")
    return Position(text, sub)


def _pending(row: Row) -> PendingCheckpoint | None:
    """Return the pending checkpoint of a row, with the state that its child stored; None if there is no pending
    checkpoint.
    """
    position = _position(row, PENDING, PENDING_SUB)
    if position is None:
        return None
    state = _typed(row, PENDING_STATE, "B", "binary")
    return PendingCheckpoint(position, None if state is None else bytes(state))


def _string_set(row: Row, name: str) -> frozenset[str]:
    """Return an SS attribute; empty if it is absent or NULL. Raises ValueError if it has another type."""
    return frozenset(_typed(row, name, "SS", "a string set") or ())


def _hash_range(row: Row) -> HashRange | None:
    """Return the hash range of a row; None if the row lacks one of the two ends. Raises ValueError if it is damaged."""
    start, end = _text(row, HASH_START), _text(row, HASH_END)
    if start is None or end is None:
        return None
    if max(len(start), len(end)) > HASH_KEY_DIGITS_MAX:
        raise ValueError(f"{HASH_START} and {HASH_END} have more than {HASH_KEY_DIGITS_MAX} digits")
    return _range_of(start, end)


@lru_cache(maxsize=RANGES_KEPT_MAX)
def _range_of(first: str, last: str) -> HashRange:
    """Return the range of hash keys from the texts of its first and last key. Raises ValueError. The result is cached,
    because a lease never changes its range, and every scan and renewal reads it.
    """
    if not all(text.isascii() and text.isdigit() for text in (first, last)):
        raise ValueError(f"{HASH_START} and {HASH_END} are not decimal integers")
    start, end = int(first), int(last)
    if not start <= end <= HASH_KEY_MAX:
        raise ValueError(f"{HASH_START} {start} and {HASH_END} {end} are no range")
    return HashRange(start, end)


def _throughput(row: Row) -> float | None:
    """Return the throughput in a row; None if it is absent or damaged. It only serves balancing, so damage does not
    make the row corrupt.
    """
    try:
        kbps = float(row[THROUGHPUT]["N"])
    except (KeyError, ValueError):
        return None
    return kbps if 0 <= kbps <= THROUGHPUT_KBPS_MAX else None


def failing_value(note: Failing) -> dict[str, Any]:
    """Return a note of failures as an attribute value that people can read in the table."""
    value: dict[str, Any] = {
        "failures": {"N": str(note.failures)},
        "since": {"S": datetime.fromtimestamp(note.since_s, UTC).isoformat()},
        "checkpoint": {"S": note.checkpoint.sequence},
        "checkpointSubSequenceNumber": {"N": str(note.checkpoint.sub)},
    }
    if note.first is not None:
        value["attempts"] = {"N": str(note.attempts)}
        value["sequenceNumber"] = {"S": note.first.sequence}
        value["subSequenceNumber"] = {"N": str(note.first.sub)}
    return {"M": value}


def status_values(status: ShardStatus) -> dict[str, dict[str, Any]]:
    """Return the attributes to write for a status, by name. The caller must remove the attributes of `STATUS` that are
    not among them from the row.
    """
    entries = (
        (STATE, "S", status.activity),
        (BEHIND_AT, "N", status.at_s),
        (BEHIND_MS, "N", status.behind_ms),
        (DELIVERED, "S", status.delivered),
        (WHY, "S", status.why and status.why[:WHY_CHARACTERS_MAX]),
        (TREND, "S", status.trend),
        (CHILD, "S", status.child and _child_text(status.at_s, status.child)),
    )
    return {name: {kind: str(value)} for name, kind, value in entries if value not in (None, "")}


def _status(row: Row) -> ShardStatus | None:
    """Return the status in a row; None if it is absent or damaged. No decision about the lease depends on the status,
    so damage does not make the row corrupt.
    """
    activity, at_s = _ACTIVITY.read(row), _AT.read(row)
    if activity is None or at_s is None:
        return None
    child_at_s, child = _CHILD.read(row) or (None, None)
    return ShardStatus(
        activity,
        at_s,
        _BEHIND.read(row),
        _DELIVERED.read(row),
        _WHY.read(row),
        _TREND.read(row),
        child if child_at_s == at_s else None,
    )


def _hash_attributes(key: str, hash_range: HashRange) -> dict[str, dict[str, Any]]:
    """Return the attributes of a hash range; none for a range of one key. Raises ValueError for an impossible range."""
    if not 0 <= hash_range.start <= hash_range.end <= HASH_KEY_MAX:
        raise ValueError(f"lease {key}: {hash_range.start} to {hash_range.end} is no hash range")
    if hash_range.start == hash_range.end:  # KCL before 3.5 fails its whole listing on such a row
        return {}
    return {HASH_START: {"S": str(hash_range.start)}, HASH_END: {"S": str(hash_range.end)}}


# --- attributes that mld adds -----------------------------------------------------------------------------------------


def _failing(value: Row) -> Failing:
    """Return the note of failures in the value of the attribute FAILING. Raises ValueError if it is damaged."""
    checkpoint = _position(value, "checkpoint", "checkpointSubSequenceNumber")
    if checkpoint is None:
        raise ValueError("a note is about a checkpoint")
    since_s = int(datetime.fromisoformat(value["since"]["S"]).timestamp())
    if not 0 <= since_s <= SINCE_S_MAX:
        raise ValueError("a time that cannot be written back")
    first = _position(value, "sequenceNumber", "subSequenceNumber")
    attempts = 0 if first is None else _integer(value, "attempts") or 0
    return Failing(
        failures=min(max(1, _required_integer(value, "failures")), FAILURES_KEPT_MAX),
        since_s=since_s,
        checkpoint=checkpoint,
        attempts=min(max(0, attempts), FAILURES_KEPT_MAX),
        first=first,
    )


def _records(found: Collection[str]) -> frozenset[str]:
    """Return the records to leave out. Raises ValueError for a set that mld would not have written."""
    if len(found) > LEFT_OUT_MAX or not all(map(_RECORD.fullmatch, found)):
        raise ValueError("not all are records")
    return frozenset(found)


def _delivered(found: str) -> Position:
    """Return the position in a text like `4903905/7`; the sub-sequence number may be missing."""
    sequence, _, sub = found.partition("/")
    return Position(sequence, integer(SUB_MAX)(sub) if sub else 0)


_FAILING = OwnAttribute(
    FAILING, "M", _failing, failing_value(Failing(2, 1_763_661_600, TRIM_HORIZON, 1, SHARD_END))["M"]
)
_LEFT_OUT = OwnAttribute(LEFT_OUT, "SS", _records, ["4903905", "4903905/7"])


def _child_text(at_s: int, child: ChildFigures) -> str:
    """Return the figures of a child as the text of the attribute CHILD.

    The text begins with the time of the status. A holder with an earlier version of mld writes the status but leaves
    this attribute as it is. Then the two times differ, which shows that the figures are those of an earlier holder.
    """
    rate = NO_FIGURE if child.records_per_s is None else f"{child.records_per_s:.1f}"
    busy = NO_FIGURE if child.busy_s is None else str(child.busy_s)
    return f"{at_s} {rate} {busy} {child.restarts}"


def _child(text: str) -> tuple[int, ChildFigures]:
    """Return the time and the figures in a text of `_child_text`. Raises ValueError if the text is damaged."""
    if (found := _CHILD_TEXT.fullmatch(text)) is None:
        raise ValueError("not four figures")
    at_s, rate, busy, restarts = found.groups()
    return int(at_s), ChildFigures(
        None if rate == NO_FIGURE else float(rate), None if busy == NO_FIGURE else int(busy), int(restarts)
    )


_DELIVERED = OwnAttribute(DELIVERED, "S", _delivered, "4903905/7")
_CHILD = OwnAttribute(CHILD, "S", _child, "1763661600 475.3 5 2")
