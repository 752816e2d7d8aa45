"""`mld check`: prints what a properties file means to the daemon (configuration#effective-values).

It decides nothing itself. `properties` reads the file, `refusals` and `protocol_generation` make remarks, and `price`
computes what the fleet's lease table costs.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mld.check import price
from mld.check.protocol_generation import generation_remarks
from mld.check.refusals import refusals
from mld.core import sparkhosts
from mld.core.terminal import EXIT_CONFIGURATION, EXIT_OK
from mld.properties.keytypes import INT_MAX, Section
from mld.properties.loader import DEFAULT_SOURCE, EffectiveValue, LoadedConfiguration, load
from mld.properties.printable import printable
from mld.properties.redaction import where
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.settings import FILES_PER_CHILD, RESTARTS_MAX, Settings
from mld.properties.spark_names import CONF_PREFIX, PREFIX, PROGRAM
from mld.properties.values import ChildFailurePolicy, ClientVersionConfig
from mld.protocol.fork_requests import PROGRAM as ZYGOTE

DURATIONS_PRICED_S = (10.0, 30.0)
"""Lease durations whose prices are shown: the default of Java and mld, and one for users who want a smaller bill."""
LEASES_SHOWN, WORKERS_SHOWN = (1, 10, 100), (1, 10)
"""Sizes of fleets whose prices are shown if the user gives none."""
_PLAIN_WIDTH = 160  # width in columns if stdout is no terminal
_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "dim"}


def region_remarks(settings: Settings, file_name: str) -> list[Remark]:
    """Return a remark if neither the file nor the environment names a region. (The AWS profile is not read here.)"""
    if settings.kinesis.region is not None and settings.dynamo_db.region is not None:
        return []
    message = "is neither in the file nor in AWS_REGION: without one in the profile or of the instance nothing starts"
    return [Remark(Level.INFO, "regionName", file_name, message, "`mld doctor` tries it")]


def print_check(
    file: str,
    overrides: Sequence[str],
    *,
    as_json: bool,
    show_all: bool,
    leases: int | None = None,
    workers: int | None = None,
) -> int:
    """Print the check to stdout, and return the exit code: 2 if there are errors, else 0.

    With `show_all` also print the keys that are at their defaults. `leases` and `workers` are the size of the fleet
    whose price is shown.
    """
    try:
        loaded = load(file, overrides, os.environ)
    except ConfigurationError as error:
        if as_json:
            click.echo(json.dumps({"file": file, "remarks": [r.to_json() for r in error.remarks]}, indent=2))
        else:
            _print_remarks(_console(), error.remarks)
        return EXIT_CONFIGURATION
    more = [*refusals(loaded.settings, file), *generation_remarks(loaded.settings, file, os.environ)]
    more += region_remarks(loaded.settings, file)
    loaded = replace(loaded, remarks=(*more, *loaded.remarks))
    exit_code = EXIT_CONFIGURATION if any(remark.level is Level.ERROR for remark in more) else EXIT_OK
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
    """Return in words what happens if the record processor fails."""
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
    """Return in words how many child processes a worker has, and which files and memory they take; None if each shard
    has one child.
    """
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
    """Return the application's running Spark session hosts, and the UI address that the next one will have; None if the
    record processor is not `mld-spark`.
    """
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
    """Yield lines on the application's Spark sessions on this machine, or on the UI that the next one will have."""
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
    """Yield the monthly prices of fleets of these sizes, each for several lease durations."""
    rates = price.Rates.of(settings)
    durations_s = sorted({*DURATIONS_PRICED_S, rates.lease_duration_s})
    for lease_count in leases:
        for worker_count in workers:
            dollars_by_millis = {
                str(round(1000 * duration_s)): price.units(
                    lease_count, worker_count, rates.with_lease_duration(duration_s)
                ).dollars_per_month
                for duration_s in durations_s
            }
            by_failover = {millis: round(dollars, 2) for millis, dollars in dollars_by_millis.items()}
            yield {"leases": lease_count, "workers": worker_count, "byFailoverTimeMillis": by_failover}


def _print_prices(console: Console, prices: Sequence[dict[str, Any]], settings: Settings) -> None:
    """Print the prices as a table, with one column for each lease duration, and notes on their origin."""
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
    """Return a console on stdout. If stdout is no terminal, its width is fixed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a value may have characters that the locale cannot show
    return Console(
        file=sys.stdout, highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH
    )


def _table(values: Sequence[EffectiveValue]) -> Table:
    """Return the table of all values, with their sources and remarks."""
    table = Table(title=None, show_lines=False)
    for column in ("key", "value", "from", "remark"):
        table.add_column(column, overflow="fold")
    for value in values:
        remarks = Text("\n").join(_line(remark.message) for remark in value.remarks)
        table.add_row(*map(_line, (value.key, value.value or "-", value.source)), remarks)
    return table


def _print_remarks(console: Console, remarks: Sequence[Remark]) -> None:
    """Print the remarks on the configuration."""
    for remark in remarks:
        # A remark stays on one line, so that the output can be searched.
        line = Text(f"{remark.level.value}: ", style=_STYLES[remark.level]) + _line(str(remark))
        console.print(line, soft_wrap=True)
    errors = sum(remark.level is Level.ERROR for remark in remarks)
    warnings = sum(remark.level is Level.WARNING for remark in remarks)
    console.print(f"{errors} error(s), {warnings} warning(s)")
