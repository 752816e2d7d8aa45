"""The values in effect and their sources: one row per key for `mld check` and the start-up log, without secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from properties.derive import Derivation
from properties.keys import KEYS
from properties.keytypes import Effect, Key, Section
from properties.remarks import Remark
from properties.validation import Given, display, display_value

DEFAULT_SOURCE = "default"


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The value of one key in effect.

    `value` is text fit for a log, None if there is none. `source` is ``file:line``, ``-D``, ``default``, or the key or
    environment variable it was derived from. `effect` says whether this version acts on it.
    """

    key: str
    section: Section
    value: str | None
    source: str
    effect: Effect
    remarks: tuple[Remark, ...] = ()

    def to_json(self) -> dict[str, object]:
        remarks = [remark_to_json(remark) for remark in self.remarks]
        return asdict(self) | {"section": self.section.value, "effect": self.effect.value, "remarks": remarks}


def remark_to_json(remark: Remark) -> dict[str, str]:
    """A remark as plain JSON types."""
    return asdict(remark) | {"level": remark.level.value}


def effective_values(derivation: Derivation, remarks: Iterable[Remark]) -> tuple[EffectiveValue, ...]:
    """One row per key, in the order of the table."""
    by_key: dict[str, list[Remark]] = {}
    for remark in remarks:
        by_key.setdefault(remark.key, []).append(remark)
    return tuple(_row(key, derivation, by_key) for key in KEYS)


def _row(key: Key, derivation: Derivation, remarks: Mapping[str, list[Remark]]) -> EffectiveValue:
    value, source = _value_and_source(key, derivation)
    said = tuple(remark for name in key.names for remark in remarks.get(name, ()))
    return EffectiveValue(key.name, key.section, value, source, key.effect, said)


def _value_and_source(key: Key, derivation: Derivation) -> tuple[str | None, str]:
    given: Given | None = derivation.given.get(key.name)
    derived_from = derivation.sources.get(key.field)
    if derived_from is None:
        return (None, DEFAULT_SOURCE) if given is None and key.default is None else _plain(key, given)
    source = derivation.given.get(derived_from)
    if source is not None and source.value is derivation.values[key.field]:
        return source.display, derived_from  # the text of the other key is already free of secrets
    value = derivation.values[key.field]
    return (None if value is None else display(key, value)), derived_from


def _plain(key: Key, given: Given | None) -> tuple[str, str]:
    if given is not None:
        return given.display, given.place
    return display_value(key.default), DEFAULT_SOURCE
