"""`lean_data`: reads the data files of botocore, which stay in memory, without what no client of mld needs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

SERVICES = frozenset(
    ("dynamodb", "glue", "kinesis", "monitoring", "s3", "sqs", "streams.dynamodb")
    + ("oidc", "portal.sso", "signin", "sts")  # which credentials come from
)
"""Services that mld needs, by the prefix of their endpoints."""
ENDPOINTS = "endpoints"


def lean_data(file_path: str) -> Any:
    """Return the data in a file of botocore; None if there is no file. As in botocore's loader, the path has no ending.

    Left out are the endpoints of all other services, and the documentation of operations and shapes. They would take 11
    MB of the 60 that a daemon has at rest.
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
    """Empty the documentation of an object, and return the object. botocore asks for some of these texts, so they stay
    as empty texts. A shape may have a member with this name, which is no text.
    """
    if isinstance(found.get("documentation"), str):
        found["documentation"] = ""
    return found
