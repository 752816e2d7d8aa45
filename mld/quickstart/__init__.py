"""`mld quickstart`: the whole product on one machine, with only what the project installs, and a JRE."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from mld.quickstart.changes import WRITES_DEFAULT, PlainOrdersTour, SparkOrdersTour
from mld.quickstart.plain import PlainTour
from mld.quickstart.spark import SparkTour
from mld.quickstart.stage import NotReadyError
from mld.quickstart.tour import RECORDS_DEFAULT, Tour
from properties.printable import printable

EXIT_NOT_READY = 2
_PLAIN_WIDTH = 120  # columns where stdout is no terminal


def run_quickstart(records: int | None, directory: str, *, plain: bool = False, dynamodb_streams: bool = False) -> int:
    """Run a tour with its files in `directory`; returns the exit code. `records`: how many to put or to write; None as
    the tour has it. Raises QuickstartError."""
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    kind: type[Tour]
    if dynamodb_streams:
        kind, usual = PlainOrdersTour if plain else SparkOrdersTour, WRITES_DEFAULT
    else:
        kind, usual = PlainTour if plain else SparkTour, RECORDS_DEFAULT
    try:
        return kind(Path(directory).absolute(), console, usual if records is None else records).run()
    except NotReadyError as error:
        print(f"mld: {printable(str(error))}", file=sys.stderr)  # noqa: T201
        return EXIT_NOT_READY


__all__ = ["run_quickstart"]
