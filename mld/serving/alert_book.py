"""`AlertBook`: decides when a fault is posted as an alert, and when its end is posted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mld.operating.faults import (
    HOLD_S,
    FleetFault,
)


@dataclass(frozen=True, slots=True)
class Post:
    """One message about all faults of one kind that begin, or end, at the same time."""

    kind: str
    begins: bool
    alerts: tuple[FleetFault, ...]


class AlertBook:
    """Keeps the faults that were posted and have not ended, and faults that will be posted if they last."""

    def __init__(self, posted: Iterable[str]) -> None:
        """Make a book from the ids of faults that were posted before.

        Ids of unknown kinds of faults are left out: another version of mld may have written them, or anybody else who
        can write to the table.
        """
        self._posted = {fault for name in posted if (fault := FleetFault.known_as(name)) is not None}
        self._since: dict[FleetFault, float] = {}
        """For faults that were found but not posted: when each began. For posted faults that are no longer found: when
        each ended. In monotonic seconds.
        """

    @property
    def raised(self) -> frozenset[FleetFault]:
        """The faults that were posted and have not ended."""
        return frozenset(self._posted)

    @property
    def posted(self) -> frozenset[str]:
        """The ids of `raised`, as the list in the lease table has them."""
        return frozenset(alert.id for alert in self._posted)

    def due(self, found: Collection[FleetFault], now: float) -> list[Post]:
        """Note the faults that were found at `now` (monotonic seconds), and return the posts that are due: for faults
        that have lasted, or have been over, for long enough. A post is due again in each call, until `note` is called
        because it was sent.

        The kind of a fault declares how long it must last before it is posted (`hold_s`; None: it is never posted), and
        whether its end is posted (`ends`).
        """
        # A fault whose end is never posted is forgotten when it is over.
        self._posted -= {fault for fault in self._posted - {*found} if not fault.declared.ends}
        # Faults that were found but not posted, and faults that were posted but are no longer found.
        changed = {fault for fault in found if fault.declared.hold_s is not None} ^ self._posted
        self._since = {alert: self._since.get(alert, now) for alert in changed}
        due: dict[tuple[str, bool], list[FleetFault]] = {}
        for alert in changed:
            begins = alert not in self._posted
            hold_s = alert.declared.hold_s if begins else HOLD_S
            if hold_s is not None and now - self._since[alert] >= hold_s:
                due.setdefault((alert.kind, begins), []).append(alert)
        return [
            Post(kind, begins, tuple(sorted(alerts, key=lambda alert: alert.subject)))
            for (kind, begins), alerts in sorted(due.items())
        ]

    def note(self, post: Post) -> None:
        """Note that the post was sent."""
        self._posted = self._posted | {*post.alerts} if post.begins else self._posted - {*post.alerts}
