"""`SchemaPreparer`: takes schema frames off the records of a batch before a child gets it.

Rules: retrieval#framed-records, retrieval#schema-lookups, retrieval#budgets-for-what-records-ask-for. If the registry
does not know a schema, a record cannot be decoded, or its shard has used up a budget, the record is delivered as it
arrived, with a key that says why. If the settings want that, its batch waits instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from mld.consumer.parts import JoinedBatch, Part, PlacedRecord, records_of
from mld.consumer.record_budgets import RecordBudgets
from mld.core.clock import Clock
from mld.core.errors import BudgetSpentError, SchemaUnknownError, SchemaUnreachableError
from mld.core.streams import ChildBatch, Misrouted
from mld.metrics.instruments import Tally
from mld.properties.values import SchemaMode
from mld.protocol.framed_records import FramedRecord
from mld.retrieval.rawbatch import RawBatch
from mld.schemas.decoded_record import decoded, frame_in, job_of, marked
from mld.schemas.decoder_process import DecoderJob
from mld.schemas.frame import Frame, UndecodableError
from mld.schemas.registry import KeptVersion, SchemaAnswer, SchemaRegistry

log = logging.getLogger(__name__)

Decode = Callable[[Sequence[DecoderJob], Callable[[float], bool]], Awaitable[list[bytes | UndecodableError]]]
"""Decodes payloads. It reports the CPU seconds that these took beyond what is usual for their size; if the answer is
False, it decodes no more of them.
"""
Failure = SchemaUnknownError | SchemaUnreachableError | UndecodableError | BudgetSpentError
DECODED = "decoded"
RESULTS: Mapping[type[Exception], str] = {
    SchemaUnknownError: "unknown",
    SchemaUnreachableError: "unreachable",
    UndecodableError: "undecodable",
    BudgetSpentError: "over_budget",
}
"""The names under which failures are counted."""
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 30.0
"""A batch that waits for a schema asks for it again after `RETRY_FIRST_S`; then the pause doubles, up to this."""
CAUSES_LOGGED_MAX = 1000
PAGE_LOOKUPS_S = 10.0
"""How long a page waits for lookups, however many versions it names: as long as a single one may take."""
RECORDS_AHEAD = 500
"""The versions of so many records are looked up together."""
RECORDS_PER_TURN = 50
BYTES_PER_TURN = 64 * 1024
"""After so many records, or so many bytes, other tasks of the event loop get a turn."""
FEW_OF = 8
"""If at most one record in this many has a schema frame, only these records are rewritten for the child; else all
are.
"""
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""Longest batch that children get. A page has up to 10 MiB, and each of its records may expand to 32 MiB."""

TOO_MUCH = f"its page inflates to more than {BATCH_BYTES_MAX} bytes"
SPENT = "it is not decoded: records of this shard have taken too much of the decoder's CPU time"


class UnframedBatch(Part):
    """The records of the batch `of` without their schema frames. It reports the faulty aggregates of that batch,
    too.
    """

    def __init__(self, records: list[PlacedRecord], of: ChildBatch) -> None:
        super().__init__(records, of.millis_behind_latest)
        self.malformed: Mapping[str, str] = of.malformed
        self.misrouted: Mapping[str, Misrouted] = of.misrouted


