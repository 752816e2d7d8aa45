"""When metrics are taken, and which time they are given. Pure.

Values are taken at whole periods of the wall clock and bear the time at which their period began: with a period of a
minute CloudWatch gets exactly one statistic set for each of its minutes, however late the request is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Period:
    """What the values of one publication cover, in epoch seconds."""

    begin_s: float
    end_s: float

    @property
    def stamp_s(self) -> float:
        """The time of its values. Not after its end, should the clock have been set back."""
        return min(self.begin_s, self.end_s)


EARLY_S = 0.1
"""A timer may fire so much before the wall clock says so; that ends the period all the same."""


def wait_s(wall_s: float, length_s: float) -> float:
    """Seconds from `wall_s` to the end of the period that it is in, or of the next one if it has as good as ended."""
    left_s = length_s - math.fmod(wall_s, length_s)
    return left_s if left_s > EARLY_S else left_s + length_s
