"""`Proxy`: an HTTP proxy between us and an origin, and the request that opens a tunnel through it.

A TLS origin is reached through a tunnel, which CONNECT opens. For an origin without TLS, the proxy gets the requests
themselves, with the whole URL in their first line. Whether a proxy is used, and which, is decided by botocore's rule
(`proxies_of`). No message shows the credentials for a proxy.
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
    """The proxy does not open a tunnel; the text says what it answered."""


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
        """The header Proxy-Authorization with its line end; empty if the proxy needs no credentials."""
        return f"Proxy-Authorization: {self.authorization}\r\n" if self.authorization else ""


class ProxyAnswer:
    """The answer of a proxy to CONNECT while its bytes are received."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._head = b""

    def feed(self, piece: bytes) -> bool:
        """Take the next bytes (none: the connection has ended), and return whether the tunnel is open.

        Raises ProxyRefusedError, also if bytes come after the head. These are a document from the proxy: the origin
        speaks TLS, so it sends nothing before our hello.
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
    """Return ``host:port`` in the form used in requests, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tunnel_request(proxy: Proxy, host: str, port: int) -> bytes:
    """Return the request that asks `proxy` for a tunnel to `host`."""
    authority = authority_of(host, port)
    return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{proxy.header}\r\n".encode("latin-1")


def open_tunnel(to_proxy: socket.socket, proxy: Proxy, host: str, port: int, *, timeout_s: float) -> None:
    """Open a tunnel to `host` on the connection `to_proxy`. Blocks. Raises OSError; then close the socket."""
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
    """Return a function that maps a URL of one client to the proxy to use for it.

    The rule is botocore's: the client's configuration names the proxies. If it names none, the environment does, unless
    `NO_PROXY` covers the client's endpoint. Of these proxies, the one for the scheme of the URL is used. The function
    raises UnusualError for a proxy that only botocore can speak to.
    """
    config: Any = client.meta.config
    return _proxies(client.meta.endpoint_url, config.proxies, config.proxies_config)


def environment_proxy(url: str) -> Proxy | None:
    """Return the proxy that the environment names for a URL; None if the URL needs none. Raises UnusualError for a
    proxy that only botocore can use.
    """
    return _proxies(url, None, None)(url)


def _proxies(endpoint: str, configured: Any, details: Any) -> Callable[[str], Proxy | None]:
    """Return a function that maps a URL to its proxy. `configured` and `details` are the settings of a client; None:
    use the environment.
    """
    from botocore.httpsession import ProxyConfiguration
    from botocore.utils import get_environ_proxies

    rules: Any = ProxyConfiguration(get_environ_proxies(endpoint) if configured is None else configured, details)

    def proxy_for(url: str) -> Proxy | None:
        """Return the proxy for a URL; None if it needs none. Raises UnusualError for a proxy that only botocore can
        use.
        """
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
