"""The opaque tokens of the model: shard iterators, and what else a client must send back unread. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any, NamedTuple

from mld.local.kinesis_errors import invalid

_CHECKSUM_BYTES = 4

SHARD_ITERATOR, SHARDS_TOKEN = "I", "S"


# --- shard iterators and page tokens ---------------------------------------------------------------------------------


def pack(kind: str, *fields: object) -> str:
    """Return an opaque text for clients to hand back: base64 of a checksum and of JSON. The fields describe the place
    themselves, so that a model remembers none. Each names its stream by the time of creation too; a stream made again
    under the same name refuses the old ones.
    """
    body = json.dumps([kind, *fields]).encode()
    return base64.b64encode(zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body).decode()


def unpack(kind: str, text: str) -> list[Any] | None:
    """Return the fields of a text of this kind; None if we did not make it."""
    try:
        raw = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
        checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        found, *fields = json.loads(body) if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") == checksum else [None]
    except ValueError:
        return None
    return fields if found == kind else None


def unpacked(kind: str, text: str, refusal: str = "NextToken is invalid.") -> list[Any]:
    """Return the fields of a text of this kind. Raises KinesisError for a text we did not make."""
    fields = unpack(kind, text)
    if fields is None:
        raise invalid(refusal)
    return fields


class ShardIterator(NamedTuple):
    """`position` is the lowest sequence number to deliver; `issued_s` epoch seconds."""

    account: str
    stream: str
    created_ms: int
    shard_index: int
    position: int
    issued_s: float


def decode_iterator(text: str) -> ShardIterator:
    """Decode an iterator. Raises KinesisError for a text we did not make."""
    return ShardIterator(*unpacked(SHARD_ITERATOR, text, "Invalid ShardIterator."))


def account_of_token(text: str) -> str | None:
    """Return the account that an iterator or a page token of shards names; None for other texts."""
    fields = unpack(SHARD_ITERATOR, text) or unpack(SHARDS_TOKEN, text)
    return fields[0] if fields else None
