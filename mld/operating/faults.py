"""A fault, which is one thing that is wrong with a fleet, how its kind is declared, and what faults are found in. Pure.

What is known is a `FleetSight`: a look at the tables, what Kinesis lists, what a worker knows of itself, or several of
these. What is not known is None or empty there, and nothing is found of it. The kinds, and the function that finds all,
are in `mld.operating.verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mld.operating.fleet_sight import FleetSight
from mld.operating.shard_view import ShardView

HOLD_S = 110.0
"""For how long something must be so, or be over, before anybody is told: two looks of a minute. Leases move, and
processors fail once in a while."""
PAUSE_HOLD_S = 4 * 3600.0
"""Of a pause, which somebody wanted."""
NAMED_MAX = 3
DOCTOR = "mld doctor looks for the reason."
STUCK, ROWS, TABLE = "a-shard-is-stuck", "rows-that-are-wrong", "the-table-is-out-of-reach"
WORKER = "a-worker-is-not-well"
"""Anchors of the runbook."""

KINDS: dict[str, FaultKind] = {}
"""All kinds, in the order of their declaration."""
SHARD_JUDGES: dict[str, ShardJudge] = {}
"""Those of open shards, by the name of the kind."""

RUNBOOKS = "docs/use/operations.md"


class Severity(Enum):
    """The worst first."""

    PAGE = "page"  # wakes somebody
    TICKET = "ticket"  # waits for the morning
    NOTE = "note"  # is shown, and nobody is told


class Probe(Enum):
    """Which probe of a worker fails while the worker knows of a fault."""

    LIVE = "/livez"  # a restart helps
    READY = "/readyz"


@dataclass(frozen=True, slots=True)
class FleetFault:
    """One thing that is wrong. Two are the same if kind and subject are."""

    kind: str
    subject: str
    words: str = field(default="", compare=False)
    """How it is, and why."""
    remedy: str = field(default="", compare=False)
    """The command that helps, or what else to do."""
    shard: str | None = field(default=None, compare=False)
    """The lease key, if it is about a shard."""
    owner: str | None = field(default=None, compare=False)
    """The worker that it concerns."""
    stream: str | None = field(default=None, compare=False)
    """The label of its stream, among several."""
    since_s: float | None = field(default=None, compare=False)
    """Epoch seconds; None if nobody knows."""

    @property
    def id(self) -> str:
        """How the table knows it while it is posted."""
        return f"{self.kind} {self.subject}"

    @classmethod
    def known_as(cls, name: str) -> FleetFault:
        """Return the fault that the table knows by this name."""
        return cls(*name.partition(" ")[::2])

    @property
    def severity(self) -> Severity:
        """That of its kind; of a kind that this version does not know, the worst."""
        known = KINDS.get(self.kind)
        return Severity.PAGE if known is None else known.severity

    @property
    def sentence(self) -> str:
        """Subject, words and remedy in one line; a subject that is clear is not said twice."""
        is_clear = self.subject in self.words or self.subject == self.owner
        about = self.words if is_clear else f"{self.subject}: {self.words}"
        return f"{about} -> {self.remedy}" if self.remedy else about


class Found(NamedTuple):
    """What a finder yields: a `FleetFault` but for its kind."""

    subject: str
    words: str
    remedy: str
    shard: str | None = None
    owner: str | None = None
    stream: str | None = None
    since_s: float | None = None


Finder = Callable[[FleetSight], Iterable[Found]]
ShardJudge = Callable[[FleetSight, ShardView, str], tuple[str, str]]
"""(what is seen, the shard, how commands name it) -> words and remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """A kind of fault, as it is declared.

    `hold_s`: for how long it must be so before anybody is told; None: nobody is. `hides`: kinds that are not shown
    beside it, because it explains them. `of_setup`: whether `mld doctor` shows it. `is_own`: whether only the worker
    itself knows of it, and tells it (coordination#notifier). `ends`: whether its end is news; a loss has none.
    """

    name: str
    severity: Severity
    meaning: str
    """One sentence, for the alert."""
    first: str
    """What to do first, for the alert."""
    runbook: str
    """Anchor in docs/use/operations.md."""
    alert: str
    """The rule of Prometheus that fires."""
    hold_s: float | None = HOLD_S
    probe: Probe | None = None
    hides: frozenset[str] = frozenset()
    of_setup: bool = True
    is_own: bool = False
    ends: bool = True
    find: Finder


def kind(
    name: str,
    severity: Severity,
    meaning: str,
    first: str,
    runbook: str,
    *,
    alert: str = "",
    hold_s: float | None = HOLD_S,
    probe: Probe | None = None,
    hides: Iterable[str] = (),
    of_setup: bool = True,
    is_own: bool = False,
    ends: bool = True,
) -> Callable[[Finder], Finder]:
    """Declare a kind that the decorated generator finds. Without `alert` its rule is called by its name."""

    def declare(find: Finder) -> Finder:
        KINDS[name] = FaultKind(
            name=name,
            severity=severity,
            meaning=meaning,
            first=first,
            runbook=runbook,
            alert=alert or "Mld" + "".join(part.capitalize() for part in name.split("-")),
            hold_s=hold_s,
            probe=probe,
            hides=frozenset(hides),
            of_setup=of_setup,
            is_own=is_own,
            ends=ends,
            find=find,
        )
        return find

    return declare


def of_shards(
    name: str,
    severity: Severity,
    meaning: str,
    first: str,
    runbook: str,
    *,
    alert: str = "",
    hold_s: float | None = HOLD_S,
) -> Callable[[ShardJudge], ShardJudge]:
    """Declare the kind of the open shards for which `_kind_of` gives this name."""

    def declare(judge: ShardJudge) -> ShardJudge:
        kind(name, severity, meaning, first, runbook, alert=alert, hold_s=hold_s, of_setup=False)(lambda _: ())
        SHARD_JUDGES[name] = judge
        return judge

    return declare


def is_of_shard(fault: FleetFault) -> bool:
    """Return whether a fault is the verdict on an open shard."""
    return fault.kind in SHARD_JUDGES


def fault_value(fault: FleetFault) -> dict[str, str | float | None]:
    """Return one fault, in plain values."""
    return {
        "kind": fault.kind,
        "severity": fault.severity.value,
        "subject": fault.subject,
        "words": fault.words,
        "remedy": fault.remedy,
        "shard": fault.shard,
        "stream": fault.stream,
        "owner": fault.owner,
        "since": fault.since_s,
        "runbook": runbook_of(fault.kind),
    }


def runbook_of(name: str, base: str = RUNBOOKS) -> str:
    """Return where the page says what to do about a kind."""
    known = KINDS.get(name)
    return base if known is None else f"{base}#{known.runbook}"