class SchemaPreparer:
    """Takes schema frames off records, for all shards of a worker."""

    def __init__(
        self,
        registry: SchemaRegistry,
        clock: Clock,
        mode: SchemaMode,
        decode: Decode,
        *,
        waits: bool,
        results: Tally | None = None,
    ) -> None:
        """Make a preparer. `decode` decodes payloads. With `waits` a batch waits for a schema that is not available;
        without it the record is delivered with its frame. `results` counts framed records by outcome.
        """
        self._registry = registry
        self._clock = clock
        self._mode = mode
        self._decode = decode
        self._waits = waits
        self._results = Tally() if results is None else results
        self._causes_logged: set[tuple[str, str]] = set()
        """The pairs of a schema version and a kind of failure that were logged as a warning."""

    async def prepare(self, batch: ChildBatch, budgets: RecordBudgets) -> ChildBatch:
        """Return the batch without schema frames; the same object if no record has one. Cancel the call to stop waiting
        for a schema. `budgets` are those of the batch's shard.
        """
        if batch.largest is None:
            return batch
        if isinstance(batch, RawBatch):
            around = batch.around_frames()
            if sum(is_framed for _, is_framed in around) * FEW_OF <= batch.count:
                return await self._spliced(batch, around, budgets)
        records = await records_of(batch)
        unframed = await self._unframed(records, budgets)
        return batch if unframed is None else UnframedBatch(unframed, batch)

    async def _spliced(
        self, batch: RawBatch, around: list[tuple[RawBatch, bool]], budgets: RecordBudgets
    ) -> ChildBatch:
        """Return the batch with the few records that have a schema frame replaced. All others keep their text."""
        framed = [record for part, is_framed in around if is_framed for record in await records_of(part)]
        unframed = await self._unframed(framed, budgets)
        if unframed is None:
            return batch
        replaced = iter(unframed)
        parts = [
            Part([next(replaced)], batch.millis_behind_latest) if is_framed else part for part, is_framed in around
        ]
        return JoinedBatch(parts, batch)

    async def _unframed(self, records: Sequence[PlacedRecord], budgets: RecordBudgets) -> list[PlacedRecord] | None:
        """Return the records without schema frames; None if no record has one.

        The versions that some hundred records name (RECORDS_AHEAD) are looked up together. Then these records are
        rewritten a few at a time, with a turn for other tasks in between.
        """
        rewritten = list(records)  # the records with a schema frame are replaced in it
        # `total` is the size of the records so far, in bytes; `wait_s` is how long the page may still wait for lookups.
        total, is_changed, wait_s = 0, False, PAGE_LOOKUPS_S
        for ahead in range(0, len(rewritten), RECORDS_AHEAD):
            end = min(len(rewritten), ahead + RECORDS_AHEAD)
            framed = {n: frame for n in range(ahead, end) if (frame := frame_in(rewritten[n].framed)) is not None}
            versions: dict[str, SchemaAnswer] = {}
            if framed:
                is_changed = True
                began_s = self._clock.monotonic()
                versions |= await self._versions(framed.values(), budgets, wait_s)
                wait_s -= self._clock.monotonic() - began_s
            # The records from `start` to `stop` are rewritten before other tasks of the event loop get their turn.
            start = ahead
            while start < end:
                stop, size = start, 0
                while stop < min(end, start + RECORDS_PER_TURN) and size <= BYTES_PER_TURN:
                    size += len(rewritten[stop].framed.text)
                    stop += 1
                if of_turn := {n: framed[n] for n in range(start, stop) if n in framed}:
                    await self._unframe(rewritten, of_turn, framed.values(), versions, budgets, total)
                total += sum(len(record.framed.text) for record in rewritten[start:stop])
                start = stop
                await asyncio.sleep(0)
        return rewritten if is_changed else None

    async def _versions(
        self, frames: Iterable[Frame], budgets: RecordBudgets, wait_s: float
    ) -> Mapping[str, SchemaAnswer]:
        """Return what is known of the versions that these frames name. The versions that most records name are looked
        up first, because an id that a producer makes up is rarely named by many records.
        """
        ids = Counter([frame.version_id for frame in frames])
        ordered = [version_id for version_id, _ in ids.most_common()] if len(ids) > 1 else list(ids)
        return await self._registry.versions(ordered, budgets.lookups, wait_s)

    async def _unframe(
        self,
        records: list[PlacedRecord],
        framed: Mapping[int, Frame],
        ahead: Collection[Frame],
        versions: dict[str, SchemaAnswer],
        budgets: RecordBudgets,
        before: int,
    ) -> None:
        """Take the schema frames off the records with the indexes in `framed`, in place. `before` is the number of
        bytes in the batch before the first of them.

        `versions` are the answers for all frames in `ahead`, to which the frames in `framed` belong. If a record has to
        wait, the versions of all frames in `ahead` are asked for again, so that the turns after this one do not have to
        wait, too.
        """
        delay_s = RETRY_FIRST_S
        while True:
            results = await self._results_of(records, framed, versions, budgets)
            failed: dict[int, Frame] = {}
            for number, result in results.items():
                position, record = records[number]
                outcome = _bounded(result, before, len(record.text))
                if outcome is not result:
                    budgets.decoding.charge()  # it was decoded in vain
                if isinstance(outcome, FramedRecord):
                    self._results.add(DECODED)
                    unframed = outcome
                else:
                    self._results.add(RESULTS[type(outcome)])
                    self._log_failure(record, framed[number].version_id, outcome, budgets)
                    failed[number] = framed[number]
                    if self._waits:
                        continue  # the record stays unchanged until the next try
                    unframed = marked(record, str(outcome))
                records[number] = PlacedRecord(position, unframed)
                before += len(unframed.text)
            if not failed or not self._waits:
                return
            framed = failed
            await self._clock.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
            versions |= await self._versions(ahead, budgets, PAGE_LOOKUPS_S)

    async def _results_of(
        self,
        records: Sequence[PlacedRecord],
        framed: Mapping[int, Frame],
        versions: Mapping[str, SchemaAnswer],
        budgets: RecordBudgets,
    ) -> dict[int, FramedRecord | Failure]:
        """Return for each index in `framed`, in order, the record without its frame, or the reason why it keeps the
        frame.

        A record keeps its frame if its schema version was not found (`versions` has the reason), or if its payload
        cannot be decoded. Payloads that are compressed, or are to become JSON, are decoded together; all others only
        lose the frame.
        """
        results: dict[int, FramedRecord | Failure] = {}
        kept: dict[int, KeptVersion] = {}
        jobs: dict[int, DecoderJob] = {}
        payloads: dict[int, bytes] = {}
        for number, frame in framed.items():
            answer = versions[frame.version_id]
            if not isinstance(answer, KeptVersion):
                results[number] = answer
                continue
            kept[number] = answer
            job = job_of(records[number].framed, frame, answer.found, self._mode)
            if job.is_compressed or job.definition is not None:
                jobs[number] = job
            else:
                payloads[number] = job.text
        if jobs:
            for number, payload in zip(jobs, await self._decoded(list(jobs.values()), budgets), strict=True):
                if isinstance(payload, bytes):
                    payloads[number] = payload
                else:
                    results[number] = payload
        for number, payload in payloads.items():
            version = kept[number]
            results[number] = decoded(records[number].framed, payload, version.found, self._mode, version.schema_file)
        return dict(sorted(results.items()))

    async def _decoded(
        self, jobs: Sequence[DecoderJob], budgets: RecordBudgets
    ) -> Sequence[bytes | UndecodableError | BudgetSpentError]:
        """Return the decoded payloads, or the reasons why they are not decoded."""
        budget = budgets.decoding
        if not budget.allows():
            return [BudgetSpentError(SPENT)] * len(jobs)

        def may_go_on(seconds: float) -> bool:
            """Spend CPU seconds of the shard's budget. Return whether more of its payloads may be decoded."""
            budget.charge(seconds)
            return budget.allows()

        payloads = await self._decode(jobs, may_go_on)
        return [*payloads, *[BudgetSpentError(SPENT)] * (len(jobs) - len(payloads))]

    def _log_failure(self, record: FramedRecord, version_id: str, why: Failure, budgets: RecordBudgets) -> None:
        """Warn once for each schema version and kind of failure, as far as the shard's budget of warnings goes. Further
        failures are logged at DEBUG only; a record that is delivered with its frame has a key that names the cause.
        """
        cause = (version_id, RESULTS[type(why)])
        level = logging.DEBUG
        if cause not in self._causes_logged and not isinstance(why, BudgetSpentError) and budgets.warnings.allows():
            level = logging.WARNING
            budgets.warnings.charge()
            if len(self._causes_logged) >= CAUSES_LOGGED_MAX:
                self._causes_logged.clear()
            self._causes_logged.add(cause)
        if not log.isEnabledFor(level):
            return
        what = "its batch waits" if self._waits else "it is delivered with its frame"
        log.log(
            level,
            "record %s of schema version %s: %s; %s",
            record.sequence,
            version_id,
            why,
            what,
            extra={"action": "schema_failed", "schema_version": version_id},
        )


def _bounded(result: FramedRecord | Failure, before: int, size: int) -> FramedRecord | Failure:
    """Return the result, or an error if the decoded record would make its batch too large.

    `before` is the size of the batch before the record, `size` that of the record as it arrived. A record that does
    not grow is never refused.
    """
    if isinstance(result, FramedRecord) and before + len(result.text) > max(BATCH_BYTES_MAX, before + size):
        return UndecodableError(TOO_MUCH)
    return result
