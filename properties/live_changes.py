"""`changes_between`: compares the configuration with which a daemon runs with its file as it is now, and finds the
changes that take effect without a restart.

Most keys are read only at the start. The keys that the table marks as `live` (bounds, pauses and the level of the log)
may change while the daemon runs. If a value was derived from another changed key, only that other key is named. Pure.
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
    """The names of changed keys: those in `taken` take effect at once, those in `waiting` need a restart. `running` is
    the configuration with which to run from now on.
    """

    running: LoadedConfiguration
    taken: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def changes_between(running: LoadedConfiguration, file: LoadedConfiguration) -> Changes:
    """Compare the running configuration with that of the file as it is now. Return the names of the changed keys, and
    the running configuration with the new values of the live keys.
    """
    changed = {
        key.name
        for key in KEYS
        if key.effect is Effect.EFFECTIVE
        and not (key.name == STREAMS and file.settings.streams_file)  # the list of streams is read again anyway
        and key.sets
        and value_of(running.settings, key) != value_of(file.settings, key)
    }
    source = {value.key: value.source for value in file.effective}
    # A key whose value was derived from another changed key is left out.
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
    """Return the value of the field that a key sets."""
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
