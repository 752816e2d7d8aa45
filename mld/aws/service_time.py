"""`ServiceTime`: estimates the time of AWS's clock, for signatures, the expiry of credentials, and stored times.

Every answer has the service's time in its `Date` header, in whole seconds. The difference that is measured is this time
minus our monotonic clock. The header was written before the answer arrived, so the true difference is *at least* the
measured one. Therefore the largest difference of the last minutes is used. A slow answer changes nothing then, and
neither does the fraction of a second that the header leaves out.

    the difference that an answer shows           what happens
    larger by less than `SKEW_MIN_S`              it is used at once
    smaller by less than `SKEW_MIN_S`             it is used once no answer has shown a larger one for `DRIFT_WINDOW_S`
    off by more, in either direction              it is used if the next date agrees: the date may be that of a proxy
    off by more, and AWS refuses our signature    it is used at once

This machine's own clock is used until the first answer. If it is wrong, that is logged once. One measurement serves all
clients of a daemon: the wire client calls `saw`, and signs by `now`; `mld.aws.botocore_time` does the same for
botocore.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

logger = logging.getLogger(__name__)

SKEW_MIN_S = 60.0
"""A smaller error of the clock is harmless, because a signature is valid for five minutes. No answer takes this long.
"""
DRIFT_WINDOW_S = 600.0
"""For how long the largest difference is kept. In this time two clocks drift apart by some hundredths of a second."""
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
"""The codes with which services refuse a signature that is too old or too new. Most of them have other meanings, too.
"""


class ServiceTime:
    """Estimates AWS's time. `wall` is this machine's clock in epoch seconds, `monotonic` a clock that never jumps. Used
    by all threads.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._date: bytes | str | None = None
        """The last `Date` header. Nearly all answers of one second have the same."""
        self._ahead_s: float | None = None
        """The difference in use: AWS's time minus our monotonic clock."""
        self._doubted_s: float | None = None
        """The difference that the last answer showed, if it is far from `_ahead_s`."""
        self._most_s = -math.inf
        """The largest difference that an answer has shown since `_since`."""
        self._since = 0.0  # when the present window of `DRIFT_WINDOW_S` began
        self._logged_offset_s = 0.0
        """The error of this machine's clock that was logged last."""
        self.was_off = False
        """Whether this machine's clock was ever so far off that AWS would refuse signatures made by it."""

    @property
    def is_measured(self) -> bool:
        """Whether any answer has shown AWS's time so far."""
        return self._ahead_s is not None

    @property
    def offset_s(self) -> float:
        """AWS's clock minus this machine's clock; 0 while AWS's time is not known."""
        return self.now() - self._wall() if self.is_measured else 0.0

    @property
    def correction_s(self) -> float:
        """The offset, if it is so large that a signature by this machine's clock may be refused; else 0."""
        offset_s = self.offset_s
        return offset_s if abs(offset_s) >= SKEW_MIN_S else 0.0

    def now(self) -> float:
        """Return AWS's time in epoch seconds; before the first answer, this machine's time."""
        return self._wall() if self._ahead_s is None else self._monotonic() + self._ahead_s

    def saw(self, date: bytes | str | None) -> None:
        """Measure AWS's time by the `Date` header of an answer; the table at the top of this module says how.

        Costs next to nothing if the header has the same text as that of the last answer.
        """
        if date is None or date == self._date:
            return
        self._date = date
        if (date_s := _epoch_s(date)) is None:
            return
        now, known_s = self._monotonic(), self._ahead_s
        ahead_s = date_s - now
        # A difference far from the known one is used only if the answer before showed nearly the same.
        if known_s is None or abs(ahead_s - known_s) >= SKEW_MIN_S:
            before, self._doubted_s = self._doubted_s, ahead_s
            if known_s is None or (before is not None and abs(before - ahead_s) < SKEW_MIN_S):
                self._believe(ahead_s, now)
            return
        # A larger difference is used at once. The largest of a window replaces the known one when the window ends.
        self._doubted_s = None
        self._most_s = max(self._most_s, ahead_s)
        if now - self._since > DRIFT_WINDOW_S:
            self._ahead_s, self._most_s, self._since = self._most_s, ahead_s, now
        else:
            self._ahead_s = max(known_s, ahead_s)

    def learn(self, date: bytes | str | None) -> bool:
        """Measure by the `Date` header of an answer that refuses a signature because of its time.

        Return whether the time used so far was wrong by `SKEW_MIN_S` or more, and is corrected now.
        """
        date_s = None if date is None else _epoch_s(date)
        if date_s is None:
            return False
        now = self._monotonic()
        is_news = abs(date_s - self.now()) >= SKEW_MIN_S
        if is_news or not self.is_measured:
            self._believe(date_s - now, now)
        return is_news

    def _believe(self, ahead_s: float, now: float) -> None:
        """Use the difference `ahead_s` (AWS's time minus our monotonic clock, which shows `now`) from now on.

        If this machine's clock turns out to be wrong, log that, unless nearly the same error was logged last.
        """
        self._ahead_s = self._most_s = ahead_s
        self._since, self._doubted_s = now, None
        offset_s = self.offset_s
        if abs(offset_s) < SKEW_MIN_S or abs(offset_s - self._logged_offset_s) < SKEW_MIN_S:
            return
        self._logged_offset_s, self.was_off = offset_s, True
        logger.warning(
            "the clock of this machine is %+.0f s off that of AWS: AWS's time is used instead; set the clock",
            -offset_s,
            extra={"action": "clock_skew", "skew_s": round(offset_s, 1)},
        )


def _epoch_s(date: bytes | str) -> float | None:
    """Return the time in a `Date` header; None if it cannot be read."""
    try:
        return parsedate_to_datetime(date.decode("latin-1") if isinstance(date, bytes) else date).timestamp()
    except (ValueError, OverflowError):
        return None
