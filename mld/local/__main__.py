"""``python -m mld.local``: the embedded AWS for tests.

Prints one JSON line with its endpoint and port once it listens.
"""

from __future__ import annotations

import argparse
import sys

from mld.local.run import first_stream, run_foreground
from mld.local.server import DEFAULT_HOST


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mld.local", description="The embedded AWS, for tests.")
    parser.add_argument("--host", default=DEFAULT_HOST)
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a name to be called by")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--enforce", action="store_true", help="enforce the throughput limits of a shard")
    parser.add_argument(
        "--stream", action="append", default=[], metavar="NAME:SHARDS", help="make a stream at the start"
    )
    arguments = parser.parse_args()
    return run_foreground(
        arguments.host,
        arguments.port,
        allow_hosts=arguments.allow_host,
        enforce=arguments.enforce,
        streams=[first_stream(text) for text in arguments.stream],
        as_json=True,
    )


if __name__ == "__main__":
    sys.exit(main())
