"""`Trend`: the lag of a shard in the last hour: one letter for every two minutes, a greater letter for a greater lag.
Pure.
"""

from __future__ import annotations

import math
import string

TREND_STEP_S, TREND_STEPS = 120, 30
"""Seconds of a step, and number of steps: a row holds the lag of the last hour."""
NO_LAG = "-"
"""The letter of a step in which no lag was known."""
LAG_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""Letters in the order of their codes, so that a greater letter means a greater lag. "0" means less than a second."""
LEVELS_PER_DOUBLING = 3
"""The letter for a lag that is twice as large comes this many letters later."""


class Trend:
    """The lag of a shard in the last hour. It is kept in the lease row, so it moves with the lease to the next worker.

    Each letter stands for lags that are up to 1.26 times those of the letter before; the letters reach from a second to
    twelve days. `text`, the letters so far, and `at_s`, the time of the last letter, come from the row.
    """

    def __init__(self, text: str = "", at_s: int = 0) -> None:
        self._text = text[-TREND_STEPS:]
        self._step = at_s // TREND_STEP_S

    def noted(self, lag_ms: int | None, wall_s: float) -> str:
        """Add this lag (None: unknown) and return the letters. Of several lags in one step the greatest remains: the
        greatest letter, and NO_LAG comes before every letter. Steps since the last call are filled with NO_LAG.
        """
        letter = NO_LAG
        if lag_ms is not None:
            level = 0 if lag_ms < 1000 else 1 + int(LEVELS_PER_DOUBLING * math.log2(lag_ms / 1000))
            letter = LAG_LETTERS[min(level, len(LAG_LETTERS) - 1)]
        step = max(self._step, int(wall_s) // TREND_STEP_S)
        passed = min(step - self._step, TREND_STEPS) if self._text else 1  # steps since the last letter
        # `last` is the letter of the present step so far; a new step begins without a lag. If no step has passed,
        # NO_LAG * -1 is empty, and the last letter is replaced.
        before, last = (self._text, NO_LAG) if passed else (self._text[:-1], self._text[-1])
        self._text = f"{before}{NO_LAG * (passed - 1)}{max(last, letter)}"[-TREND_STEPS:]
        self._step = step
        return self._text

    def values(self, wall_s: float) -> list[float | None]:
        """Return the lag in seconds for each step of the last hour, as `trend_values` does."""
        return trend_values(self._text, self._step * TREND_STEP_S, wall_s)


def trend_values(text: str, at_s: int, wall_s: float) -> list[float | None]:
    """Return the lag in seconds for each step of the last hour, the oldest first; None for a step
    without a known lag.
    """
    passed = max(0, int(wall_s) // TREND_STEP_S - at_s // TREND_STEP_S)
    values = []
    for letter in (text + NO_LAG * min(passed, TREND_STEPS))[-TREND_STEPS:]:
        level = LAG_LETTERS.find(letter)
        values.append(None if level < 0 else 0.0 if level == 0 else round(2 ** ((level - 1) / LEVELS_PER_DOUBLING), 1))
    return values
