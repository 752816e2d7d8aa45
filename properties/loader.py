"""`load`: a file, overrides and an environment -> settings, remarks and where every value comes from.

The way: grammar -> key_lines -> validation (one key each) -> derive (keys together). All problems are collected and
raised as one ConfigurationError. Reading the file is the only I/O of this package.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from properties.derive import Derivation, derive, settings_of
from properties.effective import EffectiveValue, effective_values, remark_to_json
from properties.errors import ConfigurationError
from properties.exposure import FileAccess, remarks_on_exposure
from properties.grammar import FileEntry, GrammarError, parse
from properties.key_lines import all_lines, collect
from properties.keys import BY_NAME
from properties.keytypes import Effect, Section
from properties.remarks import OVERRIDE_PLACE, Level, Remark
from properties.settings import Settings
from properties.spark import PREFIX, PROGRAM, SparkLines
from properties.spark import read as read_spark
from properties.validation import Given, check

FILE_BYTES_MAX = 1 << 20  # a properties file has a few kilobytes; anything larger is some other file
_LEVEL_ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.INFO: 2}
_STANDS_IN_FOR = {"streamName": "streamArn", "mld.poisonAttempts": "mld.deadLetter"}
"""A key that is missing, or wrong, only because another one could not be converted."""
Overrides = Mapping[str, str] | Sequence[str]


@dataclass(frozen=True, slots=True)
class LoadedConfiguration:
    """The result of `load`; only `settings` and `secrets` may hold secrets, and neither is to be shown."""

    path: str
    settings: Settings
    remarks: tuple[Remark, ...]
    effective: tuple[EffectiveValue, ...]
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, object]:
        """Everything fit to be shown, as plain JSON types."""
        return {
            "file": self.path,
            "values": [value.to_json() for value in self.effective],
            "remarks": [remark_to_json(remark) for remark in self.remarks],
        }


def load(path: str | Path, overrides: Overrides = (), env: Mapping[str, str] | None = None) -> LoadedConfiguration:
    """Read, check and complete the configuration.

    `overrides` are the ``-D`` of the command line, as a mapping or as texts ``key=value``; `env` serves ``${NAME}`` and
    the region, and defaults to nothing. Raises ConfigurationError with every problem found.
    """
    file_name = str(path)
    env = {} if env is None else env
    entries, access = _entries(Path(path), file_name)
    pairs, remarks = _pairs(overrides)
    lines, more = collect(file_name, entries, pairs)
    remarks += more
    remarks += remarks_on_exposure(all_lines(file_name, entries, pairs), file_name, access)
    if "executableName" not in lines:
        remedy = "give the command of the record processor"
        remarks.append(Remark(Level.ERROR, "executableName", file_name, "is required", remedy))
    given: dict[str, Given] = {}
    failed: set[str] = set()
    for name, line in lines.items():
        checked = check(line, env)
        remarks += checked.remarks
        if checked.given is not None:
            given[name] = checked.given
        elif any(remark.level is Level.ERROR for remark in checked.remarks):
            failed.add(name)
    spark = read_spark(file_name, entries, pairs, env)
    remarks += spark.remarks
    remarks += _without_pipeline(given.get("executableName"), spark, file_name)
    derivation = derive(given, env, file_name)
    # A key with a bad value is not missing as well.
    remarks += [remark for remark in derivation.remarks if not _follows(remark, failed)]
    if derivation.values["strict"]:
        remarks = [remark.as_error() if remark.level is Level.WARNING else remark for remark in remarks]
    problems = [remark for remark in remarks if remark.level is Level.ERROR]
    remarks.sort(key=lambda remark: _LEVEL_ORDER[remark.level])
    if problems:
        raise ConfigurationError(problems, remarks)
    secrets = (*(secret for one in given.values() for secret in one.secrets), *spark.secrets)
    effective = _effective(derivation, spark, remarks)
    return LoadedConfiguration(file_name, settings_of(derivation), tuple(remarks), effective, secrets)


def _without_pipeline(program: Given | None, spark: SparkLines, file_name: str) -> list[Remark]:
    """`mld-spark` without an argument reads this file, and needs a pipeline in it."""
    if program is None or program.display.strip().rpartition("/")[2] != PROGRAM or spark.pipeline_is_given:
        return []
    remedy = f"name the pipeline: {PREFIX}pipeline = pipeline.py:transform"
    return [Remark(Level.ERROR, "executableName", file_name, f"is {PROGRAM}, and there is no {PREFIX}pipeline", remedy)]


def _effective(derivation: Derivation, spark: SparkLines, remarks: Sequence[Remark]) -> tuple[EffectiveValue, ...]:
    """One row per key of the daemon, and one per key of the Spark processor that is given."""
    rows = effective_values(derivation, remarks)
    more = (
        EffectiveValue(
            name, Section.SPARK, text, place, Effect.EFFECTIVE, tuple(one for one in remarks if one.key == name)
        )
        for name, (text, place) in spark.shown.items()
    )
    return (*rows, *more)


def _follows(remark: Remark, failed: set[str]) -> bool:
    """Whether a derived remark only repeats that a key could not be converted."""
    key = BY_NAME[remark.key].name
    return key in failed or (remark.level is Level.ERROR and _STANDS_IN_FOR.get(key) in failed)


def _pairs(overrides: Overrides) -> tuple[list[tuple[str, str]], list[Remark]]:
    if isinstance(overrides, Mapping):
        return list(overrides.items()), []
    pairs, remarks = [], []
    for number, text in enumerate(overrides, start=1):
        name, equals, value = text.partition("=")
        if equals and name.strip():
            pairs.append((name.strip(), value))
        else:
            message = f"override {number} is not key=value"
            remarks.append(Remark(Level.ERROR, "", OVERRIDE_PLACE, message, "write -D key=value"))
    return pairs, remarks


def _entries(path: Path, file_name: str) -> tuple[list[FileEntry], FileAccess | None]:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
            status = os.fstat(file.fileno())
    except OSError as error:
        raise _file_problem(
            file_name, f"cannot be read: {error.strerror}", "check the path and its permissions"
        ) from None
    except ValueError:
        raise _file_problem(repr(file_name), "is no file name", "check the path") from None
    if len(data) > FILE_BYTES_MAX:
        raise _file_problem(file_name, f"is larger than {FILE_BYTES_MAX} bytes", "is this the properties file?")
    is_file = stat.S_ISREG(status.st_mode)  # a pipe that was read cannot be read by others
    access = FileAccess(status.st_mode, status.st_uid == os.getuid()) if is_file else None
    try:
        return parse(data), access
    except GrammarError as error:
        raise _file_problem(f"{file_name}:{error.line}", str(error), "write \\\\ for a backslash") from None


def _file_problem(place: str, message: str, remedy: str) -> ConfigurationError:
    return ConfigurationError([Remark(Level.ERROR, "", place, message, remedy)])
