"""`mld top`: the shards that are furthest behind, live; from the lease table, or from a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import shutil
import sys
import termios
import time
import tty
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from mld.errors import MldError
from mld.operating.daemon_client import find_daemon
from mld.operating.daemon_options import daemon_options, guarded, wanted_daemon
from mld.operating.top_view import TopLook, TopTable, look_of, top_table
from mld.terminal import EXIT_OK, Duration, chosen_file, properties_file, settings_of
from properties.printable import printable

if TYPE_CHECKING:
    from rich.console import Group

TABLE_PERIOD_S = 5.0
"""A look costs one scan of the table."""
DAEMON_PERIOD_S = 2.0
PERIOD_MIN_S = 1.0
HTTP_TIMEOUT_S = 10.0
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024  # 10,000 shards have some 5 MB
STATUS_PATH = "/status.json"
FRAME_LINES = 5  # two of summary, the heads of the columns, what did not fit, and the cursor's
PLAIN_WIDTH = 200
QUIT_KEYS = b"qQ\x1b\x03\x04"

Asking = Callable[[], Awaitable[dict[str, Any]]]
Source = contextlib.AbstractAsyncContextManager[tuple[str, Asking]]
"""What the table is headed with, and how to look."""


class NoDocumentError(MldError):
    """The URL does not serve a daemon's status."""


@click.command()
@properties_file
@click.option("--here", is_flag=True, help="The daemon of this machine, over its socket, instead of the lease table.")
@click.option("--url", help="A daemon's status page instead: http://host:port/status.json.")
@click.option("--every", "period_s", type=Duration(), help="Time between two looks; 5s for the table, 2s for a daemon.")
@click.option("--stream", "stream_name", metavar="NAME", help="Only this one of several streams.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@daemon_options
def top(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    here: bool,
    url: str | None,
    period_s: float | None,
    stream_name: str | None,
    output: str,
    pid: int | None,
    worker: str | None,
    timeout_s: float,
) -> None:
    """Show the shards that are furthest behind, live, with their rates. `q` ends it.

    From the lease table, so for the whole fleet and from anywhere; with --here or --url as a daemon sees it. Where the
    output is no terminal it is printed once.
    """
    if here and url is not None:
        raise click.UsageError("give --here or --url, not both")
    if url is not None:
        source = _of_url(url)
    elif here:
        source = _of_daemon(option_file, argument_file, overrides, pid, worker, timeout_s)
    else:
        source = _of_table(chosen_file(option_file, argument_file), overrides)
    usual_s = TABLE_PERIOD_S if url is None and not here else DAEMON_PERIOD_S
    wait_s = max(PERIOD_MIN_S, usual_s if period_s is None else period_s)
    sys.exit(guarded(lambda: asyncio.run(_run(source, wait_s, stream_name, as_json=output == "json"))))


async def _run(source: Source, period_s: float, stream: str | None, *, as_json: bool) -> int:
    async with source as (title, ask):
        value = await ask()
        if as_json:
            click.echo(json.dumps(value, indent=2))
            return EXIT_OK
        first = _look(value, title, stream)
        if not (sys.stdout.isatty() and sys.stdin.isatty()):
            if any(shard.records is not None for shard in first.shards):
                await asyncio.sleep(PERIOD_MIN_S)  # what is counted says how fast it goes after a second look only
                _print(top_table(_look(await ask(), title, stream), first, None))
            else:
                _print(top_table(first, None, None))
            return EXIT_OK
        return await _live(first, title, ask, period_s, stream)


def _look(value: dict[str, Any], title: str, stream: str | None) -> TopLook:
    return look_of(value, time.time(), f"{title}  {time.strftime('%H:%M:%S')}", stream)


async def _live(first: TopLook, title: str, ask: Asking, period_s: float, stream: str | None) -> int:
    from rich.console import Console
    from rich.live import Live

    look, before, trouble = first, None, ""
    quitting = asyncio.Event()
    console = Console(highlight=False, markup=False)
    with _keys(quitting), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            height = shutil.get_terminal_size().lines
            live.update(_rendered(top_table(look, before, height - FRAME_LINES - bool(trouble)), trouble), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await quitting.wait()
                return EXIT_OK
            try:
                look, before, trouble = _look(await ask(), title, stream), look, ""
            except (MldError, OSError) as error:
                trouble = f"no answer, this is as of {time.strftime('%H:%M:%S', time.localtime(look.at_s))}: {error}"


@contextlib.contextmanager
def _keys(quitting: asyncio.Event) -> Iterator[None]:
    """Keys are read as they are pressed, and not shown; those that quit set the event."""
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    loop = asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(handle, 64)
        if not pressed or any(key in QUIT_KEYS for key in pressed[:1]):
            quitting.set()

    tty.setcbreak(handle)
    loop.add_reader(handle, read)
    try:
        yield
    finally:
        loop.remove_reader(handle)
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _print(table: TopTable) -> None:
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may hold what the locale cannot show
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    Console(file=sys.stdout, highlight=False, markup=False, width=width).print(_rendered(table, ""))


def _rendered(table: TopTable, trouble: str) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False)
    for name, to_the_right in table.columns:
        shown.add_column(name, justify="right" if to_the_right else "left", no_wrap=True, overflow="ellipsis")
    for row in table.rows:
        shown.add_row(*(Text(printable(cell), no_wrap=True, overflow="ellipsis") for cell in row))
    lines = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line in table.summary]
    ends = [line for line in (table.rest, trouble) if line]
    more = [Text(printable(line), style="bold", no_wrap=True, overflow="ellipsis") for line in ends]
    return Group(*lines, shown, *more)


