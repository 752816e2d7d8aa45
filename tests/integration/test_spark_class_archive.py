"""A JVM of its own that uses the archive of Spark's classes, and sessions that start although it is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.processors.spark.session import class_archive
from mld.processors.spark.session.java import find_java
from tests.support.rest_catalog import java_home

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
SESSION = """
import sys
from mld.processors.spark.session import class_archive
from pathlib import Path
directory = Path(sys.argv[1])
class_archive.place = lambda: directory
from mld.processors.spark.testing import session
spark = session(1, **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 " + sys.argv[2]})
assert spark.range(3).count() == 3
"""
OF_SPARK = "org.apache.spark.sql.classic.SparkSession source: "
SHARED = "shared objects file"
NEWER = java_home()
"""Of a Java that may be there for Iceberg's catalog."""


@pytest.fixture(scope="module", params=["the Java of all tests", "a newer one"])
def archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What `mld-spark --archive-classes` makes, of a session that runs nothing."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("archive")
        patch.setattr(class_archive, "place", lambda: home)
        if request.param == "a newer one":
            if NEWER is None or find_java({"JAVA_HOME": str(NEWER)}).version < class_archive.AHEAD_OF_TIME_SINCE:
                pytest.skip(f"there is no Java {class_archive.AHEAD_OF_TIME_SINCE}")
            patch.setenv("JAVA_HOME", str(NEWER))
        kind = class_archive.kind_of(find_java(os.environ))
        with class_archive.making(kind) as making:
            start_session(tmp_path_factory.mktemp("none"), f"{kind.quiet} {kind.making}{making}")
        found = class_archive.find(kind)
        assert found is not None
        yield found


def start_session(directory: Path, options: str = "") -> str:
    """Start a session in a process of its own, with the archive in `directory`; what it prints."""
    ran = subprocess.run(
        [sys.executable, "-c", SESSION, str(directory), options], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def source_of_spark(directory: Path, options: str = "") -> str:
    """Where a session's JVM has Spark's classes from."""
    said = start_session(directory, f"-Xlog:class+load:stdout {options}")
    return next(line.partition(OF_SPARK)[2] for line in said.splitlines() if OF_SPARK in line)


def test_spark_is_loaded_from_the_archive(archive: Path) -> None:
    assert source_of_spark(archive.parent).startswith(SHARED)


def test_a_session_with_damaged_classes_starts_without_them(archive: Path, tmp_path: Path) -> None:
    damaged = bytearray(archive.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 4096] = bytes(255 - byte for byte in damaged[middle : middle + 4096])
    (tmp_path / archive.name).write_bytes(damaged)
    assert not source_of_spark(tmp_path).startswith(SHARED)


@pytest.mark.parametrize("length", [0, 100, 1_000_000])
def test_a_session_with_an_archive_that_was_cut_off_starts_without_it(
    archive: Path, tmp_path: Path, length: int
) -> None:
    """The JVM itself dies of some of them."""
    (tmp_path / archive.name).write_bytes(archive.read_bytes()[:length])
    assert not source_of_spark(tmp_path).startswith(SHARED)


def test_an_archive_that_is_no_archive_is_no_reason_to_stop(archive: Path, tmp_path: Path) -> None:
    (tmp_path / archive.name).write_bytes(bytes(archive.stat().st_size))
    assert not source_of_spark(tmp_path).startswith(SHARED)


def test_another_class_path_is_started_without_it_and_nothing_is_said_of_that(archive: Path, tmp_path: Path) -> None:
    said = start_session(archive.parent, f"-Xbootclasspath/a:{tmp_path}")
    assert "[cds" not in said and "[aot" not in said


def test_what_the_jvm_is_told_is_one_word_however_the_environment_is_named(archive: Path, tmp_path: Path) -> None:
    place = tmp_path / "an environment"
    place.mkdir()
    os.link(archive, place / archive.name)
    assert source_of_spark(place).startswith(SHARED)
