"""The scripts of `mld conformance`: each is a conversation with a record processor, and tests certain rules.

A script defines the actions that are sent, the replies to checkpoints, and the rule that the processor has kept if the
conversation reaches its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from mld.check.conformance_rules import Report, Rule
from mld.check.conformance_session import Replies, Session
from mld.core.positions import SHARD_END
from mld.protocol.messages import ActionName, CheckpointErrorName, Record, StreamLabel

FIRST_SEQUENCE = 49590338271490256608559692538361571095921575989136588898
ARRIVAL_MS = 1_476_889_707_123
LARGE_BATCH_RECORDS = 10_000
LARGE_RECORD_BYTES = 1024
STREAM = StreamLabel("orders", "arn:aws:kinesis:eu-west-1:111122223333:stream/orders", "111122223333:orders:1700000000")
SCHEMA_KEYS = {
    "schemaVersionId": "00112233-4455-6677-8899-aabbccddeeff",
    "schemaName": "orders",
    "schemaDataFormat": "AVRO",
    "dataFormat": "JSON",
    "schemaFile": "/tmp/schemas/00112233-4455-6677-8899-aabbccddeeff",  # noqa: S108 - text for the child
}
SCHEMA_ERROR = {"schemaError": "the registry does not know the version"}
UNUSUAL_KEYS = ("schl\u00fcssel", "\u9375", "\U0001f511", 'a "quote" and a \\', "\u2028\u007f\t", "k" * 256)
UNUSUAL_PAYLOADS = (b"", b"\xff\xfe\x00", "\u00e9\u2028\n".encode())


def _no_errors(_: int) -> CheckpointErrorName | None:
    return None


@dataclass(frozen=True, slots=True)
class SessionScript:
    """One scripted conversation, with the rule that it tests."""

    name: str
    hold: Callable[[Session, Report], Awaitable[None]]
    """A function that holds the conversation."""
    rule: Rule | None = None
    """The rule that counts as kept if the conversation reaches its end."""
    start: str = "TRIM_HORIZON"
    replies: Replies = _no_errors
    may_end: bool = False
    """Whether the rule is also kept if the child exits with an error status."""
    is_optional: bool = False
    """Whether a session that breaks off breaks only `rule`, and no other rule."""


async def _life(session: Session, report: Report) -> None:
    """Run an ordinary life of a child until its lease is lost, and judge whether it checkpoints when asked to stop."""
    await session.initialize()
    await session.process(_records(0, 3))
    await session.process(_records(3, 3), 5000)
    await session.request_shutdown()
    if session.range.last == session.range.largest:
        report.passed(Rule.SHUTDOWN_CHECKPOINT)
    else:
        session.failed(Rule.SHUTDOWN_CHECKPOINT, "the last record was not checkpointed")
    await session.lose_lease()


async def _shard_end(session: Session, report: Report) -> None:
    """Run a child's life until its shard ends. Judge whether the child checkpoints that end, and how it asks: it should
    name no position, or SHARD_END.
    """
    await session.initialize()
    await session.process(_records(0, 3))
    await session.end_shard()
    if session.range.is_complete:
        report.passed(Rule.SHARD_END_CHECKPOINT)
    else:
        session.failed(Rule.SHARD_END_CHECKPOINT, "the end of the shard was not checkpointed")
    positions = [one.request.sequence_number for one in session.answered if one.action is ActionName.SHARD_ENDED]
    if any(position is None or position == SHARD_END.sequence for position in positions):
        report.passed(Rule.SHARD_END_PLAIN)
    elif positions:
        session.failed(
            Rule.SHARD_END_PLAIN,
            "asked for a position only; if it was checkpointed before, Java does not end the shard",
        )


async def _at_end_of_input(session: Session, _: Report) -> None:
    """Run a life that ends without `leaseLost` or `shardEnded`: after a batch, `conformance` closes the child's
    input.
    """
    await session.initialize()
    await session.process(_records(0, 1))


async def _unusual(session: Session, _: Report) -> None:
    """Send unusual records, whose lag is unknown (None), and then an ordinary record."""
    await session.initialize()
    await session.process(_unusual_records(), None)
    await session.process(_records(100, 1))
    await session.lose_lease()


async def _several_streams(session: Session, _: Report) -> None:
    """Run an ordinary life in which `initialize` names the stream, as in a daemon with several streams."""
    await session.initialize(STREAM)
    await session.process(_records(0, 3))
    await session.lose_lease()


async def _schema_registry(session: Session, _: Report) -> None:
    """Send a plain record, a record with the keys of a decoded schema, and a record marked as not decodable."""
    await session.initialize()
    plain, decoded, marked = _records(0, 3, b'{"id": 7}')
    await session.process([plain, replace(decoded, extra=SCHEMA_KEYS), replace(marked, extra=SCHEMA_ERROR)])
    await session.lose_lease()


async def _large(session: Session, _: Report) -> None:
    """Send a batch of many records."""
    payload = b"x" * LARGE_RECORD_BYTES
    await session.initialize()
    await session.process(_records(0, LARGE_BATCH_RECORDS, payload))
    await session.lose_lease()


async def _throttled(session: Session, report: Report) -> None:
    """Run a life in which the first checkpoint is throttled, and judge whether the child tries again."""
    await session.initialize()
    await session.process(_records(0, 3))
    await session.end_shard()
    if not session.answered:
        return
    first, *later = session.answered
    if any(one.action is first.action for one in later):
        report.passed(Rule.RETRIES_THROTTLED)
    else:
        session.failed(Rule.RETRIES_THROTTLED, f"gave up at once {first.during}")


async def _refused(session: Session, report: Report) -> None:
    """Run a life in which the script's `replies` refuse every checkpoint. If the child asked for none during the batch,
    its shard ends, because there it must ask.
    """
    await session.initialize()
    await session.process(_records(0, 3))
    if session.answered:
        await session.lose_lease()
    else:
        await session.end_shard()


async def _lost(session: Session, report: Report) -> None:
    """Run a life in which every checkpoint is refused because the lease is gone. Judge whether the child tries again in
    the same action.
    """
    await _refused(session, report)
    actions = [one.action for one in session.answered]
    if len(actions) != len(set(actions)):
        session.failed(Rule.NO_RETRY_WHEN_LOST, "asked again in the same action")
    elif actions:
        report.passed(Rule.NO_RETRY_WHEN_LOST)


def _always(error: CheckpointErrorName) -> Replies:
    """Return replies that refuse every checkpoint with this error."""
    return lambda _: error


def _once(error: CheckpointErrorName) -> Replies:
    """Return replies that refuse only the first checkpoint."""
    return lambda number: error if number == 0 else None


SCRIPTS = (
    SessionScript("a whole life", _life),
    SessionScript("end of the shard", _shard_end),
    SessionScript("end of input without leaseLost", _at_end_of_input),
    SessionScript("unusual records", _unusual, Rule.UNUSUAL_RECORDS, start="AT_TIMESTAMP"),
    SessionScript("several streams", _several_streams, Rule.STREAM_KEYS, is_optional=True),
    SessionScript("schema registry", _schema_registry, Rule.SCHEMA_KEYS, is_optional=True),
    SessionScript("large batch", _large, Rule.LARGE_BATCH, start="LATEST"),
    SessionScript("throttled", _throttled, Rule.THROTTLING, replies=_once(CheckpointErrorName.THROTTLING)),
    SessionScript("lease gone", _lost, Rule.LEASE_GONE, replies=_always(CheckpointErrorName.SHUTDOWN)),
    SessionScript(
        "invalid state",
        _refused,
        Rule.INVALID_STATE,
        replies=_always(CheckpointErrorName.INVALID_STATE),
        may_end=True,
    ),
)


def _records(first: int, count: int, payload: bytes = b"payload") -> list[Record]:
    """Return ordinary records with consecutive sequence numbers."""
    return [
        Record(payload, f"key-{number}", str(FIRST_SEQUENCE + number), 0, ARRIVAL_MS + number)
        for number in range(first, first + count)
    ]


def _unusual_records() -> list[Record]:
    """Return a record for each pair of an unusual partition key and an unusual payload. Every three records share a
    sequence number and differ in their sub-sequence numbers, as the user records of an aggregate do.
    """
    pairs = [(key, payload) for key in UNUSUAL_KEYS for payload in UNUSUAL_PAYLOADS]
    return [
        Record(payload, key, str(FIRST_SEQUENCE + number // 3), number % 3, ARRIVAL_MS)
        for number, (key, payload) in enumerate(pairs)
    ]
