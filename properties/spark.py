"""The keys of the Spark processor, `mld.spark.*`: their table, and lines of a file -> checked values.

They are in the same file as the daemon's own keys, and the daemon checks them at start, but only the processor acts on
them. Four groups have free names: `mld.spark.sink.<name>.<property>`, `mld.spark.table.<name>`,
`mld.spark.catalog.<catalog>.<property>` and `mld.spark.conf.<a key of Spark>`. A table is a sink of that name with the
format iceberg. A catalog is one of Iceberg's: four kinds, each with what it needs; every other property goes to Iceberg
as it is. Pure: `loader` and the processor read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mld.properties.conversion import check
from mld.properties.key_lines import KeyLine, all_lines
from mld.properties.keytypes import Effect, Key, Section, ValueKind
from mld.properties.lines import FileEntry, Level, Remark, Sources, nearest
from mld.properties.redaction import Shown, conf_shown, option_shown, shown_name

TABLE_PREFIX = "mld.spark.table."
CATALOG_PREFIX = "mld.spark.catalog."
SINK_NAME = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
CATALOG_KEY = re.compile(r"(?P<catalog>[A-Za-z0-9_]+)\.(?P<property>[A-Za-z0-9][A-Za-z0-9._-]*)", re.ASCII)
TABLE = re.compile(r"[^\s./`]+(?:\.[^\s./`]+){2,}")
"""catalog.schema.table; a schema may have several parts."""
TRANSFORM = re.compile(
    r"(?P<transform>years?|months?|days?|hours?|(?:bucket|truncate)(?=\(\s*\d))"
    r"\(\s*(?P<number>\d+\s*,)?\s*(?P<column>\w[\w.]*)\s*\)"
)
"""What a table of Iceberg may be partitioned by besides columns."""
BETWEEN_COLUMNS = re.compile(r",(?![^()]*\))")
"""A comma of partitionBy that is not one of a transform."""
NEEDS = {"glue": ("warehouse",), "rest": ("uri",), "jdbc": ("uri", "warehouse"), "hadoop": ("warehouse",)}
"""Kinds of catalogs, with the properties that each must have."""
NO_ATOMIC_RENAME = re.compile(r"\s*(?:s3[an]?|gs|wasbs?|abfss?|oss|cos)://", re.IGNORECASE)
Problem = tuple[str, str, str]
"""Key, what is wrong, and the remedy."""


def catalog_shown(property_: str) -> Shown:
    """Show a property as the same one of a catalog among the settings of Spark."""
    return conf_shown(f"spark.sql.catalog.c.{property_}")


def problems(
    tables: Mapping[str, str],
    catalogs: Mapping[str, Mapping[str, str]],
    sinks: Mapping[str, Mapping[str, str]],
    conf: Mapping[str, str],
) -> Iterator[Problem]:
    """Yield what does not fit together; `sinks` are the properties of the sinks as they were given."""
    for name, table in tables.items():
        key = f"{TABLE_PREFIX}{name}"
        if not TABLE.fullmatch(table):
            yield key, "is no name of a table", "write catalog.schema.table"
            continue
        given = sinks.get(name, {})
        for other, value in (("path", table), ("format", "iceberg")):
            if given.get(other, value).lower() != value.lower():
                yield key, f"and mld.spark.sink.{name}.{other} do not agree", f"remove mld.spark.sink.{name}.{other}"
        catalog = table.partition(".")[0]
        if catalog not in catalogs and f"spark.sql.catalog.{catalog}" not in conf:
            yield (
                key,
                f"is in the catalog {catalog}, which no key describes",
                f"write {CATALOG_PREFIX}{catalog}.type = {', '.join(list(NEEDS)[:-1])} or {list(NEEDS)[-1]}",
            )
    for catalog, given in catalogs.items():
        yield from _of_catalog(f"{CATALOG_PREFIX}{catalog}", catalog, given, conf)


def _of_catalog(prefix: str, catalog: str, given: Mapping[str, str], conf: Mapping[str, str]) -> Iterator[Problem]:
    if f"spark.sql.catalog.{catalog}" in conf:
        yield prefix, f"and mld.spark.conf.spark.sql.catalog.{catalog} are the same catalog", "keep one of them"
    kind = given.get("type", "")
    if kind not in NEEDS:
        said = "is no kind of a catalog" if kind else "is missing"
        yield f"{prefix}.type", said, f"write {', '.join(list(NEEDS)[:-1])} or {list(NEEDS)[-1]}"
        return
    for needed in NEEDS[kind]:
        if not given.get(needed):
            yield f"{prefix}.{needed}", f"is required by {prefix}.type = {kind}", "set it"
    if kind == "hadoop" and NO_ATOMIC_RENAME.match(given.get("warehouse", "")):
        yield (
            f"{prefix}.type",
            "is hadoop, whose commits are renames, and an object store has no atomic rename: commits would be lost",
            "use glue, rest or jdbc; hadoop is for HDFS and local paths",
        )


# --- keys ------------------------------------------------------------------------------------------------------------

PROGRAM = "mld-spark"
PREFIX = "mld.spark."
SINK_PREFIX = f"{PREFIX}sink."
CONF_PREFIX = f"{PREFIX}conf."
PLACED = ("parquet", "orc", "json", "csv", "text", "avro", "delta", "iceberg")
"""Formats of a sink whose marks are where its rows are."""
FILES = PLACED[:6]
TAKEN_BY = {"_delta_log": "a table of Delta", "_spark_metadata": "a sink of Structured Streaming"}
"""Directories by which Spark's readers know the files of a table, whatever else is there."""
JDBC = "jdbc"
MEBIBYTE = 1024 * 1024
CHOICE, LONG, TEXT = ValueKind.CHOICE, ValueKind.LONG, ValueKind.TEXT


