"""The archive of Spark's classes: when it is made, when it is used, and that a session never depends on it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mld.processors.spark.host.class_training import LINE_CHARACTERS, LINES_SHOWN, printing_to
from mld.processors.spark.session.class_archive import AHEAD_OF_TIME, CLASSES, find, kind_of, making, options
from mld.processors.spark.session.java import Java
from mld.processors.spark.session.spark_session import configuration
from mld.processors.spark.session_errors import SessionError
from tests.unit.spark.twins import settings_of

JAVA_17, JAVA_25 = Java(Path("/java-17"), 17), Java(Path("/java-25"), 25)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The directory of the archive in an environment of its own, which has none."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return tmp_path / "environment" / "share" / "mld"


def make(data=b"classes", java=JAVA_17):
    with making(kind_of(java)) as place:
        place.write_bytes(data)
    return find(kind_of(java))


def test_what_was_made_is_used_from_then_on(home):
    assert (find(CLASSES), options(JAVA_17, {})) == (None, "")
    made = make()
    assert made is not None and list(home.iterdir()) == [made]
    assert f'"-XX:SharedArchiveFile={made}"' in options(JAVA_17, {})


def test_a_java_gets_no_archive_of_another_kind(home):
    """An option for an AOT cache ends an older JVM."""
    assert (kind_of(JAVA_17), kind_of(JAVA_25)) == (CLASSES, AHEAD_OF_TIME)
    make()
    assert options(JAVA_25, {}) == ""
    made = make(java=JAVA_25)
    assert list(home.iterdir()) == [made], "the older one has gone"
    assert f'"-XX:AOTCache={made}"' in options(JAVA_25, {})
    assert options(JAVA_17, {}) == ""


def test_the_next_one_takes_the_place_of_the_one_before(home):
    before = make()
    made = make(b"of another PySpark")
    assert made != before and list(home.iterdir()) == [made]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"more"])
def test_an_archive_that_is_not_whole_is_not_given_to_the_jvm(home, damage):
    made = make()
    made.write_bytes(damage(made.read_bytes()))
    assert options(JAVA_17, {}) == ""


def test_one_that_is_still_being_made_is_not_used(home):
    with making(CLASSES) as place:
        place.write_bytes(b"half")
        assert find(CLASSES) is None
        place.write_bytes(b"whole")
    assert find(CLASSES).read_bytes() == b"whole"


def test_two_that_make_it_at_the_same_time_do_not_meet(home):
    with making(CLASSES) as one:
        one.write_bytes(b"classes")
        with making(CLASSES) as other:
            assert other != one
            other.write_bytes(b"classes")
        assert find(CLASSES) is not None
    assert len(list(home.iterdir())) == 1


def test_a_jvm_that_leaves_nothing_says_so_and_nothing_is_left(home):
    with pytest.raises(SessionError, match="is the disk full"), making(CLASSES):
        pass
    assert list(home.iterdir()) == []


def test_a_making_that_fails_leaves_the_archive_that_is_there(home):
    made = make()
    with pytest.raises(ZeroDivisionError), making(CLASSES) as place:
        place.write_bytes(b"half")
        raise ZeroDivisionError
    assert list(home.iterdir()) == [made]


def test_an_environment_that_cannot_be_written_has_none(home, tmp_path):
    (tmp_path / "environment").write_text("no directory")
    assert options(JAVA_17, {}) == ""
    with pytest.raises(SessionError, match=r"no archive of classes can be kept in .*share/mld"), making(CLASSES):
        raise AssertionError("nothing can be made")


@pytest.mark.parametrize(
    ("said", "usable"),
    [
        ("", True),
        ("-XX:TieredStopAtLevel=1", True),
        ("-XX:SharedArchiveFile=/mine.jsa", False),
        ("-Dx=1 -XX:ArchiveClassesAtExit=/mine.jsa", False),
        ("-Xshare:off", False),
        ("-XX:AOTCacheOutput=/mine.aot", False),
    ],
)
def test_what_the_user_says_of_shared_classes_is_not_contradicted(home, said, usable):
    make()
    assert bool(options(JAVA_17, {}, said)) is usable
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        assert bool(options(JAVA_17, {name: said})) is usable


def test_a_path_that_the_jvm_would_take_for_two_is_not_given_to_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a:b"))
    assert make() is not None and options(JAVA_17, {}) == ""


def test_the_driver_gets_the_options_before_those_of_the_user_and_executors_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "with space"))
    archive = make()
    keys = ["mld.spark.conf.spark.driver.extraJavaOptions = -Dmine=1", "mld.spark.master = spark://h:7077"]
    made = configuration(settings_of(*keys), tmp_path, options(JAVA_17, {}))
    words = shlex.split(made["spark.driver.extraJavaOptions"])
    assert words.index(f"-XX:SharedArchiveFile={archive}") < words.index("-Dmine=1")
    assert "Share" not in made.get("spark.executor.extraJavaOptions", "")


def test_what_the_training_prints_is_shown_only_if_it_fails(tmp_path, capfd):
    with printing_to(tmp_path / "printed"):
        subprocess.run("echo fine; echo fine >&2", shell=True, check=True)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(SessionError), printing_to(tmp_path / "printed"):
        subprocess.run("seq 100; printf '\\033[2J%600s\\n' end >&2", shell=True, check=True)
        raise SessionError("the sample does not run")
    shown = capfd.readouterr().err.splitlines()
    assert shown[0] == "82" and len(shown) == LINES_SHOWN
    assert "\033" not in shown[-1] and len(shown[-1]) < 2 * LINE_CHARACTERS
    print("and afterwards everything is printed again", flush=True)
    assert capfd.readouterr().out
