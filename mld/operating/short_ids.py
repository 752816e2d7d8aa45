"""Shows ids of shards and workers to people, in full or short, and reads what people write for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

NAMED_MAX = 5
_SHARD_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
_SHARD_ID = re.compile(r"shardId-(?=[0-9]{12}(?![0-9-]))0*([0-9]+)", re.ASCII)
"""Matches an id with twelve digits, as Kinesis makes it, and its number, of which `shard_id_of` makes the id again."""
_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.ASCII)


def names_of(names: Iterable[object], most: int = NAMED_MAX) -> str:
    """Return the names in one text: the first `most` of them, and how many more there are."""
    shown = list(map(str, names))
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def with_short_ids(text: str) -> str:
    """Return the text with short ids, for narrow terminals: shards as numbers, worker ids with only part of their UUID.

    Commands accept these short ids, too (`shard_id_of`, `is_worker`).
    """
    return _UUID.sub(r"\1…", _SHARD_ID.sub(r"\1", text))


def is_worker(worker: str, name: str) -> bool:
    """Return whether `name` is the worker's id, or that id as a narrow terminal shows it."""
    return name in (worker, with_short_ids(worker))


def shard_id_of(text: str) -> str:
    """Return the id of a shard; the text ``3`` means ``shardId-000000000003``."""
    return f"shardId-{int(text):012d}" if _SHARD_NUMBER.fullmatch(text) else text
