"""`Notifier`: posts faults of the fleet, and their ends, to a webhook (`mld.notify`). Rule: coordination#notifier.

The faults are those that pages and commands show (`operating.verdicts`). One worker of the fleet posts for all: it
looks once a minute, and posts faults that have lasted for a while. The lease table keeps the list of posted faults, so
that another worker can take over. While the table is out of reach, no other worker can be chosen. So the worker that
was posting for the fleet also posts that the table is out of reach, and later that it is in reach again. Faults that
only one worker can know, such as a full disk, are posted by that worker itself, which forgets them when it ends. A post
that fails is tried again after the next look, as long as the fault lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mld.aws.webhook import PostFailedError
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.metrics.identity import Identity
from mld.operating.events import EventsTable
from mld.operating.faults import (
    FleetFault,
)
from mld.operating.fleet_sight import FleetSight
from mld.operating.fleet_status import FleetStatus
from mld.operating.verdicts import faults_of, general_faults
from mld.properties.scrubber import Scrubber
from mld.serving.alert_book import AlertBook
from mld.serving.alert_post import document

log = logging.getLogger(__name__)

LOOK_PERIOD_S = 60.0
POSTS_MAX = 10
"""How many posts follow one look at most, that is, in one minute."""
ATTEMPTS_MAX = 3
PAUSES_S = (2.0, 8.0)
"""Attempts to send one post, and the pauses between them."""
POST_TIMEOUT_S = 10.0

TABLE = FleetFault("table", "lease table")
"""The fault that the tables cannot be read."""

Look = Callable[[], Awaitable[tuple[FleetStatus | None, str | None]]]
"""A function that returns the fleet, and the reason if its tables could not be read."""


@dataclass(eq=False)
class Notifier:
    """Looks for faults, and posts those that are due."""

    post: Callable[[Mapping[str, Any]], Awaitable[None]]
    """Sends one post. Raises PostFailedError."""
    look: Look
    own: Callable[[], FleetSight]
    """Returns what this worker knows about itself, in which faults are found."""
    speaks: Callable[[], bool]
    """Returns whether this worker posts for the whole fleet."""
    table: EventsTable
    """Keeps the list of posted faults."""
    clock: Clock
    identity: Identity
    scrub: Scrubber
    with_details: bool = False
    """Whether posts contain reasons, in which others may have written (`mld.notifyDetails`)."""

    async def run(self) -> None:
        """Look and post once a minute, until cancelled.

        `mine` has the faults that only this worker can know. `of_fleet` has those of the fleet, and begins with the
        list in the table. A worker that no longer posts for the fleet drops `of_fleet` after a look that could read the
        tables. If it has posted that the tables cannot be read, it first posts that they can be read again.
        """
        mine = AlertBook(())
        of_fleet: AlertBook | None = None
        while True:
            looks: list[tuple[AlertBook, Collection[FleetFault]]] = [(mine, self._found_here())]
            if of_fleet is not None or self.speaks():
                fleet, trouble = await self.look()
                # This worker posts for the fleet no more, and has not posted a fault of the table that is over now.
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
        """Return the faults that only this worker can know."""
        return {fault for fault in general_faults(self.own()) if fault.declared.is_own}

    def _found(self, book: AlertBook, fleet: FleetStatus, trouble: str | None) -> set[FleetFault]:
        """Return the faults of the fleet that count as present now. `trouble` is why the table cannot be read.

        If the table can be read and this worker posts for the fleet, these are the faults of `fleet`. Otherwise they
        are the faults that were posted before, so that neither a new fault nor an end is posted. Only `TABLE`, the
        fault that the table cannot be read, is present exactly as long as `trouble` lasts.
        """
        if trouble is None and self.speaks():
            return {fault for fault in faults_of(replace(self.own(), fleet=fleet)) if not fault.declared.is_own}
        others = book.raised - {TABLE}
        return {*others} if trouble is None else {*others, *faults_of(replace(self.own(), own=None, unread=trouble))}

    async def _tell(self, looks: Iterable[tuple[AlertBook, Collection[FleetFault]]]) -> None:
        """Send the posts that are due, at most POSTS_MAX, and note each in its book."""
        now = self.clock.monotonic()
        due = [(book, post) for book, found in looks for post in book.due(found, now)]
        for book, post in due[:POSTS_MAX]:
            content = document(post, self.identity, self.clock.wall(), self.scrub, with_details=self.with_details)
            if not await self._post(content):
                break  # the remaining posts wait for the next look
            book.note(post)

    async def _store(self, book: AlertBook) -> None:
        """Store which alerts are raised, so that another worker knows them; a failure is only logged."""
        try:
            await self.table.set_alerts(book.posted)
        except Exception as error:
            failure = survived(error, "storing alerts")
            log.info("alerts not stored: %s", failure, extra={"action": "alerts_not_stored"})

    async def _post(self, content: Mapping[str, Any]) -> bool:
        """Send one post, in up to ATTEMPTS_MAX attempts. Return whether it was sent."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self.post(content)
            except PostFailedError as error:
                why = str(error)
            else:
                return True
            if attempt < len(PAUSES_S):
                await self.clock.sleep(PAUSES_S[attempt])
        log.warning(
            "alert not posted to mld.notify: %s", why, extra={"action": "notify_failed", "alert": content["alert"]}
        )
        return False
