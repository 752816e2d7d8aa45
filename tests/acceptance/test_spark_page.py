"""docs/use/spark.md as a new user follows it: its files are taken from the page, word for word, and the tests of a
pipeline from docs/use/spark-pipeline.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mld.check.command import print_check
from mld.processors.spark import child
from mld.properties.lines import parse
from mld.quickstart.lineage import Put, click_events, expected
from tests.acceptance.commands import ROOT
from tests.support.daemon import Daemon, until
from tests.support.page_blocks import USE, block
from tests.support.servers import ACCOUNT, EmbeddedAws, Ministack

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")


def keys(properties: str) -> dict[str, str]:
    return {entry.key: entry.value.strip() for entry in parse(properties.encode())}


def file_of(entries: dict[str, str]) -> str:
    return "".join(f"{key} = {value}\n" for key, value in entries.items())


SPARK = "spark.md"
PIPELINE = block("python", "<> 'bot'", SPARK)
PUT = block("python", "put_record", SPARK)
LOOK = block("python", ".show()", SPARK)
TEST = block("python", "test_bots_are_dropped", "spark-pipeline.md")
ON_S3 = block("properties", "s3://my-lake/clicks\n", SPARK)
IN_ICEBERG = block("properties", "catalog.lake.type", SPARK)
LOCAL = block("properties", "triggerIntervalMillis = 1000", SPARK)
INSTEAD = {
    "database": block("properties", "format = jdbc", SPARK),
    "Delta": block("properties", "format = delta", SPARK),
}
"""What the page puts in place of the sink's path."""
PROPERTIES = file_of({**keys(ON_S3), **keys(LOCAL)})
RECIPES = re.findall(r"```properties\n(.*?)```", (USE / "spark-clusters.md").read_text("utf-8"), re.DOTALL)
SAMPLE = (ROOT / "properties" / "samples" / "spark.properties").read_text("utf-8")
SESSION_S = 400.0
"""A JVM that shares its cores takes its time; on a quiet machine it is seconds."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    (tmp_path / "test_pipeline.py").write_text(TEST)
    (tmp_path / "app.properties").write_text(PROPERTIES)
    return tmp_path


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=SESSION_S)


@pytest.mark.parametrize("properties", [ON_S3, IN_ICEBERG], ids=["S3 and Parquet", "S3 and Iceberg"])
def test_the_files_of_the_lake_have_at_most_15_lines_each(properties: str) -> None:
    assert len(properties.splitlines()) <= 15 and len(PIPELINE.splitlines()) <= 15


def without_path(properties: str) -> str:
    return "".join(line for line in properties.splitlines(keepends=True) if ".path = s3:" not in line)


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(ON_S3, id="S3 and Parquet"),
        pytest.param(IN_ICEBERG, id="S3 and Iceberg"),
        pytest.param(PROPERTIES, id="without AWS"),
        *(pytest.param(without_path(ON_S3) + lines, id=kind) for kind, lines in INSTEAD.items()),
        *(pytest.param(IN_ICEBERG + lines, id=f"recipe {number}") for number, lines in enumerate(RECIPES, start=1)),
    ],
)
def test_check_has_nothing_to_say_against_the_settings(
    place: Path, properties: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAME", "mld-0")
    secret = place / "lake"
    secret.write_text("secret")
    secret.chmod(0o600)
    (place / "app.properties").write_text(properties.replace("/run/secrets/lake", str(secret)))
    assert print_check(str(place / "app.properties"), (), as_json=False, show_all=False) == 0
    assert "0 error(s), 0 warning(s)" in capsys.readouterr().out


def checked(place: Path) -> subprocess.CompletedProcess[str]:
    return python("-P", "-m", child.__name__, "--check", "app.properties", cwd=place)


def test_mld_spark_looks_at_java_pyspark_and_the_pipeline(place: Path) -> None:
    good = checked(place)
    assert good.returncode == 0, good.stderr
    assert re.fullmatch(r"PySpark [\d.]+, Java at /\S+, pipeline pipeline\.py:transform: ready to start\n", good.stdout)
    (place / "pipeline.py").write_text(PIPELINE.replace("def transform(", "def transfrom("))
    bad = checked(place)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "pipeline.py has no function transform; it has transfrom (key mld.spark.pipeline)" in bad.stderr


def test_a_user_s_test_without_java_gets_the_sentence_too(place: Path) -> None:
    bad = python("-c", LOOK, cwd=place, PATH=str(place), JAVA_HOME="")
    assert bad.returncode == 1
    assert "Spark needs Java, and there is none on PATH; install a JRE 17 or later" in bad.stderr


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_test_of_the_page_passes_and_bites(place: Path) -> None:
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pipeline.py")
    good = python(*arguments, cwd=place)
    assert good.returncode == 0, good.stdout + good.stderr
    (place / "pipeline.py").write_text(PIPELINE.replace("<> 'bot'", "= 'bot'"))
    bad = python(*arguments, cwd=place)
    assert bad.returncode == 1, bad.stdout + bad.stderr


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_first_pipeline_runs_on_the_embedded_aws(place: Path, aws: EmbeddedAws) -> None:
    shell = {"AWS_ENDPOINT_URL": aws.endpoint, "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    put = python("-c", PUT, cwd=place, **shell)
    assert put.returncode == 0, put.stderr
    given = {**keys(PROPERTIES), "shutdownGraceMillis": "150000"}
    with Daemon(place, given, name="app", environment=shell, cwd=place) as daemon:
        # The two shards may come in two triggers on a busy machine.
        def counts(word: str) -> int:
            return sum(int(n) for line in daemon.lines for n in re.findall(rf"trigger: .*?{word}=(\d+)", line))

        until(lambda: counts("records") == 100, SESSION_S, "all records in the log's trigger lines")
        assert counts("rows") == 66
        assert daemon.stop(timeout_s=200) == 0
    look = python("-c", LOOK, cwd=place)
    assert look.returncode == 0, look.stderr
    users = re.findall(r"\| +(u\d+)\| *view *\|2026-01-02 03:04:05\|", look.stdout)
    assert len(users) == 20 and users == sorted(users), look.stdout


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_file_for_s3_runs_on_a_store_of_others(place: Path, aws: EmbeddedAws, ministack: Ministack) -> None:
    store = ministack.client("s3")
    store.create_bucket(Bucket="my-lake")
    shell = {"AWS_ENDPOINT_URL": aws.endpoint, "AWS_ACCESS_KEY_ID": ACCOUNT, "AWS_SECRET_ACCESS_KEY": "local"}
    put = python("-c", PUT.replace('"clicks"', '"clicks-s3"'), cwd=place, **shell)
    assert put.returncode == 0, put.stderr
    given = keys(ON_S3) | dict.fromkeys(("streamName", "applicationName"), "clicks-s3")
    given |= {"mld.spark.s3.endpoint": ministack.endpoint, "mld.spark.s3.pathStyle": "true"}
    given["shutdownGraceMillis"] = "150000"
    with Daemon(place, given, name="app", environment=shell, cwd=place) as daemon:

        def files() -> list[str]:
            found = store.list_objects_v2(Bucket="my-lake", Prefix="clicks/c").get("Contents", ())
            return [one["Key"] for one in found]

        rows = re.compile(r"trigger: .*?rows=(\d+)")
        until(lambda: sum(map(int, rows.findall("\n".join(daemon.lines)))) == 66, SESSION_S, "all records")
        assert daemon.stop(timeout_s=200) == 0
    for name in files():
        copy = place / "data" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(store.get_object(Bucket="my-lake", Key=name)["Body"].read())
    look = python("-c", LOOK.replace(".show()", ".count() == 66 or exit(3)"), cwd=place)
    assert look.returncode == 0, look.stderr


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_example_pipeline_gives_what_the_tour_expects() -> None:
    from mld.processors.samples.clicks import transform
    from mld.processors.spark.testing import batch, records, session

    [schema] = re.findall(r"mld\.spark\.schema = (.*?)\n\n", SAMPLE, re.DOTALL)
    events = [event.data for event in click_events(400, seed=3, start_s=1_767_225_599.0)]
    put = [Put("s", number, data.decode()) for number, data in enumerate(events, start=1)]
    given = records(session(), events, format="json", schema=schema.replace("\\\n", ""), shard="s")
    frames = transform(given, batch(len(events)))
    wanted = expected(put)
    rows = [(row.shardId, int(row.sequenceNumber), row.event_id) for row in frames["clicks"].collect()]
    assert sorted(rows) == sorted(wanted.rows)
    minutes = {
        (int(row.minute.timestamp()), row.section): (row.clicks, row.load_ms) for row in frames["per_minute"].collect()
    }
    assert minutes == {cell: (sums.clicks, sums.load_ms) for cell, sums in wanted.minutes.items()}
    assert len({minute for minute, _ in minutes}) == 2
    products = {row.page: row["product"] for row in frames["clicks"].collect()}
    assert products["/"] is None
    assert all(product == int(page.rpartition("/")[2]) for page, product in products.items() if "product" in page)
