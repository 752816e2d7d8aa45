"""Prints listings: a table on a terminal, plain lines where the output is no terminal."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mld.operating.listings import Listing
from properties.printable import printable

PLAIN_WIDTH = 200  # columns where stdout is no terminal


def print_listing(listing: Listing, *, clear: bool = False) -> None:
    """Print to stdout; `clear` empties the screen of a terminal first."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name may hold what the locale cannot show
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    console = Console(file=sys.stdout, highlight=False, markup=False, width=width)
    if clear and sys.stdout.isatty():
        console.clear()
    table = Table(title=listing.title or None, title_justify="left", box=None, pad_edge=False)
    for name, to_the_right in listing.columns:
        table.add_column(name, justify="right" if to_the_right else "left", overflow="fold")
    for row in listing.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)
    for line in listing.notes:
        console.print(Text(printable(line)), soft_wrap=True)
