"""What differs between the configuration a daemon runs with and its file as it is now, and which of it takes effect.

Most keys are read at the start only. Those that the table of keys marks `live` are bounds, pauses and the level of the
log: they may change while the daemon runs. A value that follows from another key is not named beside it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from mld.properties.keys import BY_NAME, KEYS
from mld.properties.keytypes import Effect, Key
from mld.properties.loader import LoadedConfiguration
from mld.properties.settings import STREAMS, Settings

LIVE = tuple(key for key in KEYS if key.live)


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of keys: `taken` may change at once, `waiting` need a restart. `running` is what to run with now."""

    running: LoadedConfiguration
    taken: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def changes_between(running: LoadedConfiguration, file: LoadedConfiguration) -> Changes:
    """Compare what runs with what the file says now."""
    changed = {
        key.name
        for key in KEYS
        if key.effect is Effect.EFFECTIVE
        and not (key.name == STREAMS and file.settings.streams_file)  # which is read again anyway
        and key.sets
        and value_of(running.settings, key) != value_of(file.settings, key)
    }
    source = {value.key: value.source for value in file.effective}
    named = [
        key.name
        for key in KEYS
        if key.name in changed and not (source[key.name] in BY_NAME and BY_NAME[source[key.name]].name in changed)
    ]
    spark = {name for name in {**running.spark, **file.spark} if running.spark.get(name) != file.spark.get(name)}
    return Changes(
        running=replace(running, settings=with_live(running.settings, file.settings)),
        taken=tuple(name for name in named if BY_NAME[name].live),
        waiting=(*(name for name in named if not BY_NAME[name].live), *sorted(spark)),
    )


def value_of(settings: Settings, key: Key) -> object:
    """Return what the settings have for a key that sets a field."""
    return reduce(getattr, key.sets.split("."), settings)


def with_live(running: Settings, file: Settings) -> Settings:
    """Return `running` with the values that `file` gives to the live keys."""
    for key in LIVE:
        group, _, name = key.sets.rpartition(".")
        value = value_of(file, key)
        running = replace(
            running, **{group: replace(getattr(running, group), **{name: value})} if group else {name: value}
        )
    return running
