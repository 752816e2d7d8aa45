"""Lets a field of the settings declare the key that sets it, and collects these declarations for the table of keys.

A key is declared only once: by its field, with its name, kind, bounds, default and the text for the reference page.
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
    """Declare the keys of a group of settings whose class serves several fields, such as one table of several. The
    class cannot declare them, because each field has keys of its own. Each key names the field of the group that it
    sets (`sets`), if any.
    """
    return field(metadata={_KEYS: keys})


def _declares(make: Callable[_P, Key]) -> Callable[_P, Any]:
    """Return a function that makes a key, as `make` does, and returns a field that declares it."""
    return lambda *args, **more: field(metadata={_KEYS: make(*args, **more)})


key = _declares(Key)
"""Declares a field of the settings that a key sets; the arguments are those of `Key`."""


def _setting(own: Key, sets: str) -> Key:
    """Complete a key with the field that it sets. The frozen key is changed in place, because copying all keys would
    take a millisecond at every start.
    """
    object.__setattr__(own, "sets", sets)
    return own


def declared_in(settings: Any, prefix: str = "") -> Iterator[Key]:
    """Yield the keys that the fields of the settings and of its groups declare, each completed with the field that it
    sets.
    """
    for one in fields(settings):
        match one.metadata.get(_KEYS):
            case Key() as own:
                yield _setting(own, prefix + one.name)
            case tuple() as keys:
                # A key without effect sets no field: its `sets` stays empty.
                yield from (_setting(own, own.sets and f"{one.name}.{own.sets}") for own in keys)
            case None if is_dataclass(one.type):
                yield from declared_in(one.type, f"{one.name}.")


def key_of_bean(
    section: Section, bean: str, name: str, kind: ValueKind, meaning: str, default: object, **more: Any
) -> Any:
    """Declare a key that may also be written as ``bean.name``, where `bean` is the name of a Java bean."""
    return key(name, kind, section, meaning, default, aliases=(f"{bean}.{name}",), **more)


def in_order(declared: Iterable[Key]) -> Iterator[Key]:
    """Yield the keys section by section, in the order of their declaration. A key that is `after` another one follows
    it directly.
    """
    keys_after: dict[str, list[Key]] = {}
    for key in declared:
        keys_after.setdefault(key.after, []).append(key)

    def following(name: str) -> Iterator[Key]:
        """Yield the keys that are `after` this one, each with those that are after it."""
        for key in keys_after.get(name, ()):
            yield key
            yield from following(key.name)

    yield from sorted(following(""), key=lambda key: _SECTIONS.index(key.section))
