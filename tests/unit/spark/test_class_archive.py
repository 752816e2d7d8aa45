"""The archive of Spark's classes: when it is made, which one is used, and that a session never depends on it."""

from __future__ import annotations

import importlib.machinery
import shlex
import sys

import pytest

from mld.processors.spark.session import class_archive
from mld.processors.spark.session.class_archive import find, is_usable, key, key_of, making, options, options_for
from mld.processors.spark.session.spark_session import configuration
from mld.processors.spark.sink_port import SessionError
from tests.unit.spark.twins import settings_of

STAMPS = [("/e/jars/spark-core.jar", 10, 1), ("/e/jars/avro.jar", 5, 1), ("/jvm/libjvm.so", 7, 1)]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An environment with a PySpark of two jars; the home of its JVM."""
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    for name in ("spark-core.jar", "avro.jar"):
        (tmp_path / "pyspark" / "jars" / name).write_bytes(b"jar")
    library = tmp_path / "java" / class_archive.JVM_LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(b"jvm")
    found = importlib.machinery.ModuleSpec("pyspark", None, is_package=True)
    found.submodule_search_locations = [str(tmp_path / "pyspark")]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found if name == "pyspark" else None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    return tmp_path / "java"


def make(java, data=b"classes"):
    with making(java) as place:
        place.write_bytes(data)
    return find(java)


def test_the_key_does_not_depend_on_the_order_in_which_the_jars_are_listed():
    assert key_of(STAMPS) == key_of(reversed(STAMPS))


@pytest.mark.parametrize(
    "other",
    [
        [*STAMPS, ("/e/jars/more.jar", 1, 1)],
        STAMPS[1:],
        [("/e/jars/spark-core.jar", 11, 1), *STAMPS[1:]],
        [("/e/jars/spark-core.jar", 10, 2), *STAMPS[1:]],
        [*STAMPS[:2], ("/jvm/libjvm.so", 7, 2)],
        [*STAMPS[:2], ("/other/libjvm.so", 7, 1)],
    ],
)
def test_other_jars_and_another_jvm_have_another_key(other):
    assert key_of(other) != key_of(STAMPS)


def test_what_was_made_is_used_from_then_on(installed, tmp_path):
    assert (find(installed), options(installed)) == (None, "")
    made = make(installed)
    assert made is not None and made.parent == tmp_path / "environment" / "share" / "mld"
    assert options(installed) == f" {options_for(made)}"
    assert list(made.parent.iterdir()) == [made]


def test_a_new_pyspark_has_no_archive_and_its_own_takes_the_place_of_the_old_one(installed, tmp_path):
    old = make(installed)
    (tmp_path / "pyspark" / "jars" / "spark-core.jar").write_bytes(b"another jar")
    assert find(installed) is None
    new = make(installed)
    assert new is not None and list(new.parent.iterdir()) == [new] and new != old


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"more"])
def test_an_archive_that_is_not_whole_is_not_given_to_the_jvm(installed, damage):
    made = make(installed)
    made.write_bytes(damage(made.read_bytes()))
    assert options(installed) == ""


def test_one_that_is_still_being_made_is_not_used(installed):
    with making(installed) as place:
        place.write_bytes(b"half")
        assert find(installed) is None
        place.write_bytes(b"whole")
    assert find(installed).read_bytes() == b"whole"


def test_two_that_make_it_at_the_same_time_do_not_meet(installed):
    with making(installed) as one:
        one.write_bytes(b"classes")
        with making(installed) as other:
            assert other != one
            other.write_bytes(b"classes")
        assert find(installed) is not None
    assert len(list(find(installed).parent.iterdir())) == 1


def test_a_jvm_that_leaves_nothing_says_so_and_nothing_is_left(installed, tmp_path):
    with pytest.raises(SessionError, match="is the disk full"), making(installed):
        pass
    assert list((tmp_path / "environment" / "share" / "mld").iterdir()) == []


def test_a_making_that_fails_leaves_the_archive_that_is_there(installed):
    made = make(installed)
    with pytest.raises(ZeroDivisionError), making(installed) as place:
        place.write_bytes(b"half")
        raise ZeroDivisionError
    assert list(made.parent.iterdir()) == [made]


def test_an_environment_that_cannot_be_written_has_none(installed, tmp_path):
    (tmp_path / "environment").write_text("no directory")
    assert options(installed) == ""
    with pytest.raises(SessionError, match=r"no archive of classes can be kept in .*share/mld"), making(installed):
        raise AssertionError("nothing can be made")


def test_a_jvm_or_a_pyspark_of_unknown_form_has_none(installed, tmp_path):
    assert key(tmp_path / "nowhere") is None
    (tmp_path / "pyspark" / "jars").rename(tmp_path / "pyspark" / "elsewhere")
    assert (key(installed), options(installed)) == (None, "")
    with pytest.raises(SessionError, match="PySpark has no jars"), making(installed):
        raise AssertionError("nothing can be made")


@pytest.mark.parametrize(
    ("said", "usable"),
    [
        ("", True),
        ("-XX:TieredStopAtLevel=1", True),
        ("-XX:SharedArchiveFile=/mine.jsa", False),
        ("-Dx=1 -XX:ArchiveClassesAtExit=/mine.jsa", False),
        ("-Xshare:off", False),
    ],
)
def test_what_the_user_says_of_shared_classes_is_not_contradicted(installed, said, usable):
    make(installed)
    assert bool(options(installed, said)) is usable


def test_a_path_that_the_jvm_would_take_for_two_is_not_given_to_it(tmp_path):
    assert is_usable(tmp_path / "a", "") and not is_usable(tmp_path / "a:b", "")


def test_the_driver_gets_the_options_before_those_of_the_user_and_executors_do_not(tmp_path):
    archive = f" {options_for(tmp_path / 'with space')}"
    keys = ["mld.spark.conf.spark.driver.extraJavaOptions = -Dmine=1", "mld.spark.master = spark://h:7077"]
    made = configuration(settings_of(*keys), tmp_path, archive)
    words = shlex.split(made["spark.driver.extraJavaOptions"])
    assert words.index(f"-XX:SharedArchiveFile={tmp_path / 'with space'}") < words.index("-Dmine=1")
    assert "Share" not in made.get("spark.executor.extraJavaOptions", "")
