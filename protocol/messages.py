"""The messages between the daemon and a child as values, and the names that occur in them.

Rules: protocol#actions-of-the-daemon, protocol#record-fields, protocol#child-messages. Nothing here encodes, decodes,
reads or writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, TypeAlias

ChildMessage: TypeAlias = "CheckpointRequest | ActionStatus"


class Dialect(Enum):
    """The generation of the protocol that a child speaks (protocol#protocol-generations)."""

    KCL_1 = 1
    """KCL 1.x: a `shutdown` message with a reason in place of `leaseLost` and `shardEnded`; a position may have the key
    `checkpoint`."""
    KCL_2 = 2
    """KCL 2.x and 3.x: `leaseLost` and `shardEnded`."""


class ActionName(Enum):
    """The actions that a child must perform, by their names in 2.x and 3.x, whatever the dialect."""

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
    """All error names of a checkpoint reply (protocol#checkpoint-errors). Children compare these exact texts."""

    SHUTDOWN = "ShutdownException"
    """The lease is no longer held: stop, do not retry."""
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
    """The stream of a shard, if an application reads several."""

    name: str
    arn: str
    id: str
    """``account:name:epoch``. The epoch differs if a stream is deleted and another one is created under the same
    name."""


@dataclass(frozen=True, slots=True)
class Record:
    """One user record."""

    data: bytes
    partition_key: str
    sequence_number: str
    sub_sequence_number: int
    """Index of the record in its KPL aggregate; 0 for a record outside aggregates."""
    approximate_arrival_ms: int
    """Epoch milliseconds; never null, because some children crash on null."""
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Keys that settings of the daemon add to the message, such as `schemaName`."""


@dataclass(frozen=True, slots=True)
class Initialize:
    """The first action. `sequence_number` is the lease's checkpoint: a sequence number, a sentinel for a new lease, or
    None.

    `shard_id` does not contain the stream. `stream` is set if the application reads several streams. In the message its
    three fields are separate keys, because existing children cannot decode an object
    (protocol#keys-of-several-streams).
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
    """`checkpoint` is the lease's checkpoint: a sequence number or a sentinel; None from older daemons."""

    checkpoint: str | None = None
    name: ClassVar[ActionName] = ActionName.SHUTDOWN_REQUESTED


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """Requests a checkpoint. `sequence_number` None means everything delivered so far (protocol#checkpoint-range).

    `legacy_key`: the position had the 1.x key `checkpoint`.
    """

    sequence_number: str | None
    sub_sequence_number: int | None
    legacy_key: bool = False


@dataclass(frozen=True, slots=True)
class ActionStatus:
    """Reports that the named action is done. `response_for` is None if the child did not name it."""

    response_for: str | None


@dataclass(frozen=True, slots=True)
class Ignored:
    """A line that is not a message to the daemon; `reason` says why. Lines that are `quiet` are normal, and are not
    logged.

    `is_log`: nothing in the line looks like a message, so the child's program probably logs to stdout.
    """

    reason: str
    quiet: bool = False
    is_log: bool = False
