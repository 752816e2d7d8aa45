"""How a field of the settings declares the key that sets it, and how the table of keys is made of the fields.

A key is declared once: by its field, with its name, kind, bounds, default and text for the reference page.
Rules: configuration#one-key-table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, fields, is_dataclass
from typing import Any, ParamSpec

from mld.properties.keytypes import Key, Section
from mld.properties.value_kinds import ValueKind

_KEYS = "keys"
_SECTIONS = list(Section)
_P = ParamSpec("_P")


def keys_of_group(*keys: Key) -> Any:
    """Declare a group of the settings that is there several times: each key names the field that it sets, if any."""
    return field(metadata={_KEYS: keys})


def _declares(make: Callable[_P, Key]) -> Callable[_P, Any]:
    return lambda *args, **more: field(metadata={_KEYS: make(*args, **more)})


key = _declares(Key)
"""Declare a field of the settings that a key sets; arguments are those of `Key`."""


def _setting(own: Key, sets: str) -> Key:
    """Complete a key whose field is known now; copies of all keys would cost every start a millisecond."""
    object.__setattr__(own, "sets", sets)
    return own


def declared_in(settings: Any, prefix: str = "") -> Iterator[Key]:
    """Yield the keys of the fields of the settings and of their groups, each with the field that it sets."""
    for one in fields(settings):
        match one.metadata.get(_KEYS):
            case Key() as own:
                yield _setting(own, prefix + one.name)
            case tuple() as keys:
                yield from (_setting(own, own.sets and f"{one.name}.{own.sets}") for own in keys)
            case None if is_dataclass(one.type):
                yield from declared_in(one.type, f"{one.name}.")


def key_of_bean(
    section: Section, bean: str, name: str, kind: ValueKind, meaning: str, default: object, **more: Any
) -> Any:
    """Declare a key that may also be written with the name of a Java bean before it."""
    return key(name, kind, section, meaning, default, aliases=(f"{bean}.{name}",), **more)


def in_order(declared: Iterable[Key]) -> Iterator[Key]:
    """Yield the keys section by section, as they are declared; one that is `after` another directly behind it."""
    behind: dict[str, list[Key]] = {}
    for key in declared:
        behind.setdefault(key.after, []).append(key)

    def following(name: str) -> Iterator[Key]:
        for key in behind.get(name, ()):
            yield key
            yield from following(key.name)

    yield from sorted(following(""), key=lambda key: _SECTIONS.index(key.section))
