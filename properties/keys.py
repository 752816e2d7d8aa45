"""The table of all keys that the daemon knows. The parser, docs/use/configuration.md and `mld check` use it.

Rules: configuration#one-key-table, configuration#dotted-keys; keys of KCL 1.x are in `key_lines`. A key that has an
effect is declared by the field of `settings` that it sets. The keys that set no field are declared here.
"""

from __future__ import annotations

from dataclasses import replace

from mld.properties.declaring import declared_in, in_order
from mld.properties.keytypes import LONG_MAX, Effect, Key, Section
from mld.properties.settings import CREDENTIALS_PREFIX, STREAM_PREFIX, Settings, StreamSetting
from mld.properties.value_kinds import ValueKind

_SELECTS_POLLING = "With it retrievalMode DEFAULT polls."
_SETTING_NO_FIELD = (
    Key("processingLanguage", ValueKind.TEXT, Section.DAEMON, "Language of the record processor.",
        effect=Effect.NONE, note="Only ever logged.", after="executableName"),
    Key("maxActiveThreads", ValueKind.INT, Section.DAEMON, "Size of Java's thread pool.", default=0,
        effect=Effect.NONE, note="This daemon has no such pool.", after="processingLanguage"),
    Key("initialPositionInStreamExtended", ValueKind.EPOCH_SECONDS, Section.LEASES,
        "Time at which an application without checkpoints starts; wins over initialPositionInStream.",
        note="Seconds, not milliseconds."),
    Key("tableMigrationCompleteBakeTimeSeconds", ValueKind.SECONDS, Section.COORDINATOR,
        "Time before the migration to a single table counts as complete.", default=86_400, minimum=0,
        effect=Effect.NONE, note="Only a Java leader completes it.", after="migrateAllEntitiesToLeaseTable"),
    Key("shardPrioritization", ValueKind.TEXT, Section.COORDINATOR, "Order in which shards are served.",
        effect=Effect.NONE, note="Java refuses to start with any value of it."),
    Key("validateSequenceNumberBeforeCheckpointing", ValueKind.BOOL, Section.LIFECYCLE,
        "Check sequence numbers before a checkpoint.", default=False, effect=Effect.NONE,
        note="A feature of KCL 1.x."),
    Key("retryGetRecordsInSeconds", ValueKind.INT, Section.POLLING, "A setting of KCL 1.x.", boxed=True,
        aliases=("pollingConfig.retryGetRecordsInSeconds",), effect=Effect.NONE, note=_SELECTS_POLLING),
    Key("maxGetRecordsThreadPool", ValueKind.INT, Section.POLLING, "A setting of KCL 1.x.", boxed=True,
        aliases=("pollingConfig.maxGetRecordsThreadPool",), effect=Effect.NONE, note=_SELECTS_POLLING),
)  # fmt: skip


_DECLARED = (*declared_in(Settings), *_SETTING_NO_FIELD)
KEYS: tuple[Key, ...] = tuple(in_order(_DECLARED))
"""All keys with a fixed name, without the patterns."""
PATTERN_KEYS: tuple[Key, ...] = tuple(declared_in(StreamSetting))
"""The patterns, which are the keys of each stream of a list."""
PROPERTIES = tuple(key.name.rpartition(".")[2] for key in PATTERN_KEYS)
BY_NAME: dict[str, Key] = {name: key for key in KEYS for name in key.names}


def key_of_stream(name: str, property_name: str) -> str:
    """Return the key of one property of one stream."""
    return f"{STREAM_PREFIX}{name}.{property_name}"


def canonical_spelling(name: str) -> str:
    """Return a name with the prefix of the credentials keys written as in `KEYS`: Java accepts that prefix in upper and
    lower case.
    """
    size = len(CREDENTIALS_PREFIX)
    return CREDENTIALS_PREFIX + name[size:] if name[:size].lower() == CREDENTIALS_PREFIX.lower() else name


def find(name: str) -> Key | None:
    """Return the key with this spelling; None if there is no such key. If a pattern matches, the returned key has
    `name` as its name.
    """
    key = BY_NAME.get(canonical_spelling(name))
    if key is not None:
        return key
    pattern = next((pattern for pattern in PATTERN_KEYS if pattern.name_in(name) is not None), None)
    return None if pattern is None else replace(pattern, name=name)


assert len(KEYS) == len(_DECLARED), "a key is after one that is not there"
assert len(BY_NAME) == sum(len(key.names) for key in KEYS), "two keys share a spelling"
assert all(key.maximum is None or key.maximum <= LONG_MAX for key in KEYS)
