"""`HostReader`: small files of this machine and documents of the metadata service beside it, read in a thread.

A pseudo-file such as `/proc/stat` is made when it is read, which takes milliseconds on a large machine, and a metadata
service may hang: neither belongs on the loop. Metadata is asked for directly, never through a proxy.

`Poster`: JSON to a webhook, through the proxy of the environment, in threads as well.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mld.aws.threads import GivenUpError, Workers

T = TypeVar("T")

THREADS_MAX = 1  # one sampler asks, one thing at a time
FILE_BYTES_MAX = 64 * 1024  # what is wanted stands at the beginning
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024  # the statistics of a container are a few kilobytes
HTTP_TIMEOUT_S = 1.0  # the service is a neighbour on the same host
POSTING_THREADS_MAX = 2  # a second one while the first hangs in an answer that nobody waits for any more
READ_TIMEOUT_S = 3.0  # connect, read, and a thread that is still busy with a request given up before


class HostReadError(Exception):
    """Nothing usable was read; the text says what and why."""


class HostReader:
    """`root` stands for `/`."""

    def __init__(self, root: Path = Path("/"), *, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s
        self._threads = Workers(threads_max=THREADS_MAX, name="aws-host")

    async def exists(self, path: str) -> bool:
        """Return whether there is something at the absolute `path`; what cannot be looked at counts as absent."""
        try:
            return await self._in_thread(path, self._path(path).exists)
        except HostReadError:
            return False

    async def text(self, path: str) -> str:
        """Return the beginning of the file at the absolute `path`. Raises HostReadError."""
        return await self._in_thread(path, partial(_beginning, self._path(path)))

    async def document(self, url: str) -> Any:
        """Return the JSON document at an `http` address. Raises HostReadError."""
        return await self._in_thread(url, partial(_document, url))

    def close(self) -> None:
        """End the thread; later calls raise HostReadError."""
        self._threads.close()

    def _path(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    async def _in_thread(self, what: str, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._threads.run(work)
        except GivenUpError:
            raise HostReadError(f"{what}: the reader is closed") from None
        except TimeoutError:
            raise HostReadError(f"{what}: not read within {self._timeout_s:g} s") from None
        except Exception as error:  # of files, of HTTP, or for want of a thread
            raise HostReadError(f"{what}: {type(error).__name__}: {error}") from error


class Poster:
    """Posts JSON documents to one http or https address, which is a secret: no error names it."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._threads = Workers(threads_max=POSTING_THREADS_MAX, name="notify")

    async def post(self, document: Mapping[str, Any]) -> None:
        """Send it. Raises HostReadError if the answer is none of success, or does not come in time."""
        body = json.dumps(document).encode()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._threads.run(partial(_posted, self._url, body, self._timeout_s))
        except TimeoutError:
            raise HostReadError(f"no answer within {self._timeout_s:g} s") from None
        except HostReadError:
            raise
        except Exception as error:  # of HTTP, TLS, a proxy, or for want of a thread
            reason = getattr(error, "reason", None)
            raise HostReadError(f"{type(reason or error).__name__}: {reason or error}") from None

    def close(self) -> None:
        """End the threads; a post under way is not waited for."""
        self._threads.close()


def _posted(url: str, body: bytes, timeout_s: float) -> None:
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Stay(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """Return nothing: what was meant for one address goes to no other."""

    headers = {"Content-Type": "application/json", "User-Agent": "mld"}
    request = Request(url, body, headers, method="POST")  # noqa: S310 - the configuration allows http and https only
    try:
        build_opener(Stay).open(request, timeout=timeout_s).close()
    except HTTPError as error:
        error.close()
        raise HostReadError(f"HTTP status {error.code}") from None


def _beginning(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX).decode("ascii", errors="replace")


def _document(url: str) -> Any:
    address = urlsplit(url)
    if address.scheme != "http" or not address.hostname:
        raise ValueError("not an http address")
    with closing(HTTPConnection(address.hostname, address.port, timeout=HTTP_TIMEOUT_S)) as connection:
        connection.request("GET", address.path or "/", headers={"Accept": "application/json"})
        with connection.getresponse() as response:
            body = response.read(DOCUMENT_BYTES_MAX + 1)
    if response.status != 200 or len(body) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"HTTP status {response.status}, {len(body)} bytes")
    return json.loads(body)
