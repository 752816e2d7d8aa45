"""Where Delta's own log store cannot keep several drivers apart. Real tables: `tests/lakehouse`."""

from __future__ import annotations

import pytest

from mld.processors.spark.session.jvm_classes import CLASS, log_settings
from mld.processors.spark.sinks.delta import one_driver_refusal


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
@pytest.mark.parametrize("store", [None, "", "io.delta.storage.S3SingleDriverLogStore"])
def test_a_table_on_s3_is_refused_by_name_with_a_way_out(scheme, store):
    said = one_driver_refusal("out", scheme, store)
    assert said is not None
    assert f"mld.spark.conf.spark.delta.logStore.{scheme}.impl" in said and "format = iceberg" in said


@pytest.mark.parametrize(
    ("scheme", "store"),
    [("", None), ("file", None), ("hdfs", None), ("abfss", None), ("gs", None),
     ("s3a", "io.delta.storage.S3DynamoDBLogStore")],
)  # fmt: skip
def test_other_places_and_other_stores_are_not(scheme, store):
    assert one_driver_refusal("out", scheme, store) is None


def test_a_log_store_that_several_drivers_may_use():
    given = log_settings({"spark.delta.logStore.s3.impl": "theirs"})
    assert given == {"spark.delta.logStore.s3a.impl": CLASS, "spark.delta.logStore.s3n.impl": CLASS}
    assert one_driver_refusal("out", "s3a", given["spark.delta.logStore.s3a.impl"]) is None
