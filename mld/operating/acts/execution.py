"""Carries out a plan: saves the rows, then writes change after change, each under its condition.

The shell of `plan`. A refusal is final, because the row is not what the plan saw. What was not applied for certain
(throttling) is tried again; what may have been applied is reported as unknown, never as done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mld.aws.table_calls import REFUSED_CODE, RefusedError, TableCalls
from mld.core.clock import Clock
from mld.core.errors import TableError, TableThrottledError
from mld.operating.acts.plan import ActPlan, Change, Fate, Outcome, RawTable, Row, raw_table

THROTTLED_TRIES_MAX = 8
THROTTLED_PAUSE_S = 0.2
SCAN_TIMEOUT_S = 20.0


async def read_table(calls: TableCalls, *, is_consistent: bool = True) -> RawTable:
    """Every row. Raises TableError; TableMissingError if there is no such table."""
    found: list[Row] = []
    params: dict[str, Any] = {"ConsistentRead": is_consistent}
    while True:
        answer = await calls.send("Scan", params, timeout_s=SCAN_TIMEOUT_S)
        found.extend(answer.get("Items", ()))
        if not answer.get("LastEvaluatedKey"):
            return raw_table(found)
        params = params | {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


async def until(holds: Callable[[], Awaitable[bool]], clock: Clock, *, within_s: float, every_s: float) -> bool:
    """Whether the condition comes true in time; asked for at once and then again and again. Raises what it raises."""
    ends_at = clock.monotonic() + within_s
    while not await holds():
        if clock.monotonic() + every_s > ends_at:
            return False
        await clock.sleep(every_s)
    return True


async def carry_out(
    plan: ActPlan,
    calls_of: Callable[[str | None], TableCalls],
    clock: Clock,
    *,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> Sequence[Outcome]:
    """Write every change of the plan, in its order; what became of each. A failure does not stop the others.

    `calls_of` gives a table as a place to write to, None stands for the lease table.
    """
    outcomes = []
    for change in plan.changes:
        outcome = await write_change(change, calls_of(change.table), clock)
        on_outcome(outcome)
        outcomes.append(outcome)
    return outcomes


async def write_change(change: Change, calls: TableCalls, clock: Clock) -> Outcome:
    """Send one change; what became of it."""
    pause_s = THROTTLED_PAUSE_S
    for attempt in range(1, THROTTLED_TRIES_MAX + 1):
        try:
            await calls.send(change.kind.value, change.request, refusals=(REFUSED_CODE,))
        except RefusedError:
            return Outcome(change, Fate.REFUSED, "the row has changed since it was read; ask again")
        except TableThrottledError as error:
            if attempt == THROTTLED_TRIES_MAX:
                return Outcome(change, Fate.REFUSED, str(error))
            await clock.sleep(pause_s)
            pause_s *= 2
        except TableError as error:
            return Outcome(change, Fate.UNKNOWN, f"{error}; look at the row before you ask again")
        else:
            return Outcome(change, Fate.DONE)
    raise AssertionError("unreachable")
