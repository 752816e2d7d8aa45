"""`HostReader`: reads small files of this machine, and JSON documents of its metadata service.

A pseudo-file such as `/proc/stat` is made when it is read, which takes milliseconds on a large machine, so files are
read in a thread. A document comes over a connection on the event loop, never through a proxy. Its URL comes
from an environment variable, and is refused unless it leads to this host: whoever sets the variable must not make the
daemon call other machines.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from mld.aws.threads import GivenUpError, Workers
from mld.aws.wire.connection import Origin
from mld.aws.wire.single_exchange import connected, exchange, request

THREADS_MAX = 1  # one sampler asks, one thing at a time
FILE_BYTES_MAX = 64 * 1024  # the wanted lines are at the beginning
DOCUMENT_BYTES_MAX = 256 * 1024  # parsed in some 2 ms; the statistics of a container have a few kilobytes
READ_TIMEOUT_S = 3.0  # includes the wait for a thread that is still busy with an earlier file
HTTP_PORT = 80
AWS_ON_THE_HOST = IPv6Network("fd00:ec2::/32")
"""The IPv6 addresses of the services that EC2 offers to an instance. Their IPv4 addresses are link-local."""

T = TypeVar("T")


class HostReadError(Exception):
    """A file or document could not be read; the text says which, and why."""


class HostReader:
    """Reads files and documents. Absolute paths are looked up below `root`."""

    def __init__(self, root: Path = Path("/"), *, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s
        self._threads = Workers(threads_max=THREADS_MAX, name="aws-host")

    async def exists(self, path: str) -> bool:
        """Return whether the absolute `path` exists. If that cannot be found out, return False."""
        try:
            return await self._in_thread(path, self._path(path).exists)
        except HostReadError:
            return False

    async def text(self, path: str) -> str:
        """Return the beginning of the file at the absolute `path`. Raises HostReadError."""
        return await self._in_thread(path, partial(_beginning, self._path(path)))

    async def inode(self, path: str) -> int:
        """Return the inode number of the file or directory at the absolute `path`. Raises HostReadError."""
        return (await self._in_thread(path, self._path(path).stat)).st_ino

    async def document(self, url: str) -> Any:
        """Return the JSON document at an `http` address of this host. Raises HostReadError."""
        return await self._read(url, partial(_document, url))

    def close(self) -> None:
        """End the thread; files cannot be read any more."""
        self._threads.close()

    def _path(self, path: str) -> Path:
        """Return where the absolute `path` is below the root."""
        return self._root / path.lstrip("/")

    async def _in_thread(self, path: str, work: Callable[[], T]) -> T:
        return await self._read(path, partial(self._threads.run, work))

    async def _read(self, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return what `read` returns, within the time limit. Raises HostReadError, whatever goes wrong. `what` is the
        path or URL that the text of the error names.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await read()
        except GivenUpError:
            raise HostReadError(f"{what}: the reader is closed") from None
        except TimeoutError:
            raise HostReadError(f"{what}: not read within {self._timeout_s:g} s") from None
        except Exception as error:  # from the file system or HTTP, or because no thread can start
            raise HostReadError(f"{what}: {type(error).__name__}: {error}") from error


def _beginning(path: Path) -> str:
    """Return the first `FILE_BYTES_MAX` bytes of a file as text."""
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX).decode("ascii", errors="replace")


async def _document(url: str) -> Any:
    """Return the JSON document at `url`. Raises ValueError for an address that is not on this host."""
    address = urlsplit(url)
    host = address.hostname
    if address.scheme != "http" or not host or address.username is not None:
        raise ValueError("not an http address")
    if not _is_of_this_host(host):
        raise ValueError("only a loopback or link-local IP address is asked for metadata")
    asked = request("GET", address, {"Accept": "application/json"})
    streams = await connected(Origin(host, address.port or HTTP_PORT, None), host)
    answer = await exchange(streams, asked, body_bytes_max=DOCUMENT_BYTES_MAX)
    if answer.status != 200:
        raise ValueError(f"HTTP status {answer.status}")
    return json.loads(answer.body)


def _is_of_this_host(host: str) -> bool:
    """Return whether an address leads to this machine or to a metadata service on it."""
    try:
        found = ip_address(host)
    except ValueError:  # a name, which may lead anywhere
        return False
    in_aws = isinstance(found, IPv6Address) and found in AWS_ON_THE_HOST
    return found.is_loopback or found.is_link_local or in_aws
