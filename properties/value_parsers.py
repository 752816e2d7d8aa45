"""Parsers of values, one for each kind. Each converts a trimmed text into a value, or raises `BadValue` with the fault
and the remedy.

The message of an error never repeats the text, because it may be secret. Rules: configuration#value-conversion. Pure.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from urllib.parse import SplitResult, urlsplit

from mld.properties.keytypes import INT_MAX, LONG_MAX
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

_TRUE = frozenset({"true", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "no", "n", "off", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[fFdD]?", re.ASCII)
_INTEGER_DIGITS_MAX = 40  # more than any long has; int() must not work on kilobytes of digits
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
_DIMENSION_SEPARATORS = re.compile(r"[\s,{}'\"]+")
# A larger number, as seconds beyond the year 5138, must be milliseconds of a date after 1973.
EPOCH_SECONDS_MAX = 10**11


class BadValue(ValueError):
    """The text is not a value of its kind. `message` does not repeat the text, because it may be secret."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def parse_integer(text: str, maximum: int = LONG_MAX) -> int:
    """Return a whole number that fits into a Java int or long."""
    if not _INTEGER.fullmatch(text):
        raise BadValue("is not a whole number", "write decimal digits only")
    if len(text) > _INTEGER_DIGITS_MAX or not -maximum - 1 <= (number := int(text)) <= maximum:
        raise BadValue(f"is larger than a Java {'int' if maximum == INT_MAX else 'long'}", f"at most {maximum}")
    return number


def parse_decimal(text: str) -> float:
    """Return a finite number."""
    match = _DECIMAL.fullmatch(text)
    number = float(match.group(1)) if match else math.nan
    if not math.isfinite(number):
        raise BadValue("is not a finite number", "write it as 1.5 or 1e4")
    return number


def parse_boolean(text: str) -> bool:
    if (word := text.lower()) not in _TRUE | _FALSE:
        raise BadValue("is neither true nor false", "write true or false")
    return word in _TRUE


def parse_initial_position(text: str) -> InitialPositionSetting:
    """Return the starting point: LATEST or TRIM_HORIZON."""
    match text.upper():
        case "LATEST":
            return InitialPositionSetting(InitialPositionKind.LATEST)
        case "TRIM_HORIZON":
            return InitialPositionSetting(InitialPositionKind.TRIM_HORIZON)
        case "AT_TIMESTAMP":
            remedy = "remove it and set initialPositionInStreamExtended to the epoch seconds"
            raise BadValue("AT_TIMESTAMP needs a time", remedy)
    raise BadValue("has no such value", "use LATEST or TRIM_HORIZON")


def parse_position(text: str) -> InitialPositionSetting:
    """Return the starting point: LATEST, TRIM_HORIZON or epoch seconds."""
    if _INTEGER.fullmatch(text):
        return parse_epoch_seconds(text)
    try:
        return parse_initial_position(text)
    except BadValue as error:
        raise BadValue(error.message, "use LATEST, TRIM_HORIZON or epoch seconds") from None


def parse_epoch_seconds(text: str) -> InitialPositionSetting:
    """Return the starting point at a time in epoch seconds."""
    seconds = parse_integer(text)
    if seconds >= EPOCH_SECONDS_MAX:
        raise BadValue("looks like epoch milliseconds", f"write epoch seconds: {seconds // 1000}")
    if seconds < 0:
        raise BadValue("is before 1970", "write epoch seconds, for example 1767225600")
    return InitialPositionSetting(InitialPositionKind.AT_TIMESTAMP, seconds)


def parse_duration(text: str) -> timedelta:
    """Parse an ISO-8601 duration of days, hours, minutes and seconds."""
    match = _DURATION.fullmatch(text)
    parts = {unit: value for unit, value in match.groupdict().items() if value is not None} if match else {}
    if not parts:
        remedy = "write days and time as PT24H, P1DT30M or PT1.5S"
        raise BadValue("is not an ISO-8601 duration", remedy)
    try:
        return timedelta(**{unit: float(value.replace(",", ".")) for unit, value in parts.items()})
    except OverflowError:
        raise BadValue("is too long a duration", "write a shorter one") from None


