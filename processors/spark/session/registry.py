"""Payloads whose writer's schema is named by the frame of the Glue Schema Registry, read by a schema of ours.

The daemon takes the frames off (`mld.schemaRegistry=strip`) and names the version on each record, and the file with its
definition. A batch has few versions; each is decoded by its own schema and resolved to the reader's by Avro's rules.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

REGISTRY = "registry"
"""`mld.spark.schema`, where the frame names the schema."""
RAW_MORE = ", schemaVersionId STRING, schemaName STRING, schemaFile STRING"
NAMED_MORE = ("schemaVersionId", "schemaName")
SCHEMA_COLUMNS = (*NAMED_MORE, "schemaFile")
"""What a dead letter keeps, so that its data can be decoded later."""
DEFINITIONS_KEPT_MAX = 1_000
_TEXT = rb'"(?:[^"\\]|\\.)*"'
_VERSION = re.compile(rb'"schemaVersionId":"([0-9a-f-]{36})"((?:,"[A-Za-z]+":' + _TEXT + rb")*)")
_FILE = re.compile(rb'"schemaFile":(' + _TEXT + rb")")


def files_of_versions(lines: bytes) -> dict[str, str]:
    """Return the schema versions that records name, each with the file of its definition, if they name it."""
    found: dict[str, str] = {}
    for version, more in set(_VERSION.findall(lines)):
        file = _FILE.search(more)
        if file is not None:
            found[version.decode()] = json.loads(file[1])
    return found


class Definitions:
    """Definitions of schema versions, read once each; a version never changes."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._told: set[str] = set()

    def of(self, texts: Iterable[bytes]) -> Mapping[str, str]:
        """Return the definitions of the versions that the lines name. One that cannot be read is left out, and said
        once.
        """
        found: dict[str, str] = {}
        for lines in texts:
            for version, file in files_of_versions(lines).items():
                if version not in found and (definition := self._definition(version, file)) is not None:
                    found[version] = definition
        return dict(sorted(found.items()))

    def _definition(self, version: str, file: str) -> str | None:
        if version in self._known:
            return self._known[version]
        try:
            definition = Path(file).read_text(encoding="utf-8")
            json.loads(definition)
        except (OSError, ValueError) as error:
            if version not in self._told:
                log.error("the schema of version %s cannot be read: %s", version, error)
            self._told.add(version)
            return None
        if len(self._known) >= DEFINITIONS_KEPT_MAX:
            self._known.clear()
        self._known[version] = definition
        return definition
