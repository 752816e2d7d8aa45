"""Finds the directory, or the store, that a path or URI of the settings names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from processors.spark.commit import hadoop_store
from processors.spark.commit.store import PosixStore, Store
from processors.spark.sink_port import SinkRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ELSEWHERE = ", hdfs, or format delta or iceberg"


def store_at(path: str, key: str, spark: SparkSession, *, private: bool = False) -> Store:
    if hadoop_store.named(path):
        return hadoop_store.HadoopStore(spark, path, key)
    return PosixStore(local_directory(path, key, elsewhere=ELSEWHERE), private=private)


def local_directory(path: str, key: str, *, elsewhere: str = "") -> Path:
    """The directory that a path or `file:` URI names. Raises SinkRefused for other file systems.

    `elsewhere`: what there is for them instead."""
    scheme, colon, rest = path.partition(":")
    if colon and "/" not in scheme and scheme != "file" and rest.startswith("/"):
        remedy = f"use a directory of this host's file system (NFS is one){elsewhere}"
        if hadoop_store.named(path):
            raise SinkRefused(
                f"{key} = {path}: only sinks, mld.spark.deadLetter and mld.spark.ledger go to hdfs; {remedy}"
            )
        raise SinkRefused(
            f"{key} = {path}: {scheme} has no rename that is known to be one step and to fail if the target exists, "
            f"which exactly-once files need; {remedy}"
        )
    if colon and scheme == "file":
        path = f"/{rest.lstrip('/')}"
    return Path(os.path.abspath(path))  # noqa: PTH100 - a symbolic link stays one
