"""`ListFollower`: keeps this worker's copy of the list of streams, and writes the list's row if this worker leads.

Rules: shards#list-of-streams, shards#epoch-of-a-stream. If a read, a write or a look-up fails, the list stays as it
was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mld.core.clock import Clock
from mld.core.error_boundary import contained
from mld.core.errors import StreamError
from mld.core.stream_ids import StreamId
from mld.core.streams import StreamSummary
from mld.core.waits import wait_for_event
from mld.leases.own_attribute import Row
from mld.tracking.list_table import ListTable
from mld.tracking.stream_list import (
    KEY,
    ListedStream,
    TrackedList,
    account_and_name,
    identify,
    next_list,
    without,
)

log = logging.getLogger(__name__)

PERIOD_S = 20.0
"""How often the list is read. A new stream should be consumed within a minute after it was added to the settings. Until
then up to two periods pass, and an assignment, and the start of its consumers.
"""
FIRST_PERIOD_S = 2.0  # the period while there is no list, because the leader of a new fleet will soon write it
ASKED_IN_TURN = 20
"""How many known streams are described each time, in turn, to notice a stream that was deleted and created again."""
ASKED_PER_SECOND = 15  # calls of DescribeStreamSummary; an account may make 20 a second

_ByName = Mapping[tuple[str, str], ListedStream]
"""Streams by account and name."""


@dataclass(frozen=True, slots=True)
class WantedStream:
    """A stream as the settings name it, with its label. `arn` None: it is in the region and account of the
    application.
    """

    label: str
    arn: str | None = None
    epoch: int | None = None


@dataclass(eq=False)
class ListFollower:
    """Follows the list in `table`.

    `read_wanted` reads from the settings which streams are to be consumed, anew each time. If the settings are damaged,
    it returns what it read last. `describe` asks the service about a stream, and raises `errors.StreamError`.
    """

    table: ListTable
    clock: Clock
    read_wanted: Callable[[], Awaitable[Sequence[WantedStream]]]
    describe: Callable[[WantedStream], Awaitable[StreamSummary]]

    def __post_init__(self) -> None:
        self._woken = asyncio.Event()
        self._turn = 0
        """The index of the stream of the settings with which the next turn of `ASKED_IN_TURN` streams begins."""
        self._complaints: dict[str, str] = {}
        """Why streams of the settings are not listed, by label, as it was logged."""
        self._former_seen: dict[str, float] = {}
        """Since when this worker has seen each former stream as one (monotonic)."""
        self._damaged: Row = {}  # the damaged row that was logged last
        self._published: tuple[ListedStream, ...] = ()
        """The streams in the row when it was last readable."""
        self._own: tuple[ListedStream, ...] = ()
        """Streams of this worker's settings that have leases, but are not in the row (`_unpublished`)."""
        self._own_for: tuple[frozenset[str], Sequence[WantedStream]] = (frozenset(), ())
        """The unlisted streams and the settings from which `_own` was last computed."""
        self.streams = TrackedList()
        """The list that this worker follows: the streams in the row, and `_own`."""
        self.reads = 0
        """How often the list was read."""

    @property
    def sentence(self) -> str:
        """A text that says which streams of the settings are not in the list, and why; empty if all of them are."""
        return "; ".join(f"stream {label}: {why}" for label, why in sorted(self._complaints.items()))

    @property
    def is_complete(self) -> bool:
        """Whether the row exists and has all streams that this worker follows."""
        return bool(self.streams.version) and not self._own

    def wake(self) -> None:
        """Make `pause` end now, so that the list is read."""
        self._woken.set()

    async def pause(self) -> None:
        """Wait until it is time to read the list again."""
        await wait_for_event(self._woken, PERIOD_S if self.streams.version or self.streams.streams else FIRST_PERIOD_S)
        self._woken.clear()

    async def step(self, in_table: Collection[StreamId], *, leads: bool, may_begin: bool = False) -> TrackedList:
        """Read the row of the list, write it if that is this worker's task, and return the list to follow.

        The leader (`leads`) writes the row. If there is no readable row, a worker with `may_begin` writes it, too. A
        worker that does not lead also follows some streams that the row lacks (`_unpublished`).

        `in_table` are the identifiers of all streams that have leases. Raises `errors.TableError`.
        """
        found = await self.table.read()
        if not found.version:  # the row was deleted or damaged, or never existed: keep the streams of its last version
            self._note_damage(found)
            found = replace(found, streams=self._published)
        self.streams = found
        # Every worker reads its settings each time, because the keys of a new stream (credentials, command) are there.
        wanted = await self.read_wanted()
        if leads or (may_begin and not found.version):
            await self._write(wanted, in_table)
        self._published = self.streams.streams
        if not leads:
            self._own = await self._unpublished(wanted, in_table)
            self.streams = replace(self.streams, streams=(*self._published, *self._own))
        self._note_former()
        self.reads += 1
        return self.streams

    def seen_former_s(self, stream: str) -> float:
        """Return for how many seconds this worker has seen a stream as a former one, by the monotonic clock."""
        now = self.clock.monotonic()
        return now - self._former_seen.get(stream, now)

    def _note_damage(self, found: TrackedList) -> None:
        """Log each damaged row once."""
        if found.seen and found.seen != self._damaged:
            log.warning(
                "row %s is no list of streams and counts as none; a leader of mld writes it anew",
                KEY,
                extra={"action": "stream_list_damaged"},
            )
        self._damaged = found.seen

    def _note_former(self) -> None:
        """Note which streams are former ones now, and since when this worker has seen each of them as one."""
        now = self.clock.monotonic()
        former = (one.stream for one in self.streams.streams if one.former_since_s is not None)
        self._former_seen = {stream: self._former_seen.get(stream, now) for stream in former}

    async def forget(self, gone: Collection[str]) -> None:
        """Remove former streams from the list. Raises `errors.TableError`."""
        self.streams = await self.table.write(without(self.streams, gone)) or self.streams

    async def _unpublished(
        self, wanted: Sequence[WantedStream], in_table: Collection[StreamId]
    ) -> tuple[ListedStream, ...]:
        """Return streams of this worker's settings (`wanted`) that have leases, but are not in the list at all.

        A leader of mld lists a stream before it creates the stream's leases, and it lists every other stream that has
        leases as a former one. So if a stream with leases is not listed, a Java leader has created its leases, and will
        assign some of them to this worker.
        """
        unlisted = frozenset(map(str, in_table)) - {one.stream for one in self._published}
        if not unlisted:
            return ()
        if (unlisted, wanted) == self._own_for:
            return self._own
        self._own_for = unlisted, wanted
        answers = await self._ask(wanted)
        by_name = _by_name(in_table)
        own = []
        for one in wanted:
            found = _identified(one, answers[one.label], None, {}, by_name)
            if isinstance(found, str):
                self._complain(one.label, found)
                self._own_for = frozenset(), ()  # so that the next call describes all these streams again
            elif found.stream in unlisted:
                own.append(found)
        return tuple(own)

    async def _write(self, wanted: Sequence[WantedStream], in_table: Collection[StreamId]) -> None:
        """Write the list that follows from the settings and the leases, unless the row has it already. If another
        worker has written the row meanwhile, read it.
        """
        listed = await self._listed(wanted, in_table)
        after = next_list(self.streams, listed, in_table, self.clock.wall())
        if after is None and not self.streams.version:  # nothing has changed, but there is no readable row
            after = self.streams.followed_by(self.streams.streams)
        if after is None or not after.streams:
            return
        if (written := await self.table.write(after)) is not None:
            self.streams = written
            log.info("list of streams written", extra={"action": "stream_list_written", "streams": len(listed)})
        else:
            self.streams = await self.table.read()

    async def _listed(self, wanted: Sequence[WantedStream], in_table: Collection[StreamId]) -> list[ListedStream]:
        """Return the streams of the settings as they are to be listed. A stream that cannot be identified is logged,
        and stays listed as it was before, if it was.
        """
        before = self.streams.current()
        answers = await self._ask(self._to_ask(wanted, before))
        # Indexed by name, because there may be thousands of streams.
        newest, ids_in_table = self.streams.newest(), _by_name(in_table)
        listed: dict[str, ListedStream] = {}
        for one in wanted:
            known = before.get(one.label)
            found: ListedStream | str | None = known
            if one.label in answers:
                found = _identified(one, answers[one.label], known, newest, ids_in_table)
            if isinstance(found, ListedStream) and (other := listed.get(found.stream)) is not None:
                found = f"it is the same stream as {other.label}; remove one of the two"
            if isinstance(found, str):
                self._complain(one.label, found)
                found = known
            elif one.label in answers:
                self._complaints.pop(one.label, None)
            if found is not None and found.stream not in listed:
                listed[found.stream] = found
        labels = {one.label for one in wanted}
        self._complaints = {label: why for label, why in self._complaints.items() if label in labels}
        return list(listed.values())

    def _to_ask(self, wanted: Sequence[WantedStream], before: Mapping[str, ListedStream]) -> list[WantedStream]:
        """Return the streams to describe now: those of `wanted` that the list `before` lacks or has with another ARN,
        and `ASKED_IN_TURN` of all of `wanted`. The next call continues with the streams after these.
        """
        begin = self._turn if self._turn < len(wanted) else 0
        self._turn = begin + ASKED_IN_TURN
        return [
            one
            for number, one in enumerate(wanted)
            if begin <= number < self._turn
            or (known := before.get(one.label)) is None
            or (one.arn is not None and one.arn != known.arn)
        ]

    async def _ask(self, asked: Sequence[WantedStream]) -> dict[str, StreamSummary | StreamError]:
        """Describe streams, at most `ASKED_PER_SECOND` of them a second. Return the service's answer for each, or its
        error, by label.
        """
        answers: dict[str, StreamSummary | StreamError] = {}
        for number, one in enumerate(asked, 1):
            if number % ASKED_PER_SECOND == 0:
                await self.clock.sleep(1.0)
            try:
                answers[one.label] = await contained(self.describe(one), "describing a stream", one.label)
            except StreamError as error:
                answers[one.label] = error
        return answers

    def _complain(self, label: str, why: str) -> None:
        """Log why a stream is not listed, unless the same reason was logged last."""
        if self._complaints.get(label) != why:
            log.error("stream %s: %s", label, why, extra={"action": "stream_not_listed"})
        self._complaints[label] = why


