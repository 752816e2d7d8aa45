"""Tests any record-processor command against the child protocol, by talking to it like the daemon.

Rules: protocol#conformance-of-a-command. Each session in `scripts` starts the command as a real process, holds one
scripted conversation with it, and notes for each rule (`rules`) whether it was kept. This is the only part of
`protocol` that does I/O; it must neither leave a process behind nor wait without a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TextIO

from mld.protocol.conformance.rules import Report, Rule, RuleLevel, RuleVerdict
from mld.protocol.conformance.scripts import hold_all

__all__ = ["Report", "Rule", "RuleLevel", "RuleVerdict", "examine", "run"]

TIMEOUT_S = 30.0
"""Longest wait for each answer, and for the end of the process after the end of its input."""


def run(command: Sequence[str], *, timeout_s: float = TIMEOUT_S, out: TextIO) -> bool:
    """Examine the command and write a readable verdict per rule; True only if every required rule holds."""
    report = asyncio.run(examine(command, timeout_s=timeout_s))
    report.write(out)
    return report.holds


async def examine(command: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Report:
    """Hold all sessions with the command, one after the other, in fresh processes."""
    report = Report(list(command))
    await hold_all(report, timeout_s)
    return report
