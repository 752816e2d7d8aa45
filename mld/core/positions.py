"""Positions in a shard: sequence numbers, sub-sequence numbers and the four sentinels.

Rule: leases#order-of-positions. The order is AT_TIMESTAMP < TRIM_HORIZON < LATEST < any number < SHARD_END. Equal
sequence numbers are ordered by their sub-sequence numbers; two SHARD_END are equal in this order, whatever their
sub-sequence numbers are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TRIM_HORIZON_NAME = "TRIM_HORIZON"
LATEST_NAME = "LATEST"
AT_TIMESTAMP_NAME = "AT_TIMESTAMP"
SHARD_END_NAME = "SHARD_END"

_SENTINEL_RANKS = {AT_TIMESTAMP_NAME: -3, TRIM_HORIZON_NAME: -2, LATEST_NAME: -1}
SEQUENCE_DIGITS_MAX = 129  # limit of the Kinesis API; Python converts much longer numbers slowly
SUB_MAX = 2**63 - 1  # a long, in Java
_DIGITS = re.compile(rf"[0-9]{{1,{SEQUENCE_DIGITS_MAX}}}", re.ASCII)
_ORDER_END = 1
_ORDER_BEFORE_END = 0


@dataclass(frozen=True, slots=True)
class Position:
    """An extended sequence number. `sequence` is decimal digits or the name of a sentinel; `sub` counts inside an
    aggregate.

    Raises ValueError for any other text. `==` compares both fields; `<` uses the order of this module.
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
        """Return a sort key: the names of starting points come first, then sequence numbers, then SHARD_END."""
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
    """Return whether `text` is the name of a sentinel, or consists of 1 to SEQUENCE_DIGITS_MAX ASCII digits."""
    return text in _SENTINEL_RANKS or text == SHARD_END_NAME or _DIGITS.fullmatch(text) is not None


TRIM_HORIZON = Position(TRIM_HORIZON_NAME)
LATEST = Position(LATEST_NAME)
AT_TIMESTAMP = Position(AT_TIMESTAMP_NAME)
SHARD_END = Position(SHARD_END_NAME)


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """Where an application without checkpoints starts: a sentinel, and for AT_TIMESTAMP also the epoch seconds."""

    sentinel: Position
    timestamp_s: float | None = None
