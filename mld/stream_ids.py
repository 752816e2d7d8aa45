"""`StreamId`: how a row of a table with several streams names its stream (leases#rows-of-several-streams).

The text is KCL's serialised stream identifier, ``account:name:epoch``. The epoch only tells apart the incarnations of a
stream that was deleted and made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_FORM = re.compile(r"([0-9]+):([^:]+):([0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """One incarnation of a stream. `account` has digits only, `name` no colon, `epoch` is greater than 0."""

    account: str
    name: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.account}:{self.name}:{self.epoch}"

    def lease_key(self, shard_id: str) -> str:
        """The key of the lease of a shard, where a table holds several streams."""
        return f"{self}:{shard_id}"


def parse_stream_id(text: str) -> StreamId | None:
    """The identifier that `text` is, exactly; None if it is none."""
    found = _FORM.fullmatch(text)
    if found is None or int(found[3]) == 0:
        return None
    stream = StreamId(found[1], found[2], int(found[3]))
    return stream if str(stream) == text else None


def stream_of_key(key: str) -> str | None:
    """The stream's part of a lease key; None for the key of a table with one stream, which is a shard id."""
    stream, colon, shard_id = key.rpartition(":")
    return stream if colon and shard_id and parse_stream_id(stream) is not None else None


def keys_meant_by(name: str, keys: Iterable[str]) -> list[str]:
    """The lease keys that a person may mean by `name`, in their order: a key, or the id or the number of a shard; in a
    table of several streams with the name of the stream before it, as ``orders/7``."""
    known = list(keys)
    if name in known:
        return [name]
    stream, slash, shard = name.rpartition("/")
    return [key for key in known if _is_shard(key, shard) and (not slash or _name_in(key) == stream)]


def _is_shard(key: str, name: str) -> bool:
    """Whether a lease key is that of a shard with this id or number."""
    shard_id = key.rpartition(":")[2]
    if not (name.isascii() and name.isdigit()):
        return shard_id == name
    number = shard_id.rpartition("-")[2]
    return number.isascii() and number.isdigit() and int(number) == int(name)


def _name_in(key: str) -> str | None:
    """The name of the stream in a lease key."""
    stream = stream_of_key(key)
    return None if stream is None else stream.split(":")[1]
