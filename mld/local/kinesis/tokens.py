"""Shard iterators and page tokens: opaque texts for clients to hand back. Pure.

A text is base64 of a checksum and of fields that describe the place themselves, so that a model remembers none of them.
Each names its stream by the time of creation too; a stream made again under the same name refuses the old ones.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass

from mld.local.kinesis import errors
from mld.local.kinesis.shard import FilterType, ListFilter

_SEPARATOR = "\x1f"
_CHECKSUM_BYTES = 4


def pack(kind: str, *fields: object) -> str:
    body = _SEPARATOR.join((kind, *map(str, fields))).encode()
    return base64.b64encode(zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body).decode()


def unpack(kind: str, text: str, count: int) -> list[str] | None:
    """Return the `count` fields of a text of this kind; None if we did not make it."""
    try:
        raw = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
    fields = body.decode(errors="replace").split(_SEPARATOR)
    if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != checksum or fields[0] != kind or len(fields) != count + 1:
        return None
    return fields[1:]


LIFE_S = 300.0
"""Both kinds expire five minutes after they were given out."""
_BAD_TOKEN = "NextToken is invalid."  # noqa: S105 - a message


@dataclass(frozen=True, slots=True)
class ShardIterator:
    """`position` is the lowest sequence number to deliver; `issued_s` epoch seconds."""

    account: str
    stream: str
    created_ms: int
    shard_index: int
    position: int
    issued_s: float

    def encode(self) -> str:
        return pack(
            "I", self.account, self.stream, self.created_ms, self.shard_index, self.position, f"{self.issued_s:.3f}"
        )

    def is_expired(self, now: float) -> bool:
        return now - self.issued_s > LIFE_S


@dataclass(frozen=True, slots=True)
class ListShardsToken:
    """Where a listing goes on: after shard `after_id`, under the same filter."""

    account: str
    stream: str
    created_ms: int
    after_id: str
    filter: ListFilter | None
    issued_s: float

    def encode(self) -> str:
        kind, shard, time = "", "", ""
        if self.filter is not None:
            kind = self.filter.type.value
            shard = self.filter.shard_id or ""
            time = "" if self.filter.timestamp_s is None else repr(self.filter.timestamp_s)
        return pack(
            "S", self.account, self.stream, self.created_ms, self.after_id, kind, shard, time, f"{self.issued_s:.3f}"
        )

    def is_expired(self, now: float) -> bool:
        return now - self.issued_s > LIFE_S


def decode_iterator(text: str) -> ShardIterator:
    """Decode an iterator. Raises KinesisError for a text we did not make, as all here."""
    account, stream, created_ms, index, position, issued_s = _unpack("I", text, 6, "Invalid ShardIterator.")
    return ShardIterator(account, stream, int(created_ms), int(index), int(position), float(issued_s))


def decode_list_token(text: str) -> ListShardsToken:
    account, stream, created_ms, after_id, kind, shard, time, issued_s = _unpack("S", text, 8, _BAD_TOKEN)
    wanted = ListFilter(FilterType(kind), shard or None, float(time) if time else None) if kind else None
    return ListShardsToken(account, stream, int(created_ms), after_id, wanted, float(issued_s))


def encode_name(kind: str, name: str) -> str:
    """Return the page token of listings that only need the last name."""
    return pack(kind, name)


def decode_name(kind: str, text: str) -> str:
    return _unpack(kind, text, 1, _BAD_TOKEN)[0]


def _unpack(kind: str, text: str, count: int, refusal: str) -> list[str]:
    fields = unpack(kind, text, count)
    if fields is None:
        raise errors.invalid(refusal)
    return fields


def account_of_token(text: str) -> str | None:
    """Return the account that an iterator or a page token of shards names; None for other texts."""
    for kind, count in (("I", 6), ("S", 8)):
        if (fields := unpack(kind, text, count)) is not None:
            return fields[0]
    return None
