"""Dead letters: the record that a processor cannot live with, with what is known of it, for a `LetterBox`. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from mld.aws.letters import Letter
from protocol.framed import FramedRecord


@dataclass(frozen=True, slots=True)
class Suspect:
    """A record alone, and how its processor ends with it."""

    record: FramedRecord
    attempts: int
    why: str
    last_words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sender:
    """Who writes."""

    application: str
    stream: str
    worker: str


def letter_of(suspect: Suspect, shard_id: str, sender: Sender, now_s: float) -> Letter:
    """The same record always has the same name: written twice, it replaces itself where the place has names."""
    fields = suspect.record.fields()
    body = {
        "application": sender.application,
        "stream": sender.stream,
        "shardId": shard_id,
        "sequenceNumber": suspect.record.sequence,
        "subSequenceNumber": suspect.record.sub,
        "partitionKey": fields["partitionKey"],
        "approximateArrivalTimestamp": fields["approximateArrivalTimestamp"],
        "data": fields["data"],
        "attempts": suspect.attempts,
        "error": suspect.why,
        "stderr": list(suspect.last_words),
        "worker": sender.worker,
        "writtenAt": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds"),
    }
    return Letter(
        path=(sender.application, sender.stream, shard_id),
        name=f"{suspect.record.sequence}-{suspect.record.sub}",
        body=json.dumps(body, separators=(",", ":")).encode("ascii"),
    )
