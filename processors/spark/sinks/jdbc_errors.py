"""Turns an error of PostgreSQL into an error of a sink, by its SQLSTATE, with a sentence and a remedy.

Pure: values in, values out.
"""

from __future__ import annotations

from mld.processors.spark.sentences import first_line
from mld.processors.spark.session.error_classes import BAD_IDENTIFIER, OF_A_ROW, kind_of
from mld.processors.spark.session.error_kinds import Cause, ErrorKind
from mld.processors.spark.sink_port import DataRefused, SinkError, SinkRefused

MADE_BY_ANOTHER = "42P07"
"""SQLSTATE if another writer has made the same table at the same time. The next attempt finds that table."""
_PLACES = "make the database, or correct {0}.url and {0}.dbtable"
_REMEDIES = {
    BAD_IDENTIFIER: "{0}.dbtable is table or schema.table, quoted where needed",
    "28": "correct {0}.user and {0}.password",
    "3D": _PLACES,
    "3F": _PLACES,
    "42501": "the user needs the right to create tables in the schema of {0}.dbtable, and to read and write that "
    "table; for new columns it has to be its owner",
    "42883": "the server has to be a PostgreSQL from 10 on",
    "42P10": "the table needs a unique index of exactly its keys; create one",
}


def meaning(error: Cause, sink: str, doing: str, *, of_rows: bool) -> SinkError:
    """Return the sink error for an error of the database, which came while `doing` something: DataRefused if a row is
    to blame, which it can be only with `of_rows`; SinkRefused if no further attempt can succeed; else SinkError.
    """
    what, state, kind = f"sink {sink}: {doing}: {first_line(Exception(error.text))}", error.state, kind_of([error])
    if of_rows and state.startswith(OF_A_ROW):
        return DataRefused(what)
    if kind in (ErrorKind.SHAPE, ErrorKind.FORBIDDEN) and state != MADE_BY_ANOTHER:
        found = _REMEDIES.get(state) or _REMEDIES.get(
            state[:2], "correct the pipeline, the table or the sink's options"
        )
        return SinkRefused(f"{what}; {found.format(f'mld.spark.sink.{sink}.options')}")
    return SinkError(what)
