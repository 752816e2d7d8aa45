"""`FleetFault`: one thing that is wrong with a fleet, and `kind`, which declares a kind of faults. Pure.

Faults are found in a `FleetSight`, which is all that is known of a fleet. `mld.operating.verdicts` lists the modules
that declare kinds, and finds all faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mld import page_address
from mld.operating.fleet_sight import FleetSight
from mld.operating.shard_view import ShardView

HOLD_S = 110.0
"""How long a fault must last before an alert is sent, and how long it must be over before its end is announced. A
worker looks once a minute, so this means two looks. Leases move now and then, and record processors fail once in a
while; neither needs an alert.
"""
PAUSE_HOLD_S = 4 * 3600.0
"""How long a pause must last before an alert is sent: an operator wanted the pause."""
NAMED_MAX = 3
DOCTOR = "mld doctor looks for the reason."
STUCK, ROWS, TABLE = "a-shard-is-stuck", "rows-that-are-wrong", "the-table-is-out-of-reach"
WORKER = "a-worker-is-not-well"
"""Anchors of the runbook."""

ShardJudge = Callable[[FleetSight, ShardView, str], tuple[str, str]]
"""A function of the sight, the shard, and the shard's name in commands, which returns words and remedy of the fault."""
KINDS: dict[str, FaultKind] = {}
"""All kinds of faults by name, in the order of their declaration."""
SHARD_JUDGES: dict[str, ShardJudge] = {}
"""Functions that return words and remedy for a fault of an open shard, by the name of the kind."""

RUNBOOKS = page_address("operations")


class Severity(Enum):
    """How urgent a fault is, the most urgent first."""

    PAGE = "page"  # wakes somebody
    TICKET = "ticket"  # waits for the morning
    NOTE = "note"  # is shown, but no alert is sent


class Probe(Enum):
    """The HTTP probe of a worker that fails while the worker knows of a fault of this kind."""

    LIVE = "/livez"  # for faults that a restart of the worker repairs
    READY = "/readyz"


@dataclass(frozen=True, slots=True)
class FleetFault:
    """One thing that is wrong. Two faults are equal if their kinds and subjects are equal."""

    kind: str
    subject: str
    """The shard, worker, table or stream that the fault is about."""
    words: str = field(default="", compare=False)
    """What is wrong, and why."""
    remedy: str = field(default="", compare=False)
    """A command that helps, or something else to do."""
    shard: str | None = field(default=None, compare=False)
    """The lease key of the shard, if the fault is about a shard."""
    owner: str | None = field(default=None, compare=False)
    """The worker to which the fault belongs."""
    stream: str | None = field(default=None, compare=False)
    """The label of the stream, if the application reads several."""
    since_s: float | None = field(default=None, compare=False)
    """When the fault began, in epoch seconds; None if that is unknown."""

    @property
    def id(self) -> str:
        """Name of the fault in the list of raised alerts, which is in the lease table."""
        return f"{self.kind} {self.subject}"

    @classmethod
    def known_as(cls, name: str) -> FleetFault | None:
        """Return the fault with this `id`, read from the list of raised alerts in the lease table. Return None if this
        version declares no such kind: other versions of mld, and anybody else, may have written the list.
        """
        kind, _, subject = name.partition(" ")
        return cls(kind, subject) if kind in KINDS and subject else None

    @property
    def declared(self) -> FaultKind:
        """The declaration of the fault's kind. Every fault has a declared kind."""
        return KINDS[self.kind]

    @property
    def severity(self) -> Severity:
        return self.declared.severity

    @property
    def runbook(self) -> str:
        """Address of the page, with anchor, that explains what to do about faults of this kind."""
        return f"{RUNBOOKS}#{self.declared.runbook}"

    @property
    def sentence(self) -> str:
        """Subject, words and remedy in one line. The subject is left out if the words name it, or if it is the
        owner.
        """
        is_clear = self.subject in self.words or self.subject == self.owner
        about = self.words if is_clear else f"{self.subject}: {self.words}"
        return f"{about} -> {self.remedy}" if self.remedy else about


class Found(NamedTuple):
    """A fault as a finder yields it: the fields of a `FleetFault` without the kind."""

    subject: str
    words: str
    remedy: str
    shard: str | None = None
    owner: str | None = None
    stream: str | None = None
    since_s: float | None = None


Finder = Callable[[FleetSight], Iterable[Found]]
"""A function that looks for the faults of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """A kind of fault, as it is declared."""

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
    """How long such a fault must last before an alert is sent, in seconds; None: no alert."""
    probe: Probe | None = None
    """The probe that fails, if one does."""
    hides: frozenset[str] = frozenset()
    """Kinds that are not shown together with this one, because this one explains them."""
    of_setup: bool = True
    """Whether `mld doctor` shows faults of this kind."""
    is_own: bool = False
    """Whether only the worker itself can know of the fault, so that this worker sends the alert
    (coordination#notifier).
    """
    ends: bool = True
    """Whether another message is sent when the fault is over; a loss of records is never over."""
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
    """Declare a kind of fault; the decorated generator finds the faults of that kind.

    The arguments are the fields of `FaultKind`, which describes each. `alert` defaults to a name made of `name`:
    ``MldDiskLow`` for the kind ``disk-low``.
    """

    def declare(find: Finder) -> Finder:
        """Add the kind to `KINDS`, with this function to find its faults."""
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
    """Declare a kind of fault that a single open shard has.

    `name` is the word of a `shard_view.Verdict`, or ``untold`` for a shard of which its worker reports nothing. The
    other arguments are the fields of `FaultKind`. The decorated function is a `ShardJudge`. The kind has no finder of
    its own: `verdicts.fault_of` looks up the kind by the verdict of each shard.
    """

    def declare(judge: ShardJudge) -> ShardJudge:
        """Declare the kind with a finder that finds nothing, and keep `judge` for `fault_of`."""
        kind(name, severity, meaning, first, runbook, alert=alert, hold_s=hold_s, of_setup=False)(lambda _: ())
        SHARD_JUDGES[name] = judge
        return judge

    return declare


def is_of_shard(fault: FleetFault) -> bool:
    """Return whether a fault is of a kind that was declared by `of_shards`: the verdict on an open shard."""
    return fault.kind in SHARD_JUDGES


def fault_value(fault: FleetFault) -> dict[str, str | float | None]:
    """Return one fault in plain values, for JSON."""
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
        "runbook": fault.runbook,
    }
