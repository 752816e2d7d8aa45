"""What the benchmarks ask of a session of their own.

    python -m tests.benchmarks.spark_ways delays SINK BEGAN ENDED     milliseconds from put to commit, one a line
    python -m tests.benchmarks.spark_ways race                        two ways of handing a batch over

`race` runs the same records through the same pipeline into the same kind of sink, once as the host does it and once by
`createDataFrame` of a list of rows, by turns: way; records; wall, CPU of this process, CPU of the JVM in milliseconds.
"""

from __future__ import annotations

import os
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mld.processors.spark.batch import page_file
from mld.processors.spark.batch.page_file import write_records
from mld.processors.spark.batch.record_columns import SparkRecord
from mld.processors.spark.session import handover, spark_session
from mld.processors.spark.sinks.files import write
from mld.properties.spark import Format
from tests.benchmarks.path.records import FIRST_MS, sequence_number
from tests.benchmarks.path.subject import cpu_clock
from tests.benchmarks.spark_rig import PIPELINE
from tests.benchmarks.spark_stand import SCHEMA, payloads

OURS, ROWS = "the host's way", "createDataFrame(list of rows)"
BATCHES = {1_000: 24, 50_000: 10}
"""Records of a batch, and how often each way runs; the better half counts, when all is compiled."""
RECORD_BYTES = 1024


def started(directory: Path) -> Any:
    from mld.processors.spark.settings import load

    file = directory / "app.properties"
    file.write_text("mld.spark.pipeline = p.py:transform\nmld.spark.sink.out.path = out\napplicationName = ways\n")
    return spark_session.start(load(str(file), [], os.environ), directory)


def delays(sink: Path, began: float, ended: float, directory: Path) -> None:
    spark = started(directory)
    visible_s = {path.name: path.stat().st_ctime for path in sink.rglob("*.parquet")}
    frame = spark.read.parquet(str(sink)).selectExpr("_metadata.file_name", "unix_millis(approximateArrivalTimestamp)")
    for name, put_ms in frame.collect():
        if began * 1000 <= put_ms < ended * 1000:
            print(visible_s[name] * 1000 - put_ms)
    spark.stop()


def race(directory: Path) -> None:
    spark = started(directory)
    scope: dict[str, Any] = {}
    exec(PIPELINE, scope)
    for count, times in BATCHES.items():
        page = directory / f"{count}.parquet"
        write_records(page, _records(count))

        def ours(page: Path = page) -> Any:
            return spark.read.schema(handover.RAW).parquet(page.as_uri())

        def rows(page: Path = page) -> Any:
            return spark.createDataFrame([_row(record) for _, record in page_file.rows(page)], handover.RAW)

        found: dict[str, list[tuple[float, float, float]]] = {OURS: [], ROWS: []}
        for turn in range(times):
            for way, raw in ((OURS, ours), (ROWS, rows)):
                found[way].append(_measured(spark, scope["transform"], raw, directory / f"out-{count}-{turn}-{way[0]}"))
        for way, figures in found.items():
            best = sorted(figures[len(figures) // 2 :])[0]
            print(";".join([way, f"{count:,}", *(f"{1000 * value:.1f}" for value in best)]))
    spark.stop()


def _measured(spark: Any, transform: Callable[..., Any], raw: Callable[[], Any], out: Path) -> tuple[float, ...]:
    jvm = spark_session.jvm_pid(spark)
    assert jvm is not None
    wall, python, java = time.monotonic(), time.process_time(), time.clock_gettime(cpu_clock(jvm))
    records = handover.handed(raw(), Format.JSON, SCHEMA, divert=True).records
    write(transform(records, None), sink="out", format="parquet", options={}, mode="errorifexists", path=str(out))
    return (
        time.monotonic() - wall,
        time.process_time() - python,
        time.clock_gettime(cpu_clock(jvm)) - java,
    )


def _records(count: int) -> Iterator[SparkRecord]:
    for number, text in enumerate(payloads(count, RECORD_BYTES)):
        key, sequence = f"key-{number:08d}".encode(), sequence_number(number).encode()
        yield SparkRecord(b64decode(text), key, sequence, FIRST_MS + number, 0, b"stream", b"shardId-000000000000")


def _row(record: SparkRecord) -> tuple[object, ...]:
    texts = (record.key, record.sequence, record.stream, record.shard)
    key, sequence, stream, shard = (None if text is None else text.decode() for text in texts)
    return bytearray(record.data), key, sequence, record.arrival, record.sub, stream, shard


def main() -> None:
    directory = Path(os.environ["BENCH_DIRECTORY"])
    if sys.argv[1] == "delays":
        delays(Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), directory)
    else:
        race(directory)


if __name__ == "__main__":
    main()
