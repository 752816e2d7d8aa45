"""`mld-spark`: the command that the daemon starts for each shard, and that people run to check or to replay.

    executableName = mld-spark            (our daemon names its file in MLD_PROPERTIES_FILE)
    executableName = mld-spark app.properties                               (run by Amazon's Java daemon)
    mld-spark --check app.properties                                        (for people: could it run?)
    mld-spark --replay-dead-letter app.properties           (for people: process the dead letters again)
    mld-spark --archive-classes                                   (for people: make sessions start faster)

It imports no pyspark and little else, because a child has to start quickly. `relay` does the work of a child.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from mld.processors.spark import link
from mld.processors.spark.attach import attach
from mld.processors.spark.fatal import EXIT_CONFIGURATION, EXIT_FAILURE, FatalError
from mld.processors.spark.relay import ChildRelay
from mld.processors.standard import claim_standard_streams

PROGRAMS = {
    "--check": "host.examine",
    "--replay-dead-letter": "replay",
    "--archive-classes": "host.class_training",
}
USAGE = """usage: mld-spark [APP.properties]          a record processor: executableName of a properties file
       mld-spark --check APP.properties  could it run? Java, PySpark and the pipeline, without a session
       mld-spark --replay-dead-letter APP.properties    its letters once more through the pipeline
       mld-spark --archive-classes       once in each environment: sessions start faster from then on
"""


def properties_file(arguments: list[str]) -> str:
    """Return the properties file that the daemon read. Raises FatalError if neither an argument nor the environment
    names it."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        raise FatalError(f"{' '.join(arguments)}: not understood\n{USAGE}".rstrip(), EXIT_CONFIGURATION)
    file = arguments[0] if arguments else os.environ.get("MLD_PROPERTIES_FILE")
    if not file:
        raise FatalError("which properties file? Write executableName = mld-spark app.properties", EXIT_CONFIGURATION)
    return str(Path(file).absolute())


def refuse_several() -> None:
    """Raise FatalError if this shard has several children: a session needs all its records, in the shard's order, from
    one child.
    """
    if os.environ.get("MLD_CHILDREN_PER_SHARD", "1") != "1":
        raise FatalError(
            "mld-spark cannot share a shard with other children: remove mld.childrenPerShard", EXIT_CONFIGURATION
        )


def main() -> NoReturn:
    """Run a child of the daemon, or the program that the first argument names."""
    if sys.argv[1:2] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        sys.exit()
    if program := PROGRAMS.get("".join(sys.argv[1:2])):
        sys.exit(import_module(f"mld.processors.spark.{program}").main(sys.argv[2:]))
    stdin, stdout = claim_standard_streams()
    if not os.isatty(stdin.fileno()):
        # A signal to a whole process group or control group reaches us, too, but the daemon decides when we end. At a
        # terminal there is no daemon, and Ctrl-C shall end this process.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    status = 0
    try:
        refuse_several()
        ChildRelay(stdin, stdout, partial(attach, properties_file(sys.argv[1:]))).serve()
    except FatalError as error:
        sys.stderr.write(f"mld-spark: {error}\n")
        status = error.status
    except link.LinkError as error:
        sys.stderr.write(f"mld-spark: the session host and this child do not understand each other: {error}\n")
        status = EXIT_FAILURE
    sys.stderr.flush()
    os._exit(status)  # everything is written, and the interpreter's ordinary end would take longer


if __name__ == "__main__":
    main()
