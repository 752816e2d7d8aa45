"""The phases of a child's life, which decide which action may be sent next (protocol#phases-of-a-child)."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    NEW = auto()
    READY = auto()
    DRAINING = auto()
    SHARD_ENDED = auto()
    LEASE_LOST = auto()
    CLOSED = auto()
