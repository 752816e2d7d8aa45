"""What is asked of S3 by the sinks, on a server that was written by others; and the sink's journal over it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mld.aws.client_factory import bucket_client
from mld.aws.objects import PAUSE_S, NotMatched, ObjectError, ObjectRefused, S3Bucket, SourceGone
from mld.core.errors import StartupError
from mld.processors.spark.commit.ledger_files import LEDGER
from mld.processors.spark.commit.s3_store import S3Store, Uploads
from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.files import FileSink
from mld.processors.spark.writer_identity import WriterIdentity
from mld.properties.credentials_syntax import parse_chain
from tests.support.servers import ACCOUNT, Ministack, free_port

MEBIBYTE = 1 << 20
SHARD = StreamShard("clicks", "shardId-000000000000")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCOUNT)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")


def client(endpoint: str, *, timeout_s: float = 10.0, **more: Any) -> Any:
    settings = {"region": "us-east-1", "endpoint_url": endpoint, "path_style": True, "connections_max": 4}
    return bucket_client(more.pop("chain", SDK_CREDENTIALS), timeout_s=timeout_s, **settings | more)


@pytest.fixture
def bucket(ministack: Ministack) -> S3Bucket:
    s3 = client(ministack.endpoint)
    name = f"b-{uuid4().hex}"
    s3.create_bucket(Bucket=name)
    return S3Bucket(lambda: s3, name, sleep=lambda _: None, copy_bytes_max=6 * MEBIBYTE, part_bytes=5 * MEBIBYTE)


def test_an_object_is_written_only_if_there_is_none(bucket: S3Bucket) -> None:
    assert bucket.get("head") is None
    etag = bucket.put("head", b"1", if_absent=True)
    with pytest.raises(NotMatched, match=r"put_object of s3://b-\w+/head: PreconditionFailed"):
        bucket.put("head", b"2", if_absent=True)
    found = bucket.get("head")
    assert found is not None
    assert (found.data, found.etag) == (b"1", etag)


def test_an_object_is_replaced_only_if_it_is_the_one_that_was_read(bucket: S3Bucket) -> None:
    first = bucket.put("head", b"1", if_absent=True)
    second = bucket.put("head", b"2", if_etag=first)
    with pytest.raises(NotMatched):
        bucket.put("head", b"3", if_etag=first)
    found = bucket.get("head")
    assert found is not None
    assert (found.data, found.etag) == (b"2", second)
    with pytest.raises(NotMatched):
        bucket.put("another", b"1", if_etag=first)
    assert not bucket.exists("another")


@pytest.mark.parametrize("size", [1_000, 12 * MEBIBYTE], ids=["in one request", "in parts"])
def test_a_file_is_uploaded_and_copied_as_often_as_one_likes(bucket: S3Bucket, tmp_path: Path, size: int) -> None:
    file = tmp_path / "part"
    data = bytes(range(256)) * (size // 256) + b"end"
    file.write_bytes(data)
    bucket.upload("staged/part", file)
    bucket.copy("staged/part", "table/part")
    bucket.copy("staged/part", "table/part")  # as whoever finishes it once more does
    found = bucket.get("table/part")
    assert found is not None
    assert found.data == data
    bucket.delete(["staged/part", "never there"])
    with pytest.raises(SourceGone):
        bucket.copy("staged/part", "table/other")
    assert not bucket.exists("table/other")


class _Parts:
    """As much of the SDK's client as an upload in parts asks for; keeps the size of each part."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def create_multipart_upload(self, **_: Any) -> dict[str, Any]:
        return {"UploadId": "1"}

    def upload_part(self, *, Body: bytes, **_: Any) -> dict[str, Any]:
        self.sizes.append(len(Body))
        return {"ETag": f'"{len(self.sizes)}"'}

    def complete_multipart_upload(self, **_: Any) -> dict[str, Any]:
        return {"ETag": '"all"'}


