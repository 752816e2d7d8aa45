"""The commands that steer a running daemon of this machine, or listen to it: `mld log-level` and `mld tap`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mld.core.terminal import EXIT_FAILURE, EXIT_OK, Duration, define_option, file_option
from mld.operating.daemon_client import DaemonLink, find_daemon
from mld.operating.daemon_options import daemon_options, guarded, wanted_daemon
from mld.properties.redaction import printable

LEVELS = ("debug", "info", "warning", "error", "reset")

_MARKS = {"toChild": "->", "fromChild": "<-"}

_file = click.argument("files", nargs=-1, metavar="[APP.properties]")


def _only(files: Sequence[str]) -> str | None:
    if len(files) > 1:
        raise click.UsageError(f"give one properties file, not {len(files)}")
    return files[0] if files else None


def _no_file(shard: str) -> None:
    if Path(shard).is_file():
        raise click.UsageError(f"name a shard after the file: mld tap {shard} SHARD")


@click.command("log-level")
@_file
@click.argument("level", type=click.Choice(LEVELS, case_sensitive=False), metavar="LEVEL")
@file_option
@define_option
@click.option("--logger", metavar="NAME", help="Only this logger and those below it, such as mld.consumer.")
@click.option("--for", "for_s", type=Duration(), help="Put back what was configured after this time, such as 10m.")
@daemon_options
def log_level(
    files: Sequence[str],
    level: str,
    option_file: str | None,
    overrides: Sequence[str],
    logger: str | None,
    for_s: float | None,
    pid: int | None,
    worker: str | None,
    timeout_s: float,
) -> None:
    """Change what a running daemon logs.

    LEVEL is debug, info, warning or error; reset puts back what was configured.
    Prints the old and the new level, and the daemon's log says so too. The change ends with the daemon.
    """

    def change() -> int:
        link = find_daemon(wanted_daemon(option_file, _only(files), overrides, pid, worker, timeout_s), os.environ)
        changes = link.ask("log-level", level=level, logger=logger, forSeconds=for_s)["changes"]
        for one in changes:
            click.echo(printable(f"{one['logger'] or 'all loggers'}: {one['old']} -> {one['new']}"))
        if not changes:
            click.echo("nothing was changed before")
        return EXIT_OK

    sys.exit(guarded(change))


@click.command()
@_file
@click.argument("shard")
@file_option
@define_option
@click.option("--full", is_flag=True, help="Whole lines: all records, with their whole payloads.")
@click.option("--until-exit", is_flag=True, help="End when this child ends; else with the lease of the shard.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@daemon_options
def tap(
    files: Sequence[str],
    shard: str,
    option_file: str | None,
    overrides: Sequence[str],
    full: bool,
    until_exit: bool,
    output: str,
    pid: int | None,
    worker: str | None,
    timeout_s: float,
) -> None:
    """Show what a running child and the daemon say to each other, as it happens.

    SHARD is a shard's id, or its number. Lines to the child are marked ->, lines of the child <-. The daemon never
    waits for this command: lines that it cannot take in time are left out and counted. It shows the data of records.
    """

    _no_file(shard)

    def listen() -> int:
        link = find_daemon(wanted_daemon(option_file, _only(files), overrides, pid, worker, timeout_s), os.environ)
        printer = _print_json if output == "json" else _Transcript().print
        return _follow(link, shard, full, until_exit, printer)

    sys.exit(guarded(listen))


def _follow(link: DaemonLink, shard: str, full: bool, until_exit: bool, printer: Any) -> int:
    try:
        for value in link.follow("tap", shard=shard, full=full):
            printer(value)
            sys.stdout.flush()
            if value.get("event") == "leaseEnded" or (until_exit and value.get("event") == "childEnded"):
                return EXIT_OK
    except BrokenPipeError:  # `mld tap … | head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - what is left must not be flushed into the pipe
        return EXIT_OK
    printer({"at": time.time(), "event": "daemonLeft", "words": "the daemon has closed the connection: it is stopping"})
    return EXIT_FAILURE


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


class _Transcript:
    """Prints for people: a line each, with time and direction."""

    def __init__(self) -> None:
        self._open: str | None = None
        """The way of a line that is printed in pieces."""

    def print(self, value: dict[str, Any]) -> None:
        """Print one value of the daemon."""
        if "isMore" in value:
            self._print_piece(value)
            return
        if self._open is not None:
            click.echo()
            self._open = None
        if "lost" in value:
            count = value["lost"]
            click.echo(f"-- {count} line{'' if count == 1 else 's'} left out: too many for this terminal")
        elif "line" in value:
            about = [f"{value['bytes']:,} bytes"] if value["bytes"] > len(value["line"]) + 1 else []
            about += [f"{value['records']:,} records"] if value.get("records", 0) > 1 else []
            about += ["cut off"] if value.get("isCut") else []
            more = f"  ({', '.join(about)})" if about else ""
            click.echo(f"{_time(value)} {_MARKS[value['way']]} {printable(value['line'])}{more}")
        elif "words" in value:
            click.echo(f"-- {_time(value)} {printable(value['words'])}")
        else:
            click.echo(f"-- {_situation(value)}")

    def _print_piece(self, value: dict[str, Any]) -> None:
        if self._open not in (None, value["way"]):
            click.echo()
            self._open = None
        if self._open is None:
            click.echo(f"{_time(value)} {_MARKS[value['way']]} ", nl=False)
        self._open = value["way"]
        click.echo(printable(value["line"]), nl=not value["isMore"])
        if not value["isMore"]:
            self._open = None


def _situation(value: dict[str, Any]) -> str:
    child = value["child"] or "no child runs now"
    busy = value["busySeconds"]
    has = "" if busy is None else f", a batch in its hands for {busy:.1f} s"
    state = value["state"] or "waiting"
    return printable(f"{value['shard']}: {state}, {child}{has}")


def _time(value: dict[str, Any]) -> str:
    at = float(value["at"])
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"
