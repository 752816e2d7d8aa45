"""`lean_data`: reads the data files of botocore without the parts that mld never uses, because they stay in memory."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

SERVICES = frozenset(
    ("dynamodb", "glue", "kinesis", "monitoring", "s3", "sqs", "streams.dynamodb")
    + ("oidc", "portal.sso", "signin", "sts")  # credentials come from these
)
"""Services that mld needs, by the prefix of their endpoints."""
ENDPOINTS = "endpoints"  # name of the data file with the endpoints of all services


def lean_data(file_path: str) -> Any:
    """Return the data in a file of botocore; None if there is no file.

    `file_path` has no ending (`.json` or `.json.gz`), as in botocore's own loader. The result lacks the endpoints of
    services other than `SERVICES`, and the documentation of operations and shapes. These would take 11 MB of the 60
    that an idle daemon uses.
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


class AnyService:
    """Stands in for the list of services that botocore has data files of, for the check whether a service is in it.

    To make that list, botocore looks into 440 directories, twice. Loading a service without a data file fails anyway.
    """

    def __contains__(self, _: str) -> bool:
        return True


def _without_documentation(found: dict[str, Any]) -> dict[str, Any]:
    """Empty the documentation text of a JSON object, and return the object.

    botocore looks some of these texts up, so they become empty instead of being removed. If "documentation" is not a
    text, it is a member of a shape that has this name, and stays.
    """
    if isinstance(found.get("documentation"), str):
        found["documentation"] = ""
    return found
