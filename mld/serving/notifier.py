"""Posts to a webhook what is wrong with the fleet, and that it is over (`mld.notify`). Rule: coordination#notifier.

The judgements are those of all who look (`operating.verdicts`). One worker of the fleet speaks for it: it
looks once a minute and posts what has been so for a while. What was posted stands in the table, so that the next one to
speak goes on from there. Who spoke when the table went out of reach tells that, and its end: nobody can be chosen
then. What a worker alone can know, such as a full disk, each posts of itself; what it has posted it forgets when it
ends. A post that fails is made again after the next look, for as long as there is a reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mld.aws.threads import HostReadError
from mld.core.clock import Clock, iso_time
from mld.core.error_boundary import survived
from mld.metrics.identity import Identity
from mld.operating.events import EventsTable
from mld.operating.faults import (
    HOLD_S,
    KINDS,
    FleetFault,
    runbook_of,
)
from mld.operating.fleet_sight import FleetSight
from mld.operating.fleet_status import FleetStatus
from mld.operating.verdicts import faults_of, general_faults
from mld.properties.scrubber import Scrubber

log = logging.getLogger(__name__)

LOOK_PERIOD_S = 60.0
POSTS_MAX = 10
"""After one look, so in a minute."""
ATTEMPTS_MAX = 3
PAUSES_S = (2.0, 8.0)
POST_TIMEOUT_S = 10.0
ZERO_WIDTH_SPACE = "\u200b"
_BRACKETS = str.maketrans("<>", "\u2039\u203a")
_MARKUP = re.compile(r"@(?=\w)|\](?=\()")
SUBJECTS_MAX = 20
"""Named in a post; all are counted."""

TABLE = FleetFault("table", "lease table")

Look = Callable[[], Awaitable[tuple[FleetStatus | None, str | None]]]
"""Gives the fleet, and why its tables could not be read."""


@dataclass(frozen=True, slots=True)
class Post:
    """Faults of one kind that begin, or end, at the same look."""

    kind: str
    begins: bool
    alerts: tuple[FleetFault, ...]


def hold_of(kind: str) -> float | None:
    """Return for how long a fault of this kind must be so before it is posted; None: it is not."""
    known = KINDS.get(kind)
    return HOLD_S if known is None else known.hold_s


def kind_ends(kind: str) -> bool:
    """Return whether the end of a fault of this kind is posted."""
    known = KINDS.get(kind)
    return known is None or known.ends


def is_own(kind: str) -> bool:
    """Return whether each worker posts faults of this kind itself."""
    known = KINDS.get(kind)
    return known is not None and known.is_own


class AlertBook:
    """Decides what is to be posted. `posted` are the ids of alerts that were posted and have not ended. Pure."""

    def __init__(self, posted: Iterable[str]) -> None:
        self._posted = {FleetFault.known_as(name) for name in posted}
        self._since: dict[FleetFault, float] = {}
        """Since when what is not posted is so, or what is posted is over."""

    @property
    def posted(self) -> frozenset[str]:
        return frozenset(alert.id for alert in self._posted)

    def due(self, found: Collection[FleetFault], now: float) -> list[Post]:
        """Return what to post after a look."""
        self._posted -= {fault for fault in self._posted - {*found} if not kind_ends(fault.kind)}
        changed = {fault for fault in found if hold_of(fault.kind) is not None} ^ self._posted
        self._since = {alert: self._since.get(alert, now) for alert in changed}
        due: dict[tuple[str, bool], list[FleetFault]] = {}
        for alert in changed:
            begins = alert not in self._posted
            hold_s = hold_of(alert.kind) if begins else HOLD_S
            if hold_s is not None and now - self._since[alert] >= hold_s:
                due.setdefault((alert.kind, begins), []).append(alert)
        return [
            Post(kind, begins, tuple(sorted(alerts, key=lambda alert: alert.subject)))
            for (kind, begins), alerts in sorted(due.items())
        ]

    def note(self, post: Post) -> None:
        """Note that this was posted."""
        self._posted = self._posted | {*post.alerts} if post.begins else self._posted - {*post.alerts}


def _plain(text: str) -> str:
    """Return the text without what chats take for a named link or a call to everybody: a record may have written it."""
    return _MARKUP.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, text.translate(_BRACKETS))


def document(post: Post, me: Identity, wall_s: float, scrub: Scrubber) -> Mapping[str, Any]:
    """Return what is posted. `text` alone says all; it is what chats show."""
    named = post.alerts[:SUBJECTS_MAX]
    names = ", ".join(alert.subject for alert in named) + (", …" if len(post.alerts) > len(named) else "")
    first = named[0]
    why = f": {first.words} → {first.remedy}" if post.begins else ""
    over = "" if post.begins else "over: "
    where = f" of worker {me.worker}" if is_own(post.kind) else ""
    return {
        "text": _plain(scrub(f"{me.application}: {over}{post.kind} ({len(post.alerts)}){where}: {names}{why}")),
        "application": me.application,
        "alert": post.kind,
        "severity": first.severity.value,
        "status": "begun" if post.begins else "ended",
        "count": len(post.alerts),
        "subjects": [_subject(one, scrub) for one in named],
        "runbook": runbook_of(post.kind),
        "at": iso_time(wall_s),
        "worker": me.worker,
    }


def _subject(fault: FleetFault, scrub: Scrubber) -> Mapping[str, Any]:
    return {
        "name": fault.subject,
        "owner": fault.owner,
        "why": scrub(fault.words) or None,
        "remedy": scrub(fault.remedy) or None,
    }


@dataclass(eq=False)
class Notifier:
    """`own` gives what this worker knows of itself; `speaks`: whether it is the one of its fleet that posts."""

    post: Callable[[Mapping[str, Any]], Awaitable[None]]
    """Raises HostReadError."""
    look: Look
    own: Callable[[], FleetSight]
    speaks: Callable[[], bool]
    table: EventsTable
    clock: Clock
    identity: Identity
    scrub: Scrubber

    async def run(self) -> None:
        """Look and post, until cancelled."""
        mine = AlertBook(())
        of_fleet: AlertBook | None = None
        while True:
            looks: list[tuple[AlertBook, Collection[FleetFault]]] = [(mine, self._found_here())]
            if of_fleet is not None or self.speaks():
                fleet, trouble = await self.look()
                if trouble is None and not self.speaks() and (of_fleet is None or TABLE.id not in of_fleet.posted):
                    of_fleet = None
                elif fleet is not None:
                    of_fleet = of_fleet or AlertBook(fleet.alerts)
                    looks.append((of_fleet, self._found(of_fleet, fleet, trouble)))
            before = frozenset() if of_fleet is None else of_fleet.posted
            await self._tell(looks)
            if of_fleet is not None and of_fleet.posted != before and self.speaks():
                await self._store(of_fleet)
            await self.clock.sleep(LOOK_PERIOD_S)

    def _found_here(self) -> set[FleetFault]:
        """Return what is wrong with this worker and known to nobody else."""
        return {fault for fault in general_faults(self.own()) if is_own(fault.kind)}

    def _found(self, book: AlertBook, fleet: FleetStatus, trouble: str | None) -> set[FleetFault]:
        """Return what is wrong now. While the table cannot be read nothing is known to have begun or ended, and once
        another worker speaks, it is for that one to tell."""
        if trouble is None and self.speaks():
            return {fault for fault in faults_of(replace(self.own(), fleet=fleet)) if not is_own(fault.kind)}
        others = {*map(FleetFault.known_as, book.posted)} - {TABLE}
        return others if trouble is None else {*others, *faults_of(replace(self.own(), own=None, unread=trouble))}

    async def _tell(self, looks: Iterable[tuple[AlertBook, Collection[FleetFault]]]) -> None:
        now = self.clock.monotonic()
        due = [(book, post) for book, found in looks for post in book.due(found, now)]
        for book, post in due[:POSTS_MAX]:
            if not await self._post(document(post, self.identity, self.clock.wall(), self.scrub)):
                break  # the others wait for the next look, too
            book.note(post)

    async def _store(self, book: AlertBook) -> None:
        try:
            await self.table.set_alerts(book.posted)
        except Exception as error:
            failure = survived(error, "storing alerts")
            log.info("alerts not stored: %s", failure, extra={"action": "alerts_not_stored"})

    async def _post(self, told: Mapping[str, Any]) -> bool:
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self.post(told)
            except HostReadError as error:
                why = str(error)
            else:
                return True
            if attempt < len(PAUSES_S):
                await self.clock.sleep(PAUSES_S[attempt])
        log.warning(
            "alert not posted to mld.notify: %s", why, extra={"action": "notify_failed", "alert": told["alert"]}
        )
        return False