def parse_tags(text: str) -> tuple[tuple[str, str], ...]:
    """Return the tags in `name=value,name=value`."""
    tags = []
    for number, pair in enumerate(text.split(",") if text else [], start=1):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not name or not value or "=" in value:
            raise BadValue(f"tag {number} is not name=value", "write name=value,name=value")
        tags.append((name, value))
    return tuple(tags)


def parse_dimensions(text: str) -> tuple[str, ...]:
    return tuple(sorted({token for token in _DIMENSION_SEPARATORS.split(text) if token}))


def parse_url(text: str) -> str:
    """Return an http or https URL."""
    if not _has_url_characters(text):
        remedy = "write such a character as %XX, and a host's name as xn--…"
        raise BadValue("has a character that no URL can have", remedy)
    if _http_url(text) is None:
        raise BadValue("is not an http or https URL", "write it as https://host[:port]")
    return text


def host_of(url: str) -> str:
    """Return host and port of a URL that `parse_url` has accepted, as they are written."""
    return urlsplit(url).netloc.rpartition("@")[2]


def parse_region(text: str) -> str:
    if not _REGION.fullmatch(text):
        raise BadValue("is not a region name", "write it as eu-west-1")
    return text


def _http_url(text: str) -> SplitResult | None:
    """Return the parts of an http or https URL with a host; None for any other text."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError if the port is no number, or too large
    except ValueError:
        return None
    is_complete = parts.scheme in ("http", "https") and bool(parts.hostname)
    return parts if is_complete and _has_url_characters(text) and " " not in text else None


def _has_url_characters(text: str) -> bool:
    """Return whether the text has only characters that may be in a request: printable ASCII."""
    return text.isascii() and text.isprintable()


def parse_stream_arn(text: str) -> StreamArn | None:
    """Return the ARN of a stream of Kinesis or DynamoDB; None if the text is empty."""
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


def parse_stream_names(text: str) -> tuple[str, ...]:
    """Return the names of streams, or labels that the user has chosen for them. Refuse a name that occurs twice."""
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


def parse_listen_address(text: str) -> ListenAddress | None:
    """Return the address of `host:port`; None if the text is empty."""
    if not text:
        return None
    match = _LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > PORT_MAX:
        raise BadValue("is not host:port", "write it as 127.0.0.1:9404, [::1]:9404 or localhost:9404")
    return ListenAddress(match["address"] or match["host"], int(match["port"]))


def parse_host_names(text: str) -> tuple[str, ...]:
    """Return the host names, which are separated by commas."""
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    for number, name in enumerate(names, start=1):
        if not _HOST_NAME.fullmatch(name):
            raise BadValue(f"name {number} is not a host name", "write names without port, separated by commas")
    return names


def parse_socket_path(text: str) -> str | None:
    """Return the absolute path of a socket, or `off`; None if the text is empty."""
    if not text:
        return None
    if text.lower() == SOCKET_OFF:
        return SOCKET_OFF
    if not text.startswith("/") or text.endswith("/"):
        raise BadValue("is neither off nor the path of a socket", "write it as /run/mld/app.sock, or off")
    return text


def parse_processes(text: str) -> int:
    """Return the number of workers; `auto` means one for each CPU."""
    if text.lower() == AUTO:
        return ONE_FOR_EACH_CPU
    number = int(text) if re.fullmatch("[0-9]{1,5}", text, re.ASCII) else 0
    if not 1 <= number <= PROCESSES_MAX:
        raise BadValue(f"is neither {AUTO} nor a number from 1 to {PROCESSES_MAX}", "write how many workers are to run")
    return number


def parse_dead_letter(text: str) -> DeadLetter:
    """Parse the value of mld.deadLetter. Java has no such key: its daemon ends at the first failure."""
    if not text:  # an empty path would mean the working directory
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
