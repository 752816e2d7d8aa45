"""Tables on standard output, and the few statistics in them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 118


@dataclass(frozen=True, slots=True)
class Spread:
    min: float
    median: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))


def load_average() -> str:
    """Of the last minute, as a text."""
    return f"{os.getloadavg()[0]:.2f}"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> None:
    """Print one; columns of figures are set to the right."""
    shown = Table(title=title, caption=note, box=box.SIMPLE, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        figures = all(_is_figure(row[number]) for row in rows)
        shown.add_column(column, justify="right" if figures else "left")
    for row in rows:
        shown.add_row(*row)
    Console(width=WIDTH, highlight=False).print(shown)


def _is_figure(text: str) -> bool:
    return not text or text[0].isdigit() or text == "-"
