"""The phases of a child's life, which say what may be sent to it next (protocol#phases-of-a-child)."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    NEW = auto()
    READY = auto()
    DRAINING = auto()
    SHARD_ENDED = auto()
    LEASE_LOST = auto()
    CLOSED = auto()
