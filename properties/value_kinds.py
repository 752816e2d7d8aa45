"""`ValueKind`: the kinds of values that keys have.

Rules: configuration#value-conversion.
"""

from __future__ import annotations

from enum import Enum


class ValueKind(Enum):
    """The kind of a value; the text is its name on the reference page."""

    TEXT = "text"
    INT = "int"
    LONG = "long"
    MILLIS = "milliseconds"
    SECONDS = "seconds"
    BYTES = "bytes"
    DOUBLE = "number"
    BOOL = "boolean"
    CHOICE = "one of"
    CHOICES = "list of"
    INITIAL_POSITION = "LATEST or TRIM_HORIZON"
    POSITION = "LATEST, TRIM_HORIZON or epoch seconds"
    EPOCH_SECONDS = "epoch seconds"
    DURATION = "ISO-8601 duration"
    TAGS = "name=value, …"
    DIMENSIONS = "names"
    URL = "URL"
    REGION = "region"
    STREAM_ARN = "ARN"
    STREAM_NAMES = "name, name, …"
    DEAD_LETTER = "directory, s3:// URL, stream ARN or queue URL"
    LISTEN = "host:port"
    HOSTS = "host names"
    SOCKET = "path, or off"
    PROCESSES = "number, or auto"
    CREDENTIALS = "credentials"
