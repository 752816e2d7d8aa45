"""Searches a batch that fails for the records over which the pipeline or a sink fails, by running smaller parts.

First all records that cannot be computed are searched for together, which works if the pipeline computes each record by
itself. Usually two jobs are enough: one over all records reports the failing ones, and one confirms each of these
alone. If all other records can be computed, the found records go to the dead letter in one commit, and the rest is
written. If that fails, the rest is halved again and again: first by shards, so that all other shards are committed
before the search within one shard begins; then by records, down to a single record.

A single record goes to the dead letter only if there is evidence against it. Otherwise its shard stops. A record that
cannot be computed is blamed only if the pipeline works for another record right afterwards. A record that cannot be
written is blamed only if the sink takes other records; after a few such records in a row, only if the sink has taken
others in between. If the meaning of the error is unknown, as with a format that mld has no sink for, the sink must have
taken other records in the same search.

The dead letter is a sink for records that cannot be processed. To bury a record means to put it there, and a letter is
such a record with the reason. A mark is the position up to which the records of a shard are in a sink.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby, islice

from mld.processors.spark.batch import attempts
from mld.processors.spark.batch.attempts import Patience, until_published
from mld.processors.spark.batch.batch_source import BatchSource, source_of_rows
from mld.processors.spark.batch.destinations import Destinations, buried_in
from mld.processors.spark.batch.jobs import PIPELINE, Jobs
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.record_columns import Row, SparkRecord
from mld.processors.spark.batch.running import ENDS_MIN, Running, RunningSpan, cut
from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.pipeline import PipelineError, PipelineFailed
from mld.processors.spark.positions import StreamShard
from mld.processors.spark.sentences import sentence
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import DataRefused, JobFailed, Sink, SinkError, SinkRefused, ValueFailed
from mld.properties.spark_values import OnPoison

log = logging.getLogger("mld.spark")

POISON_IN_A_ROW_MAX = 20
"""If more records in a row than this fail, each of them alone, the pipeline is to blame and not the records."""
REFUSED_IN_A_ROW_MAX = 3
"""How many records that a sink refuses may be buried in a row, on whatever shards. If the sink refuses one more, it
probably takes none at all.
"""
WAITED_MAX = 8
"""How often a record is tried that can be computed, but that a sink does not take for an unknown reason. The attempts
last a minute, in which the sink may recover. Then the shard stops.
"""
FRUITLESS_MAX = 12
"""If this many groups of shards in a row fail, no further shards are tried together: probably the shards are not to
blame. The search then goes on within each shard.
"""
ATTEMPTS_IN_A_SEARCH_MAX = 500
"""The searched shard stops after this many attempts, because other shards have waited long enough. The search continues
when the shard's records are delivered again.
"""
NEIGHBOURS_MAX = 8
"""How many other records are tried when a record fails alone. If the pipeline works for one of them, the first record
is to blame."""
KEPT_BYTES_MAX = 1 << 20
"""Longest record that is kept in memory as one for which the pipeline works."""
LETTERS_AT_ONCE = 1_000
"""How many records are buried in one commit at most."""

ENDS = "the session of Spark has ended, or was held up, each time it was processed, also when it was alone"

Letter = tuple[StreamShard, Row, str]
"""A record that is to be buried, and the reason."""


class EndsSession(ValueFailed):
    """The session has ended several times while this record was processed alone."""

    def __init__(self, suspect: RunningSpan) -> None:
        super().__init__(ENDS)
        self.suspect = suspect


def _longest_row(every: Sequence[tuple[StreamShard, Row]], failing: Collection[int]) -> int:
    """Return the largest number of records in a row, of one shard, that fail. `failing` has indexes of `every`."""
    by_shard = sorted(range(len(every)), key=lambda at: every[at][0])  # stable: the order within a shard stays
    runs = groupby(by_shard, lambda at: (every[at][0], at in failing))
    return max((len(list(run)) for (_, fails), run in runs if fails), default=0)


class PoisonSearch:
    """Runs the searches of one engine."""

    def __init__(
        self, settings: SparkSettings, jobs: Jobs, destinations: Destinations, patience: Patience, running: Running
    ) -> None:
        self._settings = settings
        self._running = running
        self._jobs = jobs
        self._destinations = destinations
        self._patience = patience
        self._went_well: SparkRecord | None = None
        """A record of the last batch that was published, as one for which the pipeline works."""
        self._refused: Counter[str] = Counter()
        """For each sink that has ever taken rows: how many records in a row were buried since, because it refuses
        them."""
        self._taken: set[str] = set()
        """Sinks that have taken rows in this search."""
        self._has_waited = False
        """Whether this search has already waited for a sink that takes nothing."""

    def keep(self, record: SparkRecord) -> None:
        """Keep a record for which the pipeline works, unless it is large."""
        if len(record.data) <= KEPT_BYTES_MAX:
            self._went_well = record

    def search(self, batch: BatchSource, in_a_row_max: float = POISON_IN_A_ROW_MAX) -> dict[StreamShard, str]:
        """Commit all records that can be committed. Return the shards that have to stop, with the reason.

        If records of some shards are suspected of ending sessions, only these shards are searched, in small parts from
        the beginning, because a job over all their records may end the session."""
        self._note_taken()
        self._taken.clear()
        self._has_waited = False
        # During a replay (`math.inf`) no other shard waits, so there is no limit.
        until = self._jobs.figures.attempts + (ATTEMPTS_IN_A_SEARCH_MAX if in_a_row_max < math.inf else math.inf)
        failing = [shard for shard in self._running.suspects if shard in batch.ends]
        try:
            if not failing:
                batch = self._without_what_fails(batch, in_a_row_max)
                failing = self._failing_shards(batch)
        except (SinkRefused, PipelineError) as error:
            return dict.fromkeys(batch.ends, str(error))
        failed: dict[StreamShard, str] = {}
        for shard in failing:
            log.warning("searching among the records of %s", shard.label)
            reason = self._search_shard(shard, batch, in_a_row_max, until)
            if reason is not None:
                failed[shard] = reason
        return failed

    def _without_what_fails(self, batch: BatchSource, in_a_row_max: float) -> BatchSource:
        """Find and bury all records that cannot be computed, and return the batch without them.

        They are buried only if all other records can be computed, and the pipeline works for another record alone.
        Otherwise, or if the sinks lack different records, return the whole batch. Raises SinkRefused."""
        groups = list(self._destinations.groups(batch))
        if len(groups) != 1 or batch.only is not None or self._settings.on_poison is OnPoison.STOP:
            return batch
        ((missing, sinks),) = groups
        rows = list(batch.each_of(missing))
        reasons = self._jobs.failing([record for _, (_, record) in rows], sinks)  # by the index in `rows`
        if not reasons or _longest_row(rows, reasons) > in_a_row_max:
            return batch
        rest = batch.without({(shard, position) for at, (shard, (position, _)) in enumerate(rows) if at in reasons})
        others = [self._went_well] if self._went_well else []
        others += [record for _, (_, record) in islice(rest.each_of(missing), NEIGHBOURS_MAX)]
        if not self._jobs.computes(rest) or not any(self._jobs.works_for([other], sinks) for other in others):
            return batch
        letters = [(*rows[at], f"sink {sinks[0].name}: {sentence(text)}") for at, text in reasons.items()]
        self._put_all(letters, [sink.name for sink in sinks])
        self._jobs.figures.poisoned += len(letters)
        shard, (position, _), reason = letters[0]
        log.error(
            "%d records fail and are in the dead letter, the first one %s of %s: %s",
            *(len(letters), position.encode(), shard.label, reason),
        )
        return rest

    def _failing_shards(self, batch: BatchSource) -> list[StreamShard]:
        """Commit all shards that can be committed, by halving the set of shards again and again. Return the others.

        Each set is tried once. After FRUITLESS_MAX failures in a row, the shards that are left are returned untried.
        Raises SinkRefused and PipelineError."""
        waiting, failing, fruitless = [sorted(batch.ends)], [], 0
        while waiting:
            shards = waiting.pop()
            if fruitless < FRUITLESS_MAX:
                try:
                    self._jobs.until_done(batch.of(shards), 1)
                    fruitless = 0
                    continue
                except (JobFailed, PipelineFailed):
                    fruitless += 1
            half = len(shards) // 2
            if half and fruitless < FRUITLESS_MAX:
                waiting += [shards[half:], shards[:half]]
            else:
                failing += shards
        return failing

    def _patiently(self, sink: Sink, act: Callable[[], object]) -> None:
        """Run `act`, which publishes to the sink, until it succeeds; open the sink again after each failure. Raises
        SinkRefused, SessionGone and Stopped."""

        def attempt() -> None:
            """Try the sink once. After an error of the sink, reopen it, so that its marks are read again."""
            try:
                act()
            except SinkError:
                self._destinations.reopen(sink)
                raise
            except SpoolError as error:
                raise SinkError(str(error)) from error

        until_published(attempt, self._patience.wait)

    def _put_all(self, letters: Sequence[Letter], names: Sequence[str], passes: bool = False) -> None:
        """Put records into the dead letter on behalf of the sinks in `names`, which cannot take them; repeat until that
        succeeds. With `passes`, the dead letter's own mark moves past the records.
        """
        dead = self._destinations.dead
        assert dead is not None
        for begin in range(0, len(letters), LETTERS_AT_ONCE):
            chunk = letters[begin : begin + LETTERS_AT_ONCE]
            self._patiently(dead, partial(self._put_letters, dead, chunk, names, passes))

    def _put_letters(self, dead: Sink, letters: Sequence[Letter], names: Sequence[str], passes: bool) -> None:
        """Put records into the dead letter, each for those sinks in `names` for which it is not there yet. The dead
        letter's mark for the record and the sink (`buried_in`) shows whether it is.

        With `passes`, the dead letter's mark moves past the records in the same commit, so that they are not decoded
        again. Raises SinkError."""
        marks = self._destinations.marks[dead.name]
        missing: dict[tuple[str, ...], list[Letter]] = {}
        for letter in letters:
            shard, (at, _), _ = letter
            if sinks := tuple(sorted(name for name in names if buried_in(shard, name, at) not in marks)):
                missing.setdefault(sinks, []).append(letter)
        for sinks, group in missing.items():  # the letters that the same sinks lack, in one commit
            buried = {buried_in(shard, name, at): at for shard, (at, _), _ in group for name in sinks}
            buried |= {shard: at for shard, (at, _), _ in group if passes}
            # A letter names no sinks if all lack it, or if there are none and the pipeline writes by itself.
            all_lack = len(sinks) == max(1, len(self._destinations.sinks))
            with self._jobs.handed_records([record for _, (_, record), _ in group]) as handed:
                frame = handed.because([self._settings.fit(why) for *_, why in group], () if all_lack else sinks)
                self._jobs.into(dead, frame, spans(buried, marks))

    def _search_shard(self, shard: StreamShard, batch: BatchSource, in_a_row_max: float, until: float) -> str | None:
        """Commit all records of a shard that can be committed, by halving the rows again and again.

        Each pass runs one part of the rows. If the part fails, its halves are run next, down to a single record. A
        single record that fails is buried if there is evidence against it, and stops the shard otherwise. A part
        without rows only moves the sinks' marks to the end of the batch. While a part runs, `running` notes it in a
        file, in case the session ends. A record over which the session has ended too often counts as failing without
        another attempt (`EndsSession`).

        Return the reason if the shard has to stop, else None. Reasons are, for example, that more than `in_a_row_max`
        records in a row fail, or that the number of attempts has reached `until`.
        """
        batch = batch.of([shard])
        rows = batch.part(batch.whole()).get(shard, ())
        # The part to run next is at the end of `waiting`.
        waiting, in_a_row = cut(rows, self._running.suspects.get(shard))[::-1], 0
        while waiting:
            begin, end = waiting.pop()
            if self._jobs.figures.attempts >= until:
                return f"{ATTEMPTS_IN_A_SEARCH_MAX} attempts were made to find what fails; it goes on from where it is"
            part = rows[begin:end]
            before = rows[begin - 1][0] if begin else None
            upto = batch.ends[shard] if end == len(rows) else part[-1][0]
            source = source_of_rows(shard, part, upto, before, batch.only, batch.preceding)
            runs = {shard: RunningSpan(part[0][0], part[-1][0])} if part else {}
            suspect = self._running.alone(shard, part)
            try:
                if suspect is not None and suspect.ends_alone >= ENDS_MIN:
                    raise EndsSession(suspect)
                with self._running.noted(runs):
                    # If the session ends now, the note shows whether computing or writing the suspect ended it.
                    if suspect is not None and self._jobs.computes(source):
                        self._running.note_computed()
                    self._until_done(source, len(part))
                    self._patience.check()
                if part:
                    self.keep(part[-1][1])
                in_a_row = 0
            except (SinkRefused, PipelineError) as error:
                return str(error)
            except (JobFailed, PipelineFailed) as error:
                if len(part) > 1:
                    middle = (begin + end) // 2
                    waiting += [(middle, end), (begin, middle)]
                    continue
                if not part:
                    return str(error)
                in_a_row += 1
                at = part[0][0].encode()
                why = self._why_not_to_bury(error, source, part[0], rows, in_a_row, in_a_row_max)
                if why is not None:
                    return f"the record {at} of {shard.label} fails{why}"
                try:
                    self._bury(source, error)
                except SinkRefused as refused:
                    return str(refused)
                self._running.forget(runs)
                log.error("the record %s of %s fails and is in the dead letter: %s", at, shard.label, error)
                if any(self._destinations.groups(source)):  # other sinks may still take it
                    waiting.append((begin, end))
        return None

    def _until_done(self, source: BatchSource, records: int) -> None:
        """Try a part once, but a single record several times. Raises the errors of `Jobs.until_done`.

        If no sink has taken anything in this search, the record may be good and its sink in trouble. So a single record
        that can be computed is then tried for a minute (`WAITED_MAX`), once in a search."""
        try:
            self._jobs.until_done(source, attempts.ATTEMPTS_MAX if records == 1 else 1)
        except (ValueFailed, DataRefused):
            raise
        except JobFailed:
            self._note_taken()
            if records != 1 or self._taken or self._has_waited or not self._jobs.computes(source):
                raise
            self._has_waited = True
            self._jobs.until_done(source, WAITED_MAX)

    def _why_not_to_bury(
        self,
        error: JobFailed | PipelineFailed,
        source: BatchSource,
        record: Row,
        rows: Sequence[Row],
        in_a_row: int,
        in_a_row_max: float,
    ) -> str | None:
        """Return why the record must not be buried, as the end of the sentence with which the shard stops; None if the
        record is to blame.

        `in_a_row` counts the records that have failed one after the other, with this one."""
        if self._settings.on_poison is OnPoison.STOP:
            return f": {error}; correct the pipeline, or set mld.spark.deadLetter"
        remedy = "correct the pipeline"
        if in_a_row > in_a_row_max:
            return f", as did the {in_a_row - 1} before it: {error}; {remedy}"
        failing = self._failing(source, error)
        is_known = isinstance(error, DataRefused)
        # If other records have been written since the session ended (`others_ran`), the session itself works.
        if isinstance(error, EndsSession) and error.suspect.others_ran:
            why = None
        elif isinstance(error, EndsSession) and error.suspect.is_computed:
            why = "and no other one has been written since, to tell whether it is the record or the sink"
        elif is_known or (
            isinstance(error, JobFailed) and not isinstance(error, ValueFailed) and self._jobs.computes(source)
        ):
            why = self._no_taker(failing, is_known)
            remedy = "correct the sink or the pipeline"
        else:
            why = self._no_evidence(next(iter(source.ends)), record, rows, failing)
        return None if why is None else f", {why}: {error}; {remedy}"

    def _note_taken(self) -> None:
        """Note which sinks have taken rows since the last call, and count their refusals from zero again."""
        self._taken |= self._jobs.took_rows
        for name in self._jobs.took_rows:
            self._refused[name] = 0
        self._jobs.took_rows.clear()

    def _no_taker(self, sinks: Sequence[Sink], is_known: bool) -> str | None:
        """Return why one of the sinks may be to blame instead of the record; None if all have recently taken other
        records. `is_known`: the error shows that the sink refuses the row."""
        self._note_taken()
        for sink in sinks:
            # If the error is known, rows that the sink took in earlier searches count as well.
            if sink.name not in (self._refused if is_known else self._taken):
                return f"and sink {sink.name} has taken no other one yet to tell whether it is the record or the sink"
            if self._refused[sink.name] >= REFUSED_IN_A_ROW_MAX:
                return f"and sink {sink.name} has taken none since {REFUSED_IN_A_ROW_MAX} others were buried"
        self._refused.update(sink.name for sink in sinks)
        return None

    def _no_evidence(self, shard: StreamShard, record: Row, rows: Sequence[Row], sinks: Sequence[Sink]) -> str | None:
        """Return why the pipeline may be to blame instead of the record; None if the pipeline works for another record
        now.

        A pipeline that writes by itself is not run for a trial. Instead, any batch that was published is the
        evidence."""
        if not sinks and self._went_well is not None:
            return None
        neighbours = [other for position, other in rows if position != record[0]]
        others = [*([self._went_well] if self._went_well else []), *neighbours[:NEIGHBOURS_MAX]]
        if not others or not sinks:
            return "and there is no other one yet to tell whether it is the record or the pipeline"
        if any(self._jobs.works_for([other], sinks) for other in self._running.untried(shard, others)):
            return None
        return f"and so do the {len(others)} others that were tried"

    def _failing(self, source: BatchSource, error: Exception) -> list[Sink]:
        """Return the sinks that lack a record because of this error. If some of them have refused it, return only
        those.
        """
        missing = [sink for _, sinks in self._destinations.groups(source) for sink in sinks]
        refusing = error.sinks if isinstance(error, DataRefused) else ()
        return [sink for sink in missing if sink.name in refusing] if refusing else missing

    def _bury(self, source: BatchSource, error: Exception) -> None:
        """Put one record into the dead letter for the sinks that fail over it, and move their marks past it; repeat
        until that succeeds. If the record ends sessions, the mark of the dead letter moves past it, too. Raises
        SinkRefused, SessionGone and Stopped."""

        def go_past(sink: Sink) -> None:
            """Move the sink's mark past the record, by a commit without rows."""
            for batch, group in self._destinations.groups(source):
                if sink in group:
                    self._jobs.into(sink, None, batch)

        sinks = self._failing(source, error)
        names = [sink.name for sink in sinks if source.only is None or sink.name in source.only]
        letters = [(*found, str(error)) for found in source.each(source.whole())]
        self._put_all(letters, names if self._destinations.sinks else [PIPELINE], isinstance(error, EndsSession))
        for sink in sinks:
            self._patiently(sink, partial(go_past, sink))
        self._jobs.own.update(source.ends)  # goes past the record if there are no sinks
        self._jobs.figures.poisoned += 1
