"""Through an HTTP proxy: to a TLS origin by a tunnel (CONNECT), to a plain one by asking it for the whole address.

Which proxy, if any, is botocore's rule (`botocore_side`). What a proxy is told of credentials is in no message.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field

HEAD_BYTES_MAX = 64 * 1024
"""Of the answer to CONNECT; some proxies send a page with a refusal, which is not read."""
REASON_CHARACTERS_MAX = 100


class ProxyRefusedError(OSError):
    """The proxy does not connect us; the text says what it answered."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """One that is spoken to in plain HTTP. `authorization` is the value of Proxy-Authorization, empty for none."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def __str__(self) -> str:
        return authority_of(self.host, self.port)

    @property
    def header(self) -> str:
        """The header with its line end, if there is one."""
        return f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""


def authority_of(host: str, port: int) -> str:
    """Return ``host:port`` as requests have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def open_tunnel(to_proxy: socket.socket, proxy: Proxy, host: str, port: int, *, timeout_s: float) -> None:
    """Make `to_proxy` a connection to `host`. Raises OSError; the socket is of no use then.

    The origin of a tunnel speaks TLS, so it waits for our hello: nothing of its own comes behind the proxy's answer.
    """
    authority = authority_of(host, port)
    deadline_s = time.monotonic() + timeout_s
    to_proxy.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{proxy.header}\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the proxy {proxy} did not answer within {timeout_s:g} s")
        to_proxy.settimeout(left_s)
        piece = to_proxy.recv(4096)
        head += piece
        if not piece or len(head) > HEAD_BYTES_MAX:
            break
    line = head.partition(b"\r\n")[0].decode("latin-1")
    version, _, status = line.partition(" ")
    if not version.startswith("HTTP/1.") or not status.startswith("2"):
        said = f"HTTP status {status}" if version.startswith("HTTP/") else repr(line)
        raise ProxyRefusedError(f"the proxy {proxy} refuses to connect: {said[:REASON_CHARACTERS_MAX]}")
    if not head.endswith(b"\r\n\r\n"):
        raise ProxyRefusedError(f"the proxy {proxy} answers a request to connect with a document")
    to_proxy.settimeout(timeout_s)
