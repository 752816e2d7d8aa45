"""Reads the data files of botocore without what no client of mld needs, for they stay in memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

SERVICES = frozenset(
    ("dynamodb", "glue", "kinesis", "monitoring", "s3", "sqs", "streams.dynamodb")
    + ("oidc", "portal.sso", "signin", "sts")  # which credentials come from
)
"""Those that mld needs, by the prefix of their endpoints."""
ENDPOINTS = "endpoints"


def lean_data(file_path: str) -> Any:
    """Return the data in a file of botocore, whose path comes without its ending, as botocore's own loader does; None
    if there is no file.

    Without what no client of mld needs: all services in all regions, and the documentation of every operation and
    shape. They take 11 MB of the 60 that a daemon has at rest.
    """
    for path, opened in ((Path(f"{file_path}.json"), open), (Path(f"{file_path}.json.gz"), gzip.open)):
        if path.is_file():
            with opened(path, "rb") as file:
                data = json.loads(file.read(), object_hook=_without_documentation)
            for partition in data["partitions"] if path.name.startswith(f"{ENDPOINTS}.") else ():
                services = partition["services"].items()
                partition["services"] = {name: endpoints for name, endpoints in services if name in SERVICES}
            return data
    return None


def _without_documentation(found: dict[str, Any]) -> dict[str, Any]:
    """Return empty, not absent: botocore asks for some of it. A shape may have a member of that name, which is no
    text.
    """
    if isinstance(found.get("documentation"), str):
        found["documentation"] = ""
    return found
