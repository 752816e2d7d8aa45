"""Prints listings: as a table on a terminal, else as plain lines; once, or again every few seconds (`--watch`)."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Literal, NoReturn

from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from mld.core.errors import MldError
from mld.core.terminal import scrubber
from mld.operating.short_ids import with_short_ids
from mld.operating.text_table import Listing
from mld.properties.printable import printable

PLAIN_WIDTH = 200  # width in columns if stdout is no terminal
UNBOUNDED_WIDTH = 10_000
WATCH_PERIOD_S = 5.0  # not less, because each look costs a scan of the lease table
ROWS_MAX = 500
"""A longer table is printed with whole cells: `rich` would need four seconds to fold the cells of 10,000 rows."""
GAP = "  "
TABLE_FRAME_LINES = 2  # the head of the table, and the line that counts the rows that do not fit


def print_listing(listing: Listing) -> None:
    """Print the listing to stdout. On a terminal that is too narrow for it, ids are shortened and cells folded.
    A listing of more than ROWS_MAX rows is printed with lines of any length, because folding would take seconds.
    """
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)
    if len(listing.rows) > ROWS_MAX:
        print_wide(listing)
        return
    _escape_unencodable()
    console.print(_table(_fitting(listing, console)))
    for line in listing.notes:
        console.print(Text(printable(line)), soft_wrap=True)


def print_wide(listing: Listing) -> None:
    """Print the listing to stdout, each row on one line, however long the line is."""
    _escape_unencodable()
    sys.stdout.writelines((*aligned(listing), *(f"{printable(note)}\n" for note in listing.notes)))


def _escape_unencodable() -> None:
    """Make stdout replace characters that the locale cannot encode by escapes; names may have such characters."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


async def follow(look: Callable[[], Awaitable[Listing]], console: Console) -> NoReturn:
    """Call `look` every few seconds, and show its listing on the whole terminal, as far as it fits.

    If a later call fails, the last listing stays, with a note. Errors of the first call are raised.
    """
    import asyncio

    from rich.live import Live

    listing, looked_at, trouble = await look(), time.localtime(), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(listing, trouble, console), refresh=True)
            await asyncio.sleep(WATCH_PERIOD_S)
            try:
                listing, looked_at, trouble = await look(), time.localtime(), ""
            except (MldError, OSError) as error:
                trouble = f"no answer, this is as of {time.strftime('%H:%M:%S', looked_at)}: {scrubber()(str(error))}"


def _screen(listing: Listing, trouble: str, console: Console) -> Group:
    """Return as much of the listing as fits the terminal, with the notes above it."""
    notes = [note for note in (trouble, *listing.notes) if note][: console.height // 2]
    room = max(0, console.height - len(notes) - TABLE_FRAME_LINES)
    left_out = len(listing.rows) - room
    shown = _fitting(replace(listing, rows=listing.rows[:room]), console)
    return Group(
        *(_line(note) for note in notes),
        _table(shown, one_line=True),
        _line(f"… and {left_out:,} more" if left_out > 0 else ""),
    )


def _fitting(listing: Listing, console: Console) -> Listing:
    """Return the listing; with short ids if the console is too narrow for it."""
    unbounded = console.options.update(max_width=UNBOUNDED_WIDTH)
    if console.measure(_table(listing), options=unbounded).maximum <= console.width:
        return listing
    return replace(listing, rows=tuple(tuple(map(with_short_ids, row)) for row in listing.rows))


def _line(text: str) -> Text:
    """Return the text as one line, which is cut off at the edge of the terminal."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def _table(listing: Listing, *, one_line: bool = False) -> Table:
    """Lay the rows out as a table. Shard ids are never folded. Other cells that are too long are folded, or cut with
    `one_line`.
    """
    table = Table(box=None, pad_edge=False)
    for name, to_the_right in listing.columns:
        justify: Literal["left", "right"] = "right" if to_the_right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "shard")
    for row in listing.rows:
        table.add_row(*(_line(cell) if one_line else Text(printable(cell)) for cell in row))
    return table


def aligned(listing: Listing) -> Iterator[str]:
    """Yield the lines of a table in which each cell is as wide as the widest cell of its column."""
    rows = [tuple(map(printable, row)) for row in listing.rows]
    rows.insert(0, tuple(name for name, _ in listing.columns))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for cell, width, (_, to_the_right) in zip(row, widths, listing.columns, strict=True):
            blanks = " " * (width - cell_len(cell))
            cells.append(blanks + cell if to_the_right else cell + blanks)
        yield f"{GAP.join(cells).rstrip()}\n"
