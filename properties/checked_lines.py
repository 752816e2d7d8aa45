"""`check`: turns one line of the file into a checked value, or into a remark that says why the value cannot be used.
Keys are not compared with each other here.

`check` replaces references, converts the value, and applies the bounds and the zero rule (for some keys 0 means that
the key is not set). Its remarks show the text as written in the file, so that values from the environment stay hidden.
Rules: configuration#zero-rule, configuration#bounds-and-clamps, configuration#empty-values,
configuration#effect-of-keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mld.properties.conversion import convert, trim
from mld.properties.credentials_syntax import parse_chain
from mld.properties.key_lines import KeyLine
from mld.properties.keytypes import NUMERIC_KINDS, Effect, Key
from mld.properties.redaction import HIDDEN, Shown, redacted, shown_mistake
from mld.properties.references import Sources, SubstitutionError, has_file, has_reference, substitute
from mld.properties.remarks import Level, Remark
from mld.properties.scrubber import secrets_in
from mld.properties.settings import (
    METRICS_PERIOD_MILLIS_MIN,
    READ_INTERVAL_MILLIS_MIN,
    STREAM_PREFIX,
)
from mld.properties.value_kinds import ValueKind
from mld.properties.value_parsers import BadValue, host_of

# If the value of one of these keys is lower, Java uses this minimum and does not refuse the file.
_RAISED_TO: dict[str, int] = {
    "idleTimeBetweenReadsInMillis": READ_INTERVAL_MILLIS_MIN,
    "metricsBufferTimeMillis": METRICS_PERIOD_MILLIS_MIN,
}
_DIMENSIONS = ("ALL", "Operation", "ShardId", "StreamId", "WorkerIdentifier")


@dataclass(frozen=True, slots=True)
class Given:
    """A key that the file or an override sets to a valid value. `place` is the file and line, or `-D`. `display` may be
    logged; `secrets` must never be.
    """

    key: Key
    value: object
    display: str
    place: str
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result for one line. `given` is None if the key counts as not set: its value is bad (then a remark is an
    error), empty, or a 0 that means "not set".
    """

    given: Given | None
    remarks: tuple[Remark, ...]


def check(line: KeyLine, sources: Sources) -> Checked:
    """Convert and check one line; `sources` provide the values of `${NAME}` and `${file:/path}`."""
    key, place = line.key, line.place
    if key.shown is Shown.COMMAND and has_file(line.raw):
        remedy = "let the record processor read the file itself"
        return _bad(line, "takes no ${file:…}: every user of this machine can read a command line", remedy)
    if not key.takes_file and has_file(line.raw):
        remedy = "write the value here, or ${NAME} and set the variable"
        return _bad(line, "takes no ${file:…}: what is in a file may be secret, and this value is shown", remedy)
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
    if key.kind is ValueKind.URL and any(one in host_of(text) for one in found.contents):
        return _bad(line, "takes no ${file:…} for a host: errors name it", "write the host here, or ${NAME}")
    if key.kind in NUMERIC_KINDS:
        return _check_number(line, value)
    remarks = _remarks_on_dimensions(line, value) if key.kind is ValueKind.DIMENSIONS else []
    secrets = tuple(secrets_in(key.name, key.shown, display_value(value)))
    shown = display(key, value)
    if found.contents:
        secrets, shown = (*secrets, *found.contents), HIDDEN
    given = Given(key, value, shown, place, secrets)
    return Checked(given, (*remarks, *_remark_on_effect(line)))


def _bad(line: KeyLine, message: str, remedy: str = "") -> Checked:
    return Checked(None, (line.remark(Level.ERROR, message, remedy),))


def _with_text(line: KeyLine, message: str) -> str:
    """Return the message, with the text from the file appended if that text can only be a mistyped number or a
    reference.
    """
    raw = shown_mistake(trim(line.raw))
    return message if raw is None else f"{message}: '{raw}'"


def display(key: Key, value: object) -> str:
    """Return the part of a value that may be shown. Do not use it for a chain of credentials providers, which hides its
    own secrets.
    """
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
    """Return what an empty text means for this key: an error, or a warning that the key counts as not set."""
    if line.key.name == "workerId":
        return _bad(line, "is empty", "give a unique name, or remove the line and one with the host's name is made")
    if line.key.name == "executableName":
        return _bad(line, "is empty", "give the command of the record processor")
    if line.key.name.startswith(STREAM_PREFIX):
        return _bad(line, "is empty", "give a value, or remove the line")
    message = "is empty and counts as not set"
    return Checked(None, (line.remark(Level.WARNING, message, "remove the line"),))


def _check_number(line: KeyLine, value: object) -> Checked:
    """Apply the zero rule and the bounds to a number. A number that is too small is raised, with a warning, if the key
    is in `_RAISED_TO`; any other number that is out of range is an error.
    """
    assert isinstance(value, int | float)
    key = line.key
    remarks: list[Remark] = []

    def warn(message: str, remedy: str = "") -> None:
        remarks.append(line.remark(Level.WARNING, message, remedy))

    if value == 0 and key.zero_is_unset:
        warn(f"0 means not set, as in Java; {default_text(key)} is used", "remove the line")
        return Checked(None, tuple(remarks))
    least = _RAISED_TO.get(key.name, value)
    if value < least:
        warn(f"{_with_text(line, 'is out of range')}, {least} is used", f"write {least}")
        value = least
    if (key.minimum is not None and value < key.minimum) or (key.maximum is not None and value > key.maximum):
        return _bad(line, _with_text(line, "is out of range"), range_text(key))
    if key.name == "shutdownGraceMillis" and value == 0:
        warn("0 leaves no time for a graceful stop", "remove the line for the default of 25 seconds")
    remarks += _remark_on_effect(line)
    return Checked(Given(key, value, display_value(value), line.place), tuple(remarks))


def range_text(key: Key) -> str:
    """Return the bounds of a number in words; an empty text if it has no bounds."""
    if key.minimum is not None and key.maximum is not None:
        return f"{key.minimum:g} to {key.maximum:.0f}"
    return f"at least {key.minimum:g}" if key.minimum is not None else ""


def default_text(key: Key) -> str:
    """Return the default of a key as an operator would write it."""
    return key.default_text or ("none" if key.default is None else display_value(key.default))


def _remarks_on_dimensions(line: KeyLine, value: object) -> list[Remark]:
    """Warn of names in the value of a key that are not dimensions of metrics."""
    assert isinstance(value, tuple)
    unknown = [name for name in value if name not in _DIMENSIONS]
    if not unknown:
        return []
    message = _with_text(line, "names a dimension that does not exist")
    return [line.remark(Level.WARNING, message, f"there are {', '.join(_DIMENSIONS)}")]


def _remark_on_effect(line: KeyLine) -> list[Remark]:
    """Remark that a key has no effect, or is not supported."""
    key = line.key
    match key.effect:
        case Effect.NONE:
            return [line.remark(Level.INFO, f"has no effect: {key.note}")]
        case Effect.UNSUPPORTED:
            return [line.remark(Level.WARNING, f"is not supported: {key.note}")]
    return []


def _check_credentials(line: KeyLine, text: str, contents: tuple[str, ...]) -> Checked:
    """Parse a chain of credentials providers; every complaint about it becomes a remark."""
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
