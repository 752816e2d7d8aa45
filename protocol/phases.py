"""The phases of a child's life, which decide which action may be sent next (protocol#phases-of-a-child)."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    NEW = auto()
    """The child has not answered `initialize` yet."""
    READY = auto()
    """The child may get records."""
    DRAINING = auto()
    """The child has answered `shutdownRequested`, and gets no more records."""
    SHARD_ENDED = auto()
    """The child has answered `shardEnded`."""
    LEASE_LOST = auto()
    """The child has answered `leaseLost`, its last action."""
    CLOSED = auto()
    """The child's output has ended, or has broken the protocol."""
