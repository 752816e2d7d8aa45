"""Records of the Glue Schema Registry, through the daemon to a real child; moto in the embedded AWS is the registry."""

from __future__ import annotations

import base64
import io
import json
import sys
import uuid
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import ROOT, Daemon, until
from tests.support.kpl import User, aggregate

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}
PROTO = 'syntax = "proto3"; package shop; message Zone { int64 id = 1; } message Order { int64 id = 1; }'
NOBODYS = "00112233-4455-6677-8899-aabbccddeeff"
CHILD = """
import base64, json, sys, zlib
from processors.sdk import RecordProcessor, run

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
        glue = world.aws.client("glue")
        glue.create_registry(RegistryName=world.stream)

        def version(name: str, data_format: str, definition: str) -> str:
            made = glue.create_schema(
                RegistryId={"RegistryName": world.stream},
                SchemaName=name,
                DataFormat=data_format,
                Compatibility="NONE",
                SchemaDefinition=definition,
            )
            return str(made["SchemaVersionId"])

        self.avro = version("orders", "AVRO", json.dumps(ORDER))
        self.json = version(
            "clicks", "JSON", '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
        )
        self.proto = version("zones", "PROTOBUF", PROTO)
        glue.close()

    def put(self, data: bytes) -> None:
        self._world.kinesis.put_record(StreamName=self._world.stream, Data=data, PartitionKey="k")

    def daemon(self, mode: str, **keys: object) -> Daemon:
        child = self._world.directory / "child.py"
        child.write_text(CHILD)
        return self._world.daemon(
            child=f"{sys.executable} {child}",
            process={"environment": {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}},
            **{
                "mld.schemaRegistry": mode,
                "mld.schemaRegistry.endpoint": self._world.aws.endpoint,
                "mld.schemaRegistry.directory": str(self._world.directory / "cache"),
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
        b'{"id":"7"}',
        b"plain",
        unknown,
        bytes(9),
        '{"id":3,"who":"ü"}'.encode(),
        b"user record",
    ]
    file = world.directory / "cache" / schemas.avro
    assert found[0][1] == {
        "schemaVersionId": schemas.avro,
        "schemaName": "orders",
        "schemaDataFormat": "AVRO",
        "dataFormat": "JSON",
        "schemaFile": str(file),
    }
    assert json.loads(file.read_text()) == ORDER
    assert found[3][1]["schemaDataFormat"] == "PROTOBUF"
    assert found[4][1] == found[8][1] == {}
    assert NOBODYS in found[5][1]["schemaError"]
    assert "inflates to more than" in found[6][1]["schemaError"]
    assert daemon.stop() == 0
    lease = world.lease("shardId-000000000000")
    assert lease.checkpoint.sub == 1, "the second user record of the aggregate, which was the last"


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


def test_a_directory_of_others_is_not_written_to(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(1)
    schemas = Schemas(world)
    schemas.put(frame(schemas.json, b"{}"))
    (tmp_path / "open").mkdir(mode=0o755)
    daemon = schemas.daemon("strip", **{"mld.schemaRegistry.directory": str(tmp_path / "open")})
    ((data, extra),) = got(daemon, 1)
    assert (data, extra["schemaName"]) == (b"{}", "clicks")
    assert "schemaFile" not in extra
    assert daemon.stop() == 0
