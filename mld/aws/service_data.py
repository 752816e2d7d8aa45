"""What botocore keeps of its own data files: service models, endpoints. Without what no client of mld needs.

As botocore reads them they take 11 MB of the 60 that a daemon has at rest: all services in all regions, and the
documentation of every operation and shape.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from botocore.loaders import JSONFileLoader

CLIENTS = frozenset({"dynamodb", "glue", "kinesis", "monitoring", "s3", "sqs", "streams.dynamodb"})
"""By the prefix of their endpoints."""
SERVICES = CLIENTS | {"oidc", "portal.sso", "signin", "sts"}
"""With those that credentials come from."""
ENDPOINTS = "endpoints"


class LeanFileLoader(JSONFileLoader):
    """Reads what botocore's own reads."""

    def load_file(self, file_path: str) -> Any:
        """Return the data in a file, whose path comes without its ending; None if there is no file."""
        for path, opened in ((Path(f"{file_path}.json"), open), (Path(f"{file_path}.json.gz"), gzip.open)):
            if path.is_file():
                with opened(path, "rb") as file:
                    return _lean(path, json.loads(file.read(), object_hook=_without_documentation))
        return None


def _lean(path: Path, data: Any) -> Any:
    if path.name.startswith(f"{ENDPOINTS}."):
        for partition in data["partitions"]:
            services = partition["services"].items()
            partition["services"] = {name: endpoints for name, endpoints in services if name in SERVICES}
    return data


def _without_documentation(found: dict[str, Any]) -> dict[str, Any]:
    """Return empty, not absent: botocore asks for some of it. A shape may have a member of that name, which is no
    text.
    """
    if isinstance(found.get("documentation"), str):
        found["documentation"] = ""
    return found
