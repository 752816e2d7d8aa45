"""The child's half of the wire format: parses lines of the daemon, and encodes the child's messages.

Rules: protocol#child-messages. `parse_daemon_line` understands every generation of daemons
(protocol#protocol-generations). The daemon itself uses `mld.protocol.codec`. This module is quick to import, because
every child imports it.
"""

from __future__ import annotations

import json
from binascii import Error as Base64Error
from binascii import a2b_base64
from dataclasses import dataclass
from typing import Any

from mld.protocol.messages import (
    ActionName,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    ShardEnded,
    ShutdownReason,
    ShutdownRequested,
    StreamLabel,
)

_RECORD_KEYS = frozenset(
    {"action", "data", "partitionKey", "sequenceNumber", "subSequenceNumber", "approximateArrivalTimestamp"}
)
UNKNOWN_ARRIVAL_MS = 0
"""The arrival time of a record if the daemon sends none, as daemons before 1.7.2 do."""
_PLAIN: dict[ActionName, LeaseLost | ShardEnded] = {
    ActionName.LEASE_LOST: LeaseLost(),
    ActionName.SHARD_ENDED: ShardEnded(),
}


class DaemonMessageError(Exception):
    """The daemon sent a line that is not a message in any generation of the protocol."""


@dataclass(frozen=True, slots=True)
class ReceivedReply:
    """The reply to a checkpoint request; `error` is None if it succeeded.

    `error` is not an enum, because a Java daemon may send the name of any exception.
    """

    error: str | None


@dataclass(frozen=True, slots=True)
class ReceivedAction:
    """An action, and the name of the message it came in, which the child's status has to repeat.

    The name is `shutdown` for the message of 1.x, otherwise the action's own.
    """

    action: Initialize | ProcessRecords | LeaseLost | ShardEnded | ShutdownRequested
    response_for: str


def parse_daemon_line(line: bytes) -> ReceivedAction | ReceivedReply:
    """Return the message in one line of the daemon. Unknown keys are ignored. Raises DaemonMessageError."""
    try:
        value = json.loads(line)
        return _message(value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, Base64Error) as error:
        raise DaemonMessageError(f"not a message of the daemon ({error!r}): {line[:80]!r}") from error


def encode_status(response_for: str) -> bytes:
    return json.dumps({"action": "status", "responseFor": response_for}, separators=(",", ":")).encode() + b"\n"


def encode_checkpoint_request(sequence_number: str | None, sub_sequence_number: int | None) -> bytes:
    """Return the line that asks for a checkpoint. Without a sequence number, it covers all records so far."""
    request = {
        "action": "checkpoint",
        "sequenceNumber": sequence_number,
        "subSequenceNumber": sub_sequence_number,
    }
    return json.dumps(request, separators=(",", ":")).encode() + b"\n"


def _message(value: dict[str, Any]) -> ReceivedAction | ReceivedReply:
    """Return the message in a parsed line. Raises ValueError, KeyError and other errors if it is not one."""
    name = value["action"]
    match name:
        case "checkpoint":
            return ReceivedReply(value.get("error"))
        case "initialize":
            sequence, sub = value.get("sequenceNumber"), value.get("subSequenceNumber")
            return ReceivedAction(Initialize(value["shardId"], sequence, sub, _stream(value)), name)
        case "processRecords":
            records = tuple(map(_record, value["records"]))
            return ReceivedAction(ProcessRecords(records, value.get("millisBehindLatest")), name)
        case "shutdown":
            return ReceivedAction(_shutdown(ShutdownReason(value["reason"])), name)
        case "shutdownRequested":
            return ReceivedAction(ShutdownRequested(value.get("checkpoint")), name)
        case _:
            return ReceivedAction(_PLAIN[ActionName(name)], name)


def _stream(value: dict[str, Any]) -> StreamLabel | None:
    """Return the stream that an `initialize` message names; None if it names no stream.

    Only an application that reads several streams gets the name.
    """
    match value:
        case {"streamName": str(name), "streamArn": str(arn), "streamId": str(identifier)}:
            return StreamLabel(name, arn, identifier)
    return None


def _record(value: dict[str, Any]) -> Record:
    """Return a record from its JSON object. Additional keys with texts become its `extra`."""
    arrival_ms = value.get("approximateArrivalTimestamp")
    extra = {}
    if len(value) > len(_RECORD_KEYS):
        extra = {key: one for key, one in value.items() if key not in _RECORD_KEYS and isinstance(one, str)}
    return Record(
        a2b_base64(value["data"] or ""),
        value["partitionKey"],
        value["sequenceNumber"],
        value.get("subSequenceNumber") or 0,
        UNKNOWN_ARRIVAL_MS if arrival_ms is None else int(arrival_ms),
        extra,
    )


def _shutdown(reason: ShutdownReason) -> LeaseLost | ShardEnded:
    return LeaseLost() if reason is ShutdownReason.ZOMBIE else ShardEnded()
