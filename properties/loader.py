"""`load`: makes the settings from a file, overrides and an environment, with remarks, and with the source of every
value.

The steps are: `lines` (entries of the file), `key_lines` (the line that counts for each key), `checked_lines` (each
value by itself), `derive` (keys together). All problems are collected and raised as one ConfigurationError. This
package does no other I/O than reading the file, and the files that it names for lists and secrets: `secret_of` reads
the file of `${file:/path}`, such as a secret of Docker or Kubernetes or a credential of systemd.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from mld.properties.checked_lines import Given, check, display, display_value
from mld.properties.derive import Derivation, derive, settings_of
from mld.properties.exposure import remarks_on_exposure, who_else
from mld.properties.key_lines import KeyLine, all_lines, collect
from mld.properties.keys import BY_NAME, KEYS, find
from mld.properties.keytypes import Effect, Key, Section
from mld.properties.lines import FileEntry
from mld.properties.named_file import NamedFileError, bytes_of, content_of, opened
from mld.properties.printable import printable
from mld.properties.redaction import where
from mld.properties.references import Sources, SubstitutionError
from mld.properties.remarks import OVERRIDE_PLACE, ConfigurationError, Level, Remark
from mld.properties.settings import STREAM_PREFIX, STREAMS, STREAMS_FILE, Settings
from mld.properties.spark import read as read_spark
from mld.properties.spark_lines import SparkLines
from mld.properties.spark_names import PREFIX, PROGRAM
from mld.properties.spark_places import taken_places
from mld.properties.stream_list import ListFile, StreamsFile, parsed, read_list

FILE_BYTES_MAX = 1 << 20  # a properties file has a few kilobytes; anything larger is some other file
_LEVEL_ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.INFO: 2}
_STANDS_IN_FOR = {"streamName": ("streamArn", STREAMS, STREAMS_FILE), "mld.poisonAttempts": ("mld.deadLetter",)}
"""If a key of the right side has a bad value, an error that the key of the left side is missing or wrong is only a
consequence, and is not reported."""
_ONLY_WITH_LIST = (STREAMS, STREAMS_FILE)
"""If one of these has a bad value, errors about keys of streams are only a consequence, and are not reported."""
DEFAULT_SOURCE = "default"
STREAM_ID = f"{PREFIX}streamId"
SECRET_BYTES_MAX = 64 * 1024  # a key, a token or a certificate has a few kilobytes


def secret_of(path: str) -> str:
    """Return the text of a file that holds a secret, without a line break at its end. Raises SubstitutionError."""
    shown = printable(path)
    try:
        data = bytes_of(path, SECRET_BYTES_MAX)
    except NamedFileError as error:
        raise SubstitutionError(f"{shown} {error}", "name a file that the daemon's user may read") from None
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SubstitutionError(f"{shown} is no text", "write the value as text in UTF-8")
    if not text.strip():
        raise SubstitutionError(f"{shown} is empty", "write the value into it, or remove the line")
    return text


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The value of one key as it is in effect, for people.

    `value` is a text that may be logged; None if the key has no value. `source` is ``file:line``, ``-D``, ``default``,
    or the key or environment variable from which the value was derived. `effect` says whether this version acts on it.
    """

    key: str
    section: Section
    value: str | None
    source: str
    effect: Effect
    remarks: tuple[Remark, ...] = ()

    def to_json(self) -> dict[str, object]:
        remarks = [remark.to_json() for remark in self.remarks]
        return asdict(self) | {"section": self.section.value, "effect": self.effect.value, "remarks": remarks}


