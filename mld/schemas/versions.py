"""Schema versions as the registry describes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a schema. `data_format` is AVRO, JSON or PROTOBUF; `name` is that of the schema.

    `descriptors`: of Protobuf, what a compiler has made of the definition, if there is one and it could.
    """

    version_id: str
    name: str
    data_format: str
    definition: str
    descriptors: bytes | None = None


def version_of(version_id: str, answer: Mapping[str, Any]) -> SchemaVersion:
    """The version of an answer of GetSchemaVersion. Raises KeyError or TypeError for what is none."""
    arn = answer.get("SchemaArn")
    return SchemaVersion(
        version_id,
        "" if not isinstance(arn, str) else arn.rpartition("/")[2],
        str(answer["DataFormat"]),
        str(answer["SchemaDefinition"]),
    )
