"""Pages of records for tests: made of values, read back as values, and compared with a plain reference."""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as quote
from random import Random

from mld.core.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.core.steps import finish
from mld.core.streams import HASH_KEY_MAX, ChildBatch, ChildShard, HashRange, Misrouted, Page
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record
from mld.retrieval.kpl import MAGIC, MalformedAggregateError, MisroutedAggregateError, Work, user_records
from mld.retrieval.pieces import Columns, Piece, framed
from mld.retrieval.rawpage import RawPage, Sequences

RANGES = (None, HashRange(0, HASH_KEY_MAX), HashRange(0, HASH_KEY_MAX // 2))

FRAMES = (b"\x03\x00", b"\x03\x05")
"""How records begin that have the frame of a schema registry."""


def page_with(
    records: Sequence[Record],
    next_iterator: str | None = "next",
    millis_behind_latest: int | None = 0,
    child_shards: tuple[ChildShard, ...] = (),
) -> RawPage:
    """The page of an answer with these records, none of which comes from an aggregate."""
    columns = [
        Columns(
            b2a_base64(record.data, newline=False),
            quote(record.partition_key).encode(),
            record.sequence_number.encode(),
            b"%d" % record.approximate_arrival_ms,
        )
        for record in records
    ]
    pieces = []
    if records:
        data_bytes = sum(len(record.data) for record in records)
        bears_frame = any(record.data[:2] in FRAMES for record in records)
        pieces.append(Piece((framed(columns),), len(records), data_bytes, bears_frame))
    sequences = Sequences()
    for one in columns:
        sequences.add([one.sequence])
    bears_magic = any(record.data.startswith(MAGIC) for record in records)
    first_arrival_ms = records[0].approximate_arrival_ms if records else None
    return RawPage(
        tuple(pieces), sequences, bears_magic, first_arrival_ms, next_iterator, millis_behind_latest, child_shards
    )


def records_of(batch: ChildBatch) -> list[Record]:
    """The records of a batch, as its child reads them."""
    line = b"".join(batch.line())
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    message = json.loads(line)
    assert message["action"] == "processRecords"
    return [
        Record(
            a2b_base64(record["data"]),
            record["partitionKey"],
            record["sequenceNumber"],
            record["subSequenceNumber"],
            record["approximateArrivalTimestamp"],
        )
        for record in message["records"]
    ]


def users_of(record: Record, hash_range: HashRange | None) -> list[Record] | None:
    """The user records of an aggregate, None if it is none. Raises what `user_records` raises."""
    users = finish(user_records(record.data, hash_range if record.partition_key else None, Work()))
    return (
        None
        if users is None
        else [
            replace(record, data=data, partition_key=json.loads(key), sub_sequence_number=sub)
            for data, key, sub in users.columns()
        ]
    )


def sequences_in(page: RawPage) -> list[str]:
    """The sequence numbers of a page without aggregates, in its order."""
    return [place.sequence.decode() for place in page.places()]


def places(batch: ChildBatch) -> list[str]:
    """The positions of a batch's records, for example 7/0."""
    return [f"{record.sequence_number}/{record.sub_sequence_number}" for record in records_of(batch)]


# --- the reference ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlainPage:
    """What a page means, without any care for time and memory."""

    records: tuple[Record, ...]
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]

    def values(self) -> dict[str, object]:
        first, last = (self.records[0], self.records[-1]) if self.records else (None, None)
        return {
            "count": len(self.records),
            "data_bytes": sum(len(record.data) for record in self.records),
            "first_sequence": first and first.sequence_number,
            "first_arrival_ms": first and first.approximate_arrival_ms,
            "last_sequence": last and last.sequence_number,
            "next_iterator": self.next_iterator,
            "millis_behind_latest": self.millis_behind_latest,
            "child_shards": self.child_shards,
        }

    def after(self, position: Position, hash_range: HashRange | None) -> PlainBatch:
        batch = PlainBatch([], {}, {})
        records = list(self.records)
        if any(record.data.startswith(MAGIC) for record in records):
            records.sort(key=lambda record: int(record.sequence_number))
        for record in records:
            if position.is_shard_end or int(record.sequence_number) < (position.number or 0):
                continue
            users = batch.opened(record, hash_range)
            batch.records.extend(u for u in users if Position(u.sequence_number, u.sub_sequence_number) > position)
        return batch

    def line(self, batch: PlainBatch) -> bytes:
        return b"".join(encode_process_records(batch.records, self.millis_behind_latest))


@dataclass(frozen=True)
class PlainBatch:
    records: list[Record]
    malformed: dict[str, str]
    misrouted: dict[str, Misrouted]

    def opened(self, record: Record, hash_range: HashRange | None) -> list[Record]:
        try:
            users = users_of(record, hash_range)
        except MalformedAggregateError as error:
            self.malformed[record.sequence_number] = str(error)
            return [record]
        except MisroutedAggregateError as error:
            self.misrouted[record.sequence_number] = error.misrouted
            return []
        return [record] if users is None else users

    @property
    def largest(self) -> Position | None:
        """Of records that share a number, which Kinesis never gives, the last one that came."""
        last = sorted(self.records, key=lambda record: int(record.sequence_number))[-1:]
        return Position(last[0].sequence_number, last[0].sub_sequence_number) if last else None


def assert_same(page: Page, reference: PlainPage, rng: Random) -> None:
    """Every value of the page, and a few batches at positions around its records."""
    values = reference.values()
    assert {name: getattr(page, name) for name in values} == values
    has_numbers_of_their_own = len({record.sequence_number for record in reference.records}) == len(reference.records)
    for position in positions_around(reference, rng):
        hash_range = rng.choice(RANGES)
        ours, theirs = page.after(position, hash_range), reference.after(position, hash_range)
        assert ours.largest == theirs.largest, position
        assert b"".join(ours.line()) == reference.line(theirs), position
        assert ours.data_bytes == sum(len(record.data) for record in theirs.records), position
        assert (ours.malformed.keys(), ours.misrouted.keys()) == (theirs.malformed.keys(), theirs.misrouted.keys())
        if has_numbers_of_their_own:
            assert (ours.malformed, ours.misrouted) == (theirs.malformed, theirs.misrouted), position


def positions_around(page: PlainPage, rng: Random) -> list[Position]:
    positions = [rng.choice((LATEST, TRIM_HORIZON, AT_TIMESTAMP, SHARD_END))]
    if page.records:
        number = int(rng.choice(page.records).sequence_number)
        positions += [TRIM_HORIZON, Position(str(number), rng.randint(0, 2)), Position(str(max(0, number - 1)))]
    return positions
