"""Columns of Parquet without repetitions are written without a dictionary, which for them is built in vain.

Nobody says which columns those are. A writer gives a dictionary up by itself once it holds too many values, and then
writes all that it has again; the footer says so. So the first files of a sink are looked at, and then ever fewer: where
a column has enough values in a file, and no page of it uses the dictionary, the next files have none for it. A column
once found stays so until its host ends. What a reader gets is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

KEY = "parquet.enable.dictionary"
ROWS_MIN = 5_000
"""Files of fewer rows say little about a column."""
COLUMNS_MAX = 500
"""Wider tables are not looked at: each column takes a few calls to the JVM."""


class ColumnChunk(NamedTuple):
    """A column in a file: its path, how many values it has, and whether a page of it uses a dictionary."""

    path: str
    values: int
    uses_dictionary: bool


def unrepeated(chunks: Iterable[ColumnChunk]) -> frozenset[str]:
    """Return columns that have values enough, and for which no chunk with so many kept its dictionary."""
    large = [chunk for chunk in chunks if chunk.values >= ROWS_MIN]
    return frozenset(chunk.path for chunk in large) - {chunk.path for chunk in large if chunk.uses_dictionary}


class Dictionaries:
    """What one sink knows of its columns. Called on the engine's thread only."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Take `options`, which are the user's; nothing is learned if they say anything of dictionaries."""
        self._learns = not any(name.lower().startswith(KEY) for name in options)
        self._found: frozenset[str] = frozenset()
        self._batches = 0

    def options(self) -> dict[str, str]:
        return {f"{KEY}#{path}": "false" for path in sorted(self._found)}

    def wants(self, rows: int) -> bool:
        """Return whether a batch of so many rows, which was just written, is to be looked at: the 1st, 2nd, 4th,
        8th …
        """
        if not self._learns or rows < ROWS_MIN:
            return False
        self._batches += 1
        return self._batches & (self._batches - 1) == 0

    def learn(self, chunks: Iterable[ColumnChunk]) -> None:
        new = unrepeated(chunks) - self._found
        if new:
            log.info("written without a dictionary from now on: %s", ", ".join(sorted(new)))
            self._found |= new


def chunks_of(session: SparkSession, uri: str) -> list[ColumnChunk]:
    """Return what the footer of a Parquet file says; nothing where it cannot be read from here."""
    try:
        java = session._jvm
        assert java is not None
        path = java.org.apache.hadoop.fs.Path(uri)
        file = java.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(
            path, session._jsparkSession.sessionState().newHadoopConf()
        )
        reader = java.org.apache.parquet.hadoop.ParquetFileReader.open(file)
        try:
            found = []
            for block in reader.getFooter().getBlocks():
                columns = block.getColumns()
                if len(columns) > COLUMNS_MAX:
                    return []
                for chunk in columns:
                    statistics = chunk.getEncodingStats()
                    uses = statistics is None or bool(statistics.hasDictionaryEncodedPages())
                    found.append(ColumnChunk(chunk.getPath().toDotString(), int(chunk.getValueCount()), uses))
            return found
        finally:
            reader.close()
    except Exception as error:  # it is for speed alone
        log.debug("the footer of %s cannot be read: %s", uri, error)
        return []
