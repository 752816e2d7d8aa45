"""The table of the Spark processor's keys, and the table of keys of an earlier version.

`spark` reads the lines of a file by both tables, and docs/use/configuration.md is generated from the first one. The
text of a key is for operators.
"""

from __future__ import annotations

from collections.abc import Mapping

from mld.properties.keytypes import Key
from mld.properties.redaction import Shown
from mld.properties.remarks import Level
from mld.properties.spark_names import CATALOG_PREFIX, PREFIX
from mld.properties.spark_names import key_named as _key
from mld.properties.spark_values import Format, OnGap, OnPoison
from mld.properties.value_kinds import ValueKind

MEBIBYTE = 1024 * 1024
CHOICE, LONG, TEXT = ValueKind.CHOICE, ValueKind.LONG, ValueKind.TEXT
BATCH_BYTES = 192 * MEBIBYTE
"""The default size is large because Spark plans and compiles for each batch, which costs the CPU time of some 10,000
records."""
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
"""Keys of mld 0.2, by the name after `mld.spark.`, each with a level and the remedy: with ERROR the daemon does not
start, with WARNING the key is ignored."""
