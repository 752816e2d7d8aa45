"""The lease table as mld creates it, for those who make their tables with Terraform or CloudFormation. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from mld.operating.generated.iam_policy import OWNER_INDEX, quoted
from mld.properties.settings import Settings
from mld.properties.values import BillingMode

KEY, OWNER = "leaseKey", "leaseOwner"


def cloudformation(settings: Settings) -> str:
    """A template with the table as its one resource, in JSON."""
    properties: dict[str, Any] = {
        "TableName": settings.table_name,
        "BillingMode": settings.lease_table_billing_mode.value,
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in (KEY, OWNER)],
        "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": OWNER_INDEX,
                "KeySchema": [
                    {"AttributeName": OWNER, "KeyType": "HASH"},
                    {"AttributeName": KEY, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
                **_throughput(settings),
            }
        ],
        "DeletionProtectionEnabled": settings.lease_table_deletion_protection_enabled,
        **_throughput(settings),
    }
    if settings.lease_table_pitr_enabled:
        properties["PointInTimeRecoverySpecification"] = {"PointInTimeRecoveryEnabled": True}
    if settings.lease_table_tags:
        properties["Tags"] = [{"Key": key, "Value": value} for key, value in dict(settings.lease_table_tags).items()]
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Lease table of {settings.application_name}",
        "Resources": {"LeaseTable": {"Type": "AWS::DynamoDB::Table", "Properties": properties}},
    }
    return json.dumps(template, indent=2)


def _throughput(settings: Settings) -> dict[str, Any]:
    if settings.lease_table_billing_mode is not BillingMode.PROVISIONED:
        return {}
    return {
        "ProvisionedThroughput": {
            "ReadCapacityUnits": settings.initial_lease_table_read_capacity,
            "WriteCapacityUnits": settings.initial_lease_table_write_capacity,
        }
    }


def terraform(settings: Settings) -> str:
    """An `aws_dynamodb_table` resource, as `terraform fmt` lays it out."""
    capacity = (
        {}
        if settings.lease_table_billing_mode is not BillingMode.PROVISIONED
        else {
            "read_capacity": str(settings.initial_lease_table_read_capacity),
            "write_capacity": str(settings.initial_lease_table_write_capacity),
        }
    )
    table = {
        "name": quoted(settings.table_name),
        "billing_mode": quoted(settings.lease_table_billing_mode.value),
        "hash_key": quoted(KEY),
        **capacity,
        "deletion_protection_enabled": str(settings.lease_table_deletion_protection_enabled).lower(),
    }
    index = {
        "name": quoted(OWNER_INDEX),
        "hash_key": quoted(OWNER),
        "range_key": quoted(KEY),
        "projection_type": quoted("KEYS_ONLY"),
        **capacity,
    }
    lines = [
        f'resource "aws_dynamodb_table" "{resource_name(settings.application_name)}" {{',
        *_assignments(table, "  "),
    ]
    for name in (KEY, OWNER):
        lines += _block("attribute", {"name": quoted(name), "type": quoted("S")})
    lines += _block("global_secondary_index", index)
    if settings.lease_table_pitr_enabled:
        lines += _block("point_in_time_recovery", {"enabled": "true"})
    if settings.lease_table_tags:
        tags = {quoted(key): quoted(value) for key, value in dict(settings.lease_table_tags).items()}
        lines += _block("tags =", tags)
    return "\n".join([*lines, "}"])


def _block(head: str, values: dict[str, str]) -> list[str]:
    return ["", f"  {head} {{", *_assignments(values, "    "), "  }"]


def _assignments(values: dict[str, str], indent: str) -> list[str]:
    width = max(map(len, values))
    return [f"{indent}{name:<{width}} = {value}" for name, value in values.items()]


def resource_name(application: str) -> str:
    """A name that Terraform takes for a resource."""
    name = re.sub(r"[^0-9A-Za-z_-]", "_", application)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"
