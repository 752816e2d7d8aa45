"""`mld.spark.schema = registry`: what it needs, and what contradicts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mld.properties.lines import ConfigurationError
from mld.properties.loader import load

BASE = {
    "executableName": "mld-spark",
    "applicationName": "app",
    "streamName": "s",
    "AwsCredentialsProvider": "DefaultCredentialsProvider",
    "mld.schemaRegistry": "strip",
    "mld.spark.pipeline": "p.py:transform",
    "mld.spark.format": "avro",
    "mld.spark.schema": "registry",
    "mld.spark.schema.reader": '"string"',
}


def problems(directory: Path, **changes: str) -> str:
    keys = BASE | {name.replace("__", "."): value for name, value in changes.items()}
    file = directory / "app.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in keys.items() if value))
    try:
        load(file)
    except ConfigurationError as error:
        return "; ".join(str(problem) for problem in error.problems)
    return ""


@pytest.mark.parametrize(
    "changes", [{}, {"mld__spark__format": "json"}, {"mld__spark__format": "json", "mld__schemaRegistry": "json"}]
)
def test_what_fits_together_is_accepted(tmp_path: Path, changes: dict[str, str]) -> None:
    assert problems(tmp_path, **changes) == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mld__schemaRegistry": ""}, "mld.spark.schema: is registry, and mld.schemaRegistry is off"),
        ({"mld__schemaRegistry": "json"}, "mld.spark.schema: is registry, and mld.schemaRegistry is json"),
        ({"mld__spark__schema__reader": ""}, "mld.spark.schema.reader: is required by mld.spark.schema = registry"),
        ({"mld__spark__format": "csv"}, "mld.spark.schema: is registry, which is for the formats json and avro"),
        ({"mld__spark__schema": "user STRING"}, "mld.spark.schema.reader: has no effect without"),
    ],
)
def test_a_contradiction_is_named(tmp_path: Path, changes: dict[str, str], says: str) -> None:
    assert says in problems(tmp_path, **changes)