@dataclass(frozen=True, slots=True)
class LoadedConfiguration:
    """The result of `load`. `settings`, `spark`, `secrets` and `streams_file` may contain secrets, and must not be
    shown; the other fields may be.
    """

    path: str
    settings: Settings
    remarks: tuple[Remark, ...]
    effective: tuple[EffectiveValue, ...]
    secrets: tuple[str, ...] = field(default=(), repr=False)
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The value of every given key of the Spark processor."""
    streams_file: StreamsFile | None = None
    """The file of mld.streamsFile, with what is needed to read it again; None without that key."""

    def to_json(self) -> dict[str, object]:
        """Return everything that may be shown, as plain JSON types."""
        return {
            "file": self.path,
            "values": [value.to_json() for value in self.effective],
            "remarks": [remark.to_json() for remark in self.remarks],
        }


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    read_file: Callable[[str], str] = secret_of,
) -> LoadedConfiguration:
    """Read, check and complete the configuration.

    `overrides` are the ``key=value`` of ``-D`` on the command line. `env` has the values for ``${NAME}`` and for the
    region; by default it is empty. `read_file` returns the text for ``${file:/path}``. Raises ConfigurationError with
    every problem found.
    """
    file_name = str(path)
    env = {} if env is None else env
    sources = Sources(env, read_file)
    entries, other_readers = entries_of(file_name)
    pairs, remarks = _pairs(overrides)
    lines, more = collect(file_name, entries, pairs)
    remarks += more
    remarks += remarks_on_exposure(all_lines(file_name, entries, pairs), file_name, other_readers)
    if "executableName" not in lines:
        remedy = "give the command of the record processor"
        remarks.append(Remark(Level.ERROR, "executableName", file_name, "is required", remedy))
    given, failed, more = _converted(lines, sources)
    remarks += more
    spark = read_spark(file_name, entries, pairs, sources)
    remarks += spark.remarks
    remarks += taken_places(spark, os.path.exists)
    remarks += _without_pipeline(given, spark, file_name)
    listed = None
    if STREAMS_FILE in given and STREAMS not in lines:
        listed, more = _listed_or_wrong(str(given[STREAMS_FILE].value), _of_streams(given), sources)
        remarks += more
    if listed is not None:
        given |= listed.given
    derivation = derive(given, env, file_name, None if listed is None else listed.places)
    remarks += _one_stream_id(derivation, spark)
    # A key with a bad value must not be reported as missing, too.
    remarks += [remark for remark in derivation.remarks if not _follows(remark, failed)]
    remarks = _accepted(remarks, strict=bool(derivation.values["strict"]))
    secrets = (*(secret for one in given.values() for secret in one.secrets), *spark.secrets)
    effective = _effective(derivation, spark, remarks)
    settings = settings_of(derivation)
    streams_file = None
    if listed is not None and settings.streams_file is not None:
        own = {name: one for name, one in _of_streams(given).items() if name not in listed.given}
        streams_file = StreamsFile(settings.streams_file, own, settings.initial_position, settings.strict, sources)
    return LoadedConfiguration(file_name, settings, tuple(remarks), effective, secrets, spark.texts, streams_file)


def _converted(lines: Mapping[str, KeyLine], sources: Sources) -> tuple[dict[str, Given], set[str], list[Remark]]:
    """Convert each line by itself. Return three things: the values by key, the keys that have no value because of an
    error, and the remarks.
    """
    given: dict[str, Given] = {}
    failed: set[str] = set()
    remarks: list[Remark] = []
    for name, line in lines.items():
        checked = check(line, sources)
        remarks += checked.remarks
        if checked.given is not None:
            given[name] = checked.given
        elif any(remark.level is Level.ERROR for remark in checked.remarks):
            failed.add(name)
    return given, failed, remarks


def _listed_or_wrong(path: str, own: Mapping[str, Given], sources: Sources) -> tuple[ListFile | None, list[Remark]]:
    """Return the list of streams in a file, and the remarks on it. If the list has errors, return None in place of it.
    `own` has the keys of streams that the properties file itself sets.
    """
    try:
        listed = _listed(path, own, sources)
    except ConfigurationError as error:
        return None, list(error.remarks)
    return listed, list(listed.remarks)


def _accepted(remarks: Sequence[Remark], *, strict: bool) -> list[Remark]:
    """Return the remarks, the most serious first. Raises ConfigurationError if any is an error; with `strict`, warnings
    count as errors.
    """
    if strict:
        remarks = [
            replace(remark, level=Level.ERROR) if remark.level is Level.WARNING else remark for remark in remarks
        ]
    ordered = sorted(remarks, key=lambda remark: _LEVEL_ORDER[remark.level])
    problems = [remark for remark in remarks if remark.level is Level.ERROR]
    if problems:
        raise ConfigurationError(problems, ordered)
    return ordered


def bytes_of_list(file: StreamsFile) -> bytes:
    """Return the bytes of the file as it is now; blocks. Raises ConfigurationError."""
    data, _ = _list_bytes(file.path)
    return data


def _of_streams(given: Mapping[str, Given]) -> dict[str, Given]:
    """Return only the keys that are about one of several streams (``mld.stream.<name>.<property>``)."""
    return {name: one for name, one in given.items() if name.startswith(STREAM_PREFIX)}


def _listed(path: str, own: Mapping[str, Given], sources: Sources) -> ListFile:
    """Return the list in a file, for the start of the daemon, with remarks on exposed secrets. Raises
    ConfigurationError.
    """
    name = where(path)
    data, others = _list_bytes(path)
    entries = parsed(name, data)
    listed = read_list(name, entries, own, sources)
    exposed = remarks_on_exposure(all_lines(name, entries, ()), name, others)
    return replace(listed, remarks=(*listed.remarks, *exposed))


def load_some(
    path: str | Path,
    names: Sequence[str],
    overrides: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    required: str | None = None,
) -> dict[str, object]:
    """Return the values of the keys in `names`, without keys that are not given.

    Use this for commands that need only a few keys, and that may run without the environment to which the rest of the
    file refers. Raises ConfigurationError with the problems of these keys, or of the file, and with warnings of the
    keys that nobody knows. It is a problem if the key `required` is not given.
    """
    entries, _ = entries_of(str(path))
    pairs, remarks = _pairs(overrides)
    lines, of_keys = collect(str(path), entries, pairs)
    sources = Sources({} if env is None else env, secret_of)
    checked = [check(lines[name], sources) for name in names if name in lines]
    remarks += [remark for one in checked for remark in one.remarks]
    if required is not None and required not in lines:
        remarks.append(Remark(Level.ERROR, required, str(path), "is required", f"add a line {required} = …"))
    if problems := [remark for remark in remarks if remark.level is Level.ERROR]:
        unknown = [remark for remark in of_keys if remark.level is Level.WARNING]
        raise ConfigurationError(problems, [*remarks, *unknown])
    return {one.given.key.name: one.given.value for one in checked if one.given is not None}


def _without_pipeline(given: Mapping[str, Given], spark: SparkLines, file_name: str) -> Iterator[Remark]:
    """Refuse the command `mld-spark` without arguments if the file names no pipeline: without arguments it reads the
    pipeline from this file.
    """
    for name, program in given.items():
        is_command = name.rpartition(".")[2] == "executableName"
        if is_command and program.display.strip().rpartition("/")[2] == PROGRAM and not spark.pipeline_is_given:
            remedy = f"name the pipeline: {PREFIX}pipeline = pipeline.py:transform"
            yield Remark(Level.ERROR, name, file_name, f"is {PROGRAM}, and there is no {PREFIX}pipeline", remedy)


def _one_stream_id(derivation: Derivation, spark: SparkLines) -> Iterator[Remark]:
    """Refuse mld.spark.streamId if several streams are read: each has its own identifier in the lease table."""
    if derivation.is_multi_stream and STREAM_ID in spark.shown:
        why = f"names one stream, and {derivation.list_key} names several"
        yield Remark(Level.ERROR, STREAM_ID, spark.shown[STREAM_ID][1], why, "remove the line")


def _effective(derivation: Derivation, spark: SparkLines, remarks: Sequence[Remark]) -> tuple[EffectiveValue, ...]:
    """Return one row for each key of the daemon, in the order of the table, then one for each given key of a stream or
    of the Spark processor.
    """
    rows = [
        EffectiveValue(
            key.name, key.section, *_value_and_source(key, derivation), key.effect, _remarks_on(remarks, key.names)
        )
        for key in KEYS
    ]
    rows += [
        EffectiveValue(name, one.key.section, one.display, one.place, one.key.effect, _remarks_on(remarks, (name,)))
        for name, one in derivation.given.items()
        if name not in BY_NAME
    ]
    rows += [
        EffectiveValue(name, Section.SPARK, text, place, Effect.EFFECTIVE, _remarks_on(remarks, (name,)))
        for name, (text, place) in spark.shown.items()
    ]
    return tuple(rows)


def _remarks_on(remarks: Sequence[Remark], names: Sequence[str]) -> tuple[Remark, ...]:
    return tuple(remark for name in names for remark in remarks if remark.key == name)


def _value_and_source(key: Key, derivation: Derivation) -> tuple[str | None, str]:
    """Return the value of a key as it may be shown, and where it comes from."""
    given = derivation.given.get(key.name)
    derived_from = derivation.sources.get(key.field)
    if derived_from is None:
        if given is not None:
            return given.display, given.place
        return (None if key.default is None else display_value(key.default)), DEFAULT_SOURCE
    source = derivation.given.get(derived_from)
    # If the value is that of the other key, unchanged, it is shown as there.
    if source is not None and source.value is derivation.values[key.field]:
        return source.display, derived_from  # the text of the other key is already free of secrets
    value = derivation.values[key.field]
    return (None if value is None else display(key, value)), derived_from


def _follows(remark: Remark, failed: set[str]) -> bool:
    """Return whether a remark of `derive` is only a consequence of a bad value, about which there already is a
    remark.
    """
    known = find(remark.key)
    key = remark.key if known is None else known.name
    others = _ONLY_WITH_LIST if key.startswith(STREAM_PREFIX) else _STANDS_IN_FOR.get(key, ())
    return key in failed or (remark.level is Level.ERROR and not failed.isdisjoint(others))


def _pairs(overrides: Sequence[str]) -> tuple[list[tuple[str, str]], list[Remark]]:
    """Split the overrides at their first `=`; an override without a key is an error."""
    pairs, remarks = [], []
    for number, text in enumerate(overrides, start=1):
        name, equals, value = text.partition("=")
        if equals and name.strip():
            pairs.append((name.strip(), value))
        else:
            message = f"override {number} is not key=value"
            remarks.append(Remark(Level.ERROR, "", OVERRIDE_PLACE, message, "write -D key=value"))
    return pairs, remarks


def entries_of(file_name: str) -> tuple[list[FileEntry], str | None]:
    """Return the entries of the file, and who besides its owner can read it (None: nobody). Raises
    ConfigurationError.
    """
    data, others = _bytes_of(file_name, file_name)
    return parsed(file_name, data), others


def _list_bytes(path: str) -> tuple[bytes, str | None]:
    """Read a file as `_bytes_of` does. The file is read again and again, so a pipe is refused."""
    return _bytes_of(path, where(path), takes_pipe=False)


def _bytes_of(path: str, file_name: str, *, takes_pipe: bool = True) -> tuple[bytes, str | None]:
    """Return the bytes of a file, and who besides its owner can read it (None: nobody). Errors show the path as
    `file_name`.
    """
    try:
        with opened(path, takes_pipe=takes_pipe) as file:
            data, status = content_of(file, FILE_BYTES_MAX), os.fstat(file.fileno())
    except NamedFileError as error:
        raise _file_problem(printable(file_name), str(error), "check the path and its permissions") from None
    is_file = stat.S_ISREG(status.st_mode)  # a pipe that was read cannot be read by others
    return data, who_else(status.st_mode, own=status.st_uid == os.getuid()) if is_file else None


def _file_problem(place: str, message: str, remedy: str) -> ConfigurationError:
    return ConfigurationError([Remark(Level.ERROR, "", place, message, remedy)])
