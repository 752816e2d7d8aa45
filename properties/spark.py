"""`read`: reads and checks the keys of the Spark processor, `mld.spark.*`, and fills in all defaults.

These keys are in the same file as the daemon's own keys, and the daemon checks them at its start, but only the
processor acts on them. In four groups users choose a part of the name: `mld.spark.sink.<name>.<property>`,
`mld.spark.table.<name>`, `mld.spark.catalog.<catalog>.<property>` and `mld.spark.conf.<a key of Spark>`. A table is a
sink of that name with the format iceberg. Pure: `loader` and the processor read the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mld.properties.checked_lines import check
from mld.properties.key_lines import KeyLine, all_lines
from mld.properties.keytypes import Effect, Key, Section
from mld.properties.lines import FileEntry
from mld.properties.redaction import Shown, shown_name
from mld.properties.references import Sources
from mld.properties.remarks import Level, Remark, nearest
from mld.properties.shown_of_spark import conf_shown, option_shown
from mld.properties.spark_catalogs import catalog_shown, problems
from mld.properties.spark_keys import KEYS, REMOVED, TEXT
from mld.properties.spark_lines import SinkLines, SparkLines
from mld.properties.spark_names import CATALOG_PREFIX, CONF_PREFIX, PREFIX, SINK_PREFIX, TABLE_PREFIX
from mld.properties.spark_places import check_places
from mld.properties.spark_values import Format, OnPoison

SINK_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
CATALOG_KEY = re.compile(r"(?P<catalog>[A-Za-z0-9_]+)\.(?P<property>[A-Za-z0-9][A-Za-z0-9._-]*)", re.ASCII)
TRANSFORM = re.compile(
    r"(?P<transform>years?|months?|days?|hours?|(?:bucket|truncate)(?=\(\s*\d))"
    r"\(\s*(?P<number>\d+\s*,)?\s*(?P<column>\w[\w.]*)\s*\)"
)
"""Matches a transform of Iceberg, by which a table may be partitioned besides columns."""
BETWEEN_COLUMNS = re.compile(r",(?![^()]*\))")
"""Matches a comma of partitionBy that is not inside a transform."""
_FIXED = {key.name: key for key in KEYS if "<" not in key.name}
_OF_SINKS = f"{SINK_PREFIX}<name>."
_SINK_PROPERTIES = tuple(key.name.removeprefix(_OF_SINKS) for key in KEYS if key.name.startswith(_OF_SINKS))
_SINK_KEY = re.compile(
    r"(?P<sink>[A-Za-z0-9_-]+)\.(?P<property>options\.(?P<option>.+)|"
    + "|".join(re.escape(name) for name in _SINK_PROPERTIES if "<" not in name)
    + ")",
    re.ASCII,
)
_PADDED, _QUOTED = re.compile(r"\b(?:var)?char(?:acter)?\s*\(", re.IGNORECASE), re.compile(r"([`'\"]).*?\1", re.DOTALL)
"""`_PADDED` matches types that Spark has only for columns of tables. `_QUOTED` matches names and comments, in which the
same words are harmless."""
CHOICES = {"writers": ("one", "shared"), "files": ("one", "many")}
"""Properties of a sink that accept only these values; the first value is the default."""


def read(
    file_name: str, entries: Iterable[FileEntry], overrides: Iterable[tuple[str, str]], sources: Sources
) -> SparkLines:
    """Read every line of the file and every override whose key begins with `mld.spark.`; the last one for a key
    counts.
    """
    remarks: list[Remark] = []
    values: dict[str, object] = {key.name.removeprefix(PREFIX): key.default for key in _FIXED.values()}
    places: dict[str, str] = {}
    shown: dict[str, tuple[str, str]] = {}
    texts: dict[str, str] = {}
    sinks: dict[str, SinkLines] = {}
    conf: dict[str, str] = {}
    tables: dict[str, str] = {}
    catalogs: dict[str, dict[str, str]] = {}
    secrets: list[str] = []
    line_of_key = {
        name: (place, raw) for place, name, raw in all_lines(file_name, entries, overrides) if name.startswith(PREFIX)
    }
    for name, (place, raw) in line_of_key.items():
        key = _key_of(name)
        if key is None:
            remarks.append(_unknown(name, place))
            continue
        checked = check(KeyLine(key, name, raw, place), sources)
        remarks += checked.remarks
        if checked.given is None:
            continue
        shown[name] = (checked.given.display, place)
        texts[name] = str(checked.given.value)
        secrets += checked.given.secrets
        value = checked.given.value
        if name.startswith(SINK_PREFIX):
            _put(sinks, name, str(value), place)
        elif name.startswith(TABLE_PREFIX):
            tables[name.removeprefix(TABLE_PREFIX)] = str(value)
        elif name.startswith(CATALOG_PREFIX):
            catalog, _, property_ = name.removeprefix(CATALOG_PREFIX).partition(".")
            catalogs.setdefault(catalog, {})[property_] = str(value)
        elif name.startswith(CONF_PREFIX):
            conf[name.removeprefix(CONF_PREFIX)] = str(value)
        else:
            short = name.removeprefix(PREFIX)
            values[short], places[short] = value, place
    # Tables are checked against the sinks of the file, and become sinks themselves only afterwards.
    sink_values = {name: sink.values for name, sink in sinks.items()}
    for key_name, message, remedy in problems(tables, catalogs, sink_values, conf):
        remarks.append(Remark(Level.ERROR, key_name, shown.get(key_name, ("", file_name))[1], message, remedy))
    for name, table in tables.items():
        sink = sinks.setdefault(name, SinkLines(name, shown[f"{TABLE_PREFIX}{name}"][1]))
        sink.values |= {"format": "iceberg", "path": table}
    remarks += _together(values, places, file_name, sinks)
    return SparkLines(
        values,
        tuple(sinks.values()),
        conf,
        tuple(remarks),
        catalogs,
        shown,
        texts=texts,
        secrets=tuple(secrets),
    )


def _key_of(name: str) -> Key | None:
    """Return the key that a name means, with how its value is shown; None if it is no key. A key is `foreign` if it
    passes a setting on to another program, such as Spark or a database driver.
    """
    if name in _FIXED:
        return _FIXED[name]
    if name.startswith(CONF_PREFIX) and len(name) > len(CONF_PREFIX):
        return Key(name, TEXT, Section.SPARK, "", shown_as=conf_shown(name.removeprefix(CONF_PREFIX)), foreign=True)
    if name.startswith(SINK_PREFIX) and (match := _SINK_KEY.fullmatch(name, len(SINK_PREFIX))):
        of_names = match["property"] in ("partitionBy", "keys", "orderBy")
        shown = option_shown(match["option"]) if match["option"] else Shown.FULL if of_names else Shown.PLACE
        return Key(name, TEXT, Section.SPARK, "", shown_as=shown, foreign=match["option"] is not None)
    if name.startswith(TABLE_PREFIX) and SINK_NAME.fullmatch(name, len(TABLE_PREFIX)):
        return Key(name, TEXT, Section.SPARK, "", shown_as=Shown.PLACE)
    if name.startswith(CATALOG_PREFIX) and (match := CATALOG_KEY.fullmatch(name, len(CATALOG_PREFIX))):
        return Key(name, TEXT, Section.SPARK, "", shown_as=catalog_shown(match["property"]), foreign=True)
    return None


def _put(sinks: dict[str, SinkLines], name: str, value: str, place: str) -> None:
    """Add the value of a sink's key, which is set at `place`, to its sink in `sinks`; the first key of a sink adds the
    sink.
    """
    match = _SINK_KEY.fullmatch(name, len(SINK_PREFIX))
    assert match is not None
    sink = sinks.setdefault(match["sink"], SinkLines(match["sink"], place))
    if match["option"]:
        sink.options[match["option"]] = value
    else:
        sink.values[match["property"]] = value


def _unknown(name: str, place: str) -> Remark:
    """Return the remark on a name that is not a key. A misspelled key is an error, because the processor would run
    without it.
    """
    if removed := REMOVED.get(re.sub(r"^sink\.[^.]+", "sink.<name>", name.removeprefix(PREFIX))):
        level, remedy = removed
        message = (
            "is a key of mld 0.2 and is ignored"
            if level is Level.WARNING
            else "is a key of mld 0.2 and no longer there"
        )
        return Remark(level, name, place, message, remedy)
    if name.startswith(SINK_PREFIX):
        remedy = f"a sink has {', '.join(_SINK_PROPERTIES)}: write {SINK_PREFIX}<name>.<one of these>"
    elif name.startswith(TABLE_PREFIX):
        remedy = f"write {TABLE_PREFIX}<name> = catalog.schema.table; a name has letters, digits, _ and -"
    elif name.startswith(CATALOG_PREFIX):
        remedy = f"write {CATALOG_PREFIX}<catalog>.type and the like; a catalog's name has letters, digits and _"
    else:
        near = nearest(name, _FIXED, cutoff=0.6)
        remedy = f"did you mean {near}?" if near else "docs/use/configuration.md lists the keys"
    return Remark(Level.ERROR, shown_name(name), place, "is no key of the Spark processor", remedy)


def _together(
    values: dict[str, object], places: Mapping[str, str], file_name: str, sinks: Mapping[str, SinkLines]
) -> list[Remark]:
    """Check the keys in `values` against each other, and add to `values` the defaults that depend on other keys. Return
    the remarks; `places` says where each key is set.
    """
    remarks: list[Remark] = []

    def say(name: str, message: str, remedy: str, level: Level = Level.ERROR, place: str = "") -> None:
        remarks.append(Remark(level, PREFIX + name, place or places.get(name, file_name), message, remedy))

    if values["onPoison"] is None:
        values["onPoison"] = OnPoison.DEAD_LETTER if values["deadLetter"] else OnPoison.STOP
    elif values["onPoison"] is OnPoison.DEAD_LETTER and not values["deadLetter"]:
        say("onPoison", "is deadLetter, and there is no mld.spark.deadLetter", "name a directory for dead letters")
    has_schema = values["format"] not in (Format.BINARY, Format.TEXT)
    if has_schema and not values["schema"] and "format" in places:
        say("schema", "is required by mld.spark.format", "give the columns, such as: user STRING, at TIMESTAMP")
    if values["schema"] and not has_schema:
        without = "has no effect without mld.spark.format = json, jsonlines or avro"
        say("schema", without, "set the format", Level.WARNING)
    if has_schema and _PADDED.search(_QUOTED.sub("", str(values["schema"] or ""))):
        say("schema", "has CHAR or VARCHAR, whose length nothing checks in a payload", "write STRING")
    if values["rescuedColumn"] and values["format"] not in (Format.JSON, Format.JSON_LINES):
        say("rescuedColumn", "is for the formats json and jsonlines", "remove it, or set mld.spark.format")
    owner = values["s3.bucketOwner"]
    if owner is not None and not re.fullmatch(r"[0-9]{12}", str(owner)):
        say("s3.bucketOwner", "is no account", "write its twelve digits")
    if str(values["master"]).split("[")[0] != "local" and not values["spool"]:
        remedy = "name a directory that every node mounts at the same path, or s3://bucket/directory"
        say("spool", "is required by a master that is not local", remedy, place=places.get("master", file_name))
    check_places(values, sinks, say)
    for name, sink in sinks.items():
        for part in BETWEEN_COLUMNS.split(sink.values.get("partitionBy", "")):
            if "(" in part and not (TRANSFORM.fullmatch(part.strip()) and sink.values.get("format") == "iceberg"):
                remedy = "name columns; for format iceberg also years, months, days or hours of one, such as hours(at)"
                say(f"sink.{name}.partitionBy", "has what is no column", remedy, place=sink.place)
        for choice, known in CHOICES.items():
            if sink.values.get(choice, known[0]) not in known:
                say(f"sink.{name}.{choice}", "has no such value", f"write {' or '.join(known)}", place=sink.place)
    return remarks


assert all(key.effect is Effect.EFFECTIVE for key in KEYS)
