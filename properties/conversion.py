"""One line of the file -> a checked value, or the remark why not. Keys are not compared with each other here.

`convert` turns the text of a value into the value, and raises `BadValue` where Java silently takes 0: every value is
trimmed, and text that is not a value of its kind is an error. `check` adds references, ranges and the zero rule. Its
remarks show texts as written in the file, so that what the environment put in stays hidden. Rules:
configuration#value-conversion, configuration#zero-rule, configuration#bounds-and-clamps, configuration#empty-values,
configuration#effect-of-keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import partial
from urllib.parse import SplitResult, urlsplit

from mld.properties.credentials import parse_chain
from mld.properties.key_lines import KeyLine
from mld.properties.keytypes import INT_MAX, LONG_KINDS, LONG_MAX, NUMERIC_KINDS, Effect, Key, ValueKind
from mld.properties.lines import Level, Remark, Sources, SubstitutionError, has_file, has_reference, substitute
from mld.properties.redaction import HIDDEN, Shown, is_secret_key, redacted, secrets_in, shown_mistake
from mld.properties.settings import (
    BAKE_SECONDS_MAX,
    BAKE_SECONDS_MIN,
    METRICS_PERIOD_MILLIS_MIN,
    READ_INTERVAL_MILLIS_MIN,
    STREAM_PREFIX,
)
from mld.properties.values import (
    AUTO,
    ONE_FOR_EACH_CPU,
    PROCESSES_MAX,
    SOCKET_OFF,
    DeadLetter,
    DeadLetterKind,
    InitialPositionKind,
    InitialPositionSetting,
    ListenAddress,
    StreamArn,
)

_JAVA_BLANKS = "".join(map(chr, range(0x21)))  # what String.trim() removes
_TRUE = frozenset({"true", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "no", "n", "off", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[fFdD]?", re.ASCII)
_INTEGER_DIGITS_MAX = 40  # far beyond any long; keeps int() from working on kilobytes of digits
_DURATION = re.compile(
    r"P(?:(?P<days>[0-9]+)D)?(?:T(?=[0-9])(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?"
    r"(?:(?P<seconds>[0-9]+(?:[.,][0-9]{0,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_REGION = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]*", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_REGION_IN_SQS_HOST = re.compile(r"(?:.*\.)?sqs\.(?P<region>[a-z]{2}[-a-z0-9]+-[0-9]+)\..+", re.ASCII)
_LISTEN = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9.-]+)):(?P<port>[0-9]{1,5})", re.ASCII)
_HOST_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
STREAM_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}", re.ASCII)
PORT_MAX = 65_535
NONE = "none"
"""The list without a choice."""
_DIMENSION_SEPARATORS = re.compile(r"[\s,{}'\"]+")
# Epoch seconds beyond the year 5138 are milliseconds of a date after 1973.
EPOCH_SECONDS_MAX = 10**11


class BadValue(ValueError):
    """The text is no value of its kind. `message` does not repeat it, as it may be secret."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def trim(text: str) -> str:
    """Return `text` without the blanks and control characters at its ends."""
    return text.strip(_JAVA_BLANKS)


def convert(key: Key, text: str) -> object:
    """Return the value of a trimmed text for `key`. Raises BadValue. CREDENTIALS are parsed elsewhere
    (`credentials`).
    """
    if "\0" in text:
        raise BadValue("contains a NUL character", "remove \\u0000")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise BadValue("contains half a surrogate pair", "write both \\u escapes of the character")
    if key.choices is not None:
        return _choice(text, key.choices) if key.kind is ValueKind.CHOICE else _several(text, key.choices)
    return _CONVERSIONS[key.kind](text)


def _integer(text: str, maximum: int = LONG_MAX) -> int:
    if not _INTEGER.fullmatch(text):
        raise BadValue("is not a whole number", "write decimal digits only")
    if len(text) > _INTEGER_DIGITS_MAX or not -maximum - 1 <= (number := int(text)) <= maximum:
        raise BadValue(f"is larger than a Java {'int' if maximum == INT_MAX else 'long'}", f"at most {maximum}")
    return number


