"""What a key is: its name, kind, section, bounds, default, and how its value is shown. The table itself is in `keys`.

Rules: configuration#value-conversion, configuration#zero-rule. Java copies a primitive number only if it is not 0, so 0
means "not set" there. Keys of boxed types, and our own, take 0 as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from mld.properties.redaction import Shown
from mld.properties.value_kinds import ValueKind

OWN_PREFIX = "mld."
VARIABLE = "<name>"
"""What stands in the name of a pattern for a name of the user's."""
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_KINDS = frozenset({ValueKind.LONG, ValueKind.MILLIS, ValueKind.SECONDS, ValueKind.BYTES})
"""Whole numbers of 64 bits, with their unit."""
NUMERIC_KINDS = LONG_KINDS | {ValueKind.INT, ValueKind.DOUBLE}
_SHOWN_UNLESS_DECLARED = {
    ValueKind.TEXT: Shown.HIDDEN,
    ValueKind.TAGS: Shown.NAMES,
    ValueKind.URL: Shown.ENDPOINT,
    ValueKind.DEAD_LETTER: Shown.PLACE,
    ValueKind.SOCKET: Shown.PLACE,
    ValueKind.CREDENTIALS: Shown.PARSED,
}
"""Converted values of all other kinds are numbers, or words that leave no room for a secret."""


class Effect(Enum):
    """Whether this version acts on a key."""

    EFFECTIVE = "effective"
    UNSUPPORTED = "unsupported"  # Java acts on it, we do not
    NONE = "none"  # parsed and checked; neither Java nor we do anything with it


class Section(Enum):
    """A group of keys; the value is the heading of its table on the reference page."""

    DAEMON = "Daemon and child process"
    APPLICATION = "Application and stream"
    STREAMS = "Several streams"
    AWS = "Access to AWS"
    LEASES = "Leases and shard sync"
    HANDOFF = "Graceful lease handoff"
    ASSIGNMENT = "Utilization-aware assignment"
    LEGACY_TABLES = "Legacy worker-metrics and coordinator-state tables"
    COORDINATOR = "Coordinator"
    LIFECYCLE = "Life cycle of a shard consumer"
    METRICS = "Metrics"
    POLLING = "Retrieval by polling"
    FANOUT = "Retrieval by enhanced fan-out"
    OWN = "Keys of this daemon"
    SPARK = "Spark processor"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file.

    `default` is the converted value when the key is absent; None means none, or computed (`default_text` says how).
    `boxed` numbers take 0 as it is, and so do numbers of our own keys. `minimum`/`maximum` bound numbers. `note` is
    what an operator should know about it; with an `effect` other than EFFECTIVE it is also what `mld check` says.
    `choices` belongs to CHOICE and CHOICES. `sets` is its field in the settings, as ``group.field``; if `kind` is a
    time, the field is in seconds. A `name` with ``<name>`` in it is a pattern: one key for each name. `shown_as` says
    how much of its value may be shown; None is the rule of its kind, which hides TEXT. `live` keys may change while the
    daemon runs; all others are read at the start only. `after` names the key that stands before it in the table, if
    that is not the one declared before it in the same section.
    """

    name: str
    kind: ValueKind
    section: Section
    meaning: str
    default: object = None
    default_text: str = ""
    aliases: tuple[str, ...] = ()
    boxed: bool = False
    minimum: float | None = None
    maximum: float | None = None
    choices: type[Enum] | None = None
    effect: Effect = Effect.EFFECTIVE
    note: str = ""
    sets: str = ""
    shown_as: Shown | None = None
    live: bool = False
    after: str = ""

    def __post_init__(self) -> None:
        assert (self.choices is not None) == (self.kind in (ValueKind.CHOICE, ValueKind.CHOICES)), self.name
        assert self.effect is Effect.EFFECTIVE or self.note, self.name

    @property
    def field(self) -> str:
        """The field of `Settings` that it sets; the key's own name if it sets none by itself."""
        return self.sets or self.name

    def in_core_units(self, value: object) -> object:
        """Return a value of the file in the unit of the settings: times in seconds."""
        match self.kind, value:
            case ValueKind.MILLIS, int():
                return value / 1000
            case ValueKind.SECONDS, int():
                return float(value)
            case ValueKind.DURATION, timedelta():
                return value.total_seconds()
        return value

    def name_in(self, spelling: str) -> str | None:
        """Return what stands for ``<name>`` in this spelling of a pattern; None if it is none."""
        before, variable, after = self.name.partition(VARIABLE)
        size = len(before) + len(after)
        fits = variable and len(spelling) > size and spelling.startswith(before) and spelling.endswith(after)
        return spelling[len(before) : len(spelling) - len(after)] if fits else None

    @property
    def names(self) -> tuple[str, ...]:
        """Every spelling of the key."""
        return (self.name, *self.aliases)

    @property
    def shown(self) -> Shown:
        """How much of its value may be shown."""
        return self.shown_as or _SHOWN_UNLESS_DECLARED.get(self.kind, Shown.FULL)

    @property
    def zero_is_unset(self) -> bool:
        """Whether the zero rule turns a 0 into the default."""
        takes_zero = self.boxed or self.name.startswith(OWN_PREFIX)
        return self.kind in NUMERIC_KINDS and not takes_zero and self.default != 0