# --- sources ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _of_table(file: str, overrides: Sequence[str]) -> AsyncIterator[tuple[str, Asking]]:
    from mld.operating.fleet_reader import fleet_reader
    from mld.operating.listings import fleet_value

    settings = settings_of(file, overrides)
    async with fleet_reader(settings) as reader:

        async def ask() -> dict[str, Any]:
            status = await reader.look()
            return fleet_value(status, status.open_shards)

        yield f"{settings.application_name} by its lease table", ask


@asynccontextmanager
async def _of_daemon(
    option_file: str | None,
    argument_file: str | None,
    overrides: Sequence[str],
    pid: int | None,
    worker: str | None,
    timeout_s: float,
) -> AsyncIterator[tuple[str, Asking]]:
    link = find_daemon(wanted_daemon(option_file, argument_file, overrides, pid, worker, timeout_s), os.environ)
    who = link.ask("who")

    async def ask() -> dict[str, Any]:
        return await asyncio.to_thread(link.ask, "status")

    yield f"{who.get('application')}: worker {who.get('worker')}, pid {who.get('pid')}", ask


@asynccontextmanager
async def _of_url(url: str) -> AsyncIterator[tuple[str, Asking]]:
    async def ask() -> dict[str, Any]:
        return await asyncio.to_thread(_document, url)

    yield url.rpartition("@")[2], ask


def _document(url: str) -> dict[str, Any]:
    """What a daemon serves there. Raises NoDocumentError."""
    try:
        parts = urlsplit(url)
        place = f"{parts.hostname}:{parts.port or parts.scheme}"
        kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}[parts.scheme]
        connection = kind(parts.hostname or "", parts.port, timeout=HTTP_TIMEOUT_S)
    except (ValueError, KeyError, http.client.InvalidURL):
        raise NoDocumentError("--url is no URL: write it as http://127.0.0.1:9404/status.json") from None
    with contextlib.closing(connection):
        try:
            connection.request("GET", STATUS_PATH if parts.path in ("", "/") else parts.path)
            answer = connection.getresponse()
            body = answer.read(DOCUMENT_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise NoDocumentError(f"{place} cannot be reached: {error or type(error).__name__}") from None
    if answer.status != http.client.OK:
        raise NoDocumentError(f"{place} answers {answer.status}: {body[:200].decode(errors='replace').strip()}")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("shards"), list):
        raise NoDocumentError(f"{place} serves no status of mld there: is it a daemon's /status.json?")
    return value
