"""Whether the store behind a Delta table on S3 carries out a conditional write for one of two who ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONDITION = "fs.option.create.conditional.overwrite"
NOT_MATCHED = "RemoteFileChangedException"
"""How S3A says that a condition did not hold."""


def is_conditional(session: SparkSession, place: str) -> bool:
    """Return whether a file below `place` is created only if it is not there, tried with two writers of one at once.
    Raises whatever Spark raises if that cannot be tried.
    """
    java: Any = session._jvm
    path = java.org.apache.hadoop.fs.Path(f"{place.rstrip('/')}/_mld/probe/{java.java.util.UUID.randomUUID()}")
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    try:
        one, other = (files.createFile(path).overwrite(True).must(CONDITION, True).build() for _ in range(2))
        one.close()
        try:
            other.close()
        except Exception as error:
            if NOT_MATCHED in str(error):
                return True
            raise
        return False
    finally:
        files.delete(path, False)
