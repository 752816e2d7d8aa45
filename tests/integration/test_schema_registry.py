"""Records of the Glue Schema Registry, through the daemon to a real child; moto in the embedded AWS is the registry."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
import uuid
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pytest

from mld.schemas.preparer import SPENT
from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import ROOT, Daemon, until
from tests.support.kpl import User, aggregate

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}
PROTO = 'syntax = "proto3"; package shop; message Zone { int64 id = 1; } message Order { int64 id = 1; }'
FOLDER = f"mld-schemas-{os.getuid()}"
NOBODYS = "00112233-4455-6677-8899-aabbccddeeff"
CHILD = """
import base64, json, sys, zlib
from mld.sdk import RecordProcessor, run

class Child(RecordProcessor):
    def initialize(self, shard_id, sequence_number, sub_sequence_number):
        pass

    def process_records(self, records, checkpointer, millis_behind_latest):
        for record in records:
            data = base64.b64encode(record.data if len(record.data) < 1000 else zlib.decompress(record.data[18:])[:9])
            told = {"message": "got", "data": data.decode(), "extra": dict(record.extra)}
            print(json.dumps(told), file=sys.stderr, flush=True)
        checkpointer.checkpoint()

    def shard_ended(self, checkpointer):
        checkpointer.checkpoint()

run(Child)
"""


def avro(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(ORDER)), {"id": number, "who": "ü"})
    return out.getvalue()


def frame(version_id: str, payload: bytes, *, compressed: bool = False) -> bytes:
    head = b"\x03" + (b"\x05" if compressed else b"\x00") + uuid.UUID(version_id).bytes
    return head + (zlib.compress(payload) if compressed else payload)


class Schemas:
    """Three schemas in a registry of this test's own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._glue = world.aws.client("glue")
        self._glue.create_registry(RegistryName=world.stream)
        self.avro = self.version("orders", "AVRO", json.dumps(ORDER))
        self.json = self.version(
            "clicks", "JSON", '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
        )
        self.proto = self.version("zones", "PROTOBUF", PROTO)

    def version(self, name: str, data_format: str, definition: str) -> str:
        made = self._glue.create_schema(
            RegistryId={"RegistryName": self._world.stream},
            SchemaName=name,
            DataFormat=data_format,
            Compatibility="NONE",
            SchemaDefinition=definition,
        )
        return str(made["SchemaVersionId"])

    def put(self, data: bytes, *, hash_key: int = 0) -> None:
        self._world.kinesis.put_record(
            StreamName=self._world.stream, Data=data, PartitionKey="k", ExplicitHashKey=str(hash_key)
        )

    def daemon(self, mode: str, **keys: object) -> Daemon:
        child = self._world.directory / "child.py"
        child.write_text(CHILD)
        return self._world.daemon(
            child=f"{sys.executable} {child}",
            process={
                "environment": {
                    **ENVIRONMENT,
                    "PYTHONPATH": str(ROOT),
                    "TMPDIR": str(self._world.directory),
                    "AWS_ENDPOINT_URL_GLUE": self._world.aws.endpoint,
                }
            },
            **{
                "mld.schemaRegistry": mode,
                **keys,
            },
        )


def got(daemon: Daemon, count: int) -> list[tuple[bytes, dict[str, Any]]]:
    until(
        lambda: len(daemon.with_action("child_stderr", message="got")) >= count,
        what=f"{count} records",
    )
    events = daemon.with_action("child_stderr", message="got")
    return [(base64.b64decode(event["data"]), event["extra"]) for event in events]


