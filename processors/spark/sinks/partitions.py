"""Collects the rows of each partition of a batch, so that each directory gets few files.

Spark's `rebalance` does that. If a value cannot be the name of a directory, its record is to blame. This module adds
steps to a frame and runs no job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mld.processors.spark.sentences import NO_NAME
from mld.processors.spark.sinks.columns import place_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ESCAPED = r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
"""Characters that Spark writes into the name of a directory as three characters."""
OF_NULLS = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name for the directory of NULL and of the empty string."""
NAME_BYTES_MAX, DIRECTORY_BYTES_MAX = 255, 700
"""Longest name in a file system, and longest part of a key on S3 for all directories."""


def by_directories(
    frame: DataFrame, columns: Sequence[str], written: Callable[[Column], Column] | None = None
) -> DataFrame:
    """Return the frame with the rows of each partition together. A job over it fails with `NO_NAME` if a value of these
    columns cannot be the name of a directory.

    `written`: returns the name of a value's directory, or a text of the same length. None: Spark's own name."""
    from pyspark.sql import functions as F

    schema = frame.schema
    places = {name: found for name in columns if (found := place_of(schema, name))}  # without generated columns
    if not places:
        return frame
    for name, (place, type) in places.items():
        if type.typeName() != "string":
            continue
        most = min(NAME_BYTES_MAX - len(f"{name}=".encode()), DIRECTORY_BYTES_MAX // len(columns))
        value = F.col(place)
        named = F.regexp_replace(value, ESCAPED, "%00") if written is None else written(value)
        said = F.lit(f"{NO_NAME}: that of {name} is too long, has a zero, or is {OF_NULLS}")
        is_none = (F.octet_length(named) > most) | value.contains("\0")
        if written is None:
            is_none |= value == OF_NULLS
        frame = frame.where(F.when(is_none, F.raise_error(said)).otherwise(True))
    return frame.hint("rebalance", *(place for place, _ in places.values()))