class Format(Enum):
    """What a record's data is."""

    BINARY = "binary"
    JSON = "json"
    JSON_LINES = "jsonlines"
    AVRO = "avro"
    TEXT = "text"


class OnPoison(Enum):
    DEAD_LETTER = "deadLetter"
    STOP = "stop"


class OnGap(Enum):
    STOP = "stop"
    ACCEPT = "accept"


def _key(name: str, kind: ValueKind, meaning: str, default: object = None, **more: object) -> Key:
    return Key(PREFIX + name, kind, Section.SPARK, meaning, default, **more)  # type: ignore[arg-type]


BATCH_BYTES = 192 * MEBIBYTE
"""Each batch has Spark plan and compile anew, which costs the CPU time of some 10,000 records."""

KEYS: tuple[Key, ...] = (
    _key("pipeline", TEXT, "`path/to/pipeline.py:function` or `path/to/pipeline.sql`; relative to the daemon's "
         "working directory.", default_text="required", shown_as=Shown.PLACE),
    _key("pipelineId", TEXT, "Name of the pipeline in the ledgers of its sinks. Under another name it has no "
         "marks there, and writes again what it is given again.", "main", shown_as=Shown.FULL),
    _key("streamId", TEXT, "Names the stream in the ledgers of sinks, instead of its ARN and the time of its "
         "creation. Change it when the stream is deleted and made again.",
         default_text="what kinesis:DescribeStreamSummary says; required under another daemon", shown_as=Shown.FULL),
    _key("format", CHOICE, "What the data of a record is; all but binary add the column `payload`. jsonlines: an event "
         "a line, each a row, with the column `rowNumber`.",
         Format.BINARY, choices=Format),
    _key("schema", TEXT, "Columns of the payload in Spark's DDL, such as `user STRING, at TIMESTAMP`; for avro "
         "the schema in JSON.",
         default_text="required by json, jsonlines and avro", shown_as=Shown.FULL),
    _key("rescuedColumn", TEXT, "With json and jsonlines: a field of the payload for the fields that the schema does "
         "not name, as a text of JSON.", default_text="they are left out, and a warning names them",
         shown_as=Shown.FULL),
    _key("triggerIntervalMillis", LONG, "Shortest time from the start of one micro-batch to that of the next, whatever "
         "waits.", default_text="30 s, or 120 s while less than 1 MiB waits", minimum=10, maximum=3_600_000),
    _key("maxBatchBytes", LONG, "Bytes of waiting records that start a micro-batch before its time, and about the "
         "most that one holds.", BATCH_BYTES, minimum=1),
    _key("deadLetter", TEXT,
         "Directory for records that cannot be decoded or processed, as JSON lines with their reasons.",
         shown_as=Shown.PLACE),
    _key("malformedShareMax", ValueKind.DOUBLE, "Share of malformed records, of the last 100 or more, beyond which the "
         "shards stop instead of putting them into mld.spark.deadLetter; 1: never.", 0.5, minimum=0, maximum=1),
    _key("onGap", CHOICE, "What becomes of a shard of which a sink lacks records before the checkpoint, as after a "
         "restore: stop, or go on without them.", OnGap.STOP, choices=OnGap),
    _key("onPoison", CHOICE, "What becomes of a record with which the pipeline fails again and again.",
         choices=OnPoison, default_text="stop; deadLetter if mld.spark.deadLetter is set"),
    _key("drainTimeoutMillis", LONG, "Longest wait of a shard that ends or moves for the commits of its records.",
         20_000, minimum=0),
    _key("startTimeoutMillis", LONG, "Longest wait of a shard for the session to start.", 120_000, minimum=1),
    _key("taskTimeoutMillis", LONG, "Longest time in which no task of a micro-batch ends; then its job is cancelled, "
         "and the record that holds it up is searched for.", 1_800_000, minimum=1000),
    _key("master", TEXT, "Spark master: `local[*]`, `spark://…`, `k8s://…`, `yarn`.", "local[*]", shown_as=Shown.PLACE),
    _key("packages", TEXT, "Maven coordinates of packages to load, with commas between them.", shown_as=Shown.PLACE),
    _key("driverMemory", TEXT, "Heap of the JVM on this machine.", "1g", shown_as=Shown.PLACE),
    _key("spool", TEXT, "Directory for records on their way to Spark; on a cluster one that every node can read, or "
         "`s3://bucket/directory`.", default_text="a private directory in TMPDIR; required by a cluster",
         shown_as=Shown.PLACE),
    _key("s3.region", TEXT, "Region of the buckets of sinks.", default_text="regionName, else the SDK's",
         shown_as=Shown.FULL),
    _key("s3.endpoint", ValueKind.URL, "Address of a store that speaks S3, for sinks.", default_text="AWS"),
    _key("s3.pathStyle", ValueKind.BOOL, "Name buckets in the path of a request, as some stores want it.", False),
    _key("s3.kmsKey", TEXT, "Encrypt objects of sinks with this key of KMS.",
         default_text="what the bucket does by itself", shown_as=Shown.FULL),
    _key("s3.bucketOwner", TEXT, "Account, twelve digits, that the buckets of sinks must belong to.",
         default_text="anybody", shown_as=Shown.FULL),
    _key("sink.<name>.format", TEXT, "Format of a sink: parquet, json, csv, orc, delta, iceberg, jdbc, …",
         "parquet"),
    _key("sink.<name>.path", TEXT, "Directory or table of a sink."),
    _key("sink.<name>.partitionBy", TEXT, "Columns by whose values a sink's files are laid out; for Iceberg also "
         "years, months, days or hours of one, such as `hours(at)`, `bucket(16, id)` and `truncate(4, code)`."),
    _key("sink.<name>.mode", TEXT, "append; merge, by keys, where the format can; a save mode of Spark for others.",
         "append"),
    _key("sink.<name>.keys", TEXT, "Columns that name a row, with commas between them, for mode = merge: of each key "
         "the newest row stays."),
    _key("sink.<name>.deleteWhen", TEXT, "Condition of SQL over a change, such as `op = 'REMOVE'`, under which "
         "mode = merge deletes its row; with orderBy it stays, marked in the column `_mld_deleted`."),
    _key("sink.<name>.orderBy", TEXT, "Columns that say which change of a key is newer, the first of them first, for "
         "mode = merge: a row that is older than what stands there is left out."),
    _key("sink.<name>.writers", TEXT, "`one`: refuse a sink that another application, pipeline or stream writes; "
         "`shared`: write beside them, each with marks of its own.", "one"),
    _key("sink.<name>.files", TEXT, "Without partitionBy: `one` file a commit, so that readers see whole commits; "
         "`many`: as many as Spark's tasks make.", default_text="one on S3, else many"),
    _key("sink.<name>.options.<option>", TEXT, "An option of the format."),
    _key("table.<name>", TEXT, "An Iceberg table, as catalog.schema.table: declares the sink of that name."),
    _key("catalog.<catalog>.type", TEXT, "Kind of an Iceberg catalog: glue, rest, jdbc or hadoop."),
    _key("catalog.<catalog>.uri", TEXT, "Where a REST catalog is, or the database of a JDBC catalog."),
    _key("catalog.<catalog>.warehouse", TEXT, "Where the tables of a catalog are, such as `s3://bucket/lake`."),
    _key("catalog.<catalog>.<property>", TEXT, "Any other property of the catalog, such as `jdbc.user`."),
    _key("conf.<spark key>", TEXT, "Any setting of Spark, such as `mld.spark.conf.spark.sql.shuffle.partitions`."),
)  # fmt: skip

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
"""Types that Spark has for columns of tables only; and names and comments, in which they are words."""
CHOICES = {"writers": ("one", "shared"), "files": ("one", "many")}
"""Properties of a sink that have few values; the first of each is the default."""


