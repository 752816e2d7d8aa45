"""Positions in a shard: sequence numbers, sub-sequence numbers and the four sentinels.

Rules: leases#order-of-positions. Ordering: AT_TIMESTAMP < TRIM_HORIZON < LATEST < any decimal number < SHARD_END; ties
are broken by the sub-sequence number, except that SHARD_END equals itself whatever its sub number.

And how a row of a table with several streams names its stream (leases#rows-of-several-streams): by KCL's serialised
stream identifier, ``account:name:epoch``. The epoch only tells apart the incarnations of a stream that was deleted and
made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

TRIM_HORIZON_NAME = "TRIM_HORIZON"
LATEST_NAME = "LATEST"
AT_TIMESTAMP_NAME = "AT_TIMESTAMP"
SHARD_END_NAME = "SHARD_END"

_SENTINEL_RANKS = {AT_TIMESTAMP_NAME: -3, TRIM_HORIZON_NAME: -2, LATEST_NAME: -1}
SEQUENCE_DIGITS_MAX = 129  # the Kinesis API's own limit; it also keeps integers small, which Python converts slowly
SUB_MAX = 2**63 - 1  # a long, in Java
_DIGITS = re.compile(rf"[0-9]{{1,{SEQUENCE_DIGITS_MAX}}}", re.ASCII)
_ORDER_END = 1
_ORDER_BEFORE_END = 0

OF_THIS_STREAM: ContextVar[str | None] = ContextVar("mld_stream", default=None)
"""The identifier of the one of several streams that is being worked for; the log adds it to every line."""

_FORM = re.compile(r"([0-9]{1,20}):([^:]+):([0-9]{1,20})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """An extended sequence number: `sequence` is decimal digits or a sentinel's name, `sub` counts inside an aggregate.

    Raises ValueError for any other text. Equality is structural; the order is that of the module's page.
    """

    sequence: str
    sub: int = 0

    def __post_init__(self) -> None:
        if not is_position_text(self.sequence):
            raise ValueError(f"not a sequence number or sentinel: {self.sequence[:SEQUENCE_DIGITS_MAX]!r}")

    @property
    def is_sentinel(self) -> bool:
        return self.sequence in _SENTINEL_RANKS or self.sequence == SHARD_END_NAME

    @property
    def is_shard_end(self) -> bool:
        return self.sequence == SHARD_END_NAME

    @property
    def number(self) -> int | None:
        """The sequence number as an integer; None for a sentinel."""
        return None if self.is_sentinel else int(self.sequence)

    def _order(self) -> tuple[int, int, int]:
        if self.sequence == SHARD_END_NAME:
            return (_ORDER_END, 0, 0)
        rank = _SENTINEL_RANKS.get(self.sequence)
        return (_ORDER_BEFORE_END, int(self.sequence) if rank is None else rank, self.sub)

    def __lt__(self, other: Position) -> bool:
        return self._order() < other._order()

    def __le__(self, other: Position) -> bool:
        return self._order() <= other._order()

    def __gt__(self, other: Position) -> bool:
        return self._order() > other._order()

    def __ge__(self, other: Position) -> bool:
        return self._order() >= other._order()

    def __str__(self) -> str:
        return self.sequence if self.is_sentinel else f"{self.sequence}/{self.sub}"


def is_position_text(text: str) -> bool:
    """Return whether `text` is so many ASCII digits as a sequence number may have, or one of the four sentinel
    names.
    """
    return text in _SENTINEL_RANKS or text == SHARD_END_NAME or _DIGITS.fullmatch(text) is not None


TRIM_HORIZON = Position(TRIM_HORIZON_NAME)
LATEST = Position(LATEST_NAME)
AT_TIMESTAMP = Position(AT_TIMESTAMP_NAME)
SHARD_END = Position(SHARD_END_NAME)


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """Where an application without checkpoints starts: a sentinel, and for AT_TIMESTAMP the epoch seconds."""

    sentinel: Position
    timestamp_s: float | None = None


# --- streams ----------------------------------------------------------------------------------------------------------


@contextmanager
def working_for(stream: str | None) -> Iterator[None]:
    """Log what is logged within as about this stream, by its identifier; None: there is one stream only."""
    token = OF_THIS_STREAM.set(stream)
    try:
        yield
    finally:
        OF_THIS_STREAM.reset(token)


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """One incarnation of a stream. `account` has digits only, `name` no colon, `epoch` is greater than 0."""

    account: str
    name: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.epoch}"


def key_of(stream: str | None, shard_id: str) -> str:
    """Return the key of a shard's lease. `stream` is the stream's identifier among several, else None."""
    return shard_id if stream is None else f"{stream}:{shard_id}"


def parse_stream_id(text: str) -> StreamId | None:
    """Return the identifier that `text` is, exactly; None if it is none."""
    found = _FORM.fullmatch(text)
    if found is None or int(found[3]) == 0:
        return None
    stream = StreamId(found[1], found[2], int(found[3]))
    return stream if str(stream) == text else None


def shard_of_key(key: str) -> str:
    """Return the shard's own name in a lease key."""
    stream = stream_of_key(key)
    return key if stream is None else key.removeprefix(f"{stream}:")


def stream_of_key(key: str) -> str | None:
    """Return the stream's part of a lease key; None for the key of a table with one stream, which is a shard id."""
    stream, colon, shard_id = key.rpartition(":")
    return stream if colon and shard_id and parse_stream_id(stream) is not None else None


def keys_meant(keys: Iterable[str], name: str, labels: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the lease keys that a person may mean by `name`, sorted: a key, a shard's own name, or its number (``7``).

    Among several streams a name may begin with the stream, as ``orders:7``: its label, which `labels` have by
    identifier, its own name, or its identifier.
    """
    sorted_keys = sorted(keys)
    if name in sorted_keys:
        return (name,)
    stream, _, shard = name.rpartition(":")
    known = labels or {}
    found = [key for key in sorted_keys if _is_shard(shard_of_key(key), shard)]
    if stream:
        by_label = [key for key in found if known.get(stream_of_key(key) or "") == stream]
        found = by_label or [key for key in found if _is_stream(stream_of_key(key), stream)]
    return tuple(found)


def _is_shard(shard_id: str, name: str) -> bool:
    if shard_id == name:
        return True
    number = shard_id.rpartition("-")[2]
    return name.isascii() and name.isdigit() and number.isdigit() and int(number) == int(name)


def _is_stream(stream: str | None, name: str) -> bool:
    return stream is not None and name in (stream, stream.split(":")[1])