def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """Several files are uploaded at once, so a part has to be small."""
    file = tmp_path / "part"
    size = 150 * MEBIBYTE
    with file.open("wb") as sparse:
        sparse.truncate(size)
    parts = _Parts()
    S3Bucket(lambda: parts, "bucket", copy_bytes_max=MEBIBYTE).upload("staged/part", file)
    assert sum(parts.sizes) == size
    assert max(parts.sizes) <= 64 * MEBIBYTE
    assert min(parts.sizes[:-1]) >= 5 * MEBIBYTE, "S3 takes smaller parts only at the end"


def test_objects_are_listed_in_order_with_the_time_of_the_store(bucket: S3Bucket) -> None:
    for name in ("a/2", "a/1", "b/1", "a/3"):
        bucket.put(name, b"12")
    assert [(one.key, one.size) for one in bucket.list("a/")] == [("a/1", 2), ("a/2", 2), ("a/3", 2)]
    assert [one.key for one in bucket.list("")] == ["a/1", "a/2", "a/3", "b/1"]
    assert all(abs(one.modified_s - bucket.now_s()) < 600 for one in bucket.list(""))


def test_what_a_person_has_to_change_is_told_from_what_may_pass(ministack: Ministack, bucket: S3Bucket) -> None:
    missing = S3Bucket(lambda: client(ministack.endpoint), f"none-{uuid4().hex}")
    with pytest.raises(ObjectRefused, match="NoSuchBucket"):
        missing.put("head", b"1")
    with pytest.raises(ObjectRefused, match="NoSuchBucket"):
        missing.get("head")
    slept: list[float] = []
    late = client(f"http://127.0.0.1:{free_port()}", timeout_s=1.0)
    nobody = S3Bucket(lambda: late, "bucket", sleep=slept.append)
    with pytest.raises(ObjectError, match=r"put_object of s3://bucket/head: EndpointConnectionError") as caught:
        nobody.put("head", b"1")
    assert not isinstance(caught.value, ObjectRefused)
    assert slept == [], "nobody knows whether it was written"
    with pytest.raises(ObjectError, match="get_object"):
        nobody.get("head")
    assert slept == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]


