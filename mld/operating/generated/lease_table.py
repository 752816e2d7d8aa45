"""The lease table as mld creates it, for those who make their tables with Terraform or CloudFormation. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from mld.operating.generated.iam_policy import OWNER_INDEX
from properties.settings import Settings
from properties.values import BillingMode

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
    """An `aws_dynamodb_table` resource."""
    capacity = (
        []
        if settings.lease_table_billing_mode is not BillingMode.PROVISIONED
        else [
            f"read_capacity  = {settings.initial_lease_table_read_capacity}",
            f"write_capacity = {settings.initial_lease_table_write_capacity}",
        ]
    )
    lines = [
        f'resource "aws_dynamodb_table" "{resource_name(settings.application_name)}" {{',
        f"  name         = {quoted(settings.table_name)}",
        f'  billing_mode = "{settings.lease_table_billing_mode.value}"',
        f'  hash_key     = "{KEY}"',
        *(f"  {line}" for line in capacity),
        f"  deletion_protection_enabled = {str(settings.lease_table_deletion_protection_enabled).lower()}",
    ]
    for name in (KEY, OWNER):
        lines += ["", "  attribute {", f'    name = "{name}"', '    type = "S"', "  }"]
    lines += [
        "",
        "  global_secondary_index {",
        f'    name            = "{OWNER_INDEX}"',
        f'    hash_key        = "{OWNER}"',
        f'    range_key       = "{KEY}"',
        '    projection_type = "KEYS_ONLY"',
        *(f"    {line}" for line in capacity),
        "  }",
    ]
    if settings.lease_table_pitr_enabled:
        lines += ["", "  point_in_time_recovery {", "    enabled = true", "  }"]
    if settings.lease_table_tags:
        lines += ["", "  tags = {"]
        lines += [f"    {quoted(key)} = {quoted(value)}" for key, value in dict(settings.lease_table_tags).items()]
        lines += ["  }"]
    return "\n".join([*lines, "}"])


def resource_name(application: str) -> str:
    """A name that Terraform takes for a resource."""
    name = re.sub(r"[^0-9A-Za-z_-]", "_", application)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"


def quoted(text: str) -> str:
    """A string of Terraform's language, in which ${ and %{ begin templates."""
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")
