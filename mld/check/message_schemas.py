"""`flaw`: checks messages of a child against the JSON schemas of the protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

SCHEMA_URN = "urn:mld:protocol:"
FLAW_CHARS_MAX = 500
"""jsonschema quotes the value that it refuses, which may be as long as a line."""


@cache
def validator(name: str) -> Draft202012Validator:
    """Return the validator for the schema `name`: its file name without the ending, such as `status`."""
    return Draft202012Validator(_schemas()[SCHEMA_URN + name], registry=_registry())


def flaw(name: str, message: object) -> str | None:
    """Return how a message violates the schema called `name`, in at most FLAW_CHARS_MAX characters; None if it does
    not.
    """
    for error in validator(name).iter_errors(message):
        return str(error.message)[:FLAW_CHARS_MAX]
    return None


@cache
def _schemas() -> dict[str, Mapping[str, Any]]:
    """Return all schemas of the protocol, by their URNs."""
    loaded = {}
    for file in files("mld.protocol").joinpath("schemas").iterdir():
        if file.name.endswith(".schema.json"):
            schema = json.loads(file.read_text(encoding="utf-8"))
            loaded[schema["$id"]] = schema
    return loaded


@cache
def _registry() -> Registry[bool | Mapping[str, Any]]:
    """Return the registry in which a schema finds the other schemas that it refers to."""
    registry: Registry[bool | Mapping[str, Any]] = Registry()
    return registry.with_resources((urn, DRAFT202012.create_resource(schema)) for urn, schema in _schemas().items())
