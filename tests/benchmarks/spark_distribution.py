"""How much of a batch passes through the driver, and what it costs the executors of a cluster beside plain Spark.

    python -m tests.benchmarks.spark_distribution [--executors 1,2,4] [--megabytes 384]

A standalone cluster of PySpark on loopback, executors of one core; spool, sink and input in a bucket of versitygw
(`make test-s3` builds it). The same events of 1 KB, through the same pipeline, into Parquet on S3, by turns: as pages
that children have written and the host copies to the spool, exactly once; and by plain jobs of Spark, with its own
committer: one reads files of JSON lines, the other one the same pages by `from_json`, and counts what is malformed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mld.processors.spark.batch.micro_batch import Offer, plan
from mld.processors.spark.batch.page_file import PageWriter, SpoolPage
from mld.processors.spark.batch.record_columns import RecordColumns
from mld.processors.spark.positions import StreamShard
from mld.processors.spark.session.session_health import jvm_of
from tests.benchmarks.path.subject import cpu_clock
from tests.benchmarks.spark_rig import PIPELINE
from tests.benchmarks.spark_stand import SCHEMA, payloads
from tests.support.s3_servers import SECRET, Versitygw
from tests.support.servers import ACCOUNT
from tests.support.spark_bed import Bed, bed
from tests.support.spark_servers import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAGE_RECORDS = 16_000
"""Some 16 MB, as a page that is complete."""
WARM_PAGES = 4
TURNS = 3
MEGABYTE = 1_000_000
CONF = {
    "spark.executor.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: seconds, CPU seconds of the executors and the driver, bytes that the driver has read and written."""

    wall_s: float
    executors_s: float
    driver_s: float
    driver_bytes: int


class Meter:
    """Counts what a session uses while a block runs. A socket's bytes count as a file's."""

    def __init__(self, driver: int) -> None:
        self._driver = driver

    def _now(self) -> tuple[float, float, float, int]:
        executors = sum(time.clock_gettime(cpu_clock(pid)) for pid in _executors())
        fields = dict(line.split(": ") for line in Path(f"/proc/{self._driver}/io").read_text().splitlines())
        moved = int(fields["rchar"]) + int(fields["wchar"])
        return time.monotonic(), executors, time.clock_gettime(cpu_clock(self._driver)), moved

    def cost(self, before: tuple[float, float, float, int]) -> Cost:
        wall, executors, driver, moved = (now - then for now, then in zip(self._now(), before, strict=True))
        return Cost(wall, executors, driver, int(moved))

    @property
    def now(self) -> tuple[float, float, float, int]:
        return self._now()


def _executors() -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"CoarseGrainedExecutorBackend" in path.read_bytes():
                yield int(path.parent.name)
        except OSError:
            continue


