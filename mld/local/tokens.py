"""`pack`, `unpack`: make and read opaque tokens: shard iterators, and the page tokens of lists. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any, NamedTuple

from mld.local.kinesis_errors import invalid

_CHECKSUM_BYTES = 4

SHARD_ITERATOR, SHARDS_TOKEN = "I", "S"


def pack(kind: str, *fields: object) -> str:
    """Return a token: base64 of a checksum and of the fields as JSON.

    The fields describe the place in a shard or list completely, so the model need not remember tokens. They include the
    creation time of the stream, so that old tokens are refused if the stream is deleted and created again.
    """
    body = json.dumps([kind, *fields]).encode()
    return base64.b64encode(zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") + body).decode()


def unpack(kind: str, text: str) -> list[Any] | None:
    """Return the fields of a token of this kind; None if it is not one that `pack` made."""
    try:
        raw = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
        checksum, body = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
            return None
        found, *fields = json.loads(body)
    except ValueError:
        return None
    return fields if found == kind else None


def unpacked(kind: str, text: str, refusal: str = "NextToken is invalid.") -> list[Any]:
    """Return the fields of a token of this kind. Raises KinesisError with the text `refusal` for any other text."""
    fields = unpack(kind, text)
    if fields is None:
        raise invalid(refusal)
    return fields


class ShardIterator(NamedTuple):
    """The fields of an iterator. `position` is the lowest sequence number to deliver, `issued_s` the time when the
    iterator was made (epoch seconds).
    """

    account: str
    stream: str
    created_ms: int
    shard_index: int
    position: int
    issued_s: float


def decode_iterator(text: str) -> ShardIterator:
    """Decode an iterator. Raises KinesisError for any other text."""
    return ShardIterator(*unpacked(SHARD_ITERATOR, text, "Invalid ShardIterator."))


def account_of_token(text: str) -> str | None:
    """Return the account in an iterator or in a page token of shards; None for other texts."""
    fields = unpack(SHARD_ITERATOR, text) or unpack(SHARDS_TOKEN, text)
    return fields[0] if fields else None
