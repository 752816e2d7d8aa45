"""How many lines of the log the rows of a table may cause."""

from __future__ import annotations

import pytest

from mld.core.row_lines import LINES, RowLines


class SteppedClock:
    """A clock that the test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_rows_beyond_the_budget_are_left_out_and_that_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = SteppedClock()
    lines = RowLines("rows", clock)
    most = int(LINES.tokens)
    assert [lines.may_log() for _ in range(most + 100)] == [True] * most + [False] * 100
    assert [(record.action, record.kind) for record in caplog.records] == [("row_lines_left_out", "rows")]  # type: ignore[attr-defined]
    clock.now += LINES.period_s
    assert [lines.may_log() for _ in range(most + 1)] == [True] * most + [False]
    assert len(caplog.records) == 2