class Stand:
    """A session on a cluster, and events for it."""

    def __init__(self, made: Bed, server: Versitygw, bucket: str, texts: list[bytes]) -> None:
        self._made, self._bucket, self._texts = made, bucket, texts
        self._s3 = server.client("s3")
        self._pages = self._sequence = self._outputs = 0
        jvm = jvm_of(made.spark)
        pid = jvm.pid if jvm else None
        assert pid is not None
        self.meter = Meter(pid)

    def plain_files(self, pages: int) -> None:
        for number in range(pages):
            body = b"".join(text + b"\n" for text in self._texts)
            self._s3.put_object(Bucket=self._bucket, Key=f"plain/{number}.json", Body=body)

            page = self._made.spool.page(0, number)
            self._write(page, StreamShard("s", "shardId-000000000000"))
            self._s3.put_object(Bucket=self._bucket, Key=f"plain/{number}.parquet", Body=page.read_bytes())
            page.unlink()

    def lines(self, pages: int) -> Cost:
        paths = [f"s3a://{self._bucket}/plain/{number}.json" for number in range(pages)]
        before = self.meter.now
        self._publish(self._made.spark.read.schema(SCHEMA).option("mode", "FAILFAST").json(paths))
        return self.meter.cost(before)

    def pages(self, pages: int) -> Cost:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        paths = [f"s3a://{self._bucket}/plain/{number}.parquet" for number in range(pages)]
        before = self.meter.now
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
        payload = F.from_json(F.col("data").cast("string"), f"{SCHEMA}, bad STRING", options)
        read = self._made.spark.read.parquet(*paths).withColumn("payload", payload)
        counted = read.observe(Observation(), F.count("payload.bad").alias("malformed")).where("payload.bad IS NULL")
        arrival = F.timestamp_millis("approximateArrivalTimestamp").alias("arrival")
        self._publish(counted.select("h", "sequenceNumber", arrival, "payload.*").drop("bad"))
        return self.meter.cost(before)

    def _publish(self, frame: DataFrame) -> None:
        self._outputs += 1
        frame.where("kind <> 'bot'").write.parquet(f"s3a://{self._bucket}/plain-out/{self._outputs}")

    def ours(self, pages: int) -> Cost:
        offers = [self._offer() for _ in range(pages)]
        before = self.meter.now
        for offer in offers:
            self._made.spool.offered(offer)
        outcome = self._made.engine.run(plan(offers, {}))
        cost = self.meter.cost(before)
        assert not outcome.failed, outcome.failed
        for offer in offers:
            self._made.spool.remove(self._made.spool.page(offer.link, offer.number))
        return cost

    def _offer(self) -> Offer:
        self._pages += 1
        shard = StreamShard("s", f"shardId-{self._pages % 4:012d}")
        page = self._write(self._made.spool.page(1, self._pages), shard)
        size = sum(4 * len(text) // 3 for text in self._texts)
        return Offer(1, self._pages, shard, page.first, page.last, page.records, size)

    def _write(self, path: Path, shard: StreamShard) -> SpoolPage:
        """Write a page as a child does."""
        writer = PageWriter(path, shard)
        for start in range(0, len(self._texts), 250):
            texts = self._texts[start : start + 250]
            sequences = [b"%056d" % (10**55 + self._sequence + number) for number in range(len(texts))]
            self._sequence += len(texts)
            count, size = len(texts), sum(4 * len(text) // 3 for text in texts)
            writer.add(RecordColumns(texts, [b"k"] * count, sequences, [1] * count, [0] * count, size))
        return writer.close()


def measured(executors: int, server: Versitygw, megabytes: int, directory: Path) -> list[tuple[str, Cost]]:
    texts = [b64decode(text) for text in payloads(PAGE_RECORDS, 1024)]
    pages = max(1, megabytes * MEGABYTE // sum(map(len, texts)))
    bucket = f"b-{uuid4().hex}"
    server.client("s3").create_bucket(Bucket=bucket)
    one = Cluster(directory, workers=executors, memory="1200m")
    try:
        one.start()
        keys = {
            "master": one.url,
            "spool": f"s3://{bucket}/spool",
            "format": "json",
            "schema": SCHEMA,
            "sink.out.format": "parquet",
            "sink.out.path": f"s3://{bucket}/out",
            "sink.out.files": "many",
            "s3.endpoint": server.endpoint,
            "s3.region": "us-east-1",
            "s3.pathStyle": "true",
            **{f"conf.{name}": value for name, value in CONF.items()},
        }
        with bed(directory, PIPELINE, *(f"mld.spark.{name} = {value}" for name, value in keys.items())) as made:
            stand = Stand(made, server, bucket, texts)
            stand.plain_files(pages)
            found = []
            for turn in range(TURNS + 1):
                count = pages if turn else min(pages, WARM_PAGES)
                for way in (stand.ours, stand.lines, stand.pages):
                    cost = way(count)
                    if turn:
                        found.append((way.__name__, cost))
            return found
    finally:
        one.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.spark_distribution", description=__doc__)
    parser.add_argument("--executors", default="1,2,4")
    parser.add_argument("--megabytes", type=int, default=384)
    arguments = parser.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID=ACCOUNT, AWS_SECRET_ACCESS_KEY=SECRET, SPARK_LOCAL_IP="127.0.0.1")
    columns = "executors", "way", "MB/s", "executors' CPU s/GB", "driver's CPU s/GB", "through the driver, of the input"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    with Versitygw() as server:
        for executors in map(int, arguments.executors.split(",")):
            with tempfile.TemporaryDirectory(prefix="mld-distribution-") as directory:
                found = measured(executors, server, arguments.megabytes, Path(directory))
            best: dict[str, Cost] = {}
            for way, cost in found:
                if way not in best or cost.executors_s < best[way].executors_s:
                    best[way] = cost
            size = arguments.megabytes * MEGABYTE
            for way, cost in best.items():
                figures = f"{size / MEGABYTE / cost.wall_s:.0f} | {cost.executors_s * 1e9 / size:.1f}"
                driver = f"{cost.driver_s * 1e9 / size:.1f} | {cost.driver_bytes / size:.2%}"
                print(f"| {executors} | {way} | {figures} | {driver} |")
            for plain in ("lines", "pages"):
                ratio = best["ours"].executors_s / best[plain].executors_s
                print(f"| {executors} | ours to plain {plain} |  | {ratio:.2f} |  |  |", flush=True)


if __name__ == "__main__":
    main()
