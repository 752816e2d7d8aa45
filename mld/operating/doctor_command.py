"""The command `mld doctor`, which examines whether a daemon can run here: its options and printing. `doctor` has the
examination.
"""

from __future__ import annotations

import json

import click

from mld.core.terminal import (
    EXIT_FAILURE,
    EXIT_OK,
    loaded_of,
)
from mld.operating.command_ends import finish
from mld.operating.options import (
    Invocation,
    output_option,
    with_file,
)
from mld.properties.printable import printable


@click.command()
@with_file()
@output_option
def doctor(invocation: Invocation, output: str) -> None:
    """Examine everything that a daemon needs, and show what is wrong and what to do.

    It examines credentials, endpoints, clock, stream, table, each permission, the processor and this machine, and
    changes nothing. Exit codes: 0 the daemon can run, 1 something fails, 2 bad configuration.
    """
    loaded = loaded_of(invocation.file, invocation.overrides)

    async def examining() -> int:
        """Examine the application, print all findings, and return the exit code."""
        from mld.core.disks import places_of
        from mld.operating.doctor import Doctor
        from mld.operating.findings import finding_value, is_well

        found = await Doctor(loaded.settings, invocation.file, places_of(loaded)).examine()
        if output == "json":
            value = {"isWell": is_well(found), "findings": [finding_value(one) for one in found]}
            click.echo(json.dumps(value, indent=2))
            return EXIT_OK if is_well(found) else EXIT_FAILURE
        for one in found:
            click.echo(printable(f"{one.health.value:<4}  {one.about}: {one.words}"))
            if one.remedy:
                click.echo(printable(f"      -> {one.remedy}"))
        return EXIT_OK if is_well(found) else EXIT_FAILURE

    finish(examining)
