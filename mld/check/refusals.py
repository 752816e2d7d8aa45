"""`refusals`: finds values of a readable file that `mld run` or AWS would refuse. Used by `mld run` and `mld check`.

Names are checked against the rules of the services. Programs and packages must exist on this machine. A remark never
contains a value from the file, because the value may contain a secret; `mld check` itself shows the values that may be
shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mld import pip_install
from mld.core.installed import find_executable, is_installed
from mld.properties.keys import key_of_stream
from mld.properties.redaction import Shown, redacted
from mld.properties.remarks import Level, Remark
from mld.properties.settings import Settings
from mld.properties.spark_names import PROGRAM as SPARK_PROGRAM
from mld.properties.values import MetricsOutput, SchemaMode
from mld.protocol.child_command import split_command

SCRIPTS = (".py", ".js", ".rb", ".jar", ".sh")
"""Endings of words that name a script, which must exist."""
_SHELL_WORD = re.compile(r"[A-Za-z_]\w*=.*|cd|&&|\|\|?|;|[<>]{1,2}|.*[\"'`$].*|.*;", re.ASCII | re.DOTALL)
"""Matches a word that only a shell understands: an assignment, `cd`, an operator, or a word with quotes or a `$`."""
NO_SHELL = (
    "there is no shell: the line is split at spaces, without quotes, variables, cd or &&; put it into a script, and "
    "name the script"
)
NOT_FOUND = "give a path relative to the working directory, an absolute one, or a name on PATH"


@dataclass(frozen=True, slots=True)
class NameRule:
    """Which names a service accepts: those of `least` to `most` characters that match `pattern`."""

    least: int
    most: int
    pattern: str

    def allows(self, name: str) -> bool:
        return self.least <= len(name) <= self.most and re.fullmatch(self.pattern, name, re.ASCII) is not None

    def __str__(self) -> str:
        return f"{self.least} to {self.most} characters that match {self.pattern}"


STREAM_NAME = NameRule(1, 128, "[a-zA-Z0-9_.-]+")
CONSUMER_NAME = STREAM_NAME
TABLE_NAME = NameRule(3, 255, "[a-zA-Z0-9_.-]+")


def refusals(settings: Settings, file_name: str) -> list[Remark]:
    """Return errors for values that cannot work, and warnings for values that are unlikely to work. With mld.strict all
    are errors.
    """
    found = [
        *_names(settings, file_name),
        *_programs(settings, file_name),
        *_packages(settings, file_name),
    ]
    return [replace(one, level=Level.ERROR) for one in found] if settings.strict else found


def _names(settings: Settings, file_name: str) -> Iterator[Remark]:
    """Yield errors for names of tables, streams and consumers that AWS would refuse."""
    checked_names = [
        ("tableName", "a table", TABLE_NAME, settings.lease_table.name),
        ("workerMetricsTableName", "a table", TABLE_NAME, settings.worker_metrics_table.name),
        ("coordinatorStateTableName", "a table", TABLE_NAME, settings.coordinator_state_table.name),
    ]
    if not settings.is_multi_stream and settings.stream_arn is None:
        checked_names.insert(0, ("streamName", "a stream", STREAM_NAME, settings.stream_name))
    if settings.reader.by_fan_out and settings.fanout.consumer_arn is None:
        checked_names.append(("fanoutConfig.consumerName", "a consumer", CONSUMER_NAME, settings.fanout.consumer_name))
    refused_keys: set[str] = set()
    for own_key, what, rule, name in checked_names:
        # Names of tables and consumers are made from applicationName by default; then that is the key to change.
        is_derived = own_key != "streamName" and name.startswith(settings.application_name)
        key = "applicationName" if is_derived else own_key
        if not rule.allows(name) and key not in refused_keys:
            refused_keys.add(key)
            message = f"is no name of {what}: {rule}"
            added = len(name) - len(settings.application_name) if is_derived else 0
            yield Remark(Level.ERROR, key, file_name, message, _remedy(key, name, rule, added))


def _remedy(key: str, name: str, rule: NameRule, added: int) -> str:
    """Return the remedy for a refused name. Its last `added` characters are a suffix that mld adds to a name in the
    file.
    """
    if name.startswith("arn:"):
        return "write the ARN as streamArn" if key == "streamName" else "write the name alone, without the ARN"
    if "<" in name or "{" in name:
        return "put the name in the place of the placeholder"
    if len(name) < rule.least:
        return f"write a name of at least {rule.least - added} such characters"
    if len(name) > rule.most:
        return f"write a name of at most {rule.most - added} such characters"
    return "write a name of such characters alone"


def _programs(settings: Settings, file_name: str) -> Iterator[Remark]:
    """Yield remarks on the record processors that cannot be run as they are named."""
    commands = {"executableName": settings.child.command}
    for one in settings.streams:
        if one.executable_name is not None:
            commands[key_of_stream(one.name, "executableName")] = one.executable_name
    for key, text in commands.items():
        for level, message, remedy in faults_of(split_command(text)):
            yield Remark(level, key, file_name, message, remedy)


def faults_of(command: list[str]) -> Iterator[tuple[Level, str, str]]:
    """Yield level, message and remedy for each fault of a command, which is given as its words. If the program is not
    found, that is the only fault; otherwise a missing package, words for a shell and missing scripts are reported.
    """
    is_for_shell = any(map(_SHELL_WORD.fullmatch, command))
    found = find_executable(command)
    if found is None:
        program = redacted("executableName", Shown.COMMAND, command[0])
        if Path(command[0]).is_file():
            yield Level.ERROR, f"the file {program!r} is not executable", f"chmod +x {program}"
        elif Path(command[0]).is_dir():
            yield Level.ERROR, f"{program!r} is a directory", "name the program in it"
        else:
            yield Level.ERROR, f"no executable file {program!r} is found", NO_SHELL if is_for_shell else NOT_FOUND
        return
    is_ours = Path(found) == Path(sys.executable).with_name(SPARK_PROGRAM)
    if is_ours and not is_installed("pyspark"):
        yield Level.ERROR, f"{SPARK_PROGRAM} needs a package that is not installed (pyspark)", pip_install("spark")
    if is_for_shell:
        yield Level.WARNING, "has signs that only a shell understands; the program gets them as they are", NO_SHELL
    for word in command[1:]:
        if word.endswith(SCRIPTS) and not Path(word).exists():
            script = redacted("executableName", Shown.COMMAND, word)
            yield Level.WARNING, f"{script} does not exist in {Path.cwd()}", NOT_FOUND


def _packages(settings: Settings, file_name: str) -> Iterator[Remark]:
    """Yield remarks on settings that need a package of an extra that is not installed. If only a page would not be
    shown, the remark is a warning.
    """
    if settings.schemas.mode is SchemaMode.JSON and not is_installed("fastavro"):
        why = "json needs a package that is not installed (fastavro)"
        yield Remark(Level.ERROR, "mld.schemaRegistry", file_name, why, pip_install("schemas"))
    is_scraped = settings.serving.http is not None and MetricsOutput.PROMETHEUS in settings.metrics.outputs
    if is_scraped and not is_installed("prometheus_client"):
        why = "has prometheus, and /metrics of mld.http needs a package that is not installed"
        remedy = f"{pip_install('metrics')}, or remove prometheus"
        yield Remark(Level.WARNING, "mld.metrics", file_name, why, remedy)
