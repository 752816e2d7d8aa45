"""Prints listings: a table on a terminal, plain lines where the output is no terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mld.operating.listings import Listing
from properties.printable import printable

PLAIN_WIDTH = 200  # columns where stdout is no terminal
ROWS_MAX = 500
"""Beyond that no cell is folded: `rich` lays out 10,000 rows in four seconds, and nobody reads them on a screen."""
GAP = "  "


def print_listing(listing: Listing, *, clear: bool = False) -> None:
    """Print to stdout; `clear` empties the screen of a terminal first."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may hold what the locale cannot show
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    console = Console(file=sys.stdout, highlight=False, markup=False, width=width)
    if clear and sys.stdout.isatty():
        console.clear()
    if len(listing.rows) > ROWS_MAX:
        sys.stdout.writelines(aligned(listing))
    else:
        console.print(_table(listing))
    for line in listing.notes:
        console.print(Text(printable(line)), soft_wrap=True)


def _table(listing: Listing) -> Table:
    table = Table(title=listing.title or None, title_justify="left", box=None, pad_edge=False)
    for name, to_the_right in listing.columns:
        table.add_column(name, justify="right" if to_the_right else "left", overflow="fold")
    for row in listing.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def aligned(listing: Listing) -> Iterator[str]:
    """The lines of a long table, each cell as wide as the widest of its column."""
    rows = [tuple(map(printable, row)) for row in listing.rows]
    rows.insert(0, tuple(name for name, _ in listing.columns))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    if listing.title:
        yield f"{listing.title}\n"
    for row in rows:
        cells = []
        for cell, width, (_, to_the_right) in zip(row, widths, listing.columns, strict=True):
            blanks = " " * (width - cell_len(cell))
            cells.append(blanks + cell if to_the_right else cell + blanks)
        yield f"{GAP.join(cells).rstrip()}\n"
