"""Options of a sink by JDBC: those of its file, those that the driver gets, and those of Spark's writer.

Names of options are Spark's, in any case. Nothing here may be logged: a URL may hold a password.

Pure: values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mld.processors.spark.sink_port import SinkRefused, SinkSpec
from mld.processors.spark.sinks.jdbc_statements import STAGE_PREFIX, JdbcDialect

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
