"""The process of a session host: signals, settings, what earlier hosts left behind, and the exit status."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from mld.processors.spark.batch.spool import SpoolError
from mld.processors.spark.host.process_watch import PrintedLines, clear, hold, sweep
from mld.processors.spark.host.session_host import SessionHost
from mld.processors.spark.host.start_up import start
from mld.processors.spark.meeting_place import EXIT_CONFIGURATION, FatalError, scratch_directory
from mld.processors.spark.sanitized import complain, log_by, sanitizer_of
from mld.processors.spark.settings import SettingsError, SparkSettings, load


def main() -> NoReturn:
    """Run the host: `directory properties-file daemon-pid ready-fd`, as `child.relay` starts it."""
    directory, file, daemon_pid, told = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # A supervisor signals a whole group at once; the daemon decides when its shards are done. The JVM inherits it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log_by(sanitizer_of((), os.environ))
    try:
        settings = load(file, os.environ.get("MLD_OVERRIDES", "").splitlines(), os.environ)
    except SettingsError as error:
        complain(f"the configuration cannot be used:\n{error}")
        _exit(EXIT_CONFIGURATION)
    log_by(settings.fit)
    sweep()
    try:
        scratch = scratch_directory(daemon_pid)
        locks = [hold(place) for place in dict.fromkeys((directory, scratch))]
        status = asyncio.run(_serve(settings, directory, scratch, daemon_pid, told, file))
        del locks
    except (SpoolError, FatalError) as error:
        complain(str(error))
        status = EXIT_CONFIGURATION
    _exit(status)


async def _serve(
    settings: SparkSettings, directory: Path, scratch: Path, daemon_pid: int, told: int, properties_file: str
) -> int:
    loop = asyncio.get_running_loop()
    host = SessionHost(settings, directory, daemon_pid, start, properties_file, scratch)
    delivering: list[asyncio.Future[None]] = []

    def listening() -> None:
        os.write(told, b"+")
        os.close(told)
        delivering.append(asyncio.ensure_future(PrintedLines(loop, host.pass_on, settings.fit).keep_delivering()))

    try:
        return await host.run(listening)
    finally:
        for one in delivering:
            one.cancel()
        for place in (directory, scratch):
            clear(place, daemon_lives=not host.daemon_gone)


def _exit(status: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(status)  # threads of PySpark may still wait for a JVM that is gone
