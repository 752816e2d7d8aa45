"""Records of the Glue Schema Registry through the Spark data source; without Spark."""

from __future__ import annotations

import base64
import io
import json
import time
import uuid
from pathlib import Path

import fastavro
import pytest

from mld.processors.spark.datasource.fetching import Fetcher
from mld.processors.spark.datasource.read_options import options_of
from mld.processors.spark.datasource.source import plan, settings_of
from tests.support.servers import REGION, EmbeddedAws

pytest.importorskip("pyspark", reason="the source is imported from where Spark finds it")

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.full
def test_frames_of_the_registry_are_opened_as_the_daemon_opens_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "123456789012")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    with EmbeddedAws(streams={"s": 1}) as aws:
        glue, kinesis = aws.client("glue"), aws.client("kinesis")
        glue.create_registry(RegistryName="shop")
        made = glue.create_schema(
            RegistryId={"RegistryName": "shop"},
            SchemaName="orders",
            DataFormat="AVRO",
            Compatibility="NONE",
            SchemaDefinition=json.dumps(ORDER),
        )
        payload = io.BytesIO()
        fastavro.schemaless_writer(payload, fastavro.parse_schema(dict(ORDER)), {"id": 7})
        framed = b"\x03\x00" + uuid.UUID(made["SchemaVersionId"]).bytes + payload.getvalue()
        for data in (framed, b"no frame"):
            kinesis.put_record(StreamName="s", Data=data, PartitionKey="k")
        file = tmp_path / "app.properties"
        file.write_text(
            "executableName = x\napplicationName = reader\nstreamName = s\n"
            f"AwsCredentialsProvider = DefaultCredentialsProvider\nregionName = {REGION}\n"
            f"kinesisEndpoint = {aws.endpoint}\nmld.schemaRegistry = json\n"
            f"mld.schemaRegistry.endpoint = {aws.endpoint}\n"
        )
        now_s = time.time() + 60  # the clock of a driver may be ahead of that of Kinesis
        options = options_of({"properties": str(file)}, now_s)
        with Fetcher(settings_of(options), read_interval_s=0) as fetcher:
            spans = plan(fetcher, options, now_s)
            found = [one for span in spans for page in fetcher.records(span, goes_on=False) for one in page]
    assert [base64.b64decode(fields["data"]) for fields in found] == [b'{"id":7}', b"no frame"]
    assert found[0]["schemaName"] == "orders"
