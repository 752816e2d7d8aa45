"""`Point`: a place in a stream, as an operator writes it on a command line. Pure.

It is `trim-horizon`, `latest`, `checkpoint`, `now`, a sequence number (with ``/SUB`` for a user record inside a KPL
aggregate), or a time: ISO 8601 with a zone, epoch seconds, or how long ago (``2h``, ``1h30m``, ``90s ago``). A time is
turned into epoch seconds at once, so that it means the same moment for every shard.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from mld.core.positions import SEQUENCE_DIGITS_MAX, SUB_MAX, Position

EPOCH_DIGITS_MAX = 11
"""Epoch seconds have no more digits for the next 3,000 years; epoch milliseconds have 13."""
SEQUENCE_DIGITS_MIN = 21
"""Sequence numbers of Kinesis have 56 digits. A time in any unit has fewer than this."""

_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_AGO = re.compile(
    "".join(rf"(?:(?P<{unit}>[0-9]{{1,12}}){unit})?" for unit in _UNITS_S) + r"(?:\s*ago)?", re.ASCII | re.IGNORECASE
)
"""Matches how long ago, such as ``1h30m`` or ``90s ago``; but also a text without any number."""
_EPOCH = re.compile(rf"[0-9]{{1,{EPOCH_DIGITS_MAX}}}(?:\.[0-9]+)?", re.ASCII)
_SEQUENCE = re.compile(rf"(?P<sequence>[0-9]{{1,{SEQUENCE_DIGITS_MAX}}})(?:/(?P<sub>[0-9]{{1,19}}))?", re.ASCII)
_FORMS = {
    "time": "now, a time (2026-01-31T12:00:00Z, epoch seconds, or how long ago: 2h)",
    "sequence": "a sequence number",
}


class PointKind(Enum):
    TRIM_HORIZON = "trim-horizon"  # the oldest record that is kept
    LATEST = "latest"  # after the newest record
    CHECKPOINT = "checkpoint"  # the checkpoint in the application's lease row
    TIME = "time"
    SEQUENCE = "sequence"


ALL_KINDS = frozenset(PointKind)


class PointError(ValueError):
    """The text names no place. The message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a stream, or in one shard of it."""

    kind: PointKind
    time_s: float | None = None
    """Epoch seconds; only for TIME."""
    position: Position | None = None
    """Only for SEQUENCE."""

    def __str__(self) -> str:
        if self.time_s is not None:
            return datetime.fromtimestamp(self.time_s, UTC).isoformat()
        return self.kind.value if self.position is None else str(self.position)


TRIM_HORIZON_POINT = Point(PointKind.TRIM_HORIZON)
LATEST_POINT = Point(PointKind.LATEST)


def parse_point(text: str, now_s: float, kinds: Collection[PointKind] = ALL_KINDS) -> Point:
    """Return the place that `text` names at `now_s` (epoch seconds). Raises PointError, also if it is none of `kinds`.

    Names are not case-sensitive, and may be written as in Kinesis (``TRIM_HORIZON``).
    """
    point = _point(text.strip(), now_s, kinds)
    if point.kind not in kinds:
        raise PointError(f"{text!r} is not possible here: give {_choices(kinds)}")
    return point


def _point(text: str, now_s: float, kinds: Collection[PointKind]) -> Point:
    """Return the place in a stream that the text names. Raises PointError, whose message names the `kinds` of places
    that the caller accepts; the caller checks the result against them.
    """
    name = text.lower().replace("_", "-")
    if name in ("trim-horizon", "latest", "checkpoint"):
        return Point(PointKind(name))
    if name == "now":
        return Point(PointKind.TIME, now_s)
    sequence = _sequence(text)
    return sequence if sequence is not None else Point(PointKind.TIME, _time_s(text, now_s, kinds))


def _sequence(text: str) -> Point | None:
    """Return the place if the text is a sequence number, else None.

    Raises PointError for a number that is too short for a sequence number and too long for epoch seconds.
    """
    found = _SEQUENCE.fullmatch(text)
    if found is None or (len(found["sequence"]) <= EPOCH_DIGITS_MAX and found["sub"] is None):
        return None
    if len(found["sequence"]) < SEQUENCE_DIGITS_MIN:
        raise PointError(
            f"{text!r} is no sequence number, and too long for epoch seconds: if these are milliseconds, divide by 1000"
        )
    sub = int(found["sub"] or 0)
    if sub > SUB_MAX:
        raise PointError(f"{text!r}: the number after the slash is larger than a sub-sequence number may be")
    return Point(PointKind.SEQUENCE, position=Position(found["sequence"], sub))


def _time_s(text: str, now_s: float, kinds: Collection[PointKind]) -> float:
    """Return the time that `text` names, in epoch seconds. Raises PointError, also if it is in the future."""
    time_s = _epoch_or_ago_s(text, now_s)
    if time_s is None:
        time_s = _iso_s(text, kinds)
    if time_s > now_s:
        raise PointError(f"{text!r} lies in the future")
    if time_s < 0:
        raise PointError(f"{text!r} lies before 1970")
    return time_s


def _epoch_or_ago_s(text: str, now_s: float) -> float | None:
    """Return the time of epoch seconds or a duration ago; None if the text has neither form."""
    if _EPOCH.fullmatch(text):
        return float(text)
    ago = _AGO.fullmatch(text)
    if ago is None or not any(ago[unit] for unit in _UNITS_S):
        return None
    return now_s - sum(int(ago[unit] or 0) * size for unit, size in _UNITS_S.items())


def _iso_s(text: str, kinds: Collection[PointKind]) -> float:
    """Return the epoch seconds of an ISO time with a zone. Raises PointError, which offers the forms of `kinds` if the
    text is no time at all.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise PointError(f"{text!r} names no place in a stream: give {_choices(kinds)}") from None
    if time.tzinfo is None:
        raise PointError(f"{text!r} has no zone: add Z for UTC, or an offset such as +01:00")
    return time.timestamp()


def _choices(kinds: Collection[PointKind]) -> str:
    """Return the texts that a user may write for places of these kinds, for an error message."""
    names = [_FORMS.get(kind.value, kind.value) for kind in PointKind if kind in kinds]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
