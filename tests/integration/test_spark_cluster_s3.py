"""Files on S3 from the executors of a standalone cluster, on a server that was written by others: `make test-s3`."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.fatal import EXIT_CONFIGURATION, FatalError
from tests.integration.test_spark_cluster import on
from tests.support.s3_servers import BIN, SECRET, Versitygw
from tests.support.servers import ACCOUNT
from tests.support.spark_bed import PLAIN, Bed
from tests.support.spark_servers import Cluster
from tests.support.spark_servers import cluster as running_cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif("MLD_S3_CLUSTER" not in os.environ, reason="make test-s3"),
    pytest.mark.skipif(not (BIN / Versitygw.program).is_file(), reason="make test-s3"),
]
DATA = {number: b"%d" % number for number in range(1, 101)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its nodes find credentials in their environment, as those of a real one find a role."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCOUNT)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        with running_cluster(tmp_path_factory.mktemp("cluster"), workers=1) as one:
            yield one


class Bucket:
    def __init__(self, server: Versitygw) -> None:
        self._s3 = server.client("s3")
        self.name = f"b-{uuid4().hex}"
        self._s3.create_bucket(Bucket=self.name)
        self.keys = [
            f"mld.spark.sink.out.path = s3://{self.name}/lake/out",
            f"mld.spark.deadLetter = s3://{self.name}/lake/dead",
            f"mld.spark.s3.endpoint = {server.endpoint}",
            "mld.spark.s3.region = us-east-1",
            "mld.spark.s3.pathStyle = true",
        ]

    def names(self, prefix: str = "lake/out/") -> list[str]:
        found = self._s3.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", ())
        return [one["Key"].removeprefix(prefix) for one in found]

    def rows(self) -> Counter[tuple[int, str]]:
        found: Counter[tuple[int, str]] = Counter()
        for name in self.names():
            if not name.startswith("_mld/"):
                body = self._s3.get_object(Bucket=self.name, Key=f"lake/out/{name}")["Body"].read()
                rows = map(json.loads, body.decode().splitlines())
                found.update((int(row["sequenceNumber"]), row["payload"]) for row in rows)
        return found


@pytest.fixture(scope="module")
def server() -> Iterator[Versitygw]:
    with Versitygw() as one:
        yield one


@contextlib.contextmanager
def bed_on(cluster: Cluster, bucket: Bucket, directory: Path, *keys: str) -> Iterator[Bed]:
    spool = f"mld.spark.spool = s3://{bucket.name}/spool"
    with on(cluster, directory, spool, *bucket.keys, *keys, pipeline=PLAIN) as made:
        yield made


def wanted(first: int, last: int) -> Counter[tuple[int, str]]:
    return Counter((number, DATA[number].decode()) for number in range(first, last + 1))


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCOUNT)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.mark.usefixtures("credentials")
def test_rows_arrive_once_and_no_staged_file_stays(cluster: Cluster, server: Versitygw, tmp_path: Path) -> None:
    bucket = Bucket(server)
    with bed_on(cluster, bucket, tmp_path) as made:
        assert made.run({number: DATA[number] for number in range(1, 61)}).failed == {}
        assert made.run({number: DATA[number] for number in range(41, 101)}).failed == {}
    assert bucket.rows() == wanted(1, 100)
    assert len([name for name in bucket.names() if not name.startswith("_mld/")]) == 2
    assert not [name for name in bucket.names() if name.startswith("_mld/") and not name.startswith("_mld/ledger/")]
    assert bucket.names("spool/") == []


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("spool", "said"),
    [
        ("s3://@/spool", "cannot read mld.spark.spool: .*; name a directory"),
        ("@/spool", "executors cannot write to s3://"),
    ],
    ids=["what they read", "what they write"],
)
def test_a_wrong_secret_on_the_nodes_is_refused_before_the_first_record(
    cluster: Cluster, server: Versitygw, tmp_path: Path, spool: str, said: str
) -> None:
    bucket = Bucket(server)
    theirs = "spark.hadoop.fs.s3a.aws.credentials.provider = org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
    place = bucket.name if spool.startswith("s3") else str(tmp_path)
    keys = [theirs, f"spark.hadoop.fs.s3a.access.key = {ACCOUNT}", "spark.hadoop.fs.s3a.secret.key = wrong-secret"]
    with (
        pytest.raises(FatalError, match=said) as refused,
        bed_on(
            cluster,
            bucket,
            tmp_path,
            f"mld.spark.spool = {spool.replace('@', place)}",
            *(f"mld.spark.conf.{key}" for key in keys),
        ),
    ):
        pass
    assert refused.value.status == EXIT_CONFIGURATION
    assert "wrong-secret" not in str(refused.value)
    assert bucket.names() == []
