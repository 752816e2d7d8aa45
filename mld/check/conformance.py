"""`mld conformance`: tests whether a command is a record processor that keeps the child protocol.

Rules: protocol#conformance-of-a-command. For each script (`conformance_scripts`) the command is started as a real
process, and mld holds one session with it, in the part of the daemon. No process is left behind, and every wait has a
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TextIO

from mld.check.conformance_rules import Report, Rule, RuleVerdict
from mld.check.conformance_scripts import SCRIPTS, SessionScript
from mld.check.conformance_session import SHARD_ID, Session, SessionOver
from mld.consumer.child import PipeChild, PipeHost
from mld.consumer.ports import ChildStartError, ShardAddress
from mld.core.clock import LoopClock

TIMEOUT_S = 30.0
"""Longest wait for each answer, and for the exit of the process after the end of its input."""
ERROR_LINES_MAX = 8


def run(command: Sequence[str], *, timeout_s: float = TIMEOUT_S, out: TextIO) -> bool:
    """Examine the command, and write a verdict for each rule. Return whether every required rule is kept."""
    report = asyncio.run(examine(command, timeout_s=timeout_s))
    report.write(out)
    return report.holds


async def examine(command: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Report:
    """Hold all sessions with the command, one after the other, each with a new process; return the report."""
    report = Report(list(command))
    await _hold_all(report, timeout_s)
    return report


async def _hold_all(report: Report, timeout_s: float) -> None:
    """Hold every session. Stop if the command cannot be started, or does not get past `initialize`."""
    host = PipeHost(report.command, LoopClock(), stop_timeout_s=timeout_s, environment={}, logs_fields=False)
    for script in SCRIPTS:
        try:
            child = await host.start(ShardAddress(SHARD_ID, SHARD_ID))
        except ChildStartError as error:
            report.failed(Rule.STARTS, str(error))
            return
        report.passed(Rule.STARTS)
        try:
            await _hold(script, child, report, timeout_s)
        finally:
            await child.kill()
        if report.verdict(Rule.INITIALIZE) is RuleVerdict.FAIL:
            return
    # Sessions note only breaches of these rules. A rule that was broken stays broken.
    for rule in (Rule.TURNS, Rule.CLEAN_OUTPUT, Rule.NO_EARLY_CHECKPOINT, Rule.NAMED_BETWEEN):
        report.passed(rule)


async def _hold(script: SessionScript, child: PipeChild, report: Report, timeout_s: float) -> None:
    """Hold one session with a child, and note in the report which rules the child keeps.

    If the child breaks the session off, the rule that the script tests is broken, too. Some scripts (`may_end`) allow
    the child to end with an error status; then the rule is kept.
    """
    session = Session(child, report, name=script.name, start=script.start, replies=script.replies, timeout_s=timeout_s)
    try:
        await script.hold(session, report)
        await session.end_input()
    except SessionOver as over:
        # In some scripts a child that exits with an error keeps the rule, too.
        if script.may_end and over.ended and script.rule and await session.exit_status() not in (None, 0):
            report.passed(script.rule)
            return
        if not script.is_optional:
            session.failed(over.rule, str(over))
        if script.rule is not None:
            session.failed(script.rule, str(over))
        await child.kill()  # afterwards all that it wrote to stderr is in `last_words`
        report.errors_shown = report.errors_shown or list(child.last_words)[-ERROR_LINES_MAX:]
        return
    if script.rule is not None:
        report.passed(script.rule)