def _decimal(text: str) -> float:
    match = _DECIMAL.fullmatch(text)
    number = float(match.group(1)) if match else math.nan
    if not math.isfinite(number):
        raise BadValue("is not a finite number", "write it as 1.5 or 1e4")
    return number


def _boolean(text: str) -> bool:
    if (word := text.lower()) not in _TRUE | _FALSE:
        raise BadValue("is neither true nor false", "write true or false")
    return word in _TRUE


def _choice(text: str, choices: type[Enum]) -> Enum:
    for choice in choices:
        if str(choice.value).lower() == text.lower():
            return choice
    names = ", ".join(str(choice.value) for choice in choices)
    raise BadValue("has no such value", f"use one of {names}")


_REMOVED_WORDS = {
    "emf": "write cloudwatch: CloudWatch gets the same metrics, by cloudwatch:PutMetricData",
    "otlp": "write prometheus: an OpenTelemetry collector scrapes /metrics of mld.http by its receiver prometheus",
}
"""Words of earlier versions, each with what to do instead."""


def _several(text: str, choices: type[Enum]) -> tuple[Enum, ...]:
    """Return some of the choices, in the order of their declaration; none for the word `none`."""
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


def _initial_position(text: str) -> InitialPositionSetting:
    match text.upper():
        case "LATEST":
            return InitialPositionSetting(InitialPositionKind.LATEST)
        case "TRIM_HORIZON":
            return InitialPositionSetting(InitialPositionKind.TRIM_HORIZON)
        case "AT_TIMESTAMP":
            remedy = "remove it and set initialPositionInStreamExtended to the epoch seconds"
            raise BadValue("AT_TIMESTAMP needs a time", remedy)
    raise BadValue("has no such value", "use LATEST or TRIM_HORIZON")


def _position(text: str) -> InitialPositionSetting:
    if _INTEGER.fullmatch(text):
        return _epoch_seconds(text)
    try:
        return _initial_position(text)
    except BadValue as error:
        raise BadValue(error.message, "use LATEST, TRIM_HORIZON or epoch seconds") from None


def _epoch_seconds(text: str) -> InitialPositionSetting:
    seconds = _integer(text)
    if seconds >= EPOCH_SECONDS_MAX:
        raise BadValue("looks like epoch milliseconds", f"write epoch seconds: {seconds // 1000}")
    if seconds < 0:
        raise BadValue("is before 1970", "write epoch seconds, for example 1767225600")
    return InitialPositionSetting(InitialPositionKind.AT_TIMESTAMP, seconds)


