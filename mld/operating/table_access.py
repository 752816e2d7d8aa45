"""Reads the rows of a table for a command, and writes the changes of its plan one after the other.

A refused write is not repeated, because the row has changed since the plan was made. A write that was certainly not
applied (throttling) is repeated. A write that may have been applied is reported as unknown, never as done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from mld.aws.table_calls import TableCalls
from mld.core.clock import Clock
from mld.core.errors import TableError, TableMissingError, TableThrottledError
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, Refusal
from mld.operating.plan import ActPlan, Change, Fate, Outcome, RawTable, Row, raw_table

THROTTLED_TRIES_MAX = 8
THROTTLED_PAUSE_S = 0.2
"""Attempts to write a row while the table is throttled, and the first pause; each later one is twice as long."""
SCAN_TIMEOUT_S = 20.0
READ_AGAIN_S = (0.5, 1.0, 2.0)
"""Pauses before another attempt to read a page of the table."""

Report: TypeAlias = Callable[[Outcome], None]
"""A function that is called with the outcome of each change."""


async def read_table(calls: TableCalls, clock: Clock) -> RawTable:
    """Read every row. Raises TableError if a page cannot be read in several attempts; TableMissingError if there is no
    such table.
    """
    found: list[Row] = []
    params: dict[str, Any] = {"ConsistentRead": True}
    while True:
        answer = await _page(calls, clock, params)
        found.extend(answer.get("Items", ()))
        if not answer.get("LastEvaluatedKey"):
            return raw_table(found)
        params = params | {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


async def _page(calls: TableCalls, clock: Clock, params: dict[str, Any]) -> Mapping[str, Any]:
    """Read one page, with a few more attempts after errors. Raises TableError."""
    for pause_s in READ_AGAIN_S:
        try:
            return await calls.send("Scan", params, timeout_s=SCAN_TIMEOUT_S)
        except TableMissingError:
            raise
        except TableError:
            await clock.sleep(pause_s)
    return await calls.send("Scan", params, timeout_s=SCAN_TIMEOUT_S)


async def carry_out(
    plan: ActPlan, table_of: Callable[[Change], LeaseTable], clock: Clock, *, report: Report = lambda _: None
) -> Sequence[Outcome]:
    """Write every change of the plan, in its order, and return the outcomes. After a failure the others are still
    written.
    """
    outcomes = []
    for change in plan.changes:
        outcome = await write_change(change, table_of(change), clock)
        report(outcome)
        outcomes.append(outcome)
    return outcomes


async def write_change(change: Change, table: LeaseTable, clock: Clock) -> Outcome:
    """Send one change, repeat it while the table is throttled, and return its outcome. Raises nothing for an error of
    the table: the outcome is then REFUSED, or UNKNOWN if the change may have been written.
    """
    pause_s = THROTTLED_PAUSE_S
    for attempt in range(1, THROTTLED_TRIES_MAX + 1):
        try:
            answer = await table.apply(change.write)
        except TableThrottledError as error:
            if attempt == THROTTLED_TRIES_MAX:
                return Outcome(change, Fate.REFUSED, str(error))
            await clock.sleep(pause_s)
            pause_s *= 2
        except TableError as error:
            return Outcome(change, Fate.UNKNOWN, f"{error}; look at the row before you ask again")
        else:
            if answer is False or isinstance(answer, Refusal):
                return Outcome(change, Fate.REFUSED, "the row has changed since it was read; ask again")
            return Outcome(change, Fate.DONE, row=answer if isinstance(answer, Lease) else change.write.creates)
    raise AssertionError("unreachable")
