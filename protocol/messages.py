"""The messages between the daemon and a child as values, and the closed sets of their names.

Rules: protocol#actions-of-the-daemon, protocol#record-fields, protocol#child-messages. Values only: nothing here
encodes, decodes, reads or writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, TypeAlias

ChildMessage: TypeAlias = "CheckpointRequest | ActionStatus"


class Dialect(Enum):
    """Which generation of the protocol a child speaks (protocol#protocol-generations)."""

    KCL_1 = 1
    """KCL 1.x: one `shutdown` message with a reason; positions may come under the key `checkpoint`."""
    KCL_2 = 2
    """KCL 2.x and 3.x: `leaseLost` and `shardEnded`."""


class ActionName(Enum):
    """The actions a child is asked to do, by their 2.x/3.x names, whatever the dialect."""

    INITIALIZE = "initialize"
    PROCESS_RECORDS = "processRecords"
    LEASE_LOST = "leaseLost"
    SHARD_ENDED = "shardEnded"
    SHUTDOWN_REQUESTED = "shutdownRequested"


class ShutdownReason(Enum):
    """The reasons of the 1.x `shutdown` message."""

    ZOMBIE = "ZOMBIE"
    """The lease is lost: no checkpoint is allowed."""
    TERMINATE = "TERMINATE"
    """The shard has ended: the child must checkpoint."""


class CheckpointErrorName(Enum):
    """Every error name of a checkpoint reply (protocol#checkpoint-errors): children branch on these exact texts."""

    SHUTDOWN = "ShutdownException"
    """The lease is not held any more: stop, do not retry."""
    THROTTLING = "ThrottlingException"
    """The lease table is throttled: back off and retry."""
    INVALID_STATE = "InvalidStateException"
    """No lease table, or an action in which checkpoints are not allowed: fatal."""
    DEPENDENCY = "KinesisClientLibDependencyException"
    """Any other failure of the lease table: retry."""
    ILLEGAL_ARGUMENT = "IllegalArgumentException"
    """The position is malformed or was not delivered: a bug in the child."""


@dataclass(frozen=True, slots=True)
class StreamLabel:
    """The stream of a shard, where an application reads several."""

    name: str
    arn: str
    id: str
    """``account:name:epoch``, which tells a stream from one that was deleted and had its name."""


@dataclass(frozen=True, slots=True)
class Record:
    """One user record."""

    data: bytes
    partition_key: str
    sequence_number: str
    sub_sequence_number: int
    """Its place in a KPL aggregate; 0 for others."""
    approximate_arrival_ms: int
    """Epoch milliseconds; never null, on which some children crash."""
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Keys that some settings of the daemon add, such as `streamName`, by their names in the message."""


@dataclass(frozen=True, slots=True)
class Initialize:
    """`sequence_number` is the lease's checkpoint, a sentinel's name for a fresh lease; None without a checkpoint.

    `shard_id` is the shard's own name. `stream` is there if the application reads several; the message has it as flat
    keys, because existing children cannot decode an object (protocol#keys-of-several-streams).
    """

    shard_id: str
    sequence_number: str | None
    sub_sequence_number: int | None
    stream: StreamLabel | None = None
    name: ClassVar[ActionName] = ActionName.INITIALIZE


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """A batch; `millis_behind_latest` is the lag in milliseconds, None if unknown."""

    records: tuple[Record, ...]
    millis_behind_latest: int | None
    name: ClassVar[ActionName] = ActionName.PROCESS_RECORDS


@dataclass(frozen=True, slots=True)
class LeaseLost:
    name: ClassVar[ActionName] = ActionName.LEASE_LOST


@dataclass(frozen=True, slots=True)
class ShardEnded:
    name: ClassVar[ActionName] = ActionName.SHARD_ENDED


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """`checkpoint` is the sequence number of the lease's checkpoint, or a sentinel's name; None from older daemons."""

    checkpoint: str | None = None
    name: ClassVar[ActionName] = ActionName.SHUTDOWN_REQUESTED


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """Asks for a checkpoint; None as `sequence_number` means everything delivered so far (protocol#checkpoint-range).

    `legacy_key`: the position came under the 1.x key `checkpoint`.
    """

    sequence_number: str | None
    sub_sequence_number: int | None
    legacy_key: bool = False


@dataclass(frozen=True, slots=True)
class ActionStatus:
    """The action named is done. `response_for` is None if the child did not say which."""

    response_for: str | None


@dataclass(frozen=True, slots=True)
class Ignored:
    """A line that is no message for the daemon, and why. `quiet` lines are part of normal traffic, not worth a log.

    `is_log`: nothing in it looks like an attempt at a message; the child's program logs on stdout.
    """

    reason: str
    quiet: bool = False
    is_log: bool = False
