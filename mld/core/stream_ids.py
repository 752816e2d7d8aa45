"""Names of streams in a table with several streams: KCL's serialised identifier, ``account:name:epoch``.

Rule: leases#rows-of-several-streams. A stream that is deleted and made again keeps account and name, but gets another
epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

OF_THIS_STREAM: ContextVar[str | None] = ContextVar("mld_stream", default=None)
"""The identifier of the stream that the current task works for, if there are several; the log adds it to every line."""

_FORM = re.compile(r"([0-9]{1,20}):([^:]+):([0-9]{1,20})", re.ASCII)


@contextmanager
def working_for(stream: str | None) -> Iterator[None]:
    """Have the log add this stream to every line within the block. Pass None if there is only one stream."""
    token = OF_THIS_STREAM.set(stream)
    try:
        yield
    finally:
        OF_THIS_STREAM.reset(token)


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """Identifier of a stream. `account` has digits only, `name` has no colon, `epoch` is greater than 0."""

    account: str
    name: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.epoch}"


def key_of(stream: str | None, shard_id: str) -> str:
    """Return the lease key of a shard. `stream` is the identifier of its stream if there are several, else None."""
    return shard_id if stream is None else f"{stream}:{shard_id}"


def parse_stream_id(text: str) -> StreamId | None:
    """Return the identifier in `text`; None if `text` is not an identifier in its normal form (such as without leading
    zeros).
    """
    found = _FORM.fullmatch(text)
    if found is None or int(found[3]) == 0:
        return None
    stream = StreamId(found[1], found[2], int(found[3]))
    return stream if str(stream) == text else None


def shard_of_key(key: str) -> str:
    """Return the shard id in a lease key."""
    stream = stream_of_key(key)
    return key if stream is None else key.removeprefix(f"{stream}:")


def stream_of_key(key: str) -> str | None:
    """Return the stream identifier in a lease key; None if the key is a plain shard id, as in a table of only one
    stream.
    """
    stream, colon, shard_id = key.rpartition(":")
    return stream if colon and shard_id and parse_stream_id(stream) is not None else None


def keys_meant(keys: Iterable[str], name: str, labels: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return, sorted, those of `keys` that a person may mean by `name`: a lease key, a shard id, or a shard's number
    (``7``).

    If there are several streams, `name` may begin with one, as in ``orders:7``: its label, its name or its identifier.
    `labels` maps identifiers to labels.
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
    """Return whether `name` means this shard: it is the shard's id or number; leading zeros do not matter."""
    if shard_id == name:
        return True
    number = shard_id.rpartition("-")[2]
    return name.isascii() and name.isdigit() and number.isdigit() and int(number) == int(name)


def _is_stream(stream: str | None, name: str) -> bool:
    """Return whether `name` means this stream: it is the stream's identifier, or the name in it."""
    return stream is not None and name in (stream, stream.split(":")[1])
