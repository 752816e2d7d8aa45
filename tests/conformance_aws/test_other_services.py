"""CloudWatch, STS and the Glue schema registry, as far as the daemon uses them."""

from __future__ import annotations

from tests.conformance_aws.conftest import Target, unique


def test_metrics_can_be_put(target: Target) -> None:
    data = [{"MetricName": "Time", "StatisticValues": {"SampleCount": 2, "Sum": 3.0, "Minimum": 1.0, "Maximum": 2.0}}]
    answer = target.client("cloudwatch").put_metric_data(Namespace=unique(), MetricData=data)
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_the_caller_has_an_account(target: Target) -> None:
    assert len(target.client("sts").get_caller_identity()["Account"]) == 12


def test_a_schema_version_is_found_by_its_id(target: Target) -> None:
    glue = target.client("glue")
    registry = unique()
    glue.create_registry(RegistryName=registry)
    definition = '{"type":"record","name":"r","fields":[]}'
    made = glue.create_schema(
        RegistryId={"RegistryName": registry},
        SchemaName="s",
        DataFormat="AVRO",
        Compatibility="NONE",
        SchemaDefinition=definition,
    )
    found = glue.get_schema_version(SchemaVersionId=made["SchemaVersionId"])
    glue.delete_registry(RegistryId={"RegistryName": registry})
    assert (found["SchemaDefinition"], found["DataFormat"]) == (definition, "AVRO")
