"""What is checked and set before a session starts; a child that stays thin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mld.processors.spark.session.java import Java, find_java
from mld.processors.spark.session.spark_session import (
    AVRO_LIMITS,
    JVM_OPTIONS,
    check_extra,
    configuration,
    local_cores,
)
from mld.processors.spark.session_errors import SessionError
from tests.unit.spark.twins import settings_of


def fake_java(directory, says, status=0):
    (directory / "bin").mkdir(parents=True)
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    java.chmod(0o755)
    return directory


def test_java_of_the_environment_then_on_the_path(tmp_path):
    home = fake_java(tmp_path / "home", 'openjdk version "21" 2023-09-19')
    path = fake_java(tmp_path / "path", 'openjdk version "25-ea"')
    env = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert find_java(env) == Java(home, 21)
    assert find_java({"PATH": env["PATH"]}) == Java(path, 25)


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ('java version "1.8.0_392"', "is Java 8; Spark 4 needs 17 or later"),
        ('openjdk version "11.0.2"', "is Java 11; Spark 4 needs 17 or later"),
        ("Error: could not find libjava.so", "does not say its version"),
    ],
)
def test_the_wrong_java_gets_a_sentence(tmp_path, says, said):
    with pytest.raises(SessionError, match=said) as caught:
        find_java({"JAVA_HOME": str(fake_java(tmp_path / "jre", says))})
    assert "or set JAVA_HOME" in str(caught.value)


def test_no_java_gets_a_sentence(tmp_path):
    with pytest.raises(SessionError, match="Spark needs Java, and there is none on PATH; install a JRE 17"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(SessionError, match=r"JAVA_HOME is .*, and there is no .*bin/java"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_missing_extra_gets_a_sentence(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "modules", {name: module for name, module in sys.modules.items() if "pyspark" not in name})
    sys.path_importer_cache.clear()
    with pytest.raises(
        SessionError, match=r"PySpark is missing in the environment of .*; pip install 'mld-kinesis\[spark\]'"
    ):
        check_extra()


def test_what_the_user_sets_wins_and_the_bounds_stay(tmp_path):
    made = configuration(
        settings_of(
            "mld.spark.driverMemory = 3g",
            "mld.spark.conf.spark.sql.shuffle.partitions = 7",
            "mld.spark.conf.spark.driver.extraJavaOptions = -Dmine=1",
        ),
        tmp_path,
    )
    assert (made["spark.driver.memory"], made["spark.sql.shuffle.partitions"]) == ("3g", "7")
    assert made["spark.driver.extraJavaOptions"].startswith(JVM_OPTIONS)
    assert made["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert (made["spark.driver.host"], made["spark.sql.session.timeZone"]) == ("127.0.0.1", "UTC")


@pytest.mark.parametrize("master", ["local[2]", "spark://h:7077"])
def test_lengths_in_avro_are_bounded_in_every_jvm(tmp_path, master):
    keys = [f"mld.spark.master = {master}", "mld.spark.conf.spark.executor.extraJavaOptions = -Dmine=1"]
    avro = configuration(settings_of(*keys, "mld.spark.format = avro"), tmp_path)
    assert avro["spark.driver.extraJavaOptions"].endswith(f" {AVRO_LIMITS}")
    assert avro["spark.executor.extraJavaOptions"] == f"{AVRO_LIMITS} -Dmine=1"
    assert configuration(settings_of(*keys), tmp_path)["spark.executor.extraJavaOptions"] == "-Dmine=1"


@pytest.mark.parametrize(("there", "wanted"), [(("pandas", "pyarrow"), None), (("pandas",), "false"), ((), "false")])
def test_arrow_for_python_functions_is_off_where_it_cannot_be(tmp_path, monkeypatch, there, wanted):
    monkeypatch.setattr("mld.processors.spark.session.spark_session._is_installed", lambda module: module in there)
    name = "spark.sql.execution.pythonUDF.arrow.enabled"
    assert configuration(settings_of(), tmp_path).get(name) == wanted
    assert configuration(settings_of(f"mld.spark.conf.{name} = true"), tmp_path)[name] == "true"


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[*]", os.cpu_count()), ("local[2,4]", 2)]
)
def test_cores(master, cores):
    assert local_cores(master) == cores


def test_a_child_is_thin():
    heavy = ["pyspark", "py4j", "asyncio", "dataclasses", "inspect", "logging", "subprocess", "typing_extensions"]
    code = "import mld.processors.spark.child, sys; print(sorted(set(sys.argv[1:]) & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def mld_spark(*arguments):
    command = [sys.executable, "-m", "mld.processors.spark.child", *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_says_what_there_is(option):
    asked = mld_spark(option)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith("usage: mld-spark [APP.properties]") and "--check" in asked.stdout


@pytest.mark.parametrize("arguments", [("--chek",), ("--chek", "app.properties"), ("a", "b")])
def test_what_is_not_understood_is_told_with_the_usage(arguments):
    asked = mld_spark(*arguments)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert f"mld-spark: {' '.join(arguments)}: not understood\nusage: mld-spark" in asked.stderr


def test_a_local_driver_asks_who_calls_and_has_no_ui(tmp_path):
    def closed(*keys: str) -> list[str]:
        made = configuration(settings_of(*keys), tmp_path)
        assert not any("secret" in name for name in made), "Spark makes the secret, and no setting holds it"
        return [made[f"spark.{name}"] for name in ("authenticate", "ui.enabled", "ui.killEnabled")]

    assert closed() == ["true", "false", "false"]
    theirs = ("mld.spark.conf.spark.ui.enabled = true", "mld.spark.conf.spark.authenticate = false")
    assert closed(*theirs) == ["false", "true", "false"]


def test_of_a_cluster_the_user_says_how_it_authenticates_but_nobody_kills_by_a_click(tmp_path):
    made = configuration(settings_of("mld.spark.master = yarn"), tmp_path)
    assert "spark.authenticate" not in made and "spark.ui.enabled" not in made
    assert made["spark.ui.killEnabled"] == "false"


@pytest.mark.parametrize("name", ["fs.azure.account.key.x.dfs.core.windows.net", "fs.s3a.secret.key", "my.private.key"])
def test_what_spark_shows_of_its_settings_has_no_keys_of_stores(tmp_path, name):
    assert re.search(configuration(settings_of(), tmp_path)["spark.redaction.regex"], f"spark.hadoop.{name}")


def test_packages_for_s3_come_with_those_of_the_user_where_executors_write_there(tmp_path):
    keys = ["mld.spark.sink.out.path = s3://lake/out", "mld.spark.packages = a:b:1", "mld.spark.s3.region = us-east-1"]
    settings = settings_of(*keys, "mld.spark.master = spark://127.0.0.1:7077", sinks=())
    told = configuration(settings, tmp_path)
    assert told["spark.jars.packages"].startswith("a:b:1,org.apache.hadoop:hadoop-aws:")
    assert told["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    local = configuration(settings_of(*keys, sinks=()), tmp_path)
    assert local["spark.jars.packages"] == "a:b:1"
    assert not any(key.startswith("spark.hadoop.fs.s3a") for key in local)


def test_workers_of_python_are_reached_in_the_private_directory_and_never_by_a_port(tmp_path, caplog):
    conf = configuration(settings_of(), Path("/run/user/1000/mld-spark-1"))
    assert conf["spark.python.unix.domain.socket.enabled"] == "true"
    assert conf["spark.python.unix.domain.socket.dir"] == "/run/user/1000/mld-spark-1"
    longest = Path("/tmp") / ("x" * 55)
    assert configuration(settings_of(), longest)["spark.python.unix.domain.socket.dir"] == str(longest)
    long = Path("/tmp") / ("x" * 56)  # 61 bytes, which Spark refuses when the first Python function runs
    assert "spark.python.unix.domain.socket.enabled" not in configuration(settings_of(), long)
    assert "others may have Python workers made; shorten TMPDIR" in caplog.text
    cluster = configuration(settings_of("mld.spark.master = spark://h:7077", "mld.spark.spool = /s"), long)
    assert "spark.python.unix.domain.socket.enabled" not in cluster
