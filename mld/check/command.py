"""`mld check`: prints what a properties file means (configuration#effective-values).

The decisions are all in `properties`, but for one: which generation of the child protocol a record processor speaks is
guessed by its files, as a wrong `mld.protocolVersion` shows late. A program for KCL 1.x works until a shard ends or a
lease is lost.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mld.check import price
from mld.check.refusals import refusals
from mld.core import sparkhosts
from mld.core.installed import find_executable
from mld.core.terminal import EXIT_CONFIGURATION, EXIT_OK
from mld.properties.keytypes import INT_MAX, Section
from mld.properties.loader import DEFAULT_SOURCE, EffectiveValue, LoadedConfiguration, load
from mld.properties.printable import printable
from mld.properties.redaction import where
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.settings import FILES_PER_CHILD, RESTARTS_MAX, Settings
from mld.properties.spark_names import CONF_PREFIX, PREFIX, PROGRAM
from mld.properties.values import ChildFailurePolicy, ClientVersionConfig
from mld.protocol.child_command import split_command
from mld.protocol.fork_requests import PROGRAM as ZYGOTE
from mld.protocol.messages import Dialect

KEY = "mld.protocolVersion"
SOURCE_BYTES_MAX = 256 * 1024
DURATIONS_PRICED_S = (10.0, 30.0)
"""What Java and mld have by default, and what whoever wants a smaller bill sets: planned moves do not wait for it."""
_KCLPY = re.compile(r"^\s*(?:from|import)\s+amazon_kclpy\b", re.MULTILINE)
_NEW = re.compile(r"leaseLost|shardEnded|lease_lost|shard_ended")
_OLD = re.compile(r"""["']shutdown["']""")

LEASES_SHOWN, WORKERS_SHOWN = (1, 10, 100), (1, 10)
"""Sizes of a fleet whose price is shown unless one is asked for."""
_PLAIN_WIDTH = 160  # columns where stdout is no terminal
_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "dim"}


def generation_remarks(settings: Settings, file_name: str, environment: Mapping[str, str]) -> list[Remark]:
    """Warn if the command's program seems to speak another generation than the file says."""
    found = guess(split_command(settings.child.command), environment)
    if found is None or found[0].value == settings.child.protocol_version:
        return []
    dialect, why = found
    name = "KCL 1.x" if dialect is Dialect.KCL_1 else "KCL 2.x and 3.x"
    message = f"is {settings.child.protocol_version}, but the record processor seems to be for {name}: {why}"
    return [Remark(Level.WARNING, KEY, file_name, message, f"set {KEY} = {dialect.value} if it is")]


def region_remarks(settings: Settings, file_name: str) -> list[Remark]:
    """Say so if neither the file nor the environment names a region: the profile is not read here."""
    if settings.kinesis.region is not None and settings.dynamo_db.region is not None:
        return []
    message = "is neither in the file nor in AWS_REGION: without one in the profile or of the instance nothing starts"
    return [Remark(Level.INFO, "regionName", file_name, message, "`mld doctor` tries it")]


def guess(command: Sequence[str], environment: Mapping[str, str]) -> tuple[Dialect, str] | None:
    """Return the generation and what shows it; None if nothing does."""
    for path in map(Path, (find_executable(command) or "", *command[1:])):
        source = _source(path)
        if _KCLPY.search(source):
            interpreter = find_executable(_interpreter(source) or command)
            library = next(_libraries(interpreter, environment), None)
            if library is not None:
                is_new = (library / "v3").is_dir()
                return (Dialect.KCL_2 if is_new else Dialect.KCL_1), f"it uses {library}"
        elif _OLD.search(source) and not _NEW.search(source):
            return Dialect.KCL_1, f"{path} knows shutdown, and neither shardEnded nor leaseLost"
    return None


def _source(path: Path) -> str:
    """Return the beginning of a program's text; empty if there is none, as that of a binary."""
    try:
        with path.open("rb") as file:
            text = file.read(SOURCE_BYTES_MAX) if path.is_file() else b""
    except OSError:
        return ""
    return "" if b"\0" in text else text.decode("utf-8", "replace")


def _interpreter(source: str) -> list[str]:
    """Return the command in the first line of a script, without `env`."""
    words = source.partition("\n")[0].removeprefix("#!").split() if source.startswith("#!") else []
    return words[1:] if words and Path(words[0]).name == "env" else words


