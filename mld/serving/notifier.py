"""Posts to a webhook what is wrong with the fleet, and that it is over (`mld.notify`). Rule: coordination#notifier.

The judgements are those of the page and of `mld lag` (`operating.fleet_status`). One worker of the fleet speaks: it
looks once a minute and posts what has been so for a while. What was posted stands in the table, so that the next one to
speak goes on from there. Who spoke when the table went out of reach tells that, and its end: nobody can be chosen
then. A post that fails is made again after the next look, for as long as there is a reason.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mld.aws.threads import HostReadError
from mld.core.clock import Clock, iso_time
from mld.core.error_boundary import survived
from mld.metrics.registry import Identity
from mld.operating.events import EventsTable
from mld.operating.fleet_status import TROUBLE, FleetStatus, ShardView, Verdict
from mld.properties.redaction import Scrubber

log = logging.getLogger(__name__)

LOOK_PERIOD_S = 60.0
HOLD_S = 110.0
"""For how long something must be so, or be over, before it is posted: two looks. Leases move, and processors fail once
in a while."""
PAUSE_HOLD_S = 4 * 3600.0
"""Of a pause, which somebody wanted: as long as for the alert of Prometheus."""
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


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing that is wrong: its kind, which is a verdict, `hole`, `corrupt` or `table`, and what it is about."""

    kind: str
    subject: str
    owner: str | None = field(default=None, compare=False)
    why: str | None = field(default=None, compare=False)

    @property
    def id(self) -> str:
        """How the table knows it."""
        return f"{self.kind} {self.subject}"

    @classmethod
    def known_as(cls, name: str) -> Alert:
        """Return the alert that the table knows by this name."""
        return cls(*name.partition(" ")[::2])


TABLE = Alert("table", "lease table")


@dataclass(frozen=True, slots=True)
class Post:
    """Alerts of one kind that begin, or end, at the same look."""

    kind: str
    begins: bool
    alerts: tuple[Alert, ...]


def alerts_of(fleet: FleetStatus) -> set[Alert]:
    """Return what is wrong with the fleet."""
    found = {
        Alert(shard.verdict.value, shard.name, shard.owner, shard.why)
        for shard in fleet.open_shards
        if shard.verdict in TROUBLE and not _never_told(shard)
    }
    for label, holes in fleet.holes_of.items():
        found |= {Alert("hole", f"{label or ''} from hash key {hole.start}".strip()) for hole in holes}
    return found | {Alert("corrupt", key, why=why) for key, why in fleet.corrupt}


def _never_told(shard: ShardView) -> bool:
    """Return whether its worker tells nothing, as Java's do: that is no news."""
    return shard.verdict is Verdict.UNKNOWN and shard.age_s is None


class AlertBook:
    """Decides what is to be posted. `posted` are the ids of alerts that were posted and have not ended. Pure."""

    def __init__(self, posted: Iterable[str]) -> None:
        self._posted = {Alert.known_as(name) for name in posted}
        self._since: dict[Alert, float] = {}
        """Since when what is not posted is so, or what is posted is over."""

    @property
    def posted(self) -> frozenset[str]:
        return frozenset(alert.id for alert in self._posted)

    def due(self, found: Collection[Alert], now: float) -> list[Post]:
        """Return what to post after a look."""
        changed = {*found} ^ self._posted
        self._since = {alert: self._since.get(alert, now) for alert in changed}
        due: dict[tuple[str, bool], list[Alert]] = {}
        for alert in changed:
            begins = alert not in self._posted
            hold_s = PAUSE_HOLD_S if begins and alert.kind == Verdict.PAUSED.value else HOLD_S
            if now - self._since[alert] >= hold_s:
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
    why = next((f": {alert.why}" for alert in named if alert.why), "") if post.begins else ""
    over = "" if post.begins else "over: "
    return {
        "text": _plain(scrub(f"{me.application}: {over}{post.kind} ({len(post.alerts)}): {names}{why}")),
        "application": me.application,
        "alert": post.kind,
        "status": "begun" if post.begins else "ended",
        "count": len(post.alerts),
        "subjects": [{"name": one.subject, "owner": one.owner, "why": one.why and scrub(one.why)} for one in named],
        "at": iso_time(wall_s),
        "worker": me.worker,
    }


Look = Callable[[], Awaitable[tuple[FleetStatus | None, str | None]]]
"""Gives the fleet, and why its tables could not be read."""


@dataclass(eq=False)
class Notifier:
    """`speaks`: whether this worker is the one of its fleet that posts."""

    post: Callable[[Mapping[str, Any]], Awaitable[None]]
    """Raises HostReadError."""
    look: Look
    speaks: Callable[[], bool]
    table: EventsTable
    clock: Clock
    identity: Identity
    scrub: Scrubber

    async def run(self) -> None:
        """Look and post, until cancelled."""
        book: AlertBook | None = None
        while True:
            if book is not None or self.speaks():
                fleet, trouble = await self.look()
                if trouble is None and not self.speaks() and (book is None or TABLE.id not in book.posted):
                    book = None
                elif fleet is not None:
                    book = book or AlertBook(fleet.alerts)
                    await self._tell(book, self._found(book, fleet, trouble))
            await self.clock.sleep(LOOK_PERIOD_S)

    def _found(self, book: AlertBook, fleet: FleetStatus, trouble: str | None) -> set[Alert]:
        """Return what is wrong now. While the table cannot be read nothing is known to have begun or ended, and once
        another worker speaks, it is for that one to tell."""
        if trouble is None and self.speaks():
            return alerts_of(fleet)
        others = {*map(Alert.known_as, book.posted)} - {TABLE}
        return others if trouble is None else {*others, replace(TABLE, why=trouble)}

    async def _tell(self, book: AlertBook, found: Collection[Alert]) -> None:
        posts = book.due(found, self.clock.monotonic())
        before = book.posted
        for post in posts[:POSTS_MAX]:
            if not await self._post(document(post, self.identity, self.clock.wall(), self.scrub)):
                break  # the others wait for the next look, too
            book.note(post)
        if book.posted != before and self.speaks():
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
