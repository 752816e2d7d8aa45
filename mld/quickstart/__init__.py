"""`mld quickstart`: runs the whole product on one machine. It needs only what the project installs, and a JRE."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from mld.local.server import check_extra
from mld.quickstart.plain_tour import PlainTour
from mld.quickstart.spark import SparkTour
from mld.quickstart.tour import Tour

_PLAIN_WIDTH = 120  # width in columns if stdout is no terminal

__all__ = ["run_quickstart"]


def run_quickstart(records: int, directory: str, *, plain: bool = False) -> int:
    """Run a tour whose files are in `directory`; return the exit code. Raises NotReadyError and QuickstartError."""
    check_extra()
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    kind: type[Tour] = PlainTour if plain else SparkTour
    return kind(Path(directory).absolute(), console, records).run()