def test_credentials_are_those_of_the_daemon(ministack: Ministack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    chain, complaints = parse_chain("EnvironmentVariableCredentialsProvider")
    assert chain is not None
    assert complaints == []
    with pytest.raises(StartupError, match="no credentials provider yields credentials"):
        client(ministack.endpoint, chain=chain)


# --- the sink over it ------------------------------------------------------------------------------------------------


class PlainSink(FileSink):
    """With plain files in place of Spark's part."""

    def _fitted(self, head: Any, frame: Any) -> Any:
        return frame, ()

    def _written(self, frame: Any, token: str) -> int:
        data = Path(self._staging.uri(self._journal.data(token)).removeprefix("file://"))
        for name, rows in frame.items():
            (data / name).parent.mkdir(parents=True, exist_ok=True)
            (data / name).write_text(json.dumps(rows))
        return sum(map(len, frame.values()))


def sink_in(bucket: S3Bucket, scratch: Path, **more: Any) -> PlainSink:
    partition_by = more.pop("partition_by", ())
    spec = SinkSpec("out", "parquet", partition_by=partition_by, **more)
    store = S3Store(bucket, "lake/clicks/")
    return PlainSink(spec, store, Uploads(scratch, store))


def publish(sink: FileSink, upto: int, frame: Any) -> None:
    sink.publish(frame, spans({SHARD: RecordPosition(upto)}, sink.open()), "b")


def rows_in(bucket: S3Bucket) -> Counter[int]:
    found: Counter[int] = Counter()
    for one in bucket.list("lake/clicks/"):
        if "/_mld/" not in one.key:
            stored = bucket.get(one.key)
            assert stored is not None
            found.update(json.loads(stored.data))
    return found


def test_commits_are_numbered_files_and_leave_nothing_else(bucket: S3Bucket, tmp_path: Path) -> None:
    sink = sink_in(bucket, tmp_path)
    publish(sink, 2, {"part-1.json": [1, 2]})
    publish(sink, 3, {"part-1.json": [3], "part-2.json": []})
    assert [one.key for one in bucket.list("lake/")] == [
        *(f"lake/clicks/{LEDGER}/00000000000{number}.{kind}" for number in (1, 2) for kind in ("done", "json")),
        "lake/clicks/c000000000001-part-1.json",
        "lake/clicks/c000000000002-part-1.json",
        "lake/clicks/c000000000002-part-2.json",
    ]
    assert rows_in(bucket) == Counter([1, 2, 3])
    assert sink_in(bucket, tmp_path / "another worker").open() == {SHARD: RecordPosition(3)}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_partitions_are_directories(bucket: S3Bucket, tmp_path: Path) -> None:
    sink = sink_in(bucket, tmp_path, partition_by=("day",))
    publish(sink, 2, {"day=1/part.json": [1], "day=2/part.json": [2]})
    assert [one.key.removeprefix("lake/clicks/") for one in bucket.list("lake/clicks/day")] == [
        "day=1/c000000000001-part.json",
        "day=2/c000000000001-part.json",
    ]


def test_a_commit_costs_fifteen_requests_for_two_files(bucket: S3Bucket, tmp_path: Path) -> None:
    """A list and a read of the head before the job; two uploads; a list and a read once more, the entry, a list; two
    looks and two copies; the mark; a list of what is staged, and its deletion. Ten of them cost as much as a PUT."""
    sink = sink_in(bucket, tmp_path)
    publish(sink, 1, {"a.json": [0]})
    marks = sink.open()
    before = bucket.requests
    sink.publish({"a.json": [1], "b.json": [2]}, spans({SHARD: RecordPosition(2)}, marks), "b")  # type: ignore[arg-type]
    assert bucket.requests - before == 15


def test_what_another_application_writes_is_refused_and_a_shared_sink_keeps_marks_apart(
    bucket: S3Bucket, tmp_path: Path
) -> None:
    arn = "arn:aws:kinesis:us-east-1:1:stream/clicks"
    mine = WriterIdentity("mine", "main", "clicks", arn, "2026-01-02T03:04:05.000Z")
    others = {
        "application": mine._replace(application="theirs"),
        "region": mine._replace(arn=arn.replace("us-east-1", "eu-west-1")),
        "stream made again": mine._replace(created="2026-06-02T03:04:05.000Z"),
    }
    publish(sink_in(bucket, tmp_path, writer=mine), 3, {"a.json": [1, 2, 3]})
    for other in others.values():
        with pytest.raises(SinkRefused, match=r"sink out: s3://b-\w+/lake/clicks/ is written by"):
            sink_in(bucket, tmp_path, writer=other).open()
        assert sink_in(bucket, tmp_path, writer=other, shared=True).open() == {}
    publish(sink_in(bucket, tmp_path, writer=others["region"], shared=True), 1, {"a.json": [10]})
    assert sink_in(bucket, tmp_path, writer=mine, shared=True).open() == {SHARD: RecordPosition(3)}
    assert rows_in(bucket) == Counter([1, 2, 3, 10])


def test_a_bucket_that_is_not_there_is_refused_and_one_that_cannot_be_reached_is_waited_for(
    ministack: Ministack, tmp_path: Path
) -> None:
    missing = S3Bucket(lambda: client(ministack.endpoint), f"none-{uuid4().hex}")
    with pytest.raises(SinkRefused, match=r"opening its ledger: .*NoSuchBucket"):
        sink_in(missing, tmp_path).open()
    late = client(f"http://127.0.0.1:{free_port()}", timeout_s=1.0)
    nobody = S3Bucket(lambda: late, "bucket", sleep=lambda _: None)
    with pytest.raises(SinkError, match=r"opening its ledger: .*EndpointConnectionError") as caught:
        sink_in(nobody, tmp_path).open()
    assert not isinstance(caught.value, SinkRefused)
