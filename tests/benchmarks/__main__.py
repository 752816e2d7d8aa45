"""``python -m tests.benchmarks``: what `make bench` runs. See docs/lab/benchmarks.md.

It prints figures and ratios to a baseline measured in the same run, and asserts nothing about time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks import gaps, parallel, restarts, schemas, start_up, unit, zygote
from tests.benchmarks.path import __main__ as path
from tests.benchmarks.path import peers
from tests.benchmarks.process import BenchError
from tests.benchmarks.tables import load_average
from tests.support.servers import EmbeddedAws

SECTIONS = (
    "start",
    "restarts",
    "gaps",
    "parallel",
    "path",
    "processes",
    "schemas",
    "zygote",
)
RUNS = 5
CHAINS = 3


def main() -> int:
    if sys.argv[1:2] == ["path"]:  # has options of its own
        return path.main(sys.argv[2:])
    if sys.argv[1:2] == ["peers"]:
        return peers.main(sys.argv[2:])
    if any(word.startswith(("--java", "--beside")) for word in sys.argv[1:]):
        return path.main(["table", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"any of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--runs", type=int, default=RUNS, help="starts per case (default %(default)s)")
    parser.add_argument("--chains", type=int, default=CHAINS, help="chains of gaps side by side (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the logs, and say where they are")
    arguments = parser.parse_args()
    sections = arguments.sections or SECTIONS
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    scratch = Path(tempfile.mkdtemp(prefix="mld-bench-"))
    began = time.monotonic()
    print(f"load average at the start: {load_average()}\n")
    try:
        with EmbeddedAws() as aws:
            if "start" in sections:
                start_up.measure(aws, scratch, arguments.runs)
            if "restarts" in sections:
                restarts.measure(aws, scratch, arguments.runs)
            if "gaps" in sections:
                gaps.measure(aws, scratch, arguments.chains)
            if "parallel" in sections:
                parallel.measure(aws, scratch)
            if "processes" in sections:
                unit.measure(scratch)
            if "schemas" in sections:
                schemas.measure()
            if "zygote" in sections:
                zygote.measure(arguments.runs)
    except BenchError as error:
        print(f"benchmark failed: {error}")
        return 1
    if "path" in sections and path.main([]):
        return 1
    if arguments.keep:
        print(f"logs: {scratch}")
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"took {time.monotonic() - began:.0f} s; load average at the end: {load_average()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
