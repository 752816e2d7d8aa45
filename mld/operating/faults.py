"""A fault, which is one thing that is wrong with a fleet, how its kind is declared, and what faults are found in. Pure.

What is known is a `FleetSight`: a look at the tables, what Kinesis lists, what a worker knows of itself, or several of
these. What is not known is None or empty there, and nothing is found of it. The kinds, and the function that finds all,
are in `mld.operating.verdicts`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mld.core.stream_ids import stream_of_key
from mld.core.streams import Shard
from mld.metrics.progress import LateLoop
from mld.operating.fleet_status import FleetStatus, ShardView

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


@dataclass(frozen=True, slots=True)
class Listed:
    """What the service says of a stream."""

    shards: Sequence[Shard] = ()
    status: str | None = None


@dataclass(frozen=True, slots=True)
class DiskTrouble:
    """What is wrong with a place; `is_lost`: nothing can be written there now."""

    place: str
    words: str
    remedy: str
    is_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a worker knows of itself, without asking anybody."""

    worker: str
    shards: Sequence[ShardView] = ()
    """Those whose leases it holds."""
    late: Sequence[LateLoop] = ()
    """Its loops that make no progress."""
    unreached: str | None = None
    """Why its lease table counts as out of reach."""
    slow: Mapping[str, str] = field(default_factory=dict)
    """Services that answer too late, and how late."""
    contested: Mapping[str, str] = field(default_factory=dict)
    """Who else takes the subscription to a shard, by the key of its lease."""
    left_behind: str | None = None
    """The mode that the fleet has gone on to without it, so that it takes no leases."""
    unread: str | None = None
    """Why it can read none of its shards, if it has any."""
    is_throttled: bool = False
    """Whether DynamoDB refuses requests of it for want of capacity."""
    corrupt: Sequence[tuple[str, str]] = ()
    """Rows that its loops could not read: key and reason."""
    holes: Mapping[str | None, int] = field(default_factory=dict)
    """Gaps in the hash range by the label of the stream, as the leader sees them."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why files of its configuration could not be used when they were last read."""
    waiting: Sequence[str] = ()
    """Keys whose new values need a restart."""
    lost: Mapping[str, str] = field(default_factory=dict)
    """What its shards have lost to retention in the last day, by the key of the lease."""
    disks: Sequence[DiskTrouble] = ()
    """Places that it or its processor writes to and that are full, or soon will be."""
    strangers: int = 0
    """Live workers in the table that read another stream."""
    clocks_off: Mapping[str, float] = field(default_factory=dict)
    """By how many seconds the clocks of workers are ahead, as the leader sees them; those that are right are absent."""
    rows: tuple[int, int] | None = None
    """Leases in the table, and those of open shards, as the leader sees them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSight:
    """What somebody knows of a fleet. Nothing is found of what is not known."""

    fleet: FleetStatus | None = None
    unread: str | None = None
    """Why the tables cannot be read now."""
    listed: Mapping[str | None, Listed] = field(default_factory=dict)
    """Streams by label; None is the only one. Those that could not be asked are absent."""
    own: Own | None = None
    table_created_s: float | None = None
    """When the lease table was made, in epoch seconds."""
    file: str = ""
    """The properties file as remedies name it; empty: a command finds it by itself."""

    @property
    def shards(self) -> Sequence[ShardView]:
        """The open ones that are known."""
        if self.fleet is not None:
            return self.fleet.open_shards
        return () if self.own is None else self.own.shards

    @property
    def corrupt(self) -> Mapping[str, str]:
        """Why rows cannot be read, by key."""
        of_fleet = () if self.fleet is None else self.fleet.corrupt
        return {**dict(() if self.own is None else self.own.corrupt), **dict(of_fleet)}

    def command(self, verb: str, *words: str) -> str:
        """Return a command on this application: ``mld peek app.properties 3 --at checkpoint``."""
        return " ".join(["mld", verb, *([shlex.quote(self.file)] if self.file else []), *words])

    def label_of(self, key: str) -> str | None:
        """Return the label of the stream that a lease key names."""
        stream = stream_of_key(key)
        return stream if stream is None or self.fleet is None else self.fleet.labels.get(stream, stream)

    def starts(self) -> str:
        """Return what to do where nobody works: start a worker, or find out why those that live do not."""
        lives = self.own is not None or (
            self.fleet is not None and any(one.is_alive is not False for one in self.fleet.workers)
        )
        return self.command("doctor" if lives else "run")


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