COMPACTION_REMEDY = (
    "rewrite plain files with a job of Spark into a new directory, choose a longer mld.spark.triggerIntervalMillis, or "
    "write a table: CALL <catalog>.system.rewrite_data_files (Iceberg) and OPTIMIZE (Delta) compact"
)
CATALOG_REMEDY = (
    "register plain files by a crawler, ALTER TABLE … ADD PARTITION or Athena's partition projection, or write a table "
    "that its catalog knows: mld.spark.table.<name> with mld.spark.catalog.<catalog>.type = glue"
)
WINDOWS_REMEDY = (
    "remove it: every micro-batch is run by itself; windows, joins and state are a query of Spark's over a table that "
    "the pipeline writes (docs/use/spark-pipeline.md, Windows)"
)
REMOVED: Mapping[str, tuple[Level, str]] = {
    **dict.fromkeys(("mode", "checkpoint", "sink.<name>.outputMode", "alignMillis"), (Level.ERROR, WINDOWS_REMEDY)),
    "pageBytes": (Level.WARNING, "all records reach Spark as files of columns now"),
    "remote": (Level.ERROR, "remove it, and name a cluster by mld.spark.master = spark://…, yarn or k8s://…"),
    "archives": (Level.ERROR, "write mld.spark.conf.spark.archives, Spark's own key for the same"),
    "pyFiles": (
        Level.ERROR,
        "put modules beside the pipeline; for a cluster name them in mld.spark.conf.spark.submit.pyFiles",
    ),
    "javaHome": (Level.ERROR, "set JAVA_HOME for the daemon, or put java first on its PATH"),
    "schema.reader": (
        Level.ERROR,
        "remove it; mld.schemaRegistry = json decodes, and mld.spark.schema names the columns",
    ),
    "latency": (Level.ERROR, f"remove it; for low write {PREFIX}triggerIntervalMillis = 1000"),
    "networkFileSystem": (
        Level.ERROR,
        "remove it: files and dead letters on NFS, SMB and the like are refused, as nobody has proven commits there; "
        "write them to s3 or a disk of this machine, or rows into a table with a catalog",
    ),
    "s3.timeoutMillis": (Level.WARNING, "an answer of S3 is waited for 60 s"),
    "glue.region": (Level.ERROR, f"write {CATALOG_PREFIX}<catalog>.client.region, unless it is regionName"),
    "sink.<name>.newPartitionsPerHour": (
        Level.WARNING,
        "bound values of partitionBy that producers choose in the pipeline (docs/use/spark-sinks.md, Partitions)",
    ),
    "ledger": (Level.WARNING, "formats without marks of their own are written at least once, from the checkpoints on"),
    "compactFiles": (Level.WARNING, COMPACTION_REMEDY),
    "sink.<name>.compact": (Level.WARNING, COMPACTION_REMEDY),
    "sink.<name>.glueTable": (Level.ERROR, f"remove it; the files go on as they are: {CATALOG_REMEDY}"),
    "maxInFlightBytes": (Level.ERROR, f"remove it: it is twice {PREFIX}maxBatchBytes, which bounds disk and memory"),
    "attemptsMax": (Level.ERROR, "remove it: a record is searched for after 3 attempts, over a wrong value at once"),
    "retryBackoffMillis": (Level.ERROR, "remove it: the second attempt is after 0.5 s, the next after 1 s, and so on"),
    "glue.endpoint": (Level.WARNING, "it was for glueTable; Iceberg has mld.spark.catalog.<catalog>.glue.endpoint"),
}
"""Keys of mld 0.2, by the name after `mld.spark.`: whether the start is refused or they are ignored, and the remedy."""


