"""`mld-spark`: the record processor of one shard, a thin relay between the daemon and the session host.

    executableName = mld-spark            (the daemon says in MLD_PROPERTIES_FILE which file it read)
    executableName = mld-spark app.properties                               (run by Amazon's Java daemon)
    mld-spark --check app.properties                                        (for people: could it run?)
    mld-spark --replay-dead-letter [--dry-run] app.properties               (for people: once more, please)
    mld-spark --archive-classes                                             (for people: sessions start faster)

It imports no pyspark, and little else: a child must start in no time.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from mld.processors.spark import link
from mld.processors.spark.child.relay import ChildRelay
from mld.processors.spark.meeting_place import EXIT_CONFIGURATION, EXIT_FAILURE, FatalError
from mld.processors.standard import claim_standard_streams

USAGE = """usage: mld-spark [APP.properties]          a record processor: executableName of a properties file
       mld-spark --check APP.properties  could it run? Java, PySpark and the pipeline, without a session
       mld-spark --replay-dead-letter [--dry-run] APP.properties    its letters once more through the pipeline
       mld-spark --archive-classes       once in each environment: sessions start faster from then on
"""


def properties_file(arguments: list[str]) -> str:
    """Return the file that the daemon read. Raises FatalError if nobody says which."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        raise FatalError(f"{' '.join(arguments)}: not understood\n{USAGE}".rstrip(), EXIT_CONFIGURATION)
    file = arguments[0] if arguments else os.environ.get("MLD_PROPERTIES_FILE")
    if not file:
        raise FatalError("which properties file? Write executableName = mld-spark app.properties", EXIT_CONFIGURATION)
    return str(Path(file).absolute())


def main() -> NoReturn:
    if sys.argv[1:2] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        sys.exit()
    if sys.argv[1:2] == ["--check"]:
        from mld.processors.spark.session import preflight

        sys.exit(preflight.main(sys.argv[2:]))
    if sys.argv[1:2] == ["--replay-dead-letter"]:
        from mld.processors.spark.replay import program

        sys.exit(program.main(sys.argv[2:]))
    if sys.argv[1:2] in (["--compact"], ["--ddl"]):
        from mld.properties.spark import REMOVED_OPTIONS

        option = sys.argv[1]
        sys.stderr.write(f"mld-spark: {option} is of mld 0.2 and no longer there; {REMOVED_OPTIONS[option]}\n")
        sys.exit(EXIT_CONFIGURATION)
    if sys.argv[1:2] == ["--archive-classes"]:
        from mld.processors.spark.host import class_training

        sys.exit(class_training.main(sys.argv[2:]))
    stdin, stdout = claim_standard_streams()
    if not os.isatty(stdin.fileno()):
        # A signal to a whole group or control group reaches us too; the daemon decides when we are done.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    status = 0
    try:
        ChildRelay(stdin, stdout, properties_file(sys.argv[1:])).serve()
    except FatalError as error:
        sys.stderr.write(f"mld-spark: {error}\n")
        status = error.status
    except link.LinkError as error:
        sys.stderr.write(f"mld-spark: the session host and this child do not understand each other: {error}\n")
        status = EXIT_FAILURE
    sys.stderr.flush()
    os._exit(status)  # nothing of ours is left to be written, and an interpreter takes its time to end
