"""`Webhook`: posts JSON documents to a URL, through the proxy that the environment names.

The URL is a secret, so no error contains it. A redirect counts as a failure: a document is not sent to any other URL.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from mld.aws.threads import Workers
from mld.aws.wire.connection import Origin
from mld.aws.wire.proxies import environment_proxy
from mld.aws.wire.single_exchange import Streams, connected, exchange, request
from mld.aws.wire.unusual import UnusualError

THREADS_MAX = 2
"""Threads that look up host names. If the first one hangs in a look-up, posts can still use the second one."""
CONNECT_SHARE = 0.25
"""The share of the time limit that one IP address may take to connect if there is another, as IPv6 may lead nowhere."""
PORTS = {"http": 80, "https": 443}
SUCCESS = range(200, 300)
NAMES_NO_ADDRESS = (OSError, UnusualError)
"""Errors whose text may be shown. The text of other errors may contain the URL."""


class PostFailedError(Exception):
    """The document was not posted, or it is unknown whether it was; the text says why."""


class Webhook:
    """Posts to one http or https URL. A post takes at most `timeout_s`."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._context: ssl.SSLContext | None = None
        self._threads = Workers(threads_max=THREADS_MAX, name="notify")

    async def post(self, document: Mapping[str, Any]) -> None:
        """Post a document. Raises PostFailedError if no answer with a 2xx status comes in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._status_of(json.dumps(document).encode())
        except TimeoutError:
            raise PostFailedError(f"no answer within {self._timeout_s:g} s") from None
        except Exception as error:  # from HTTP, TLS or a proxy, or because no thread can start
            reason = str(error) if isinstance(error, NAMES_NO_ADDRESS) else "not posted"
            raise PostFailedError(f"{type(error).__name__}: {reason}") from None
        if status not in SUCCESS:
            raise PostFailedError(f"HTTP status {status}")

    def close(self) -> None:
        """End the threads, without waiting for a look-up under way."""
        self._threads.close()

    async def _status_of(self, body: bytes) -> int:
        """Post `body`, and return the HTTP status of the answer."""
        address = urlsplit(self._url)
        origin, found = await self._threads.run(lambda: self._way_to(address))
        headers = {"User-Agent": "mld", "Content-Type": "application/json"}
        asked = request("POST", address, headers, body, through=origin.proxy if origin.context is None else None)
        streams = await _connected_to_any(origin, found, self._timeout_s * CONNECT_SHARE)
        answer = await exchange(streams, asked, head_only=True)
        return answer.status

    def _way_to(self, address: SplitResult) -> tuple[Origin, list[str]]:
        """Return the origin of the URL, and the IP addresses to connect to. Blocks, because it looks up a host name.

        The IP addresses are those of the proxy, if one is used, else of the origin. Raises OSError if the name is not
        found, and UnusualError for a proxy that does not speak plain HTTP.
        """
        assert address.hostname is not None
        context = None
        if address.scheme == "https":
            context = self._context = self._context or ssl.create_default_context()
        port = address.port or PORTS[address.scheme]
        origin = Origin(address.hostname, port, context, environment_proxy(address.geturl()))
        nearest = origin.proxy or origin
        found = socket.getaddrinfo(nearest.host, nearest.port, type=socket.SOCK_STREAM)
        return origin, list(dict.fromkeys(str(socket_address[0]) for *_, socket_address in found))


async def _connected_to_any(origin: Origin, found: list[str], timeout_s: float) -> Streams:
    """Connect to the first of the IP addresses `found` that answers. If none does, raises the OSError of the last one.

    Each address but the last one gets `timeout_s`; the caller limits the last one.
    """
    for ip_address in found[:-1]:
        try:
            async with asyncio.timeout(timeout_s):
                return await connected(origin, ip_address)
        except OSError:  # TimeoutError, too
            continue
    return await connected(origin, found[-1])
