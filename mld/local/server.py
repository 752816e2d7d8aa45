"""`mld local`: runs the embedded AWS in the foreground. Programs can start it by ``python -m mld.local.server``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies

from mld.core.errors import MldError
from mld.core.installed import require
from mld.local.embedded_server import DEFAULT_HOST, EmbeddedServer, serve
from mld.local.kinesis import REGION, SHARD_LIMIT
from mld.local.kinesis_errors import ACCOUNT
from mld.local.routing import NAMES

DEFAULT_PORT = 4567
_PROXIES_OF_HTTP = ("http", "all")
_FIRST_STREAM = re.compile(
    r"(?:arn:aws[a-z-]*:kinesis:(?P<region>[a-z0-9-]+):(?P<account>\d{12}):stream/)?(?P<name>[a-zA-Z0-9_.-]{1,128})"
    r"(?::(?P<shards>[1-9]\d{0,4}))?"
)


class FirstStreamError(MldError):
    """The text does not name a stream to create at the start; the message shows the form that it must have."""


@dataclass(frozen=True, slots=True)
class FirstStream:
    """A stream that is created at the start."""

    name: str
    shards: int = 1
    account: str = ACCOUNT
    region: str = REGION


def first_stream(text: str) -> FirstStream:
    """Parse ``NAME`` or ``NAME:SHARDS``. An ARN in place of the name selects another account or region. Raises
    FirstStreamError.
    """
    found = _FIRST_STREAM.fullmatch(text)
    if found is None or int(found["shards"] or 1) > SHARD_LIMIT:
        raise FirstStreamError(
            f"{text!r} is no stream: write NAME:SHARDS, as in orders:4, or the ARN of a Kinesis stream before the "
            f"colon; at most {SHARD_LIMIT} shards"
        )
    account, region = found["account"] or ACCOUNT, found["region"] or REGION
    return FirstStream(found["name"], int(found["shards"] or 1), account, region)


def usage_lines(endpoint: str, *, behind_proxy: bool = False) -> str:
    """Return the text that `mld local` prints: lines to paste into a shell and into a properties file.

    The region is set twice, because boto3 reads only AWS_DEFAULT_REGION, and other SDKs AWS_REGION. A profile would
    bring its own keys and endpoints, so it is unset. With `behind_proxy` there are lines that keep requests to the
    server from the proxy for http that the shell has: a proxy cannot reach the loopback interface of this machine.
    """
    host = urlsplit(endpoint).hostname
    direct = f"  export no_proxy={host}${{no_proxy:+,$no_proxy}} NO_PROXY={host}${{NO_PROXY:+,$NO_PROXY}}\n"
    return f"""\
The embedded AWS listens on {endpoint} ({NAMES}; nothing is kept after it stops).

For a shell:
  export AWS_ENDPOINT_URL={endpoint} AWS_REGION={REGION} AWS_DEFAULT_REGION={REGION}
  export AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local; unset AWS_PROFILE AWS_SESSION_TOKEN
{direct if behind_proxy else ""}
For a .properties file:
  regionName = {REGION}
  kinesisEndpoint = {endpoint}
  dynamoDBEndpoint = {endpoint}
  cloudWatchEndpoint = {endpoint}

Stop it with Ctrl-C.
"""


def check_extra() -> None:
    """Raise NotReadyError if packages of the extra `local` are missing."""
    require("local", "the embedded AWS", "moto", "flask", "flask_cors", "cbor2", "h2")


def run_foreground(
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    *,
    allow_hosts: Sequence[str] = (),
    enforce: bool = False,
    streams: Sequence[FirstStream] = (),
    as_json: bool = False,
) -> int:
    """Run the server until SIGTERM or SIGINT, and return the exit status 0.

    With `port` 0 it takes any free port. Clients may also call it by the host names in `allow_hosts`. `streams` are
    created at the start. When the server listens, it prints `usage_lines`, or with `as_json` one line of JSON:
    ``{"endpoint": ..., "host": ..., "port": ..., "pid": ...}``. Raises NotReadyError if the extra `local` is not
    installed, OSError if the port is taken, and KinesisError for two streams with one name in the same account and
    region.
    """
    check_extra()

    async def until_signal() -> None:
        """Serve until one of the signals comes."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        server = await serve(host, port, allow_hosts=allow_hosts, enforce=enforce)
        try:
            for stream in streams:
                kinesis = server.kinesis(stream.region, stream.account)
                kinesis.create_stream(stream.name, now=time.time(), shard_count=stream.shards)
            sys.stdout.write(_announcement(server, as_json=as_json))
            sys.stdout.flush()
            await stop.wait()
        finally:
            await server.close()

    asyncio.run(until_signal())
    return 0


def _announcement(server: EmbeddedServer, *, as_json: bool) -> str:
    """Return what is printed when the server listens."""
    if as_json:
        facts = {"endpoint": server.endpoint, "host": server.host, "port": server.port, "pid": os.getpid()}
        return json.dumps(facts) + "\n"
    behind_proxy = not getproxies().keys().isdisjoint(_PROXIES_OF_HTTP)
    return usage_lines(server.endpoint, behind_proxy=behind_proxy)


def main() -> int:
    """Run the server with the options of the command line, and return the exit status."""
    parser = argparse.ArgumentParser(description="The embedded AWS, for programs: one line of JSON once it listens.")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--enforce", action="store_true", help="enforce the throughput limits of a shard")
    parser.add_argument("--stream", action="append", default=[], metavar="NAME:SHARDS", help="made at the start")
    given = parser.parse_args()
    streams = [first_stream(text) for text in given.stream]
    return run_foreground(port=given.port, enforce=given.enforce, streams=streams, as_json=True)


if __name__ == "__main__":
    sys.exit(main())
