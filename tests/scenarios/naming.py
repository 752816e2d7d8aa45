"""Short names for the long ones of Kinesis, so that output reads well and does not change with time stamps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_SHARD = re.compile(r"shardId-0*(\d+)")
_SHORT_SHARD = re.compile(r"shard-(\d+)")
_NUMBER = re.compile(r"\d{50,}(/\d+)?")
_HASH_KEY = re.compile(r"\b\d{30,49}\b")


def short(shard_id: str) -> str:
    """``shardId-000000000003`` as ``shard-3``."""
    return _SHARD.sub(r"shard-\1", shard_id)


def full(name: str) -> str:
    """``shard-3`` as ``shardId-000000000003``. Raises ValueError."""
    match = _SHORT_SHARD.fullmatch(name)
    if match is None:
        raise ValueError(f"not a shard: {name!r} (write shard-3)")
    return f"shardId-{int(match[1]):012d}"


def readable(text: str, number_of: Mapping[str, int]) -> str:
    """Shard ids short, sequence numbers as record numbers (``#7``), others as ``#?``, hash keys as ``…``."""

    def name(match: re.Match[str]) -> str:
        digits = match[0].removesuffix("/0")
        return f"#{number_of[digits]}" if digits in number_of else "#?"

    return _HASH_KEY.sub("…", _NUMBER.sub(name, short(text)))


def shard_list(names: Iterable[str]) -> str:
    """``shard-0, shard-1, shard-2, shard-7`` as ``shard-0..2, 7``."""
    return "shard-" + ranges(sorted(int(short(name).removeprefix("shard-")) for name in names))


def ranges(numbers: Iterable[int]) -> str:
    """Ascending integers as text: ``0..2, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}..{b}" for a, b in runs)


def numbers(text: str) -> range:
    """``#3..#7`` as record numbers."""
    match = re.fullmatch(r"#(\d+)(?:\.\.#?(\d+))?", text)
    if match is None:
        raise ValueError(f"not records: {text!r} (write #3..#7)")
    return range(int(match[1]), int(match[2] or match[1]) + 1)
