"""The contract of `Store`: a disk, a bucket and the twins behave alike. And what errors of the system mean."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mld.processors.spark.commit.s3_store import S3Store
from mld.processors.spark.commit.store import PosixStore, failures, local_directory
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.sink_spec import S3Access, SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.properties.credentials_syntax import parse_chain
from tests.twins.bucket import BucketInMemory, MemoryObjects
from tests.twins.store import Disk, MemoryStore

STORES = {
    "posix": PosixStore,
    "memory": lambda _: MemoryStore(Disk()),
    "s3": lambda _: S3Store(MemoryObjects(BucketInMemory()), "a/"),
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture(params=["posix", "memory"])
def disk(request, tmp_path):
    return STORES[request.param](tmp_path)


def put(store, path, data=b""):
    """Write a file by what a store offers for that, and leave no draft."""
    store.remove(path)
    assert store.create(path, data, f"{path}.draft")
    store.remove(f"{path}.draft")


def test_files_are_written_as_a_whole_and_listed(store):
    store.make("a/b")
    store.make("a/b")
    put(store, "a/b/f", b"22")
    store.mark("a/m")
    store.mark("a/m")
    assert store.read("a/b/f") == b"22"
    assert sorted(store.names("a")) == ["b", "m"]
    assert store.names("nowhere") == []
    assert sorted(store.files("a")) == ["b/f", "m"]
    assert sorted(store.files("")) == ["a/b/f", "a/m"]
    assert list(store.files("nowhere")) == []
    store.sync("a")
    store.persist("a", ["b/f", "m"])


def test_a_write_makes_no_directory(disk):
    with pytest.raises(FileNotFoundError):
        disk.create("n", b"1", "gone/draft")


def test_a_file_is_created_once(store):
    store.make("x")
    store.make("drafts")
    assert store.create("x/n", b"1", "drafts/1")
    assert not store.create("x/n", b"2", "drafts/2")
    assert store.read("x/n") == b"1"
    assert store.names("x") == ["n"]
    with pytest.raises(FileNotFoundError):
        store.read("x/m")


def test_a_file_is_moved_as_often_as_one_likes(store):
    store.make("s")
    put(store, "s/f", b"1")
    store.make("t")
    store.move("s/f", "t/f")
    assert store.read("t/f") == b"1"
    assert store.exists("t/f")
    store.remove("s")
    with pytest.raises(FileNotFoundError):
        store.move("s/f", "t/f")
    put(store, "t/f", b"2")
    store.make("s")
    put(store, "s/f", b"1")
    store.move("s/f", "t/f")
    assert store.read("t/f") == b"1"


def test_removing_is_idempotent(store):
    store.make("d/e")
    put(store, "d/e/f", b"")
    store.remove("d")
    store.remove("d")
    assert list(store.files("d")) == []
    assert not store.exists("d/e/f")


def test_a_look_passes_over_what_this_user_may_not_read(tmp_path, monkeypatch):
    """As `lost+found` at the root of a disk."""
    store = PosixStore(tmp_path)
    for directory in ("lost+found", "p=1"):
        store.make(directory)
        put(store, f"{directory}/f", b"")

    def unreadable(of_system):
        def look(path="."):
            if str(path).endswith("lost+found"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return of_system(path)

        return look

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, unreadable(getattr(os, name)))
    assert list(store.files("")) == ["p=1/f"]


def test_a_directory_of_a_batch_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    store, listed = PosixStore(tmp_path), os.scandir
    for name in ("day=1/a", "day=2/b"):
        (tmp_path / "data" / name).parent.mkdir(parents=True)
        (tmp_path / "data" / name).touch()

    def scandir(path):
        if str(path).endswith("day=2"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return listed(path)

    assert sorted(store.files("data")) == ["day=1/a", "day=2/b"]
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(OSError, match="open files"):
        list(store.files("data"))
    assert list(store.files("nothing")) == []


def test_the_conditions_of_a_bucket_are_tried_once():
    requests = []
    store = S3Store(MemoryObjects(BucketInMemory(), requests.append), "out/")
    store.prepare("out")
    tried = list(requests)
    store.prepare("out")
    assert tried and requests == tried


def test_a_bucket_without_credentials_says_so(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    credentials, _ = parse_chain("EnvironmentVariableCredentialsProvider")
    assert credentials is not None
    spec = SinkSpec("out", "parquet", "s3://bucket/x", s3=S3Access(credentials, "us-east-1"))
    monkeypatch.setattr("mld.aws.objects.PAUSE_S", 0.0)
    with pytest.raises(SinkError, match="opening its ledger: no credentials provider yields credentials"):
        make_sink(spec, None, tmp_path).open()  # type: ignore[arg-type]


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
    ("number", "kind", "remedy"),
    [
        (errno.ENOSPC, SinkError, "make room"),
        (errno.EDQUOT, SinkError, "make room"),
        (errno.EFBIG, SinkError, "make room"),
        (errno.EACCES, SinkRefused, "give this user"),
        (errno.EROFS, SinkRefused, "give this user"),
        (errno.EINVAL, SinkRefused, "give this user"),
        (errno.EIO, SinkError, "it is tried again"),
        (errno.ESTALE, SinkError, "it is tried again"),
    ],
)
def test_errors_of_the_system_say_what_to_do(number, kind, remedy):
    with pytest.raises(SinkError) as raised, failures("sink out: doing"):
        raise OSError(number, "words", "/path")
    assert type(raised.value) is kind
    assert str(raised.value).startswith(f"sink out: doing: words (/path); {remedy}")


def test_a_draft_is_never_written_over_what_was_created_of_it(tmp_path):
    store = PosixStore(tmp_path)
    assert store.create("n1", b"1", "draft")
    assert store.create("n2", b"2", "draft")
    assert store.read("n1") == b"1"


def test_of_what_is_held_elsewhere_nobody_can_tell(tmp_path, store):
    assert store.held("nothing") is None
    if isinstance(store, PosixStore):
        (tmp_path / "owner").write_bytes(b"another boot")
        assert store.held("owner") is None


@pytest.mark.parametrize(
    ("path", "directory"),
    [("/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("file:/a", "/a"), ("/a:b/c", "/a:b/c"), ("/a/../b", "/b")],
)
def test_paths_and_file_uris_are_directories(path, directory):
    assert str(local_directory(path, "key")) == directory


@pytest.mark.parametrize("path", ["gs://b", "abfs://c@a/x", "viewfs://c/x", "webhdfs://h/x", "s3:/b"])
def test_object_stores_and_what_nobody_has_tried_are_refused_with_a_remedy(path):
    scheme = path.partition(":")[0]
    said = f"path = {path}: files are written to disks and to s3, not to {scheme}, .*, s3, or format delta or iceberg"
    with pytest.raises(SinkRefused, match=f"mld.spark.sink.out.{said}"):
        make_sink(SinkSpec("out", "parquet", path), None)  # type: ignore[arg-type]
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
    assert sink.place == "s3://bucket/lake/clicks/"  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["hdfs://host:8020/x", "hdfs:/x", "HDFS:///x"])
def test_hdfs_is_refused_with_a_remedy(path):
    with pytest.raises(SinkRefused, match=r"sink\.out\.path = .*, not to (hdfs|HDFS), .* delta or iceberg"):
        make_sink(SinkSpec("out", "parquet", path), None)  # type: ignore[arg-type]


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
        put(store, "a/whole", b"x")
        store.mark("a/mark")
        store.hold("a/held")()
        (store.root / "a" / "of-spark").mkdir()
        (store.root / "a" / "of-spark" / "part").touch()
        store.persist("a", ["whole", "of-spark/part"])
    finally:
        os.umask(before)
    assert modes(tmp_path / "made") == wanted
