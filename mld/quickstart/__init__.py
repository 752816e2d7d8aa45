"""`mld quickstart`: the whole product on one machine, with only what the project installs, and a JRE."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from mld.properties.redaction import printable
from mld.quickstart.plain import PlainTour
from mld.quickstart.spark import SparkTour
from mld.quickstart.stage import NotReadyError
from mld.quickstart.tour import Tour

EXIT_NOT_READY = 2
_PLAIN_WIDTH = 120  # columns where stdout is no terminal


def run_quickstart(records: int, directory: str, *, plain: bool = False) -> int:
    """Run a tour with its files in `directory`; return the exit code. Raises QuickstartError."""
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    kind: type[Tour] = PlainTour if plain else SparkTour
    try:
        return kind(Path(directory).absolute(), console, records).run()
    except NotReadyError as error:
        print(f"mld: {printable(str(error))}", file=sys.stderr)  # noqa: T201
        return EXIT_NOT_READY


__all__ = ["run_quickstart"]
