"""The contract of `Store`: the file system and its twin in memory behave alike. And what errors of the system mean."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mld.processors.spark.commit.s3_journal import place_of
from mld.processors.spark.commit.store import PosixStore, as_sink_error, local_directory
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_port import S3Access, SinkError, SinkFull, SinkRefused, SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from tests.twins.store import Disk, MemoryStore


@pytest.fixture(params=["posix", "memory"])
def store(request, tmp_path):
    return PosixStore(tmp_path) if request.param == "posix" else MemoryStore(Disk())


def test_files_are_written_as_a_whole_and_listed(store):
    store.make("a/b")
    store.make("a/b")
    store.write("a/b/f", b"1")
    store.write("a/b/f", b"22")
    store.mark("a/m")
    store.mark("a/m")
    assert store.read("a/b/f") == b"22"
    assert sorted(store.names("a")) == ["b", "m"]
    assert store.names("nowhere") == []
    assert store.files("a") == [("b/f", 2), ("m", 0)]
    store.sync("a")
    store.sync_below("a")


def test_a_write_makes_no_directory(store):
    with pytest.raises(FileNotFoundError):
        store.write("gone/f", b"")


def test_a_name_is_taken_once(store):
    store.make("x")
    store.write("one", b"1")
    store.write("two", b"2")
    assert store.take("one", "x/n")
    assert not store.take("two", "x/n")
    assert store.read("x/n") == b"1"
    with pytest.raises(FileNotFoundError):
        store.take("three", "x/m")
    assert store.names("x") == ["n"]


def test_a_directory_moves_with_all_in_it(store):
    store.make("s/d")
    store.write("s/d/f", b"1")
    store.move("s/d", "t")
    assert store.exists("t/f")
    assert not store.exists("s/d")
    with pytest.raises(FileNotFoundError):
        store.move("s/d", "u")
    store.make("v")
    store.write("v/g", b"")
    with pytest.raises(OSError):
        store.move("v", "t")


def test_removing_is_idempotent(store):
    store.make("d/e")
    store.write("d/e/f", b"")
    store.remove("d")
    store.remove("d")
    assert not store.exists("d")


def test_a_lock_ends_with_its_process(tmp_path):
    store = PosixStore(tmp_path)
    code = f"""
import sys, time
from pathlib import Path
from mld.processors.spark.commit.store import PosixStore
release = PosixStore(Path({str(tmp_path)!r})).hold("owner")
print("held", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert store.held("owner")
        holder.kill()
    assert not store.held("owner")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, SinkFull),
        (errno.EDQUOT, SinkFull),
        (errno.EFBIG, SinkFull),
        (errno.EACCES, SinkRefused),
        (errno.EROFS, SinkRefused),
        (errno.EINVAL, SinkRefused),
        (errno.EIO, SinkError),
        (errno.ESTALE, SinkError),
    ],
)
def test_errors_of_the_system_say_what_to_do(number, kind):
    error = as_sink_error(OSError(number, "words", "/path"), "sink out: doing")
    assert type(error) is kind
    assert str(error).startswith("sink out: doing: words (/path); ")


@pytest.mark.parametrize(
    ("path", "directory"),
    [("/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("file:/a", "/a"), ("/a:b/c", "/a:b/c"), ("/a/../b", "/b")],
)
def test_paths_and_file_uris_are_directories(path, directory):
    assert str(local_directory(path, "key")) == directory


@pytest.mark.parametrize("path", ["gs://b", "abfs://c@a/x", "viewfs://c/x", "webhdfs://h/x", "s3:/b"])
def test_object_stores_and_what_nobody_has_tried_are_refused_with_a_remedy(path):
    scheme = path.partition(":")[0]
    said = f"path = {path}: {scheme} has no rename that is known .*, s3, or format delta or iceberg"
    with pytest.raises(SinkRefused, match=f"mld.spark.sink.out.{said}"):
        make_sink(SinkSpec("out", "parquet", path), None)  # type: ignore[arg-type]
    with pytest.raises(SinkRefused, match=r"mld.spark.ledger = .* has no rename"):
        make_sink(SinkSpec("out", "jdbc", ledger=path), None)  # type: ignore[arg-type]
    with pytest.raises(SinkRefused, match=f"mld.spark.spool = {path}: .*; use a directory of this host's file system"):
        local_directory(path, "mld.spark.spool")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("s3://Bucket/x", "Bucket is no name of a bucket; write s3://bucket/directory"),
        ("s3a:///x", "nothing is no name of a bucket"),
        ("s3://bucket/lake/_hidden/x", "readers skip directories that begin with _ or a dot"),
        ("s3://bucket/lake/../x", "readers skip directories"),
    ],
)
def test_places_on_s3_are_refused_with_a_remedy(path, said):
    with pytest.raises(SinkRefused, match=rf"mld.spark.sink.out.path = {path}.*: .*{said}"):
        make_sink(SinkSpec("out", "parquet", path, s3=S3Access(SDK_CREDENTIALS)), None)  # type: ignore[arg-type]


def test_a_place_on_s3_touches_nothing_until_it_is_used(tmp_path):
    spec = SinkSpec("out", "parquet", "s3a://bucket//lake/clicks", s3=S3Access(SDK_CREDENTIALS))
    sink = make_sink(spec, None, tmp_path)  # type: ignore[arg-type]
    assert (sink.name, sink.exactly_once) == ("out", True)
    assert list(tmp_path.iterdir()) == []
    assert str(place_of("s3a://bucket//lake/clicks/", "key")) == "s3://bucket/lake/clicks/"


@pytest.mark.parametrize("path", ["hdfs://host:8020/x", "hdfs:/x", "HDFS:///x"])
def test_hdfs_is_refused_with_a_remedy(path):
    for spec in (SinkSpec("out", "parquet", path), SinkSpec("out", "jdbc", ledger=path)):
        with pytest.raises(SinkRefused, match=r"(sink\.out\.path|ledger) = .*no longer there; .* delta or iceberg"):
            make_sink(spec, None)  # type: ignore[arg-type]


def test_making_a_sink_needs_no_spark_until_it_is_used(tmp_path):
    sink = make_sink(SinkSpec("out", "parquet", str(tmp_path)), None)  # type: ignore[arg-type]
    assert (sink.name, sink.exactly_once) == ("out", True)


def modes(top: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in (top, *top.rglob("*"))}


@pytest.mark.parametrize(("private", "wanted"), [(True, {0o700, 0o600}), (False, {0o755, 0o644})])
def test_a_private_store_is_for_its_user_alone_and_another_one_follows_the_umask(tmp_path, private, wanted):
    before = os.umask(0o022)
    try:
        store = PosixStore(tmp_path / "made" / "store", private=private)
        store.make("a")
        store.write("a/whole", b"x")
        store.mark("a/mark")
        store.hold("a/held")()
        (store.root / "a" / "of-spark").mkdir()
        (store.root / "a" / "of-spark" / "part").touch()
        store.sync_below("a")
    finally:
        os.umask(before)
    assert modes(tmp_path / "made") == wanted