def _libraries(interpreter: str | None, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield where `amazon_kclpy` is that this interpreter imports."""
    roots = [Path(root) for root in environment.get("PYTHONPATH", "").split(os.pathsep) if root]
    if interpreter is not None:
        prefix = Path(interpreter).parent.parent
        roots += [root for base in (prefix, prefix / "local") for root in base.glob("lib/python3*/*-packages")]
    yield from (root / "amazon_kclpy" for root in roots if (root / "amazon_kclpy").is_dir())


def print_check(
    file: str,
    overrides: Sequence[str],
    *,
    as_json: bool,
    show_all: bool,
    leases: int | None = None,
    workers: int | None = None,
) -> int:
    """Print to stdout; returns the exit code: 2 with errors, else 0. `leases` and `workers`: the fleet to be priced."""
    try:
        loaded = load(file, overrides, os.environ)
    except ConfigurationError as error:
        if as_json:
            click.echo(json.dumps({"file": file, "remarks": [r.to_json() for r in error.remarks]}, indent=2))
        else:
            _print_remarks(_console(), error.remarks)
        return EXIT_CONFIGURATION
    refused = [*refusals(loaded.settings, file), *generation_remarks(loaded.settings, file, os.environ)]
    refused += region_remarks(loaded.settings, file)
    loaded = replace(loaded, remarks=(*refused, *loaded.remarks))
    exit_code = EXIT_CONFIGURATION if any(remark.level is Level.ERROR for remark in refused) else EXIT_OK
    sessions, processes = _sessions(loaded), processes_in_words(loaded.settings)
    prices = list(
        _prices(loaded.settings, (leases,) if leases else LEASES_SHOWN, (workers,) if workers else WORKERS_SHOWN)
    )
    if as_json:
        document = loaded.to_json() | {"childFailures": failures_in_words(loaded.settings)}
        document |= {} if processes is None else {"childProcesses": processes}
        document |= {} if sessions is None else {"spark": sessions}
        document["dynamoDbDollarsPerMonth"] = {"prices": price.LIST_PRICE, "fleets": prices}
        click.echo(json.dumps(document, indent=2))
        return exit_code
    console = _console()
    shown = [value for value in loaded.effective if show_all or value.source != DEFAULT_SOURCE or value.remarks]
    console.print(_table(shown))
    hidden = len(loaded.effective) - len(shown)
    if hidden:
        console.print(f"{hidden} more keys are at their defaults; --all shows them.", style="dim")
    console.print(_line(failures_in_words(loaded.settings)), soft_wrap=True)
    if processes is not None:
        console.print(_line(processes), soft_wrap=True)
    if sessions is not None:
        for line in _session_lines(loaded.settings.application_name, sessions):
            console.print(_line(line), soft_wrap=True)
    _print_prices(console, prices, loaded.settings)
    _print_remarks(console, loaded.remarks)
    return exit_code


def failures_in_words(settings: Settings) -> str:
    """Return what a failure of the record processor leads to."""
    first_s = settings.child.restart_backoff_s
    longest_s = max(settings.child.restart_pause_max_s, first_s)
    again = f"is started again from the last checkpoint after {first_s:g} s, doubling to {longest_s:g} s"
    match settings.child.failure_policy:
        case ChildFailurePolicy.EXIT:
            return "The first failure of a record processor ends the daemon with exit code 1, as Amazon's."
        case ChildFailurePolicy.RESTART:
            return (
                f"A record processor that fails {again}; after {RESTARTS_MAX} restarts without checkpoint progress the "
                "daemon ends with exit code 1. No record is ever skipped."
            )
        case ChildFailurePolicy.PARK:
            kept = f"A record processor that fails {again}, for ever; its shard waits, and all others go on. "
            attempts, letter = settings.child.poison_attempts, settings.child.dead_letter
            if attempts is None or letter is None:
                return kept + "No record is ever skipped."
            return kept + (
                f"A batch that failed {attempts} times is delivered in halves; a record that then fails {attempts} "
                f"times alone is written to the {letter.kind.value} {where(letter.text)} and passed over."
            )


def processes_in_words(settings: Settings) -> str | None:
    """Return how many processes the children of a worker's shards are, and what they take; None with one child."""
    count, held_max = settings.child.children_per_shard, settings.leases.held_max
    if count == 1:
        return None
    files = count * FILES_PER_CHILD
    most = f"{count} processes and about {files} open files for each lease that a worker holds"
    if held_max != INT_MAX:
        shards = "1 shard" if held_max == 1 else f"{held_max:,} shards"
        most += f", so for {shards} {count * held_max:,} processes and {files * held_max:,} files"
    else:
        most += ", and maxLeasesForWorker sets no limit"
    commands = (settings.child.command, *(one.executable_name for one in settings.streams))
    are_forked = all(ZYGOTE in text for text in commands if text is not None)
    memory = (
        "share what mld-zygote has imported" if are_forked else "have memory of their own each: mld-zygote shares it"
    )
    return f"{count} children share each shard by partition key: {most}. They {memory}."


def _sessions(loaded: LoadedConfiguration) -> dict[str, Any] | None:
    """Return this application's session hosts, and where the UI of the next will be; None without `mld-spark`."""
    given = {value.key: value.value or "" for value in loaded.effective if value.section is Section.SPARK}
    program = PurePath(loaded.settings.child.command.split(" ")[0]).name
    if program != PROGRAM:
        return None
    conf = {key.removeprefix(CONF_PREFIX): value for key, value in given.items() if key.startswith(CONF_PREFIX)}
    hosts = sparkhosts.running(loaded.settings.application_name)
    return {
        "sessions": [host.about for host in hosts],
        "nextUi": sparkhosts.expected_ui(conf, given.get(f"{PREFIX}master")),
    }


def _session_lines(application: str, sessions: dict[str, Any]) -> Iterator[str]:
    for one in sessions["sessions"]:
        yield (
            f"Spark session of {application}: UI {one.get('ui') or 'none'}, pid {one['pid']} of daemon "
            f"{one['daemonPid']}, Spark application {one.get('applicationId') or 'unknown'}"
        )
        yield "  since its start: " + ", ".join(f"{name} {count}" for name, count in one["counters"].items())
    if not sessions["sessions"]:
        yield (
            f"No Spark session of {application} runs on this machine for this user. "
            f"Its UI will be {sessions['nextUi']}."
        )


def _prices(settings: Settings, leases: Collection[int], workers: Collection[int]) -> Iterator[dict[str, Any]]:
    rates = price.Rates.of(settings)
    durations_s = sorted({*DURATIONS_PRICED_S, rates.lease_duration_s})
    for lease_count in leases:
        for worker_count in workers:
            found = {
                str(round(1000 * duration_s)): price.units(
                    lease_count, worker_count, rates.with_lease_duration(duration_s)
                ).dollars_per_month
                for duration_s in durations_s
            }
            by_failover = {millis: round(dollars, 2) for millis, dollars in found.items()}
            yield {"leases": lease_count, "workers": worker_count, "byFailoverTimeMillis": by_failover}


def _print_prices(console: Console, prices: Sequence[dict[str, Any]], settings: Settings) -> None:
    table = Table(title="What a fleet at rest costs in DynamoDB, dollars a month", title_justify="left")
    for column in ("leases", "workers"):
        table.add_column(column, justify="right")
    for millis in prices[0]["byFailoverTimeMillis"]:
        chosen = " (this file)" if millis == str(round(1000 * settings.leases.duration_s)) else ""
        table.add_column(f"failoverTimeMillis={millis}{chosen}", justify="right")
    for row in prices:
        dollars = (f"{one:,.2f}" for one in row["byFailoverTimeMillis"].values())
        table.add_row(f"{row['leases']:,}", f"{row['workers']:,}", *dollars)
    console.print(table)
    notes = [
        f"By the {price.LIST_PRICE}: {price.WRITE_DOLLARS_PER_MILLION} a million write units, "
        f"{price.READ_DOLLARS_PER_MILLION} a million read units. Prices change: check them, and those of your region.",
        "A longer failoverTimeMillis means fewer writes. Planned moves do not wait for it; a dead worker's shards do.",
        f"Checkpoints come on top: {price.checkpoint_dollars():.2f} a month for one a second.",
    ]
    if settings.fleet.client_version not in (ClientVersionConfig.VERSION_3X, None):
        notes.append("For a fleet in 3.x mode, which this one may not have reached yet.")
    for note in notes:
        console.print(Text(note, style="dim"), soft_wrap=True)


def _line(text: str) -> Text:
    """Return `text` without markup, line breaks and escape sequences."""
    return Text(printable(text))


def _console() -> Console:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a value may hold what the locale cannot show
    return Console(file=sys.stdout, highlight=False, markup=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


def _table(values: Sequence[EffectiveValue]) -> Table:
    table = Table(title=None, show_lines=False)
    for column in ("key", "value", "from", "remark"):
        table.add_column(column, overflow="fold")
    for value in values:
        remarks = Text("\n").join(_line(remark.message) for remark in value.remarks)
        table.add_row(*map(_line, (value.key, value.value or "-", value.source)), remarks)
    return table


def _print_remarks(console: Console, remarks: Sequence[Remark]) -> None:
    for remark in remarks:
        # A remark stays on one line, for those who search the output.
        line = Text(f"{remark.level.value}: ", style=_STYLES[remark.level]) + _line(str(remark))
        console.print(line, soft_wrap=True)
    errors = sum(remark.level is Level.ERROR for remark in remarks)
    warnings = sum(remark.level is Level.WARNING for remark in remarks)
    console.print(f"{errors} error(s), {warnings} warning(s)")
