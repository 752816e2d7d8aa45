"""Code of Terraform or CloudFormation for the lease table as mld creates it."""

from __future__ import annotations

import json
import re

from mld.operating.filling import Value, filled
from mld.properties.settings import Settings
from mld.properties.values import BillingMode


def lease_table(settings: Settings, template: str) -> str:
    """Return the code for the lease table; `template` is ``lease-table.tf`` (Terraform) or ``lease-table.json``
    (CloudFormation).
    """
    is_terraform = template.endswith(".tf")
    text = quoted if is_terraform else json.dumps
    is_provisioned = settings.lease_table.billing_mode is BillingMode.PROVISIONED
    tags = dict(settings.lease_table.tags)
    width = max((len(quoted(key)) for key in tags), default=0)
    values: dict[str, Value] = {
        "resource": resource_name(settings.application_name),
        "description": text(f"Lease table of {settings.application_name}"),
        "name": text(settings.lease_table.name),
        "billing_mode": text(settings.lease_table.billing_mode.value),
        "read_capacity": str(settings.lease_table.read_capacity) if is_provisioned else None,
        "write_capacity": str(settings.lease_table.write_capacity) if is_provisioned else None,
        "deletion_protection": str(settings.lease_table.deletion_protection).lower(),
        "recovery": settings.lease_table.point_in_time_recovery,
        "tags": tuple(f"{quoted(key):<{width}} = {quoted(value)}" for key, value in tags.items()),
        "tags_json": json.dumps([{"Key": key, "Value": value} for key, value in tags.items()]) if tags else None,
    }
    return "\n".join(filled(template, values))


def resource_name(application: str) -> str:
    """Return the application's name in a form that Terraform accepts as the name of a resource."""
    name = re.sub(r"[^0-9A-Za-z_-]", "_", application)
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"


def quoted(text: str) -> str:
    """Return the text as a string of Terraform's language. In it ${ and %{ would begin templates, so they are
    escaped.
    """
    return json.dumps(text).replace("${", "$${").replace("%{", "%%{")