def _duration(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    parts = {unit: value for unit, value in match.groupdict().items() if value is not None} if match else {}
    if not parts:
        remedy = "write days and time as PT24H, P1DT30M or PT1.5S"
        raise BadValue("is not an ISO-8601 duration", remedy)
    try:
        return timedelta(**{unit: float(value.replace(",", ".")) for unit, value in parts.items()})
    except OverflowError:
        raise BadValue("is too long a duration", "write a shorter one") from None


def _tags(text: str) -> tuple[tuple[str, str], ...]:
    tags = []
    for number, pair in enumerate(text.split(",") if text else [], start=1):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name or not value or "=" in value:
            raise BadValue(f"tag {number} is not name=value", "write name=value,name=value")
        tags.append((name, value))
    return tuple(tags)


def _dimensions(text: str) -> tuple[str, ...]:
    return tuple(sorted({token for token in _DIMENSION_SEPARATORS.split(text) if token}))


def _url(text: str) -> str:
    if _http_url(text) is None:
        raise BadValue("is not an http or https URL", "write it as https://host[:port]")
    return text


def _region(text: str) -> str:
    if not _REGION.fullmatch(text):
        raise BadValue("is not a region name", "write it as eu-west-1")
    return text


def _http_url(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or True)
    except ValueError:
        return None
    return parts if complete and not any(character.isspace() for character in text) else None


def _stream_arn(text: str) -> StreamArn | None:
    if not text:
        return None
    arn = StreamArn.parse_source(text)
    if arn is None:
        remedy = (
            "write it as arn:aws:kinesis:<region>:<12 digits>:stream/<name>, or for DynamoDB as "
            "arn:aws:dynamodb:<region>:<12 digits>:table/<table>/stream/<label>"
        )
        raise BadValue("is not the ARN of a stream of Kinesis or DynamoDB", remedy)
    return arn


def _stream_names(text: str) -> tuple[str, ...]:
    """Return names of streams, or labels of the user's for them; each once."""
    names = tuple(name.strip() for name in text.split(","))
    for number, name in enumerate(names, start=1):
        if not STREAM_NAME.fullmatch(name):
            remedy = "write names of letters, digits, '_', '.' and '-', separated by commas"
            if name.startswith("arn:"):
                remedy = "write a name here, and the ARN as mld.stream.<name>.arn"
            raise BadValue(f"name {number} of the list is no name of a stream", remedy)
        if name in names[: number - 1]:
            raise BadValue(f"name {number} of the list, {name}, is in it twice", "name each stream once")
    return names


def _listen_address(text: str) -> ListenAddress | None:
    if not text:
        return None
    match = _LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > PORT_MAX:
        raise BadValue("is not host:port", "write it as 127.0.0.1:9404, [::1]:9404 or localhost:9404")
    return ListenAddress(match["address"] or match["host"], int(match["port"]))


def _host_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    for number, name in enumerate(names, start=1):
        if not _HOST_NAME.fullmatch(name):
            raise BadValue(f"name {number} is not a host name", "write names without port, separated by commas")
    return names


def _socket_path(text: str) -> str | None:
    if not text:
        return None
    if text.lower() == SOCKET_OFF:
        return SOCKET_OFF
    if not text.startswith("/") or text.endswith("/"):
        raise BadValue("is neither off nor the path of a socket", "write it as /run/mld/app.sock, or off")
    return text


def _processes(text: str) -> int:
    if text.lower() == AUTO:
        return ONE_FOR_EACH_CPU
    number = int(text) if re.fullmatch("[0-9]{1,5}", text, re.ASCII) else 0
    if not 1 <= number <= PROCESSES_MAX:
        raise BadValue(f"is neither {AUTO} nor a number from 1 to {PROCESSES_MAX}", "write how many workers are to run")
    return number


def _dead_letter(text: str) -> DeadLetter:
    """Parse a key of our own: Java's daemon ends at the first failure, and has no dead letter."""
    if not text:  # letters would go to the working directory
        raise _no_dead_letter("is empty")
    if text.startswith("s3://"):
        bucket, _, prefix = text.removeprefix("s3://").partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise _no_dead_letter("has no bucket of S3 after s3://")
        return DeadLetter(DeadLetterKind.S3, text, name=bucket, prefix=prefix.strip("/"))
    if text.startswith("arn:"):
        arn = StreamArn.parse(text)
        if arn is None or arn.text != text:
            raise _no_dead_letter("is the ARN of something else than a Kinesis stream")
        return DeadLetter(DeadLetterKind.KINESIS, text, name=arn.text, region=arn.region)
    if "://" in text:
        url = _http_url(text)
        if url is None or len(url.path) < 2 or url.query or url.fragment or url.username:
            raise _no_dead_letter("is not the URL of a queue")
        match = _REGION_IN_SQS_HOST.fullmatch(str(url.hostname))
        return DeadLetter(DeadLetterKind.SQS, text, name=text, region=None if match is None else match["region"])
    return DeadLetter(DeadLetterKind.DIRECTORY, text, name=text)


def _no_dead_letter(message: str) -> BadValue:
    return BadValue(message, "give a directory, s3://bucket/prefix, the ARN of a stream or the URL of a queue")


_CONVERSIONS: dict[ValueKind, Callable[[str], object]] = {
    ValueKind.TEXT: str,
    ValueKind.INT: partial(_integer, maximum=INT_MAX),
    **dict.fromkeys(LONG_KINDS, _integer),
    ValueKind.DOUBLE: _decimal,
    ValueKind.BOOL: _boolean,
    ValueKind.INITIAL_POSITION: _initial_position,
    ValueKind.EPOCH_SECONDS: _epoch_seconds,
    ValueKind.POSITION: _position,
    ValueKind.STREAM_NAMES: _stream_names,
    ValueKind.DURATION: _duration,
    ValueKind.TAGS: _tags,
    ValueKind.DIMENSIONS: _dimensions,
    ValueKind.URL: _url,
    ValueKind.REGION: _region,
    ValueKind.STREAM_ARN: _stream_arn,
    ValueKind.DEAD_LETTER: _dead_letter,
    ValueKind.LISTEN: _listen_address,
    ValueKind.HOSTS: _host_names,
    ValueKind.SOCKET: _socket_path,
    ValueKind.PROCESSES: _processes,
}
"""All kinds but choices, whose words the key has, and credentials, which have a parser of their own."""

# --- a line of the file, checked --------------------------------------------------------------------------------------


# Java raises or clamps these without refusing the file.
_CLAMPS: dict[str, tuple[int, int | None]] = {
    "idleTimeBetweenReadsInMillis": (READ_INTERVAL_MILLIS_MIN, None),
    "metricsBufferTimeMillis": (METRICS_PERIOD_MILLIS_MIN, None),
    "tableMigrationCompleteBakeTimeSeconds": (BAKE_SECONDS_MIN, BAKE_SECONDS_MAX),
}
_DIMENSIONS = ("ALL", "Operation", "ShardId", "StreamId", "WorkerIdentifier")


@dataclass(frozen=True, slots=True)
class Given:
    """A key that the file or an override sets to a valid value; `display` is fit for a log, `secrets` are not."""

    key: Key
    value: object
    display: str
    place: str
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Checked:
    """`given` is None when the key counts as not set: its value is bad (a remark is an error), empty, or an unset 0."""

    given: Given | None
    remarks: tuple[Remark, ...]


def check(line: KeyLine, sources: Sources) -> Checked:
    """Convert and check one line; `sources` are for `${NAME}` and `${file:/path}`."""
    key, place = line.key, line.place
    if key.shown is Shown.COMMAND and has_file(line.raw):
        remedy = "let the record processor read the file itself"
        return _bad(line, "takes no ${file:…}: every user of this machine can read a command line", remedy)
    try:
        found = substitute(line.raw, sources)
    except SubstitutionError as error:
        return _bad(line, str(error), error.remedy)
    text = trim(found.text)
    if key.kind is ValueKind.CREDENTIALS:
        return _check_credentials(line, text, found.contents)
    if not text and (key.kind is ValueKind.TEXT or key.kind is ValueKind.STREAM_ARN):
        return _check_empty(line)
    try:
        value = convert(key, text)
    except BadValue as error:
        return _bad(line, _with_text(line, error.message) if text else "is empty", error.remedy)
    if key.kind in NUMERIC_KINDS:
        return _check_number(line, value)
    remarks = _remarks_on_dimensions(line, value) if key.kind is ValueKind.DIMENSIONS else []
    secrets = tuple(secrets_in(key.name, key.shown, display_value(value)))
    shown = display(key, value)
    if found.contents and (key.shown is not Shown.FULL or is_secret_key(key.name)):
        secrets, shown = (*secrets, *found.contents), HIDDEN
    given = Given(key, value, shown, place, secrets)
    return Checked(given, (*remarks, *_remark_on_effect(line)))


def _bad(line: KeyLine, message: str, remedy: str = "") -> Checked:
    return Checked(None, (line.remark(Level.ERROR, message, remedy),))


def _with_text(line: KeyLine, message: str) -> str:
    """Return the message with the text from the file, if that can only be a mistyped number or a reference."""
    raw = shown_mistake(trim(line.raw))
    return message if raw is None else f"{message}: '{raw}'"


def display(key: Key, value: object) -> str:
    """Return the part of a value that may be shown, for a key that holds no credentials."""
    if key.kind is ValueKind.DIMENSIONS:
        assert isinstance(value, tuple)
        value = tuple(name if name in _DIMENSIONS else HIDDEN for name in value)
    return redacted(key.name, key.shown, display_value(value))


def display_value(value: object) -> str:
    """Return a converted value as the file would write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join("=".join(part) if isinstance(part, tuple) else display_value(part) for part in value)
        case _ if hasattr(value, "value"):
            return str(value.value)
        case _ if hasattr(value, "total_seconds"):
            return f"PT{value.total_seconds():g}S"
    return str(value)


def _check_empty(line: KeyLine) -> Checked:
    if line.key.name == "workerId":
        return _bad(line, "is empty", "give a unique name, or remove the line and one with the host's name is made")
    if line.key.name == "executableName":
        return _bad(line, "is empty", "give the command of the record processor")
    if line.key.name.startswith(STREAM_PREFIX):
        return _bad(line, "is empty", "give a value, or remove the line")
    message = "is empty and counts as not set"
    return Checked(None, (line.remark(Level.WARNING, message, "remove the line"),))


def _check_number(line: KeyLine, value: object) -> Checked:
    assert isinstance(value, int | float)
    key = line.key
    remarks: list[Remark] = []

    def warn(message: str, remedy: str = "") -> None:
        remarks.append(line.remark(Level.WARNING, message, remedy))

    if value == 0 and key.zero_is_unset:
        warn(f"0 means not set, as in Java; {default_text(key)} is used", "remove the line")
        return Checked(None, tuple(remarks))
    if key.name in _CLAMPS:
        low, high = _CLAMPS[key.name]
        clamped = max(low, value if high is None else min(high, value))
        if clamped != value:
            warn(f"{_with_text(line, 'is out of range')}, {clamped} is used", f"write {clamped}")
            value = clamped
    if (key.minimum is not None and value < key.minimum) or (key.maximum is not None and value > key.maximum):
        return _bad(line, _with_text(line, "is out of range"), range_text(key))
    if key.name == "shutdownGraceMillis" and value == 0:
        warn("0 leaves no time for a graceful stop", "remove the line for the default of 25 seconds")
    remarks += _remark_on_effect(line)
    return Checked(Given(key, value, display_value(value), line.place), tuple(remarks))


def range_text(key: Key) -> str:
    """Return the bounds of a number in words; empty if there are none."""
    if key.minimum is not None and key.maximum is not None:
        return f"{key.minimum:g} to {key.maximum:.0f}"
    return f"at least {key.minimum:g}" if key.minimum is not None else ""


def default_text(key: Key) -> str:
    """Return the default of a key as an operator would write it."""
    return key.default_text or ("none" if key.default is None else display_value(key.default))


def _remarks_on_dimensions(line: KeyLine, value: object) -> list[Remark]:
    assert isinstance(value, tuple)
    unknown = [name for name in value if name not in _DIMENSIONS]
    if not unknown:
        return []
    message = _with_text(line, "names a dimension that does not exist")
    return [line.remark(Level.WARNING, message, f"there are {', '.join(_DIMENSIONS)}")]


def _remark_on_effect(line: KeyLine) -> list[Remark]:
    key = line.key
    match key.effect:
        case Effect.NONE:
            return [line.remark(Level.INFO, f"has no effect: {key.note}")]
        case Effect.UNSUPPORTED:
            return [line.remark(Level.WARNING, f"is not supported: {key.note}")]
    return []


def _check_credentials(line: KeyLine, text: str, contents: tuple[str, ...]) -> Checked:
    from_environment = has_reference(line.raw)
    chain, complaints = parse_chain(text, reveal_names=not from_environment)
    remarks = [
        line.remark(
            Level.ERROR if chain is None and complaint.fatal else Level.WARNING, complaint.message, complaint.remedy
        )
        for complaint in complaints
    ]
    if chain is None:
        if not any(remark.level is Level.ERROR for remark in remarks):
            return _bad(line, "names no credentials provider", "for example DefaultCredentialsProvider")
        return Checked(None, tuple(remarks))
    shown = str(chain)
    if from_environment:
        shown = ",".join(f"{provider.kind.value}|{HIDDEN}" for provider in chain.providers)
    given = Given(line.key, chain, shown, line.place, (*chain.secrets(), *contents))
    return Checked(given, (*remarks, *_remark_on_effect(line)))
