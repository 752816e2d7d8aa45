"""`dead_letter_of`: makes the dead letter for a record that kills its processor. The letter has the record, and facts
about the failures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mld.aws.letters import Letter
from mld.protocol.framed_records import FramedRecord


@dataclass(frozen=True, slots=True)
class Sender:
    """The application, stream and worker that a letter names as its origin."""

    application: str
    stream: str
    worker: str


def dead_letter_of(
    record: FramedRecord, shard_id: str, sender: Sender, now_s: float, *, attempts: int, why: str, stderr: Sequence[str]
) -> Letter:
    """Return the letter about a record on which its processor failed `attempts` times, the last time because of `why`.

    The letter is named after the record's position. So if it is written twice, the second one replaces the first,
    wherever letters are stored under their names.
    """
    fields = record.fields()
    body = {
        "application": sender.application,
        "stream": sender.stream,
        "shardId": shard_id,
        "sequenceNumber": record.sequence,
        "subSequenceNumber": record.sub,
        "partitionKey": fields["partitionKey"],
        "approximateArrivalTimestamp": fields["approximateArrivalTimestamp"],
        "data": fields["data"],
        "attempts": attempts,
        "error": why,
        "stderr": list(stderr),
        "worker": sender.worker,
        "writtenAt": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds"),
    }
    return Letter(
        path=(sender.application, sender.stream, shard_id),
        name=f"{record.sequence}-{record.sub}",
        body=json.dumps(body, separators=(",", ":")).encode("ascii"),
    )
