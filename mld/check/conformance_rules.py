"""The rules by which `mld conformance` judges a record processor, and its report."""

from __future__ import annotations

import shlex
from enum import Enum
from typing import TextIO

from mld.properties.printable import printable

REASONS_MAX = 3
"""How many reasons are shown for a broken rule. Later ones mostly repeat the first."""


class RuleLevel(Enum):
    REQUIRED = "required"
    RECOMMENDED = "recommended"


class RuleVerdict(Enum):
    PASS = "pass"  # noqa: S105
    FAIL = "FAIL"
    NOT_OBSERVED = "not observed"


REQUIRED, RECOMMENDED = RuleLevel.REQUIRED, RuleLevel.RECOMMENDED


class Rule(Enum):
    """A rule for record processors: its name, its level, and a text that completes the sentence "the processor ..."."""

    STARTS = ("starts", REQUIRED, "the command can be started")
    MESSAGES = ("messages", REQUIRED, "every message follows its JSON schema, without further keys")
    TURNS = ("turns", REQUIRED, "answers every action once")
    INITIALIZE = ("initialize", REQUIRED, "answers initialize")
    PROCESS_RECORDS = ("processRecords", REQUIRED, "answers processRecords")
    SHUTDOWN_REQUESTED = ("shutdownRequested", REQUIRED, "answers shutdownRequested")
    LEASE_LOST = ("leaseLost", REQUIRED, "answers leaseLost")
    SHARD_ENDED = ("shardEnded", REQUIRED, "answers shardEnded")
    SHARD_END_CHECKPOINT = ("shard-end-checkpoint", REQUIRED, "checkpoints the end of the shard at shardEnded")
    POSITIONS = ("positions", REQUIRED, "asks only for positions between its last checkpoint and the last record")
    UNUSUAL_RECORDS = (
        "unusual-records",
        REQUIRED,
        "handles empty payloads, keys beyond ASCII, sub-sequence numbers, an unknown lag",
    )
    LARGE_BATCH = ("large-batch", REQUIRED, "handles 10 000 records of 1 KB in one message")
    THROTTLING = ("throttling", REQUIRED, "survives ThrottlingException")
    LEASE_GONE = ("lease-gone", REQUIRED, "survives ShutdownException and answers the action and leaseLost")
    INVALID_STATE = ("invalid-state", REQUIRED, "on InvalidStateException answers, or ends with an error")
    END_OF_INPUT = ("end-of-input", REQUIRED, "ends when its input ends")
    EXIT_STATUS = ("exit-status", RECOMMENDED, "then exits with status 0")
    CLEAN_OUTPUT = ("clean-output", RECOMMENDED, "writes nothing but messages to standard output")
    NO_EARLY_CHECKPOINT = (
        "no-early-checkpoint",
        RECOMMENDED,
        "asks for no checkpoint during initialize and leaseLost",
    )
    NAMED_BETWEEN = (
        "named-between",
        RECOMMENDED,
        "names the position if it asks for a checkpoint between two actions",
    )
    SHUTDOWN_CHECKPOINT = ("shutdown-checkpoint", RECOMMENDED, "has checkpointed by the end of shutdownRequested")
    SHARD_END_PLAIN = ("shard-end-plain", RECOMMENDED, "asks at shardEnded without a position, or for SHARD_END")
    RETRIES_THROTTLED = ("retries-throttled", RECOMMENDED, "asks again after ThrottlingException")
    STREAM_KEYS = (
        "stream-keys",
        RECOMMENDED,
        "takes streamName, streamArn and streamId in initialize",
    )
    SCHEMA_KEYS = ("schema-keys", RECOMMENDED, "takes the keys of the Glue Schema Registry in records")
    NO_RETRY_WHEN_LOST = ("no-retry-when-lost", RECOMMENDED, "does not ask again after ShutdownException")

    def __init__(self, label: str, level: RuleLevel, text: str) -> None:
        self.label = label
        self.level = level
        self.text = text


class Report:
    """The verdict on each rule. A rule that was broken once counts as broken."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.reasons: dict[Rule, list[str]] = {}
        """For each rule that was observed, the reasons why it counts as broken; an empty list if it was kept."""
        self.errors_shown: list[str] = []
        """The last lines of standard error of the first child that broke a session off."""

    @property
    def holds(self) -> bool:
        """Whether every required rule was observed and kept."""
        return not self._missed()

    def _missed(self) -> list[str]:
        """Return the labels of required rules that were broken, or not observed."""
        return [one.label for one in Rule if one.level is REQUIRED and self.verdict(one) is not RuleVerdict.PASS]

    def verdict(self, rule: Rule) -> RuleVerdict:
        """Return whether the processor keeps a rule, as far as it was observed."""
        reasons = self.reasons.get(rule)
        if reasons is None:
            return RuleVerdict.NOT_OBSERVED
        return RuleVerdict.FAIL if reasons else RuleVerdict.PASS

    def passed(self, rule: Rule) -> None:
        """Note that the rule was kept. If it was broken before, it stays broken."""
        self.reasons.setdefault(rule, [])

    def failed(self, rule: Rule, reason: str) -> None:
        """Note that the rule was broken, and why."""
        reasons = self.reasons.setdefault(rule, [])
        if reason not in reasons:
            reasons.append(reason)

    def write(self, out: TextIO) -> None:
        """Write the report as text."""
        out.write(f"Conformance of: {shlex.join(self.command)}\n\n")
        for rule in Rule:
            out.write(f"  {self.verdict(rule).value:<12}  {rule.level.value:<11}  {rule.label:<20}  {rule.text}\n")
            for reason in self.reasons.get(rule, [])[:REASONS_MAX]:
                out.write(f"  {'':<12}  {'':<11}  {'':<20}  -> {printable(reason)}\n")
        if self.errors_shown:
            out.write("\n  What it said on standard error when it failed first:\n")
            out.writelines(f"    {printable(line)}\n" for line in self.errors_shown)
        out.write(f"\n{self._summary()}\n")

    def _summary(self) -> str:
        if self.holds:
            return "It conforms: every required rule holds."
        return f"It does not conform: required but failed or not observed: {', '.join(self._missed())}."
