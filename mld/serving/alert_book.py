"""`AlertBook`: decides when a fault is posted as an alert, and when its end is posted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mld.operating.faults import (
    HOLD_S,
    KINDS,
    FleetFault,
)


@dataclass(frozen=True, slots=True)
class Post:
    """One message about all faults of one kind that begin, or end, at the same time."""

    kind: str
    begins: bool
    alerts: tuple[FleetFault, ...]


def hold_of(kind: str) -> float | None:
    """Return how long a fault of this kind must last before it is posted, in seconds; None: it is never posted."""
    known = KINDS.get(kind)
    return HOLD_S if known is None else known.hold_s


def kind_ends(kind: str) -> bool:
    """Return whether the end of a fault of this kind is posted."""
    known = KINDS.get(kind)
    return known is None or known.ends


def is_own(kind: str) -> bool:
    """Return whether each worker posts its own faults of this kind; otherwise one worker posts those of the fleet."""
    known = KINDS.get(kind)
    return known is not None and known.is_own


class AlertBook:
    """Keeps the faults that were posted and have not ended, and faults that will be posted if they last."""

    def __init__(self, posted: Iterable[str]) -> None:
        """Make a book from the ids of faults that were posted before. Ids of unknown kinds are left out. Otherwise
        anybody who can write to the table could make this worker announce the end of a fault that never existed.
        """
        faults = map(FleetFault.known_as, posted)
        self._posted = {fault for fault in faults if fault.kind in KINDS and fault.subject}
        self._since: dict[FleetFault, float] = {}
        """For faults that were found but not posted: when each began. For posted faults that are no longer found: when
        each ended. In monotonic seconds.
        """

    @property
    def posted(self) -> frozenset[str]:
        return frozenset(alert.id for alert in self._posted)

    def due(self, found: Collection[FleetFault], now: float) -> list[Post]:
        """Return the posts that are due. `found` are the faults that were found at `now`, in monotonic seconds."""
        # A fault whose end is never posted is forgotten when it is over.
        self._posted -= {fault for fault in self._posted - {*found} if not kind_ends(fault.kind)}
        # Faults that were found but not posted, and faults that were posted but are no longer found.
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
        """Note that the post was sent."""
        self._posted = self._posted | {*post.alerts} if post.begins else self._posted - {*post.alerts}
