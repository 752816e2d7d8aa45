"""The databases that the JDBC sink writes exactly once, and the options of such a sink: those of its file, those that
the driver gets, and those of Spark's writer.

Names of options are Spark's, in any case. Nothing here may be logged: a URL may hold a password.

Pure: values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from mld.processors.spark.sink_port import SinkRefused, SinkSpec
from mld.processors.spark.sinks.jdbc_statements import (
    ARRAY,
    STAGE_PREFIX,
    DatabaseFault,
    JdbcDialect,
    Ordering,
    StagedColumn,
    TableName,
)

ABANDONED_S = 24 * 3600
"""A staging table of that age has no writer any more."""
MODES = ("append", "merge")
NOT_FOR_STAGING = frozenset(("url", "dbtable", "isolationlevel", "createtableoptions"))
_STAGE = re.compile(rf"{STAGE_PREFIX}(\d+)_[0-9a-f]+", re.IGNORECASE)
_MARIADB_URL = re.compile(r"\s*jdbc:mariadb:", re.IGNORECASE)


def stage_name(now: float, token: str) -> str:
    """Return the name of a staging table that is made at that time."""
    return f"{STAGE_PREFIX}{int(now)}_{token}"


def driver_options(spec: SinkSpec, dialect: JdbcDialect) -> dict[str, str]:
    """Return what the sink is told, with the dialect's driver and the driver's own settings where the user gives
    none.
    """
    given = {name.lower() for name in spec.options}
    ours = {"driver": dialect.driver, **dialect.write_options}
    options = {name: value for name, value in ours.items() if name.lower() not in given}
    return options | {("url" if name.lower() == "url" else name): value for name, value in spec.options.items()}


def staging_options(options: Mapping[str, str], place: str) -> dict[str, str]:
    """Return what Spark's writer is told, to append to a staging table."""
    kept = {name: value for name, value in options.items() if name.lower() not in NOT_FOR_STAGING}
    url = options["url"].strip()
    if _MARIADB_URL.match(url):
        # Spark has no dialect for MariaDB; by the other name of the same protocol it has.
        url = _MARIADB_URL.sub("jdbc:mysql:", url) + ("&" if "?" in url else "?") + "permitMysqlScheme"
    return {**kept, "url": url, "dbtable": place}


def abandoned(tables: Iterable[str], now: float) -> list[str]:
    """Return the staging tables among these that are older than a day."""
    found = ((name, _STAGE.fullmatch(name)) for name in tables)
    return [name for name, match in found if match and int(match[1]) < now - ABANDONED_S]


def checked_options(spec: SinkSpec) -> Mapping[str, str]:
    """Return the options by their names in lower case. Raises SinkRefused if one is missing or has no meaning here."""
    given = {name.lower(): value for name, value in spec.options.items()}
    prefix = f"mld.spark.sink.{spec.name}"
    for name in ("url", "dbtable"):
        if not given.get(name):
            which = "where the database is" if name == "url" else "which table it is"
            raise SinkRefused(f"{prefix}.options.{name} is missing; say {which}")
    if spec.path:
        raise SinkRefused(f"{prefix}.path has no meaning for jdbc; name the table as {prefix}.options.dbtable")
    if spec.partition_by:
        raise SinkRefused(f"{prefix}.partitionBy has no meaning for jdbc; remove it")
    if spec.mode.lower() not in MODES:
        raise SinkRefused(f"{prefix}.mode is {spec.mode}; a table is written exactly once by {' or '.join(MODES)}")
    if (spec.mode.lower() == "merge") != bool(spec.keys):
        raise SinkRefused(f"{prefix}.mode = merge and {prefix}.keys go together; set both, or neither")
    for name in ("createtablecolumntypes", "truncate", "query"):
        if name in given:
            raise SinkRefused(f"{prefix}.options.{name} has no meaning here; make the table yourself before the start")
    return given


