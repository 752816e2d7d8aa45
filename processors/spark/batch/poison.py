"""The search for records with which the pipeline or a sink fails.

Where each record is computed for itself, all that fail are found together, mostly in two jobs: one over all records,
one in which those that it told are alone. If all others can be computed, they go to the dead letter in one commit, and
then the others to the sinks. Else, and where a sink refuses a row, the search goes by halves, until a record is alone.

Whether it goes to the dead letter then is a matter of evidence: a record is blamed only if the pipeline works for
another one, right after it. What no record can cause is never taken for its fault. A sink that refuses rows is believed
a few times only, unless it takes others in between.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby, islice

from mld.processors.spark.batch import attempts
from mld.processors.spark.batch.attempts import Destinations, Patience, buried_in, until_published
from mld.processors.spark.batch.jobs import PIPELINE, Jobs
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.record_columns import Row, SparkRecord
from mld.processors.spark.batch.spool import BatchSource, source_of_rows
from mld.processors.spark.high_water_marks import StreamShard, spans
from mld.processors.spark.pipeline import PipelineError, PipelineFailed
from mld.processors.spark.session.error_classes import failure
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import DataRefused, JobFailed, Sink, SinkError, SinkRefused
from mld.properties.spark import OnPoison

log = logging.getLogger("mld.spark")

POISON_IN_A_ROW_MAX = 20
"""So many records in a row that fail each on its own are no poison: the pipeline does not work."""
REFUSED_IN_A_ROW_MAX = 3
"""So many records in a row that a sink will never take, on whatever shard; a fourth says that it takes none."""
NEIGHBOURS_MAX = 8
"""Of a record that fails alone: whether the pipeline works for one of them, right now, says who is to blame."""
KEPT_BYTES_MAX = 1 << 20
"""A longer record is not kept as one that went well."""
LETTERS_AT_ONCE = 1_000
"""Records that are buried in one commit."""

Letter = tuple[StreamShard, Row, str]
"""A record that is to be buried, and why."""


def _longest_row(every: Sequence[tuple[StreamShard, Row]], failing: Collection[int]) -> int:
    """Return how many records of one shard fail in a row."""
    by_shard = sorted(range(len(every)), key=lambda at: every[at][0])
    rows = groupby(by_shard, lambda at: (every[at][0], at in failing))
    return max((len(list(row)) for (_, fails), row in rows if fails), default=0)


class PoisonSearch:
    """Of one engine."""

    def __init__(self, settings: SparkSettings, jobs: Jobs, destinations: Destinations, patience: Patience) -> None:
        self._settings = settings
        self._jobs = jobs
        self._destinations = destinations
        self._patience = patience
        self._went_well: SparkRecord | None = None
        """A record of the last batch that was published."""
        self._refused: Counter[str] = Counter()
        """Records in a row that were buried because a sink will never take them."""
        self._is_undecided = False
        """Whether the shard stopped only because nothing had gone well yet."""

    def keep(self, record: SparkRecord) -> None:
        """Keep a record that went well."""
        if len(record.data) <= KEPT_BYTES_MAX:
            self._went_well = record

    def search(self, batch: BatchSource, in_a_row_max: int = POISON_IN_A_ROW_MAX) -> dict[StreamShard, str]:
        """Commit all that can be; the shards that have to stop, with the reason."""
        try:
            if self._commits_without(batch, in_a_row_max):
                return {}
        except (SinkRefused, PipelineError) as error:
            return dict.fromkeys(batch.ends, str(error))
        rows = batch.part(batch.whole())
        failed: dict[StreamShard, str] = {}
        waiting = sorted(rows)
        for _ in range(2):  # in the second round, other shards may have shown what these could not
            undecided = []
            for shard in waiting:
                self._is_undecided = False
                reason = self._search_shard(shard, rows[shard], batch, in_a_row_max)
                failed.pop(shard, None)
                if reason is not None:
                    failed[shard] = reason
                    undecided += [shard] if self._is_undecided else []
            waiting = undecided
        return failed

    def _commits_without(self, batch: BatchSource, in_a_row_max: int) -> bool:
        """Return whether all is committed, because the records that fail were found together and buried."""
        groups = list(self._destinations.groups(batch))
        if len(groups) != 1 or batch.only is not None or self._settings.on_poison is OnPoison.STOP:
            return False
        ((missing, sinks),) = groups
        every = list(batch.each_of(missing))
        said = self._jobs.failing([record for _, (_, record) in every], sinks)
        errors = {at: failure(RuntimeError(text), f"sink {sinks[0].name}") for at, text in said.items()}
        if not errors or any(not isinstance(one, JobFailed) for one in errors.values()):
            return False
        if _longest_row(every, errors) > in_a_row_max:
            return False
        rest = batch.without({(every[at][0], every[at][1][0]) for at in errors})
        others = [self._went_well] if self._went_well else []
        others += [record for _, (_, record) in islice(rest.each_of(missing), NEIGHBOURS_MAX)]
        if not self._jobs.computes(rest) or not any(self._jobs.works_for([one], sinks) for one in others):
            return False
        letters = [(*every[at], str(error)) for at, error in errors.items()]
        self._put_all(letters, [sink.name for sink in sinks])
        self._jobs.figures.poisoned += len(letters)
        shard, (position, _), reason = letters[0]
        log.error(
            "%d records fail and are in the dead letter, the first one %s of %s: %s",
            *(len(letters), position.encode(), shard.label, reason),
        )
        try:
            self._jobs.until_done(rest, attempts.ATTEMPTS_MAX)
        except (JobFailed, PipelineFailed) as error:
            log.warning("the others fail as well, searching by halves: %s", error)
            return False
        return True

    def _patiently(self, sink: Sink, act: Callable[[], object]) -> None:
        """Do it until the sink takes it, which is open again after each failure. Raises SinkRefused, SessionGone and
        Stopped."""

        def attempt() -> None:
            try:
                act()
            except SinkError:
                self._destinations.reopen(sink)
                raise
            except SpoolError as error:
                raise SinkError(str(error)) from error

        until_published(attempt, self._patience.wait)

    def _put_all(self, letters: Sequence[Letter], names: Sequence[str]) -> None:
        """Put records into the dead letter, until that is done."""
        dead = self._destinations.dead
        assert dead is not None
        for begin in range(0, len(letters), LETTERS_AT_ONCE):
            some = letters[begin : begin + LETTERS_AT_ONCE]
            self._patiently(dead, partial(self._put_letters, dead, some, names))

    def _put_letters(self, dead: Sink, letters: Sequence[Letter], names: Sequence[str]) -> None:
        """Put records into the dead letter, for those of the sinks for which it does not have them. Raises
        SinkError."""
        marks = self._destinations.marks[dead.name]
        missing: dict[tuple[str, ...], list[Letter]] = {}
        for letter in letters:
            shard, (at, _), _ = letter
            if sinks := tuple(sorted(name for name in names if buried_in(shard, name, at) not in marks)):
                missing.setdefault(sinks, []).append(letter)
        for sinks, some in missing.items():
            buried = {buried_in(shard, name, at): at for shard, (at, _), _ in some for name in sinks}
            every = len(sinks) == max(1, len(self._destinations.sinks))
            with self._jobs.handed_records([record for _, (_, record), _ in some]) as handed:
                frame = handed.because([self._settings.fit(why) for *_, why in some], () if every else sinks)
                self._jobs.into(dead, frame, spans(buried, marks))

    def _search_shard(
        self, shard: StreamShard, rows: Sequence[Row], batch: BatchSource, in_a_row_max: int
    ) -> str | None:
        waiting = [(0, len(rows))]
        in_a_row = 0
        while waiting:
            begin, end = waiting.pop()
            part = rows[begin:end]
            before = rows[begin - 1][0] if begin else None
            source = source_of_rows(shard, part, before, batch.only, batch.preceding)
            try:
                self._jobs.until_done(source, attempts.ATTEMPTS_MAX if len(part) == 1 else 1)
                self.keep(part[-1][1])
                in_a_row = 0
            except (SinkRefused, PipelineError) as error:
                return str(error)
            except (JobFailed, PipelineFailed) as error:
                if len(part) > 1:
                    middle = (begin + end) // 2
                    waiting += [(middle, end), (begin, middle)]
                    continue
                try:
                    if self._jobs.waited_for_sinks(source, error):
                        continue
                except DataRefused as refused:
                    error = refused
                except (SinkRefused, PipelineError) as refused:
                    return str(refused)
                in_a_row += 1
                at = part[0][0].encode()
                why = self._why_not_to_bury(error, source, part[0], rows, in_a_row, in_a_row_max)
                if why is not None:
                    return f"the record {at} of {shard.label} fails{why}"
                try:
                    self._bury(source, error)
                except SinkRefused as refused:
                    return str(refused)
                log.error("the record %s of %s fails and is in the dead letter: %s", at, shard.label, error)
                if any(self._destinations.groups(source)):  # of sinks that have not refused it
                    waiting.append((begin, end))
        return None

    def _why_not_to_bury(
        self,
        error: JobFailed | PipelineFailed,
        source: BatchSource,
        record: Row,
        rows: Sequence[Row],
        in_a_row: int,
        in_a_row_max: int,
    ) -> str | None:
        """Return how the sentence goes on with which the shard stops; None if the record is to blame."""
        if self._settings.on_poison is OnPoison.STOP:
            return f": {error}; correct the pipeline, or set mld.spark.deadLetter"
        remedy = "correct the pipeline"
        if in_a_row > in_a_row_max:
            return f", as did the {in_a_row - 1} before it: {error}; {remedy}"
        failing = self._failing(source, error)
        if isinstance(error, DataRefused):
            why = self._no_taker(failing)
            remedy = "correct the sink or the pipeline"
        else:
            why = self._no_evidence(error, record, rows, failing)
        return None if why is None else f", {why}: {error}; {remedy}"

    def _no_taker(self, sinks: Sequence[Sink]) -> str | None:
        """Return why it may be a sink that refuses any record; None if it has taken others not long ago."""
        for sink in sinks:
            if sink.name in self._jobs.took_rows:
                self._refused[sink.name] = 0
        self._jobs.took_rows.difference_update(sink.name for sink in sinks)
        for sink in sinks:
            if sink.name not in self._refused:
                self._is_undecided = True
                return f"and sink {sink.name} has taken no other one yet to tell whether it is the record or the sink"
            if self._refused[sink.name] >= REFUSED_IN_A_ROW_MAX:
                return f"and sink {sink.name} has taken none since {REFUSED_IN_A_ROW_MAX} others were buried"
        self._refused.update(sink.name for sink in sinks)
        return None

    def _no_evidence(self, error: Exception, record: Row, rows: Sequence[Row], sinks: Sequence[Sink]) -> str | None:
        """Return why it may not be the record that is to blame; None if the pipeline works for another one right after.

        A pipeline that writes by itself is not run for this; there any batch that went well is the evidence."""
        if not sinks and self._went_well is not None:
            return None
        neighbours = [one for position, one in rows if position != record[0]]
        others = [*([self._went_well] if self._went_well else []), *neighbours[:NEIGHBOURS_MAX]]
        if not others or not sinks:
            self._is_undecided = True
            return "and there is no other one yet to tell whether it is the record or the pipeline"
        if any(self._jobs.works_for([one], sinks) for one in others):
            return None
        return f"and so do the {len(others)} others that were tried"

    def _failing(self, source: BatchSource, error: Exception) -> list[Sink]:
        """Return the sinks that miss a record because of this error: if it is a refusal, those that have refused it."""
        missing = [sink for _, sinks in self._destinations.groups(source) for sink in sinks]
        refusing = error.sinks if isinstance(error, DataRefused) else ()
        return [sink for sink in missing if sink.name in refusing] if refusing else missing

    def _bury(self, source: BatchSource, error: Exception) -> None:
        """Bury one record into the dead letter, for the sinks that fail over it, and past it in those; until that is
        done. Raises SinkRefused, SessionGone and Stopped.
        """

        def go_past(sink: Sink) -> None:
            for batch, group in self._destinations.groups(source):
                if sink in group:
                    self._jobs.into(sink, None, batch)

        sinks = self._failing(source, error)
        names = [sink.name for sink in sinks if source.only is None or sink.name in source.only]
        letters = [(*one, str(error)) for one in source.each(source.whole())]
        self._put_all(letters, names if self._destinations.sinks else [PIPELINE])
        for sink in sinks:
            self._patiently(sink, partial(go_past, sink))
        self._jobs.own.update(source.ends)
        self._jobs.figures.poisoned += 1
