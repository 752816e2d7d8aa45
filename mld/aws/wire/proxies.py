"""`Proxy`: an HTTP proxy between us and an origin, and how it is asked for a tunnel.

A proxy leads to a TLS origin through a tunnel (CONNECT). To reach a plain origin, it is sent requests that name the
whole address. botocore's rule decides which proxy is used, if any (`proxies_of`). No message shows the credentials
for a proxy.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mld.aws.wire.unusual import UnusualError

if TYPE_CHECKING:
    from botocore.client import BaseClient

HEAD_BYTES_MAX = 64 * 1024
"""Largest answer to CONNECT. Some proxies send a page with a refusal, which is not read."""
READ_BYTES = 4096
REASON_CHARACTERS_MAX = 100
PORT = 80
"""The port of a proxy whose address has none."""


class ProxyRefusedError(OSError):
    """The proxy does not connect us; the text says what it answered."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that speaks plain HTTP. `authorization` is the value of Proxy-Authorization, empty for none."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def __str__(self) -> str:
        return authority_of(self.host, self.port)

    @property
    def header(self) -> str:
        """The header with its line end; empty if the proxy wants no credentials."""
        return f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""


class ProxyAnswer:
    """The answer of a proxy to CONNECT as its bytes come in."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._head = b""

    def feed(self, piece: bytes) -> bool:
        """Take bytes (none: the connection has ended), and return whether the tunnel is open. Raises
        ProxyRefusedError.

        The origin of a tunnel speaks TLS, so it waits for our hello. Bytes after the head are a document of the proxy.
        """
        self._head += piece
        if piece and b"\r\n\r\n" not in self._head and len(self._head) <= HEAD_BYTES_MAX:
            return False
        line = self._head.partition(b"\r\n")[0].decode("latin-1")
        version, _, status = line.partition(" ")
        if not version.startswith("HTTP/1.") or not status.startswith("2"):
            answered = f"HTTP status {status}" if version.startswith("HTTP/") else repr(line)
            raise ProxyRefusedError(f"the proxy {self._proxy} refuses to connect: {answered[:REASON_CHARACTERS_MAX]}")
        if not self._head.endswith(b"\r\n\r\n"):
            raise ProxyRefusedError(f"the proxy {self._proxy} answers a request to connect with a document")
        return True


def authority_of(host: str, port: int) -> str:
    """Return ``host:port`` as it stands in requests."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tunnel_request(proxy: Proxy, host: str, port: int) -> bytes:
    """Return the request that asks `proxy` for a tunnel."""
    authority = authority_of(host, port)
    return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{proxy.header}\r\n".encode("latin-1")


def open_tunnel(to_proxy: socket.socket, proxy: Proxy, host: str, port: int, *, timeout_s: float) -> None:
    """Make `to_proxy` a connection to `host`. Blocks. Raises OSError; the socket cannot be used after that."""
    deadline_s = time.monotonic() + timeout_s
    to_proxy.sendall(tunnel_request(proxy, host, port))
    answer, is_open = ProxyAnswer(proxy), False
    while not is_open:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the proxy {proxy} did not answer within {timeout_s:g} s")
        to_proxy.settimeout(left_s)
        is_open = answer.feed(to_proxy.recv(READ_BYTES))
    to_proxy.settimeout(timeout_s)


def proxies_of(client: BaseClient) -> Callable[[str], Proxy | None]:
    """Return a function that maps an address to the proxy that leads to it, for the addresses of one client.

    As botocore decides: the proxies of the client's configuration, else those of the environment unless `NO_PROXY` has
    the client's endpoint; of these the one for the scheme of the address. The function raises UnusualError for a proxy
    that only botocore can speak to.
    """
    config: Any = client.meta.config
    return _proxies(client.meta.endpoint_url, config.proxies, config.proxies_config)


def environment_proxy(url: str) -> Proxy | None:
    """Return the proxy that the environment names for an address. Raises UnusualError as `proxies_of` does."""
    return _proxies(url, None, None)(url)


def _proxies(endpoint: str, configured: Any, details: Any) -> Callable[[str], Proxy | None]:
    from botocore.httpsession import ProxyConfiguration
    from botocore.utils import get_environ_proxies

    rules: Any = ProxyConfiguration(get_environ_proxies(endpoint) if configured is None else configured, details)

    def proxy_for(url: str) -> Proxy | None:
        proxy_url = rules.proxy_url_for(url)
        if not proxy_url:
            return None
        try:
            address = urlsplit(proxy_url)
            port = address.port or PORT
            authorization = str(rules.proxy_headers_for(proxy_url).get("Proxy-Authorization", ""))
        except ValueError:
            raise UnusualError("a proxy whose address or credentials cannot be read") from None
        if address.scheme != "http" or not address.hostname or address.path not in ("", "/"):
            raise UnusualError("a proxy that is not spoken to in plain HTTP")
        return Proxy(address.hostname, port, authorization)

    return proxy_for
