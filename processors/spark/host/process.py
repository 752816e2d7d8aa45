"""The process of a session host: it handles signals, reads settings, cleans up after earlier hosts, and sets the exit
status.

`attach` starts it; `session_host` does the work.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from mld.processors.spark.fatal import EXIT_CONFIGURATION, FatalError
from mld.processors.spark.host.leftovers import clear, hold, sweep
from mld.processors.spark.host.printed_lines import PrintedLines
from mld.processors.spark.host.session_host import SessionHost
from mld.processors.spark.host.start_up import start
from mld.processors.spark.run_directory import scratch_directory
from mld.processors.spark.sanitizing import complain, log_by, sanitizer_of
from mld.processors.spark.settings import SparkSettings, load


def main() -> NoReturn:
    """Run the host with the arguments `directory properties-file daemon-pid ready-fd`, which `attach` passes."""
    directory, file, daemon_pid, ready_fd = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # A supervisor signals a whole group at once, but the daemon decides when its shards end. The JVM inherits this.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log_by(sanitizer_of((), os.environ))
    status = EXIT_CONFIGURATION
    try:
        settings = load(file, os.environ.get("MLD_OVERRIDES", "").splitlines(), os.environ)
        log_by(settings.fit)
        sweep()
        scratch = scratch_directory(daemon_pid)
        locks = [hold(place) for place in dict.fromkeys((directory, scratch))]  # often the same directory
        status = asyncio.run(_serve(settings, directory, scratch, daemon_pid, ready_fd, file))
        del locks  # which closes and so unlocks them
    except FatalError as error:
        complain(str(error))
    sys.stderr.flush()
    os._exit(status)  # an ordinary exit could hang, because threads of PySpark may wait for a JVM that is gone


async def _serve(
    settings: SparkSettings, directory: Path, scratch: Path, daemon_pid: int, ready_fd: int, properties_file: str
) -> int:
    """Run the host on this event loop, write a byte to `ready_fd` once it listens, and clean up after it."""
    host = SessionHost(settings, directory, daemon_pid, start, properties_file, scratch)

    def listening() -> None:
        """Report that the host listens. From then on, pass on what is printed through a child."""
        os.write(ready_fd, b"+")
        os.close(ready_fd)
        PrintedLines(asyncio.get_running_loop(), host.pass_on, settings.fit)

    try:
        return await host.run(listening)
    finally:
        for place in (directory, scratch):
            clear(place, daemon_lives=not host.daemon_gone)