class PostgresDialect(JdbcDialect):
    name = "PostgreSQL"
    schemes = ("postgresql",)
    driver = "org.postgresql.Driver"
    package = "org.postgresql:postgresql:42.7.7"
    types: ClassVar[dict[str, str]] = {
        "string": "TEXT",
        "tinyint": "SMALLINT",
        "smallint": "SMALLINT",
        "int": "INTEGER",
        "bigint": "BIGINT",
        "float": "FLOAT4",
        "double": "FLOAT8",
        "decimal": "NUMERIC",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamp": "TIMESTAMP WITH TIME ZONE",
        "timestamp_ntz": "TIMESTAMP",
        "binary": "BYTEA",
    }
    text_key = "TEXT"
    ledger_text = "TEXT"
    schema_query = "SELECT current_schema()"
    product = "PostgreSQL"
    version_min = 10
    write_options: ClassVar[dict[str, str]] = {"reWriteBatchedInserts": "true", "tcpKeepAlive": "true"}
    states: ClassVar[dict[str, DatabaseFault]] = {
        "25006": DatabaseFault.WAIT,  # read only: a fail-over is under way
        "25P03": DatabaseFault.WAIT,  # given up while we were silent
        "53": DatabaseFault.WAIT,  # resources: disk, memory, connections
        "54": DatabaseFault.DATA,  # a value that is too long for an index
        "55": DatabaseFault.WAIT,  # locks
        "55000": DatabaseFault.REFUSED,  # a deferrable constraint is none to merge by
        "57": DatabaseFault.WAIT,  # shut down, cancelled
        "58": DatabaseFault.WAIT,  # system error
        "P0001": DatabaseFault.DATA,  # a trigger says no
        "44": DatabaseFault.DATA,  # WITH CHECK OPTION
    }
    _SERIAL: ClassVar[dict[str, str]] = {"serial": "int4", "bigserial": "int8", "smallserial": "int2"}
    _TEXTS: ClassVar[frozenset[str]] = frozenset(("text", "varchar", "bpchar", "name"))

    def folded(self, name: str) -> str:
        return name.lower()

    def type_of(self, spark_type: str) -> str | None:
        if match := ARRAY.fullmatch(spark_type):
            element = super().type_of(match[1])
            return f"{element}[]" if element else None
        return super().type_of(spark_type)

    def cast(self, spark_type: str, column_type: str, *, is_key: bool) -> str | None:
        kind = self._SERIAL.get(column_type, column_type)
        if not is_key and (spark_type != "string" or kind in self._TEXTS):
            return None
        return kind if re.fullmatch(r'[a-z_][a-z0-9_]*|"[^"]+"\."[^"]+"', kind) else self.quoted(kind)

    def merge(
        self, target: TableName, stage: TableName, columns: Sequence[StagedColumn], newest: Sequence[Ordering]
    ) -> str:
        names = ", ".join(self.quoted(column.target) for column in columns)
        keys = ", ".join(self.quoted(column.target) for column in columns if column.is_key)
        rest = [self.quoted(column.target) for column in columns if not column.is_key]
        update = f"DO UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in rest)}" if rest else "DO NOTHING"
        rows = self._deduplicated(stage, columns, newest)
        return f"INSERT INTO {self.place(target)} ({names}) {rows} ON CONFLICT ({keys}) {update}"

    def begin(self, *, lock_wait_s: int, idle_s: int) -> list[str]:
        return [
            f"SET LOCAL lock_timeout = '{lock_wait_s}s'",
            f"SET LOCAL idle_in_transaction_session_timeout = '{idle_s}s'",
        ]


