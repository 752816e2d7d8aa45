"""`ShardActivity`: what the consumer of a shard is doing, in one word. Pure."""

from __future__ import annotations

from enum import Enum


class ShardActivity(Enum):
    """What a shard's consumer is doing, as pages and commands show it to an operator."""

    PROCESSING = "processing"
    IDLE = "idle"
    STALLED = "stalled"
    UNREADABLE = "unreadable"
    FAILING = "failing"
    PARKED = "parked"
    ENDING = "ending"
    PAUSED = "paused"


NO_READER = frozenset({ShardActivity.UNREADABLE, ShardActivity.PARKED})
"""Activities in which the consumer gets no records from Kinesis."""
