"""Brings the rows of each partition of a batch together, by Spark's `rebalance`, so that each directory gets few files.

A value that cannot be the name of a directory makes the job fail with a message of our own (`NO_NAME`), by which it is
known that a record is at fault, and not the sink. This module adds steps to a frame and runs no job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mld.processors.spark.sentences import NO_NAME
from mld.processors.spark.sinks.columns import place_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ESCAPED = r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
"""Matches the characters that Spark escapes in the name of a directory, each by three characters."""
OF_NULLS = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name for the directory of rows whose value is NULL or the empty string."""
NAME_BYTES_MAX, DIRECTORY_BYTES_MAX = 255, 700
"""Longest name in a file system, and greatest length of all partition directories together in a key on S3."""


def by_directories(
    frame: DataFrame, columns: Sequence[str], written: Callable[[Column], Column] | None = None
) -> DataFrame:
    """Return the frame with the rows of each partition together. A job over it fails with the message `NO_NAME` if a
    value of these columns cannot be the name of a directory.

    `written` returns the name of the directory for a value, or a text of the same length: only the length is checked.
    None means that Spark makes the name."""
    from pyspark.sql import functions as F

    schema = frame.schema
    places = {name: found for name in columns if (found := place_of(schema, name))}  # the frame lacks generated columns
    if not places:
        return frame
    for name, (place, type) in places.items():
        if type.typeName() != "string":  # other values have short names
            continue
        bytes_max = min(NAME_BYTES_MAX - len(f"{name}=".encode()), DIRECTORY_BYTES_MAX // len(columns))
        value = F.col(place)
        named = F.regexp_replace(value, ESCAPED, "%00") if written is None else written(value)  # of the same length
        why = F.lit(f"{NO_NAME}: that of {name} is too long, has a zero, or is {OF_NULLS}")
        is_no_name = (F.octet_length(named) > bytes_max) | value.contains("\0")
        if written is None:
            is_no_name |= value == OF_NULLS
        frame = frame.where(F.when(is_no_name, F.raise_error(why)).otherwise(True))
    return frame.hint("rebalance", *(place for place, _ in places.values()))
