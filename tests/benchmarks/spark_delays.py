"""Milliseconds from the put of each record to the rename that made its commit visible, one a line.

python -m tests.benchmarks.spark_delays SINK BEGAN ENDED     of the records put between, in a session of its own
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mld.processors.spark.session import spark_session
from mld.processors.spark.settings import load


def main() -> None:
    directory, sink, began, ended = Path(os.environ["BENCH_DIRECTORY"]), Path(sys.argv[1]), *map(float, sys.argv[2:])
    file = directory / "app.properties"
    file.write_text("mld.spark.pipeline = p.py:transform\nmld.spark.sink.out.path = out\napplicationName = delays\n")
    spark = spark_session.start(load(str(file), [], os.environ), directory)
    visible_s = {path.name: path.stat().st_ctime for path in sink.rglob("*.parquet")}
    frame = spark.read.parquet(str(sink)).selectExpr("_metadata.file_name", "unix_millis(approximateArrivalTimestamp)")
    for name, put_ms in frame.collect():
        if began * 1000 <= put_ms < ended * 1000:
            print(visible_s[name] * 1000 - put_ms)
    spark.stop()


if __name__ == "__main__":
    main()
