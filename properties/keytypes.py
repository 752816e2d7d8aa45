"""`Key`: one key of the file, with its name, kind, section, bounds and default, and how its value is shown. The table
of all keys is in `keys`.

Rules: configuration#value-conversion, configuration#zero-rule. Java copies a primitive number only if it is not 0, so
there 0 means "not set". Keys with boxed types in Java, and keys of mld, accept 0 as a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from mld.properties.redaction import Shown
from mld.properties.value_kinds import ValueKind

OWN_PREFIX = "mld."
VARIABLE = "<name>"
"""The part of a pattern's name that stands for a name chosen by the user."""
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_KINDS = frozenset({ValueKind.LONG, ValueKind.MILLIS, ValueKind.SECONDS, ValueKind.BYTES})
"""The kinds of 64-bit integers: plain ones, and those with a unit."""
NUMERIC_KINDS = LONG_KINDS | {ValueKind.INT, ValueKind.DOUBLE}
_SHOWN_UNLESS_DECLARED = {
    ValueKind.TEXT: Shown.HIDDEN,
    ValueKind.TAGS: Shown.NAMES,
    ValueKind.URL: Shown.ENDPOINT,
    ValueKind.DEAD_LETTER: Shown.PLACE,
    ValueKind.SOCKET: Shown.PLACE,
    ValueKind.CREDENTIALS: Shown.PARSED,
}
"""How values of these kinds are shown. Values of all other kinds are shown in full: numbers, or words that cannot
contain a secret."""

_HIDDEN_EVERYWHERE = (Shown.HIDDEN, Shown.ENDPOINT, Shown.PARSED, Shown.JVM_OPTIONS)
"""Values that are shown in one of these ways are in no row, page or metric, except for the host of an endpoint."""


class Effect(Enum):
    """Whether this version acts on a key."""

    EFFECTIVE = "effective"
    UNSUPPORTED = "unsupported"  # Java acts on the key, mld does not
    NONE = "none"  # the key is parsed and checked, but neither Java nor mld does anything with it


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
    """One key of the file."""

    name: str
    """The name of the key. With ``<name>`` in it, it is a pattern: there is one key for each name."""
    kind: ValueKind
    section: Section
    meaning: str
    """What the key means, for operators."""
    default: object = None
    """The converted value if the key is absent. None: there is no default, or it is computed, as `default_text` says.
    """
    default_text: str = ""
    aliases: tuple[str, ...] = ()
    """Other spellings of the name."""
    boxed: bool = False
    """Whether a number accepts 0 as a value. Numbers of mld's own keys accept it in any case."""
    minimum: float | None = None
    """The least value of a number; `maximum` is the greatest."""
    maximum: float | None = None
    choices: type[Enum] | None = None
    """The allowed values of a key of the kind CHOICE or CHOICES; None for all other kinds."""
    effect: Effect = Effect.EFFECTIVE
    note: str = ""
    """What an operator should know about the key. If `effect` is not EFFECTIVE, `mld check` shows it too."""
    sets: str = ""
    """The field of the settings that the key sets, as ``group.field``. If `kind` is a time, the field is in seconds."""
    shown_as: Shown | None = None
    """How much of the value may be shown. None means the rule of the kind, which hides TEXT."""
    live: bool = False
    """Whether the key may change while the daemon runs. All other keys are read only at the start."""
    after: str = ""
    """The key that precedes this one in the table, if that is not the key declared before it in the same section."""
    foreign: bool = False
    """Whether the key passes a setting on to another program, so that only its user knows whether it is secret."""

    def __post_init__(self) -> None:
        assert (self.choices is not None) == (self.kind in (ValueKind.CHOICE, ValueKind.CHOICES)), self.name
        assert self.effect is Effect.EFFECTIVE or self.note, self.name

    @property
    def field(self) -> str:
        """The field of `Settings` that the key sets; the key's own name if it sets no field."""
        return self.sets or self.name

    def in_core_units(self, value: object) -> object:
        """Return a value of the file in the unit of the settings, which have times in seconds."""
        match self.kind, value:
            case ValueKind.MILLIS, int():
                return value / 1000
            case ValueKind.SECONDS, int():
                return float(value)
            case ValueKind.DURATION, timedelta():
                return value.total_seconds()
        return value

    def name_in(self, spelling: str) -> str | None:
        """Return the part of `spelling` that stands for ``<name>``; None if the spelling does not match this
        pattern.
        """
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
        """How much of the key's value may be shown."""
        return self.shown_as or _SHOWN_UNLESS_DECLARED.get(self.kind, Shown.FULL)

    @property
    def takes_file(self) -> bool:
        """Whether the value may come from a file (`${file:…}`), and so may be secret.

        Names, numbers and places may not: commands, rows, pages, metrics and AWS show them.
        """
        return self.shown in _HIDDEN_EVERYWHERE or (self.foreign and self.shown is not Shown.COMMAND)

    @property
    def zero_is_unset(self) -> bool:
        """Whether the zero rule turns a 0 into the default."""
        takes_zero = self.boxed or self.name.startswith(OWN_PREFIX)
        return self.kind in NUMERIC_KINDS and not takes_zero and self.default != 0
