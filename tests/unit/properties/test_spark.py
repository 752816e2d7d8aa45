"""The keys of the Spark processor: what counts, what is refused, and how it is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mld.properties.lines import parse
from mld.properties.references import Sources
from mld.properties.remarks import ConfigurationError, Level
from mld.properties.spark import read
from mld.properties.spark_lines import SparkLines
from mld.properties.spark_places import taken_places
from mld.properties.spark_values import Format, OnPoison
from tests.unit.properties.conftest import FIRST_LINE_AFTER_MINIMUM, Configure, problems


def lines(text: str, *overrides: tuple[str, str]) -> SparkLines:
    return read("app.properties", parse(text.encode()), overrides, Sources({"LAKE": "/lake"}))


def errors(text: str) -> list[str]:
    return [str(remark) for remark in lines(text).remarks if remark.level is Level.ERROR]


def test_defaults() -> None:
    values = lines("streamName = s").values
    assert values["triggerIntervalMillis"] is None
    assert (values["onPoison"], values["master"], values["driverMemory"]) == (OnPoison.STOP, "local[*]", "1g")
    assert not lines("streamName = s").shown


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://h:6443", "local-cluster[2,1,1024]"])
def test_a_cluster_needs_a_spool_that_its_executors_read(master: str) -> None:
    text = f"mld.spark.master = {master}"
    (error,) = errors(text)
    assert "mld.spark.spool: is required by a master that is not local" in error
    assert errors(f"{text}\nmld.spark.spool = s3://bucket/spool") == []


def test_a_dead_letter_is_used_once_it_is_named() -> None:
    assert lines("mld.spark.deadLetter = /dead").values["onPoison"] is OnPoison.DEAD_LETTER
    assert lines("mld.spark.deadLetter = /dead\nmld.spark.onPoison = stop").values["onPoison"] is OnPoison.STOP


def test_sinks_options_and_spark_settings_have_free_names() -> None:
    found = lines(
        "mld.spark.sink.out.path = ${LAKE}/out\nmld.spark.sink.out.options.compression = zstd\n"
        "mld.spark.sink.minutes.format = json\nmld.spark.conf.spark.sql.ansi.enabled = false"
    )
    assert [(sink.name, dict(sink.values), dict(sink.options)) for sink in found.sinks] == [
        ("out", {"path": "/lake/out"}, {"compression": "zstd"}),
        ("minutes", {"format": "json"}, {}),
    ]
    assert found.conf == {"spark.sql.ansi.enabled": "false"}
    assert found.remarks == ()


def test_an_override_counts_and_so_does_the_last_line() -> None:
    text = "mld.spark.format = json\nmld.spark.format = text"
    assert lines(text).values["format"] is Format.TEXT
    assert lines(text, ("mld.spark.format", "binary")).values["format"] is Format.BINARY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mld.spark.pipelin = a.py:f", "did you mean mld.spark.pipeline?"),
        (
            "mld.spark.sink.out.pth = /x",
            "a sink has format, path, partitionBy, mode, keys, ",
        ),
        ("mld.spark.sink.path = /x", "mld.spark.sink.<name>"),
        ("mld.spark.format = yaml", "mld.spark.format: has no such value; use one of binary, json"),
        ("mld.spark.triggerIntervalMillis = 1", "mld.spark.triggerIntervalMillis"),
        ("mld.spark.format = json", "mld.spark.schema: is required"),
        ("mld.spark.sink.out.path = /x\nmld.spark.sink.out.writers = many", "has no such value; write one or shared"),
        ("mld.spark.onPoison = deadLetter", "there is no mld.spark.deadLetter"),
        ("mld.spark.sink.out.path = /x\nmld.spark.sink.out.partitionBy = day, hours(at)", "such as hours(at)"),
        ("mld.spark.sink.out.format = iceberg\nmld.spark.sink.out.partitionBy = bucket(id)", "what is no column"),
        ("mld.spark.maxInFlightBytes = 9", "remove it: it is twice mld.spark.maxBatchBytes"),
        ("mld.spark.attemptsMax = 5", "remove it: a record is searched for after 3 attempts"),
        ("mld.spark.retryBackoffMillis = 5", "remove it: the second attempt is after 0.5 s"),
        ("mld.spark.sink.out.path = ${NOWHERE}", "NOWHERE"),
        ("mld.spark.format = json\nmld.spark.schema = i INT, c VARCHAR(3)", "mld.spark.schema: has CHAR or VARCHAR"),
        ("mld.spark.format = jsonlines\nmld.spark.schema = a ARRAY<STRUCT<b: char (3)>>", "write STRING"),
    ],
)
def test_bad_input_gets_a_sentence(text: str, said: str) -> None:
    (error,) = errors(text)
    assert said in error


def test_the_daemon_refuses_to_start_with_a_bad_key(configure: Configure) -> None:
    pipeline = "mld.spark.pipeline = p.py:f"
    (found,) = problems(lambda: configure(f"{pipeline}\nmld.spark.speed = 9"))
    assert found.startswith("mld.spark.speed")
    loaded = configure(pipeline)
    row = loaded.effective[-1]
    assert (row.key, row.value, row.source) == (
        "mld.spark.pipeline",
        "p.py:f",
        f"{loaded.path}:{FIRST_LINE_AFTER_MINIMUM}",
    )


@pytest.mark.parametrize(
    ("program", "refused"), [("mld-spark", True), ("/opt/bin/mld-spark", True), ("mld-spark a.properties", False)]
)
def test_mld_spark_without_a_pipeline_is_refused(configure: Configure, program: str, refused: bool) -> None:
    line, without = f"executableName = {program}", ["executableName"]
    if not refused:
        configure(line, without=without)  # the keys are in the file that it names
        return
    with pytest.raises(ConfigurationError, match=r"there is no mld\.spark\.pipeline; name the pipeline"):
        configure(line, without=without)


ONE = "mld.spark.sink.one.path = /lake/x\n"
IN_A_DATABASE = (
    "mld.spark.sink.{0}.format = jdbc\nmld.spark.sink.{0}.options.url = jdbc:x\n"
    "mld.spark.sink.{0}.options.dbTable = {1}\n"
)


@pytest.mark.parametrize(
    "text",
    [
        ONE + "mld.spark.sink.two.path = /lake/x/",
        ONE + "mld.spark.sink.two.path = file:/lake//x",
        ONE + "mld.spark.sink.two.path = file:///lake/x\nmld.spark.sink.two.format = delta",
        ONE + "mld.spark.deadLetter = /lake/x",
        "mld.spark.sink.one.path = s3://b/x\nmld.spark.sink.two.path = s3a://b/x/",
        "mld.spark.sink.one.format = iceberg\nmld.spark.sink.one.path = l.d.t\n"
        "mld.spark.table.two = l.d.t\nmld.spark.catalog.l.type = rest\nmld.spark.catalog.l.uri = http://h",
        IN_A_DATABASE.format("one", "t") + IN_A_DATABASE.format("two", "t"),
    ],
)
def test_two_sinks_in_one_place_are_refused(text: str) -> None:
    (said,) = errors(text)
    assert "is in the same place as mld.spark." in said and "give each a place of its own" in said


@pytest.mark.parametrize(
    "text",
    [
        ONE + "mld.spark.sink.two.path = /lake/y\nmld.spark.deadLetter = /lake/x-dead",
        ONE + "mld.spark.sink.two.path = s3://lake/x\nmld.spark.sink.three.path = hdfs://lake/x",
        ONE + "mld.spark.sink.two.format = kafka\nmld.spark.sink.three.format = kafka",
        IN_A_DATABASE.format("one", "t") + IN_A_DATABASE.format("two", "u"),
    ],
)
def test_sinks_in_places_of_their_own_are_not(text: str) -> None:
    assert lines(text).remarks == ()


@pytest.mark.parametrize("path", ["s3:/lake/x", "S3A:lake", "s3:///x", "s3://"])
def test_a_place_on_s3_names_its_bucket(path: str) -> None:
    for key in ("mld.spark.sink.two.path", "mld.spark.deadLetter"):
        (said,) = errors(f"{ONE}{key} = {path}")
        assert key in said and "names no bucket" in said and "write s3://bucket/directory" in said
    assert lines(f"{ONE}mld.spark.deadLetter = s3://lake/dead").remarks == ()


def test_a_misspelled_format_is_remarked_upon() -> None:
    (remark,) = lines("mld.spark.sink.out.format = parquett").remarks
    assert (remark.level, remark.key) == (Level.WARNING, "mld.spark.sink.out.format")
    assert "did you mean parquet?" in str(remark)
    assert lines("mld.spark.sink.out.format = mongodb").remarks == ()


@pytest.mark.parametrize("name", ["compactFiles", "sink.out.compact", "glue.endpoint", "s3.timeoutMillis"])
def test_a_key_that_has_left_and_does_no_harm_is_ignored_with_its_remedy(name: str) -> None:
    (remark,) = lines(f"mld.spark.{name} = 3").remarks
    assert (remark.level, remark.key) == (Level.WARNING, f"mld.spark.{name}")
    assert "is ignored" in remark.message and remark.remedy


@pytest.mark.parametrize(
    "name",
    ["sink.out.glueTable", "remote", "javaHome", "archives", "latency", "alignMillis", "glue.region"]
    + ["networkFileSystem", "pyFiles"],
)
def test_a_key_that_has_left_and_is_missed_is_refused_with_its_remedy(name: str) -> None:
    (said,) = errors(f"mld.spark.{name} = x")
    assert f"mld.spark.{name}: is a key of mld 0.2 and no longer there; " in said


def test_partitions_of_iceberg_may_be_hours_of_a_column_and_are_shown_as_they_are() -> None:
    table = "mld.spark.table.out = l.d.t\nmld.spark.catalog.l.type = rest\nmld.spark.catalog.l.uri = http://h"
    found = lines(f"{table}\nmld.spark.sink.out.partitionBy = day, hours(at)")
    assert not [remark for remark in found.remarks if remark.level is Level.ERROR]
    assert found.shown["mld.spark.sink.out.partitionBy"][0] == "day, hours(at)"


@pytest.mark.parametrize("name", ["_delta_log", "_spark_metadata"])
@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ("mld.spark.sink.out.path = {place}", "mld.spark.sink.out.path"),
        ("mld.spark.sink.out.path = file:{place}/\nmld.spark.sink.out.format = json", "mld.spark.sink.out.path"),
        ("mld.spark.deadLetter = {place}", "mld.spark.deadLetter"),
        ("mld.spark.sink.out.path = {place}\nmld.spark.sink.out.format = delta", None),
        ("mld.spark.sink.out.path = s3://{place}", None),
    ],
)
def test_plain_files_in_the_directory_of_a_table_are_refused(
    tmp_path: Path, name: str, keys: str, refused: str | None
) -> None:
    (tmp_path / "table" / name).mkdir(parents=True)
    text = keys.format(place=tmp_path / "table")
    remarks = list(taken_places(lines(text), os.path.exists))
    assert [one.key for one in remarks] == ([refused] if refused else [])
    assert all(f"has {name}, as a " in str(one) and "use a new directory" in str(one) for one in remarks)


@pytest.mark.parametrize("schema", ["`char(3)` INT, char STRING", "a STRING COMMENT 'was varchar(3)'", "a STRING"])
def test_names_and_comments_are_no_types(schema: str) -> None:
    assert errors(f"mld.spark.format = json\nmld.spark.schema = {schema}") == []


SPOOLED = "mld.spark.master = yarn\nmld.spark.sink.out.path = s3a://lake/a/out\nmld.spark.deadLetter = /lake/dead\n"


@pytest.mark.parametrize("spool", ["s3://lake", "s3a://lake/", "S3://other//"])
def test_a_spool_is_no_whole_bucket(spool: str) -> None:
    said = errors(f"{SPOOLED}mld.spark.spool = {spool}")
    assert any("mld.spark.spool: is a whole bucket, in which old pages are deleted" in one for one in said)


@pytest.mark.parametrize(
    "spool", ["s3://lake/a", "s3://lake/a/out", "s3n://lake/a/out/spool/", "file:///lake", "/lake/dead/spool"]
)
def test_a_spool_shares_no_directory_with_a_sink_or_letters(spool: str) -> None:
    (said,) = errors(f"{SPOOLED}mld.spark.spool = {spool}")
    assert "mld.spark.spool: has what mld.spark." in said and "give it a directory of its own" in said


@pytest.mark.parametrize("spool", ["s3://lake/a/outer", "s3://lake/spool", "s3://other/a/out", "/lake/deadly"])
def test_a_spool_beside_them_is_fine(spool: str) -> None:
    assert errors(f"{SPOOLED}mld.spark.spool = {spool}") == []