def _by_name(in_table: Iterable[StreamId]) -> Mapping[tuple[str, str], Sequence[StreamId]]:
    """Return the identifiers of streams by account and name."""
    found: dict[tuple[str, str], list[StreamId]] = {}
    for one in in_table:
        found.setdefault((one.account, one.name), []).append(one)
    return found


def _identified(
    one: WantedStream,
    answer: StreamSummary | StreamError,
    known: ListedStream | None,
    newest: _ByName,
    ids_in_table: Mapping[tuple[str, str], Sequence[StreamId]],
) -> ListedStream | str:
    """Return the wanted stream `one` as it is to be listed. If it cannot be listed now, return a text that says why.

    `answer` is what the service has answered about the stream. `known` is the stream with this label in the present
    list, if there is one. By account and name, `newest` has the newest incarnation of each listed stream, and
    `ids_in_table` the identifiers that leases have.
    """
    if isinstance(answer, StreamError):
        return str(answer)
    name = account_and_name(answer.arn)
    if known is None or (known.id.account, known.id.name) != name:
        known = newest.get(name)
    found = identify(
        one.label, answer.arn, answer.created_ms, epoch=one.epoch, listed=known, in_table=ids_in_table.get(name, ())
    )
    if isinstance(found, str):
        return found
    return ListedStream(str(found), one.label, answer.arn, answer.created_ms)
