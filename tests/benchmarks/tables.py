"""Tables on standard output and on pages, and the few statistics in them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 118
PAGE = Path("docs/lab/performance.md")


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


def markdown_table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Nothing for no lines."""
    if not lines:
        return ""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (columns, *lines))
    return "\n".join([f"**{title}**", "", head, "|" + "---|" * len(columns), *body])


def put_into_page(mark: str, markdown: str) -> None:
    """Between the marks of this name in docs/lab/performance.md."""
    text = PAGE.read_text()
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    assert found, f"{PAGE} has no place for the figures"
    PAGE.write_text(f"{head}{begin}\n\n{markdown}\n\n{end}{tail}")


def _is_figure(text: str) -> bool:
    return not text or text[0].isdigit() or text == "-"