@pytest.mark.full
def test_a_child_gets_json_whatever_the_producer_wrote(make_world: MakeWorld) -> None:
    world = make_world(1)
    schemas = Schemas(world)
    bomb = frame(schemas.json, bytes(40 * 1024 * 1024), compressed=True)
    unknown = frame(NOBODYS, b"x")
    schemas.put(frame(schemas.avro, avro(1)))
    schemas.put(frame(schemas.avro, avro(2), compressed=True))
    schemas.put(frame(schemas.json, b'{"a": 1}'))
    schemas.put(frame(schemas.proto, b"\x01\x08\x07"))
    schemas.put(b"plain")
    schemas.put(unknown)
    schemas.put(bomb)
    schemas.put(aggregate([User("k", frame(schemas.avro, avro(3))), User("k", b"user record")]))
    daemon = schemas.daemon("json")
    found = got(daemon, 9)
    assert [data for data, _ in found] == [
        '{"id":1,"who":"ü"}'.encode(),
        '{"id":2,"who":"ü"}'.encode(),
        b'{"a": 1}',
        b"\x01\x08\x07",
        b"plain",
        unknown,
        bytes(9),
        '{"id":3,"who":"ü"}'.encode(),
        b"user record",
    ]
    (folder,) = world.directory.glob(f"{FOLDER}-*")
    file = folder / schemas.avro
    assert found[0][1] == {
        "schemaVersionId": schemas.avro,
        "schemaName": "orders",
        "schemaDataFormat": "AVRO",
        "dataFormat": "JSON",
        "schemaFile": str(file),
    }
    assert json.loads(file.read_text()) == ORDER
    assert found[3][1]["schemaDataFormat"] == found[3][1]["dataFormat"] == "PROTOBUF"
    assert found[4][1] == found[8][1] == {}
    assert NOBODYS in found[5][1]["schemaError"]
    assert re.search("inflates to more than|takes more CPU time", found[6][1]["schemaError"])
    assert daemon.stop() == 0
    lease = world.lease("shardId-000000000000")
    assert lease.checkpoint.sub == 1, "the second user record of the aggregate, which was the last"


def test_a_record_that_takes_too_much_holds_up_nobody(make_world: MakeWorld) -> None:
    """The daemon stays small, and the record comes as its producer wrote it. Its shard goes on. On a slow machine, the
    record uses up the decoding budget of its shard, and of no other shard.
    """
    world = make_world(2)
    schemas = Schemas(world)
    flags = {"type": "array", "items": {"type": "record", "name": "f", "fields": [{"name": "on", "type": "boolean"}]}}
    count = 31 << 20
    data = b"\x80\x80\x80\x1f" + bytes(count) + b"\0"
    schemas.put(frame(schemas.version("flags", "AVRO", json.dumps(flags)), data, compressed=True))
    follower = frame(schemas.avro, avro(1))
    schemas.put(follower)
    schemas.put(frame(schemas.avro, avro(2)), hash_key=2**128 - 1)
    daemon = schemas.daemon("json")
    found = got(daemon, 3)
    (why,) = [about["schemaError"] for _, about in found if "decoding it takes more" in about.get("schemaError", "")]
    others = {data: about.get("schemaError") for data, about in found if about.get("schemaError") != why}
    assert others.pop('{"id":2,"who":"ü"}'.encode(), "missing") is None, "the other shard"
    assert others in ({'{"id":1,"who":"ü"}'.encode(): None}, {follower: SPENT})
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    peak_kb = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    assert peak_kb < 300_000, "decoding takes up to 512 MB, and none of them here"
    assert daemon.stop() == 0


@pytest.mark.full
def test_a_batch_waits_for_its_registry_and_a_stop_does_not(make_world: MakeWorld) -> None:
    world = make_world(1)
    schemas = Schemas(world)
    schemas.put(b"before")
    schemas.put(frame(NOBODYS, b"x"))
    daemon = schemas.daemon("strip", **{"mld.schemaRegistry.onError": "fail"})
    said = daemon.wait_for_event("schema_failed")
    assert "its batch waits" in said["message"]
    assert daemon.stop() == 0
    assert daemon.with_action("child_stderr") == []
    again = schemas.daemon("off")
    assert got(again, 2) == [(b"before", {}), (frame(NOBODYS, b"x"), {})], "nothing was checkpointed"
    assert again.stop() == 0


def test_a_directory_that_somebody_made_first_changes_nothing_and_none_stays(make_world: MakeWorld) -> None:
    world = make_world(1)
    schemas = Schemas(world)
    schemas.put(frame(schemas.json, b"{}"))
    (world.directory / FOLDER).mkdir(mode=0o755)
    daemon = schemas.daemon("strip")
    ((data, extra),) = got(daemon, 1)
    assert (data, extra["schemaName"]) == (b"{}", "clicks")
    file = Path(extra["schemaFile"])
    assert json.loads(file.read_text())["type"] == "object"
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert daemon.stop() == 0
    assert not file.parent.exists()
