"""``python -m tests.benchmarks.poison``: what a micro-batch takes in which one record of a thousand fails.

One session for all, as in production; each batch has a pipeline, sinks and a dead letter of its own. How long the same
batch takes without the bad records stands beside it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from mld.processors.spark.testing import session
from tests.benchmarks.tables import load_average
from tests.support.spark_bed import engine_bed, rows

BAD = 1_000
"""One record of so many fails."""
KEYS = ("mld.spark.format = json", "mld.spark.schema = n INT, kind STRING")
PIPELINES = {
    "sql": """
def transform(records, batch):
    return records.selectExpr("payload.n", "CAST(payload.kind AS INT) AS kind")
""",
    "udf": """
from pyspark.sql import functions as F

def transform(records, batch):
    return records.select("payload.n", F.udf(lambda text: int(text), "int")("payload.kind").alias("kind"))
""",
    "pandas": """
from pyspark.sql import functions as F

def transform(records, batch):
    return records.select("payload.n", F.pandas_udf(lambda texts: texts.astype(int), "int")("payload.kind"))
""",
    "stacked": """
from pyspark.sql import functions as F

def transform(records, batch):
    number, half = F.udf(lambda text: int(text), "int"), F.udf(lambda n: n // 2, "int")
    return records.select("payload.n", half(number("payload.kind")).alias("kind"))
""",
    "registered": """
def transform(records, batch):
    records.sparkSession.udf.register("number", lambda text: int(text), "int")
    return records.selectExpr("payload.n", "number(payload.kind) AS kind")
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.poison", description=__doc__)
    parser.add_argument("pipelines", nargs="*", help=f"any of {', '.join(PIPELINES)}; default: all")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--cores", type=int, default=2)
    arguments = parser.parse_args()
    spark = session(arguments.cores)
    print(f"load average at the start: {load_average()}\n\n| pipeline | all good | 0.1 % bad | | the next one | |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="mld-poison-") as scratch:
        for name in arguments.pipelines or PIPELINES:
            bed = engine_bed(spark, _made(Path(scratch) / name), PIPELINES[name], *KEYS)
            took = []
            for turn, bad in enumerate((0, 0, BAD, BAD)):  # the first one warms the session up
                begin = turn * arguments.records
                numbers = range(begin + 1, begin + 1 + arguments.records)
                data = {n: _event(n, "x" if bad and n % bad == 7 else "5") for n in numbers}
                began = time.monotonic()
                assert bed.run(data, after=begin).failed == {}
                took.append(time.monotonic() - began)
            assert len(rows(Path(scratch) / name / "dead")) == 2 * len([n for n in numbers if n % BAD == 7])
            bad_ones = " | ".join(f"{took_s:.1f} s | {took_s / took[1]:.1f}" for took_s in took[2:])
            print(f"| {name} | {took[1]:.1f} s | {bad_ones} |", flush=True)
    spark.stop()
    print(f"\nload average at the end: {load_average()}")


def _event(n: int, kind: str) -> bytes:
    return json.dumps({"n": n, "kind": kind}).encode()


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


if __name__ == "__main__":
    main()
