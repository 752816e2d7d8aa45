"""Judges from the rows and the list of shards whether a lease table belongs to this stream, and whether a missing shard
has ended. Pure.

Rules: shards#foreign-tables and shards#missing-shards. Java takes ResourceNotFound for the end of a shard. So if the
region is wrong, Java marks every row SHARD_END and then deletes it.

A table is *foreign* (it belongs to another stream) if the majority of its rows contradict the shards of this stream
(`foreign_evidence`). A single row that cannot belong to its shard parks only that shard (`oddity`). `Survey.judge`
declares a shard over only if the listing proves it. If the listing proves neither that the shard is over nor that it
exists, the shard is *parked*: its checkpoint stays, and nothing is delivered.

The caller must read the rows *before* it lists the shards. Otherwise the row of a new shard could look foreign.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mld.core.steps import SLICE, Steps
from mld.core.streams import Shard, StreamKind
from mld.leases.lease import Lease
from mld.shards.graph import ShardGraph, id_order, shares_keys

DYNAMODB_RETENTION_S = 24 * 3600.0
NUMBER_BITS = 186
"""Length in bits of every sequence number of Kinesis. The highest bits are the version, which is 2."""
_DYNAMODB_SHARD = re.compile(r"shardId-([0-9]{1,20})-[0-9a-zA-Z]+", re.ASCII)
REMEDY = (
    "check streamName or streamArn, regionName, kinesisEndpoint and the AWS account; a stream that was recreated under "
    "its old name needs `mld reset --to trim-horizon`, which makes the rows anew, or a new applicationName"
)

ODD_REMEDY = (
    "only this shard waits, and nothing of it is skipped: `mld reset --shard {} --to trim-horizon`, or to a time, "
    "makes its row anew, and `mld restore` brings a saved one back"
)


@dataclass(frozen=True, slots=True)
class ShardIsOver:
    """The shard has ended and left retention, so SHARD_END may be stored. `evidence` says what proves it, for the
    log.
    """

    evidence: str


@dataclass(frozen=True, slots=True)
class ShardIsListed:
    """The shard exists, and nothing suggests that the table belongs to another stream. So the error that led to this
    question was temporary: try again.
    """


@dataclass(frozen=True, slots=True)
class Park:
    """Nothing is proved. Keep the lease and its checkpoint, deliver nothing, and ask again later."""

    reason: str


ShardVerdict = ShardIsOver | ShardIsListed | Park


@dataclass(frozen=True, slots=True)
class RowEvidence:
    """Whether the hash range and the checkpoint of a row fit the shard that the row names. None: this value of the row
    proves nothing.

    `fault` is a sentence that says why the row cannot belong to that shard, without a remedy; None if it can.
    """

    range_fits: bool | None = None
    number_fits: bool | None = None
    fault: str | None = None


def evidence_of(shard: Shard, lease: Lease) -> RowEvidence:
    """Compare a row with the shard that it names. Return whether its hash range and its checkpoint fit the shard (None
    for each that proves nothing), and if one does not fit, why, as a sentence.

    Streams with the same number of shards usually have the same hash ranges, so a hash range that fits proves little,
    and in a completed row nothing. If the checkpoint cannot be a sequence number of any shard, a person or a careless
    child has written it, and it proves nothing about the stream. An open shard has no last sequence number, so no
    number is too high for it.
    """
    number_fits, fault = _number_evidence(shard, lease)
    if lease.hash_range in (None, shard.hash_range):
        return RowEvidence(None if lease.hash_range is None or lease.is_complete else True, number_fits, fault)
    has = f"the hash range {lease.hash_range.start}-{lease.hash_range.end}"
    instead = f"{shard.hash_range.start}-{shard.hash_range.end}"
    return RowEvidence(False, number_fits, f"lease {lease.key} has {has}, but the shard has {instead}")


def _number_evidence(shard: Shard, lease: Lease) -> tuple[bool | None, str | None]:
    """Return two things: whether the checkpoint's number is within the shard (None if the number proves nothing), and
    the fault as a text; None if there is none.
    """
    number, first = lease.checkpoint.number, int(shard.starting_sequence)
    if number is None:
        return None, None
    words = f"the checkpoint {number} of {lease.key} is"
    is_kinesis = first.bit_length() == NUMBER_BITS  # numbers of DynamoDB have no fixed length
    if number == 0 or (is_kinesis and number.bit_length() != NUMBER_BITS):
        return None, f"{words} no sequence number of any shard"
    if number < first:
        return False, f"{words} before the first record of that shard"
    if shard.ending_sequence is not None and number > int(shard.ending_sequence):
        return False, f"{words} after the last record of that shard"
    return True, None


def oddity(shard: Shard, lease: Lease) -> str | None:
    """Return why the row cannot belong to its shard, as a sentence with the remedy; None if it can belong to it."""
    fault = evidence_of(shard, lease).fault
    return None if fault is None else _odd(fault, lease)


def _odd(fault: str, lease: Lease) -> str:
    """Return the sentence about a row that cannot belong to its shard, with the remedy."""
    return f"{fault}; {ODD_REMEDY.format(lease.key)}"


def _foreign(fault: str | None) -> str:
    """Return the sentence about a table that belongs to another stream, with the remedy."""
    return f"the lease table belongs to another stream: {fault}; {REMEDY}"


def foreign_evidence(shards: Sequence[Shard], leases: Sequence[Lease]) -> Steps[str | None]:
    """Return why the rows belong to another stream, as a sentence with the remedy; None if they may belong to this one.

    Hash ranges and checkpoints are counted separately. The table is foreign if, by one of these two counts, more rows
    contradict their shards than fit them. A single contradicting row proves nothing if any other row fits, by either
    count: it may be the only row that has a sequence number yet.
    """
    listed = {shard.shard_id: shard for shard in shards}
    ranges, numbers = Counter[bool | None](), Counter[bool | None]()
    first_fault: str | None = None
    any_fits = False
    for number, lease in enumerate(leases):
        if number % SLICE == 0:
            yield
        shard = listed.get(lease.key)
        if shard is None:
            continue
        evidence = evidence_of(shard, lease)
        ranges[evidence.range_fits] += 1
        numbers[evidence.number_fits] += 1
        if evidence.fault is None and True in (evidence.range_fits, evidence.number_fits):
            any_fits = True
        if first_fault is None and False in (evidence.range_fits, evidence.number_fits):
            first_fault = evidence.fault
    contradicting_min = 2 if any_fits else 1  # one contradicting row proves nothing beside a row that fits
    if not any(votes[False] >= max(votes[True] + 1, contradicting_min) for votes in (ranges, numbers)):
        return None
    return _foreign(first_fault)


@dataclass(frozen=True, slots=True)
class Survey:
    """All lease rows of a stream, and the shards of an unfiltered listing that was made after the rows were read.
    `graph` is None if the stream could not be listed.
    """

    rows: Mapping[str, Lease]
    graph: ShardGraph | None = None
    foreign: str | None = None
    """Why the rows belong to another stream; None if nothing suggests it."""
    witness: str | None = None
    """The id of a listed shard that proves that the rows belong to this stream (`_known_shard`); None if no shard does.
    """
    kind: StreamKind = StreamKind.KINESIS
    now_s: float = 0.0
    """Time of the listing, in epoch seconds."""

    @classmethod
    def steps(
        cls,
        leases: Sequence[Lease],
        shards: Sequence[Shard] | None,
        kind: StreamKind = StreamKind.KINESIS,
        now_s: float = 0.0,
    ) -> Steps[Survey]:
        """Make the survey of these rows and shards, with what they show about the table: why it belongs to another
        stream (`foreign`), or which shard proves that it belongs to this one (`witness`).

        `shards` is None if they could not be listed. Only DynamoDB needs `now_s`.
        """
        rows = {lease.key: lease for lease in leases}
        if shards is None:
            return cls(rows, kind=kind, now_s=now_s)
        graph = yield from ShardGraph.steps(shards)
        foreign = yield from foreign_evidence(shards, leases)
        witness = yield from _known_shard(leases, shards, kind)
        return cls(rows, graph, foreign, witness, kind, now_s)

    def children_of(self, shard_id: str) -> frozenset[str]:
        """Return the listed children of a shard, which may itself not be listed."""
        return frozenset(self.graph.children.get(shard_id, ())) if self.graph is not None else frozenset()

    def is_listed(self, shard_id: str) -> bool:
        """Return whether the listing names this shard."""
        return self.graph is not None and shard_id in self.graph.shards

    def judge(self, lease: Lease) -> ShardVerdict:
        """Judge a shard that Kinesis does not find, or in which Kinesis refuses a position.

        The caller may pass the lease with a later checkpoint than the row's: a position that was read in the shard. If
        the table belongs to another stream, the shard is always parked. A shard of Kinesis is over only if all three
        hold:

        1. The listing is not empty, does not name the shard, and does not contradict the table.
        2. If the checkpoint is a sequence number, every listed shard that shares hash keys with the shard began after
          it. In the shard's own stream these are its descendants, because its ancestors left retention earlier. If
          another stream is asked by mistake, although records of the shard were read within the retention period, this
          does not hold.
        3. One of these listed shards names the shard as a parent; or one of them is younger than the shard, and a
          listed shard proves that the table belongs to this stream (`_known_shard`).
        """
        if self.graph is None:
            return _park(lease, "the stream cannot be listed")
        if self.foreign is not None:
            return Park(self.foreign)
        if (listed := self.graph.shards.get(lease.key)) is not None:
            return self._judge_listed(listed, lease)
        if not self.graph.shards:
            return _park(lease, "ListShards names no shard at all")
        if self.kind is StreamKind.DYNAMODB:
            return self._judge_by_age(lease)
        successors = [shard for shard in self.graph.shards.values() if _shares_keys(shard, lease)]
        number = lease.checkpoint.number
        for shard in successors:
            if number is not None and int(shard.starting_sequence) <= number:
                return _park(
                    lease, f"shard {shard.shard_id} began before its checkpoint {number} and is not one of its children"
                )
        child = next((s.shard_id for s in successors if lease.key in s.parents), None)
        if child is not None:
            return ShardIsOver(f"it is past retention, and its child {child} is listed")
        younger = next((s.shard_id for s in successors if id_order(s.shard_id) > id_order(lease.key)), None)
        if younger is not None and self.witness is not None:
            return ShardIsOver(
                f"it is past retention: {younger} has its hash keys, and {self.witness} proves the stream"
            )
        return _park(lease, "nothing in the list proves that it ever was a shard of this stream")

    def _judge_listed(self, shard: Shard, lease: Lease) -> ShardVerdict:
        """Judge a shard that is listed.

        If the position contradicts the shard, the verdict depends on where the position comes from. A position that
        differs from the row's was read from the stream, so the stream is another one by now. Otherwise only this row
        cannot belong to its shard.
        """
        fault, row = evidence_of(shard, lease).fault, self.rows.get(lease.key)
        if fault is None:
            return ShardIsListed()
        was_read = row is not None and row.checkpoint != lease.checkpoint
        return Park(_foreign(fault) if was_read else _odd(fault, lease))

    def _judge_by_age(self, lease: Lease) -> ShardVerdict:
        """Judge a shard of DynamoDB Streams that is not listed, by its age: its id contains the time at which it was
        created, and its records last 24 hours.

        A shard that was created a short time ago may not be listed yet, so its absence proves nothing.
        """
        made_s = created_s_of(lease.key)
        if made_s is None:
            return _park_of_table(lease, "its id does not tell when it was made")
        if self.now_s - made_s <= DYNAMODB_RETENTION_S:
            return _park_of_table(lease, "it was made less than 24 hours ago")
        assert self.graph is not None
        child = next(iter(sorted(self.graph.children.get(lease.key, ()))), None)
        if child is None and self.witness is None:
            return _park_of_table(lease, "nothing in the list proves that it ever was a shard of this stream")
        proof = f"its child {child} is listed" if child is not None else f"{self.witness} proves the stream"
        return ShardIsOver(f"it was made more than 24 hours ago, and {proof}")


def created_s_of(shard_id: str) -> float | None:
    """Return when a shard of DynamoDB was created, in epoch seconds; None if its id is not
    ``shardId-<milliseconds>-<hash>``.
    """
    found = _DYNAMODB_SHARD.fullmatch(shard_id)
    return None if found is None else int(found[1]) / 1000


def _park(lease: Lease, why: str) -> Park:
    """Return the verdict that parks a missing shard of Kinesis, because nothing proves that it has ended."""
    return Park(
        f"Kinesis does not know shard {lease.key}, and {why}; its lease stays as it is: {REMEDY}. "
        "If the stream is the right one, the shard's records are gone: delete its row, and its successors are read"
    )


def _park_of_table(lease: Lease, why: str) -> Park:
    """Return the verdict that parks a missing shard of DynamoDB Streams, because nothing proves that it has ended."""
    return Park(
        f"DynamoDB does not list shard {lease.key}, and {why}; its lease stays as it is, and is judged again later. "
        "If that lasts for a day, check streamArn, kinesisEndpoint and the AWS account: the stream of a table that was "
        "switched off and on has another ARN, and its application another applicationName"
    )


def _shares_keys(shard: Shard, lease: Lease) -> bool:
    """Return whether the shard shares hash keys with the row's shard. If the row has no hash range (KCL before 2.3),
    return whether the shard is a child of the row's shard.
    """
    return lease.key in shard.parents if lease.hash_range is None else shares_keys(shard.hash_range, lease.hash_range)


def _known_shard(leases: Sequence[Lease], shards: Sequence[Shard], kind: StreamKind) -> Steps[str | None]:
    """Find a listed shard that agrees with one of our rows, and so proves that the rows belong to this stream. Return
    its id; None if there is none.

    Streams with the same number of shards have the same shard ids and hash ranges. So the row's checkpoint must also be
    within the shard's sequence numbers. If no row of the table has a sequence number, no progress can be lost, so id
    and hash range are enough. For a stream of DynamoDB the id takes the place of the hash range, because no other
    stream has the same ids, and old rows of Amazon's adapter have no range.
    """
    rows = {lease.key: lease for lease in leases}
    any_number = any(not lease.checkpoint.is_sentinel for lease in leases)
    for looked_at, shard in enumerate(shards):
        if looked_at % SLICE == 0:
            yield
        row = rows.get(shard.shard_id)
        if row is None or (kind.has_hash_keys and row.hash_range != shard.hash_range):
            continue
        evidence = evidence_of(shard, row)
        if evidence.fault is None and (evidence.number_fits or not any_number):
            return shard.shard_id
    return None
