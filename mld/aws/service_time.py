"""`ServiceTime`: what time it is at AWS, for signatures, for the expiry of credentials, and for stored times.

Every answer has the service's time in its `Date` header, in whole seconds. The header was written before the answer
came, so AWS is ahead of our monotonic clock by *at least* the difference that it shows. The largest difference of the
last minutes counts. So a slow answer changes nothing, nor does the fraction of a second that the header leaves out.

    an answer shows                               then
    a larger difference, by under `SKEW_MIN_S`    it is believed at once
    a smaller one, by under `SKEW_MIN_S`          nothing, unless no answer of `DRIFT_WINDOW_S` has shown a larger one
    one that is further off                       it is believed if the next date agrees: proxies have clocks, too
    the same, in a refusal of a signature         it is believed at once

This machine's own clock counts until the first answer. If it is wrong, that is logged once. One measurement serves all
clients of a daemon: the wire client calls `saw`, and signs by `now`; `mld.aws.botocore_time` does the same for
botocore.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)

SKEW_MIN_S = 60.0
"""A signature is good for five minutes, so a smaller difference is no reason for a refusal. No answer is this late."""
DRIFT_WINDOW_S = 600.0
"""In this time two clocks move apart by some hundredths of a second."""
SKEWED_CODES = frozenset(
    {
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "RequestInTheFuture",
        "ExpiredToken",
        "ExpiredTokenException",
        "AuthFailure",
    }
)
"""What services answer to a signature that is too old or too new; most of them mean other things too."""


class ServiceTime:
    """`wall` is this machine's clock, in epoch seconds, `monotonic` one that never jumps. Used by all threads."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._date: bytes | str | None = None
        """The last header. Nearly all answers of one second have the same."""
        self._ahead_s: float | None = None
        """AWS's time minus our monotonic one."""
        self._doubted_s: float | None = None
        """The same by the last answer, if that is far from `_ahead_s`."""
        self._most_s = -math.inf
        """The most that an answer has shown since `_since`."""
        self._since = 0.0
        self._told_offset_s = 0.0
        self.was_off = False
        """Whether this machine's clock has ever been found so far off that AWS refuses what is signed by it."""

    @property
    def is_measured(self) -> bool:
        """Whether any answer had a time."""
        return self._ahead_s is not None

    @property
    def offset_s(self) -> float:
        """AWS's clock minus this machine's; 0 while it is not known."""
        return self.now() - self._wall() if self.is_measured else 0.0

    @property
    def correction_s(self) -> float:
        """The offset, if it is so large that AWS refuses what is signed without it; else 0."""
        offset_s = self.offset_s
        return offset_s if abs(offset_s) >= SKEW_MIN_S else 0.0

    def now(self) -> float:
        """Return AWS's time in epoch seconds; this machine's before the first answer."""
        return self._wall() if self._ahead_s is None else self._monotonic() + self._ahead_s

    def saw(self, date: bytes | str | None) -> None:
        """Take the `Date` header of an answer. Costs next to nothing unless the text is new."""
        if date is None or date == self._date:
            return
        self._date = date
        if (told_s := _epoch_s(date)) is None:
            return
        now, known_s = self._monotonic(), self._ahead_s
        ahead_s = told_s - now
        if known_s is None or abs(ahead_s - known_s) >= SKEW_MIN_S:
            before, self._doubted_s = self._doubted_s, ahead_s
            if known_s is None or (before is not None and abs(before - ahead_s) < SKEW_MIN_S):
                self._believe(ahead_s, now)
            return
        self._doubted_s = None
        self._most_s = max(self._most_s, ahead_s)
        if now - self._since > DRIFT_WINDOW_S:
            self._ahead_s, self._most_s, self._since = self._most_s, ahead_s, now
        else:
            self._ahead_s = max(known_s, ahead_s)

    def learn(self, date: bytes | str | None) -> bool:
        """Take the `Date` header of an answer that refuses our clock. Return whether it corrects the time."""
        told_s = None if date is None else _epoch_s(date)
        if told_s is None:
            return False
        now = self._monotonic()
        is_news = abs(told_s - self.now()) >= SKEW_MIN_S
        if is_news or not self.is_measured:
            self._believe(told_s - now, now)
        return is_news

    def _believe(self, ahead_s: float, now: float) -> None:
        self._ahead_s = self._most_s = ahead_s
        self._since, self._doubted_s = now, None
        offset_s = self.offset_s
        if abs(offset_s) < SKEW_MIN_S or abs(offset_s - self._told_offset_s) < SKEW_MIN_S:
            return
        self._told_offset_s, self.was_off = offset_s, True
        logger.warning(
            "the clock of this machine is %+.0f s off that of AWS: AWS's time is used instead; set the clock",
            -offset_s,
            extra={"action": "clock_skew", "skew_s": round(offset_s, 1)},
        )


def _epoch_s(date: bytes | str) -> float | None:
    """Return the time of a `Date` header; None if it has none."""
    try:
        return parsedate_to_datetime(date.decode("latin-1") if isinstance(date, bytes) else date).timestamp()
    except (ValueError, OverflowError):
        return None
