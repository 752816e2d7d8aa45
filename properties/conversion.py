"""`convert`: converts the text of a value by the kind of its key. Raises `BadValue` where Java silently takes 0.

Every value is trimmed; a text that is not a value of its kind is an error. `value_parsers` has a function for each
kind. Rules: configuration#value-conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from mld.properties.keytypes import INT_MAX, LONG_KINDS, Key
from mld.properties.value_kinds import ValueKind
from mld.properties.value_parsers import (
    BadValue,
    parse_boolean,
    parse_dead_letter,
    parse_decimal,
    parse_dimensions,
    parse_duration,
    parse_epoch_seconds,
    parse_host_names,
    parse_initial_position,
    parse_integer,
    parse_listen_address,
    parse_position,
    parse_processes,
    parse_region,
    parse_socket_path,
    parse_stream_arn,
    parse_stream_names,
    parse_tags,
    parse_url,
)

_JAVA_BLANKS = "".join(map(chr, range(0x21)))  # what String.trim() removes
NONE = "none"
"""The word for a list that chooses nothing."""
_REMOVED_WORDS = {
    "emf": "write cloudwatch: CloudWatch gets the same metrics, by cloudwatch:PutMetricData",
    "otlp": "write prometheus: an OpenTelemetry collector scrapes /metrics of mld.http by its receiver prometheus",
}
"""Words that earlier versions of mld accepted, each with what to do instead."""
_CONVERSIONS: dict[ValueKind, Callable[[str], object]] = {
    ValueKind.TEXT: str,
    ValueKind.INT: partial(parse_integer, maximum=INT_MAX),
    **dict.fromkeys(LONG_KINDS, parse_integer),
    ValueKind.DOUBLE: parse_decimal,
    ValueKind.BOOL: parse_boolean,
    ValueKind.INITIAL_POSITION: parse_initial_position,
    ValueKind.EPOCH_SECONDS: parse_epoch_seconds,
    ValueKind.POSITION: parse_position,
    ValueKind.STREAM_NAMES: parse_stream_names,
    ValueKind.DURATION: parse_duration,
    ValueKind.TAGS: parse_tags,
    ValueKind.DIMENSIONS: parse_dimensions,
    ValueKind.URL: parse_url,
    ValueKind.REGION: parse_region,
    ValueKind.STREAM_ARN: parse_stream_arn,
    ValueKind.DEAD_LETTER: parse_dead_letter,
    ValueKind.LISTEN: parse_listen_address,
    ValueKind.HOSTS: parse_host_names,
    ValueKind.SOCKET: parse_socket_path,
    ValueKind.PROCESSES: parse_processes,
}
"""The parsers of all kinds, except choices (the key has their words) and credentials (`credentials_syntax`)."""


def trim(text: str) -> str:
    """Return `text` without the blanks and control characters at its ends."""
    return text.strip(_JAVA_BLANKS)


def convert(key: Key, text: str) -> object:
    """Return the value of a trimmed text for `key`. Raises BadValue. CREDENTIALS are parsed by `credentials_syntax`."""
    if "\0" in text:
        raise BadValue("contains a NUL character", "remove \\u0000")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise BadValue("contains half a surrogate pair", "write both \\u escapes of the character")
    if key.choices is not None:
        return _choice(text, key.choices) if key.kind is ValueKind.CHOICE else _several(text, key.choices)
    return _CONVERSIONS[key.kind](text)


def _choice(text: str, choices: type[Enum]) -> Enum:
    """Return the choice that a word names, in upper or lower case. Raises BadValue."""
    for choice in choices:
        if str(choice.value).lower() == text.lower():
            return choice
    names = ", ".join(str(choice.value) for choice in choices)
    raise BadValue("has no such value", f"use one of {names}")


def _several(text: str, choices: type[Enum]) -> tuple[Enum, ...]:
    """Return the choices that a list of words names, in the order of their declaration; an empty tuple for the word
    `none`.
    """
    words = [word.strip().lower() for word in text.split(",")]
    if words == [NONE]:
        return ()
    by_word = {str(choice.value).lower(): choice for choice in choices}
    remedy = f"write some of {', '.join(by_word)}, separated by commas, or {NONE}"
    for number, word in enumerate(words, start=1):
        if word in _REMOVED_WORDS:
            raise BadValue(f"has {word}, which mld no longer writes", _REMOVED_WORDS[word])
        if word not in by_word:
            raise BadValue(f"word {number} of the list is unknown", remedy)
    return tuple(choice for choice in choices if str(choice.value).lower() in words)