class MySqlDialect(JdbcDialect):
    """MySQL and MariaDB."""

    name = "MySQL"
    schemes = ("mysql",)
    driver = "com.mysql.cj.jdbc.Driver"
    package = "com.mysql:mysql-connector-j:9.3.0"
    quote = "`"
    types: ClassVar[dict[str, str]] = {
        "string": "LONGTEXT",
        "tinyint": "TINYINT",
        "smallint": "SMALLINT",
        "int": "INTEGER",
        "bigint": "BIGINT",
        "float": "FLOAT",
        "double": "DOUBLE",
        "decimal": "DECIMAL",
        "boolean": "BOOLEAN",
        "date": "DATE",
        "timestamp": "DATETIME(6)",
        "timestamp_ntz": "DATETIME(6)",
        "binary": "LONGBLOB",
    }
    text_key = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    ledger_text = "LONGTEXT"
    schema_query = "SELECT DATABASE()"
    product = "MySQL"
    version_min = 5
    table_suffix = "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
    any_unique_index_counts = True
    schema_is_catalog = True
    write_options: ClassVar[dict[str, str]] = {"rewriteBatchedStatements": "true", "tcpKeepAlive": "true"}
    strictness = "SELECT @@SESSION.sql_mode"
    states: ClassVar[dict[str, DatabaseFault]] = {
        "45000": DatabaseFault.DATA,  # SIGNAL of a trigger
        "S1009": DatabaseFault.DATA,  # the driver cannot send the value
    }
    codes: ClassVar[dict[int, DatabaseFault]] = {
        1021: DatabaseFault.WAIT,  # disk full
        1040: DatabaseFault.WAIT,  # too many connections
        1041: DatabaseFault.WAIT,  # out of memory
        1053: DatabaseFault.WAIT,  # shut down
        1114: DatabaseFault.WAIT,  # table full
        1153: DatabaseFault.DATA,  # more than max_allowed_packet
        1158: DatabaseFault.WAIT,  # network, four kinds
        1159: DatabaseFault.WAIT,
        1160: DatabaseFault.WAIT,
        1161: DatabaseFault.WAIT,
        1203: DatabaseFault.WAIT,  # too many connections of this user
        1205: DatabaseFault.WAIT,  # lock wait
        1213: DatabaseFault.WAIT,  # deadlock
        1226: DatabaseFault.WAIT,  # a user's quota
        1290: DatabaseFault.WAIT,  # read only: a fail-over is under way
        1317: DatabaseFault.WAIT,  # interrupted
        1792: DatabaseFault.WAIT,
        1836: DatabaseFault.WAIT,  # read only
        1927: DatabaseFault.WAIT,  # connection killed
        3024: DatabaseFault.WAIT,  # took too long
        1054: DatabaseFault.REFUSED,  # no such column
        1048: DatabaseFault.DATA,  # NULL
        1062: DatabaseFault.DATA,  # duplicate
        1264: DatabaseFault.DATA,  # out of range
        1265: DatabaseFault.DATA,  # truncated
        1292: DatabaseFault.DATA,  # wrong value
        1364: DatabaseFault.REFUSED,  # no default
        1366: DatabaseFault.DATA,  # wrong value
        1406: DatabaseFault.DATA,  # too long
        1451: DatabaseFault.DATA,  # foreign keys
        1452: DatabaseFault.DATA,
        1644: DatabaseFault.DATA,  # SIGNAL
        3819: DatabaseFault.DATA,  # CHECK of MySQL
        4025: DatabaseFault.DATA,  # CHECK of MariaDB
    }

    def merge(
        self, target: TableName, stage: TableName, columns: Sequence[StagedColumn], newest: Sequence[Ordering]
    ) -> str:
        """Return a merge: rows come in the order of their age, each over the ones before it: what is one key is the
        target's own word, whatever its collation.
        """
        names = ", ".join(self.quoted(column.target) for column in columns)
        values = ", ".join(map(self._value, columns))
        rest = [self.quoted(column.target) for column in columns if not column.is_key]
        rest = rest or [self.quoted(column.target) for column in columns[:1]]
        updates = ", ".join(f"{name} = VALUES({name})" for name in rest)
        rows = f"SELECT {values} FROM {self.place(stage)} ORDER BY {self._newest_first(newest, 'ASC')}"  # noqa: S608
        return f"INSERT INTO {self.place(target)} ({names}) {rows} ON DUPLICATE KEY UPDATE {updates}"

    def begin(self, *, lock_wait_s: int, idle_s: int) -> list[str]:
        return [
            f"SET SESSION innodb_lock_wait_timeout = {lock_wait_s}",
            f"SET SESSION lock_wait_timeout = {lock_wait_s}",
            f"SET SESSION wait_timeout = {idle_s}",
            # Without it a value that does not fit is cut, and nobody is told.
            "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
            "SET SESSION max_sort_length = 65536",
        ]

    def serves(self, product: str, version: int) -> bool:
        """Return whether it is such a server: either driver speaks with either server."""
        return product in (MySqlDialect.product, MariaDbDialect.product) and version >= MySqlDialect.version_min

    def engines(self) -> str | None:
        return (
            "SELECT e.transactions FROM information_schema.tables t JOIN information_schema.engines e "
            "ON e.engine = t.engine WHERE t.table_schema = ? AND t.table_name = ?"
        )


class MariaDbDialect(MySqlDialect):
    name = "MariaDB"
    schemes = ("mariadb",)
    driver = "org.mariadb.jdbc.Driver"
    package = "org.mariadb.jdbc:mariadb-java-client:3.5.3"
    product = "MariaDB"
    version_min = 10
    write_options: ClassVar[dict[str, str]] = {"useBulkStmts": "true", "tcpKeepAlive": "true"}


DIALECTS: tuple[JdbcDialect, ...] = (PostgresDialect(), MariaDbDialect(), MySqlDialect())


def dialect_of(url: str) -> JdbcDialect | None:
    """Return the dialect of a JDBC URL; None if this sink does not know it."""
    scheme = url.strip().split(":")[1].lower() if url.strip().lower().startswith("jdbc:") else ""
    return next((dialect for dialect in DIALECTS if scheme in dialect.schemes), None)
