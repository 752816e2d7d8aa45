"""Clusters that are not ours: what they read, and where it is."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from mld.aws.objects import TRIES_MAX
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.spool import LEFT_S, LOCK_FILE, S3Spool, Spool, open_spool
from mld.processors.spark.commit.s3_store import S3Store
from mld.processors.spark.host.start_up import check_spool
from mld.processors.spark.positions import StreamShard
from mld.processors.spark.session.error_classes import ANALYSIS
from mld.processors.spark.session.java import Java
from mld.processors.spark.session.spark_session import check_extra, configuration, environment
from mld.processors.spark.session_errors import SessionError, SessionUnreachable
from tests.twins.bucket import BucketInMemory, Fault, MemoryObjects
from tests.unit.spark.java_errors import FromJava, of
from tests.unit.spark.twins import offer_to, settings_of

SPARK = "org.apache.spark.SparkException"
JOB = of(SPARK, text="Job aborted due to stage failure")
GONE = of(SPARK, condition="FAILED_READ_FILE.FILE_NOT_EXIST", text="no such file")
UNREADABLE = of(SPARK, condition="FAILED_READ_FILE.NO_HINT", text="an error while reading")
DENIED = "/spool/x (Permission denied)"


class Session:
    """Reads pages as executors do that see only some of them."""

    def __init__(self, sees=4, error=None):
        self.sees, self.error = sees, error

    read = property(lambda self: self)

    def schema(self, text):
        return self

    def parquet(self, *uris):
        assert [Path(uri.removeprefix("file://")).is_file() for uri in uris] == [True] * 4
        return self

    def count(self):
        if self.error:
            raise self.error
        return self.sees


def test_a_spool_that_executors_see(tmp_path):
    check_spool(Session(), Spool(tmp_path), "spark://h")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("session", "why"),
    [
        (Session(sees=2), "it sees 2 of 4 records"),
        (Session(error=FromJava(JOB, GONE)), "no such file"),
        (Session(error=FromJava(JOB, UNREADABLE, of("java.io.FileNotFoundException", text=DENIED))), DENIED),
        (Session(error=FromJava(JOB, of("java.nio.file.AccessDeniedException", text=DENIED))), DENIED),
        (Session(error=FromJava(of(ANALYSIS, condition="PATH_NOT_FOUND", text="does not exist"))), "does not exist"),
    ],
)
def test_a_spool_that_executors_do_not_see_gets_a_sentence(tmp_path, session, why):
    with pytest.raises(SessionError, match=r"spark://h cannot read mld.spark.spool: .*; name a directory") as caught:
        check_spool(session, Spool(tmp_path), "spark://h")
    assert why in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("all workers are gone"), "all workers are gone"),
        (FromJava(JOB._replace(text="executor 1 ran FileNotFoundException.class")), "executor 1 ran"),
        (FromJava(JOB, of("java.net.ConnectException", text="Permission denied")), "Permission denied"),
        (ConnectionRefusedError(111, "AccessDenied"), "AccessDenied"),
    ],
)
def test_a_cluster_that_runs_no_job_may_run_one_later_whatever_words_it_says(tmp_path, error, words):
    with pytest.raises(SessionUnreachable, match=f"spark://h runs no job: .*{words}"):
        check_spool(Session(error=error), Spool(tmp_path), "spark://h")


def test_a_named_spool_is_below_its_directory_and_what_dead_hosts_left_is_swept(tmp_path):
    node = os.uname().nodename
    dead, alive, other = (tmp_path / name for name in (f"mld-{node}-1-a", f"mld-{node}-2-b", "mld-elsewhere-1-a"))
    for directory in (dead, alive, other):
        directory.mkdir()
        (directory / LOCK_FILE).touch()
    with (alive / LOCK_FILE).open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        spool = open_spool(f"file://{tmp_path}", tmp_path / "scratch")
        assert sorted(tmp_path.iterdir()) == sorted([alive, other, spool.directory])
    assert spool.directory.name.startswith(f"mld-{node}-{os.getpid()}-")
    assert spool.directory.stat().st_mode & 0o027 == 0, "no writing by the group, nothing for others"
    assert open_spool(str(tmp_path), tmp_path).directory.is_dir()
    assert spool.directory.is_dir(), "it is held"


def test_a_spool_in_no_file_system_of_ours_gets_a_sentence(tmp_path):
    with pytest.raises(
        SpoolError, match=r"mld.spark.spool = hdfs://n/spool: .*, not to hdfs, .*that every node mounts"
    ):
        open_spool("hdfs://n/spool", tmp_path)


# --- a spool in a bucket ---------------------------------------------------------------------------------------------


A = StreamShard("s", "a")


def in_bucket(tmp_path, **more):
    bucket = BucketInMemory()
    spool = S3Spool(tmp_path / "spool", S3Store(MemoryObjects(bucket, **more), "lake/spool/"))
    return bucket, spool


def drained(spool):
    """All that it does beside has been done."""
    spool._workers.shutdown()


def test_a_page_is_copied_once_as_soon_as_it_is_complete_and_goes_with_its_batch(tmp_path):
    bucket, spool = in_bucket(tmp_path)
    offers = [offer_to(spool, A, [1, 2]), offer_to(spool, A, [3])]
    spool.offered(offers[0])
    uris = spool.uris(offers)
    assert uris == spool.uris(offers)
    keys = [uri.removeprefix("s3a://bucket/") for uri in uris]
    assert sorted(keys) == sorted(bucket.objects)
    assert [key.startswith(f"lake/spool/mld-{os.uname().nodename}-") for key in keys] == [True, True]
    page = spool.page(1, offers[0].number)
    assert bucket.objects[keys[0]][0] == page.read_bytes()
    assert [record.sequence for _, record in spool.rows(offers[0])] == [b"1", b"2"]
    with spool.written([record for _, record in spool.rows(offers[1])]) as uri:
        assert uri.removeprefix("s3a://bucket/") in bucket.objects
    spool.remove(page)
    drained(spool)
    assert list(bucket.objects) == [keys[1]]


def test_pages_that_are_left_are_removed_as_the_host_ends(tmp_path):
    bucket, spool = in_bucket(tmp_path)
    offer = offer_to(spool, A, [1])
    spool.uris([offer])
    spool.close()
    assert (bucket.objects, (tmp_path / "spool").exists()) == ({}, False)
    spool.remove(spool.page(1, offer.number))


def test_a_page_that_is_gone_is_said(tmp_path):
    _, spool = in_bucket(tmp_path)
    offer = offer_to(spool, A, [1])
    spool.page(1, offer.number).unlink()
    with pytest.raises(SpoolError, match=r"a page cannot be copied to mld\.spark\.spool: "):
        spool.uris([offer])
    spool.close()


def test_a_page_whose_copy_failed_is_copied_again_under_another_key(tmp_path):
    faults = [*[Fault.NOT_DONE] * TRIES_MAX, *[Fault.DONE] * TRIES_MAX]
    bucket, spool = in_bucket(tmp_path, fault=lambda: faults.pop(0) if faults else Fault.NONE)
    offer = offer_to(spool, A, [1])
    for _ in range(2):
        with pytest.raises(SpoolError, match=r"a page cannot be copied to mld\.spark\.spool"):
            spool.uris([offer])
    (uri,) = spool.uris([offer])
    assert len(bucket.objects) == 2, "nobody knows of the other one; it is swept after a week"
    assert uri.removeprefix("s3a://bucket/") in bucket.objects
    spool.close()


def test_what_dead_hosts_left_in_a_bucket_goes_after_a_week(tmp_path):
    bucket = BucketInMemory()
    page = "0badcafe-00000001-00000007.parquet"
    left = (f"mld-other-host-1-0badcafe/{page}", "mld-other-1-0badcafe/0badcafe-part-00000007.parquet")
    others = ["mld-data/report.csv", "mld-other-1-0badcafe/notes.txt", f"mld-other-1-0badcafe/x/{page}", "mine"]
    for key in (*(f"lake/spool/{name}" for name in (*left, *others)), "lake/other/mld-x"):
        bucket.put(key, b"")
    bucket.now_s += LEFT_S + 1
    bucket.put(f"lake/spool/mld-other-2-0badcafe/{page}", b"")
    drained(S3Spool(tmp_path / "spool", S3Store(MemoryObjects(bucket), "lake/spool/")))
    stay = [*others, f"mld-other-2-0badcafe/{page}"]
    assert sorted(bucket.objects) == sorted(["lake/other/mld-x", *(f"lake/spool/{name}" for name in stay)])


def test_a_bucket_that_is_none_gets_a_sentence(tmp_path):
    with pytest.raises(
        SpoolError, match=r"mld.spark.spool = s3://B: B is no name of a bucket; write s3://bucket/directory"
    ):
        open_spool("s3://B", tmp_path, settings_of().s3)


# --- settings of other places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://https://h:6443"])
def test_a_cluster_gets_the_users_settings_and_nothing_of_this_machine(tmp_path, master):
    made = configuration(
        settings_of(
            f"mld.spark.master = {master}",
            "mld.spark.packages = a:b:1,c:d:2",
            "mld.spark.conf.spark.kubernetes.container.image = mine:1",
            "mld.spark.conf.spark.driver.host = here.example.com",
        ),
        tmp_path,
    )
    assert made["spark.jars.packages"] == "a:b:1,c:d:2"
    assert made["spark.kubernetes.container.image"] == "mine:1"
    assert made["spark.driver.host"] == "here.example.com"
    assert not {"spark.driver.bindAddress", "spark.local.dir", "spark.sql.shuffle.partitions"} & set(made)


def test_the_address_of_this_machine_is_the_users_affair_on_a_cluster(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(
        "os.environ",
        dict(os.environ) | {"SPARK_LOCAL_IP": "10.0.0.5", "SPARK_HOME": "/old", "PYSPARK_SUBMIT_ARGS": "--jars x"},
    )
    settings = settings_of("mld.spark.master = spark://h:7077", "mld.spark.conf.spark.pyspark.python = /py")
    environment(settings, Java(tmp_path, 17))
    assert (os.environ["SPARK_LOCAL_IP"], os.environ["PYSPARK_PYTHON"]) == ("10.0.0.5", "/py")
    assert "SPARK_HOME" not in os.environ
    assert "PYSPARK_SUBMIT_ARGS is not used here: write what it sets as mld.spark.conf.*" in caplog.text
    environment(settings_of(), Java(tmp_path, 17))
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize("there", [{"pyspark"}, set()], ids=["pyspark-client", "nothing"])
def test_the_part_of_pyspark_that_is_missing(monkeypatch, there):
    monkeypatch.setattr("mld.processors.spark.session.spark_session._is_installed", lambda name: name in there)
    with pytest.raises(SessionError, match=r"PySpark is missing in .*; pip install 'mld-kinesis\[spark\]'"):
        check_extra()


def test_a_pyspark_that_is_too_old(monkeypatch):
    monkeypatch.setattr("pyspark.__version__", "4.0.2")
    with pytest.raises(SessionError, match=r"PySpark 4\.0\.2 is too old; pip install"):
        check_extra()


def test_a_pyspark_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr("mld.processors.spark.session.spark_session._is_installed", lambda name: True)
    with pytest.raises(SessionError, match=r"PySpark cannot be imported .*; pip install"):
        check_extra()
