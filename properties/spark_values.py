"""The closed sets of values that keys of the Spark processor have."""

from __future__ import annotations

from enum import Enum


class Format(Enum):
    """The format of a record's data."""

    BINARY = "binary"
    JSON = "json"
    JSON_LINES = "jsonlines"
    AVRO = "avro"
    TEXT = "text"


class OnPoison(Enum):
    DEAD_LETTER = "deadLetter"
    STOP = "stop"


class OnGap(Enum):
    STOP = "stop"
    ACCEPT = "accept"