@dataclass(slots=True)
class SinkLines:
    """What the file says about one sink, as text; `place` is that of its first line."""

    name: str
    place: str
    values: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SparkLines:
    """All keys of the processor: values by the name after `mld.spark.`, with defaults filled in (None where there is
    none)."""

    values: Mapping[str, Any]
    sinks: tuple[SinkLines, ...]
    conf: Mapping[str, str]
    remarks: tuple[Remark, ...]
    catalogs: Mapping[str, Mapping[str, str]]
    """Properties of each catalog of tables, which may be secret."""
    shown: Mapping[str, tuple[str, str]]
    """Text fit for a log, and place, of every key given."""
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The value of every key given, which may be secret."""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def pipeline_is_given(self) -> bool:
        """Also true for a bad value, which has a remark of its own."""
        name = f"{PREFIX}pipeline"
        return name in self.shown or any(remark.key == name for remark in self.remarks)


def read(
    file_name: str, entries: Iterable[FileEntry], overrides: Iterable[tuple[str, str]], sources: Sources
) -> SparkLines:
    """Return every line of the file and every override whose key begins with `mld.spark.`; the last of a key counts."""
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
    last = {name: (place, raw) for place, name, raw in all_lines(file_name, entries, overrides) if name[:10] == PREFIX}
    for name, (place, raw) in last.items():
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
    given = {name: sink.values for name, sink in sinks.items()}
    for key_name, message, remedy in problems(tables, catalogs, given, conf):
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
    if name in _FIXED:
        return _FIXED[name]
    if name.startswith(CONF_PREFIX) and len(name) > len(CONF_PREFIX):
        return Key(name, TEXT, Section.SPARK, "", shown_as=conf_shown(name.removeprefix(CONF_PREFIX)))
    if name.startswith(SINK_PREFIX) and (match := _SINK_KEY.fullmatch(name, len(SINK_PREFIX))):
        of_names = match["property"] in ("partitionBy", "keys", "orderBy")
        shown = option_shown(match["option"]) if match["option"] else Shown.FULL if of_names else Shown.PLACE
        return Key(name, TEXT, Section.SPARK, "", shown_as=shown)
    if name.startswith(TABLE_PREFIX) and SINK_NAME.fullmatch(name, len(TABLE_PREFIX)):
        return Key(name, TEXT, Section.SPARK, "", shown_as=Shown.PLACE)
    if name.startswith(CATALOG_PREFIX) and (match := CATALOG_KEY.fullmatch(name, len(CATALOG_PREFIX))):
        return Key(name, TEXT, Section.SPARK, "", shown_as=catalog_shown(match["property"]))
    return None


def _put(sinks: dict[str, SinkLines], name: str, value: str, place: str) -> None:
    match = _SINK_KEY.fullmatch(name, len(SINK_PREFIX))
    assert match is not None
    sink = sinks.setdefault(match["sink"], SinkLines(match["sink"], place))
    if match["option"]:
        sink.options[match["option"]] = value
    else:
        sink.values[match["property"]] = value


def _unknown(name: str, place: str) -> Remark:
    """Make a remark on a name that is no key. A misspelled key is an error: its sink would run without it."""
    if removed := REMOVED.get(re.sub(r"^sink\.[^.]+", "sink.<name>", name.removeprefix(PREFIX))):
        level, remedy = removed
        said = (
            "is a key of mld 0.2 and is ignored"
            if level is Level.WARNING
            else "is a key of mld 0.2 and no longer there"
        )
        return Remark(level, name, place, said, remedy)
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


def _of_places(values: Mapping[str, object], sinks: Mapping[str, SinkLines], say: Callable[..., None]) -> None:
    """Refuse two sinks in one place: they would have the same marks: what one has written, the other would be taken
    to have.
    """
    letters = values["deadLetter"]
    taken = {_plain(str(letters)): f"{PREFIX}deadLetter"} if letters else {}
    _of_bucket("deadLetter", str(letters or ""), say)
    spool = _plain(str(values["spool"] or ""))
    if re.fullmatch(r"s3:/{0,2}[^/]*", spool):
        say("spool", "is a whole bucket, in which old pages are deleted", "write s3://bucket/directory")
    for key, path in {"deadLetter": letters, **{f"sink.{one}.path": _where(sinks[one]) for one in sinks}}.items():
        if path and values["spool"] and _overlap(spool, _plain(str(path))):
            say("spool", f"has what {PREFIX}{key} has, or is within it", "give it a directory of its own")
    for name, sink in sinks.items():
        _of_bucket(f"sink.{name}.path", sink.values.get("path", ""), say, place=sink.place)
        where = _where(sink)
        if where is not None and taken.setdefault(where, f"{SINK_PREFIX}{name}") != f"{SINK_PREFIX}{name}":
            remedy = "give each a place of its own, or write one frame (unionByName); rows of one would be left out"
            say(f"sink.{name}", f"is in the same place as {taken[where]}", remedy, place=sink.place)
        format_ = sink.values.get("format", "").lower()
        known = (*PLACED, JDBC)
        if format_ and format_ not in known and (near := nearest(format_, known, cutoff=0.75)):
            message = "is no format whose commits are known, and is written at least once by a writer of that name"
            say(f"sink.{name}.format", message, f"did you mean {near}?", Level.WARNING, sink.place)


def taken_places(lines: SparkLines, exists: Callable[[str], bool]) -> Iterator[Remark]:
    """Refuse plain files in a local directory whose readers would never see them."""
    places = [
        (f"{SINK_PREFIX}{sink.name}.path", sink.values.get("path", ""), sink.place)
        for sink in lines.sinks
        if sink.values.get("format", PLACED[0]).lower() in FILES
    ]
    letters = f"{PREFIX}deadLetter"
    places.append((letters, str(lines.values["deadLetter"] or ""), lines.shown.get(letters, ("", ""))[1]))
    for key, path, place in places:
        plain = _plain(path) if path else ""
        for name, owner in TAKEN_BY.items():
            if plain and "://" not in plain and exists(posixpath.join(plain, name)):
                why = f"has {name}, as {owner} keeps it, and readers go by that alone: they would never see our files"
                yield Remark(Level.ERROR, key, place, why, "use a new directory")


def _of_bucket(name: str, path: str, say: Callable[..., None], **where: str) -> None:
    if re.match(r"s3[an]?:(?!//[^/])", path, re.IGNORECASE):
        say(name, "begins like S3 and names no bucket", "write s3://bucket/directory, with two slashes", **where)


def _where(sink: SinkLines) -> str | None:
    """Return where a sink keeps its marks, to compare it with others; None if that is for each sink by itself."""
    format_ = sink.values.get("format", PLACED[0]).lower()
    if format_ == JDBC:
        options = {name.lower(): value for name, value in sink.options.items()}
        return f"{options['url']} {options['dbtable']}" if {"url", "dbtable"} <= options.keys() else None
    path = sink.values.get("path")
    return _plain(path) if path and format_ in PLACED else None


def _overlap(one: str, other: str) -> bool:
    """Return whether one of two places is within the other, or the same."""
    one, other = f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"
    return one.startswith(other) or other.startswith(one)


def _plain(path: str) -> str:
    """Return one spelling of a path or URI."""
    scheme, colon, rest = path.partition("://")
    if not colon:
        return posixpath.normpath(path.removeprefix("file:"))
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme.lower(), scheme.lower())
    return posixpath.normpath(rest) if scheme == "file" else f"{scheme}://{posixpath.normpath(rest)}"


def _together(
    values: dict[str, object], places: Mapping[str, str], file_name: str, sinks: Mapping[str, SinkLines]
) -> list[Remark]:
    """Check keys against each other, and fill in the defaults that depend on others."""
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
    _of_places(values, sinks, say)
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
