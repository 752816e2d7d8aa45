"""`WebRule`: refuses requests that web pages in a browser send to our HTTP servers, and allows those of programs. Pure.

Our servers ask for no password, and a browser lets any page send requests to this machine. But a page cannot hide that
it is one, and cannot choose the host name of its requests:

* It sends ``Origin`` with every request that could change something (POST, preflight, WebSocket), at least as ``null``.
* Where it may omit ``Origin`` (images, links, ``no-cors`` GETs), it sends ``Sec-Fetch-Site`` to a loopback address. We
  accept ``none`` (typed by the user) and ``same-origin`` (our own page), and nothing else.
* A page that lets its own name resolve to this machine (DNS rebinding) has our origin and sends neither, but its name
  is in ``Host``. So ``Host`` must be loopback, the local address of the connection, or a name that the operator
  allowed.

Ambiguous requests are refused: no ``Host`` or several, or a target that is not a path. Our answers never have an
``Access-Control-`` header, and a refused request is not examined further.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FORBIDDEN = 403
_OWN_SITES = frozenset(("none", "same-origin"))
# One host: an IPv6 address in brackets or another name, perhaps with a port.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@?#,\s]+))(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
_QUOTED_CHARACTERS_MAX = 100
"""Longest quotation of a foreign header. A host name has at most 253 characters, and its beginning identifies it."""


def joined_headers(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers as a dict with lower-case names. The values of a repeated header are joined by commas, so that
    none is hidden.
    """
    headers: dict[str, str] = {}
    for name, value in fields:
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


@dataclass(frozen=True, slots=True)
class WebRule:
    """The rule of one server. `names` are host names that the operator allowed, in lower case; `remedy` says how to
    allow more.

    With `links`, a link on another site may open our page as a document. The other page learns nothing from that, and
    opening a page of ours must not change anything.
    """

    names: frozenset[str]
    remedy: str
    links: bool = False

    def refusal(self, target: str, headers: Mapping[str, str], arrived_at: str) -> str | None:
        """Return why the request gets 403, as a sentence with the remedy; None if it is allowed.

        Names in `headers` are in lower case; several headers of one name are joined by commas, as in RFC 9110. In
        HTTP/2 ``host`` is ``:authority``. `arrived_at` is the local IP address of the connection.
        """
        if "origin" in headers:
            return (
                f"A page in a browser sent this (Origin: {_quoted(headers['origin'])}), and pages are not served: call "
                "from a program, which sends no Origin header"
            )
        site = headers.get("sec-fetch-site", "none")
        if site not in _OWN_SITES and not (self.links and _is_link(headers)):
            return (
                f"A page of another site sent this (Sec-Fetch-Site: {_quoted(site)}), and pages are not served: call "
                "from a program, or type the address into the browser"
            )
        if not target.startswith("/"):
            return f"The target {_quoted(target)} is not a path: call directly, not as through a proxy"
        host = headers.get("host", "")
        found = _HOST.fullmatch(host)
        if found is None:
            return f"The Host header {_quoted(host)} does not name one host: send exactly one, such as localhost"
        name = (found[1] or found[2]).lower()
        if name in self.names or _is_here(name, arrived_at):
            return None
        return (
            f"The Host header names {_quoted(name)}, which is neither loopback nor the address that was called: "
            f"call 127.0.0.1 or localhost, or {self.remedy}"
        )


def _is_link(headers: Mapping[str, str]) -> bool:
    """Return whether the browser opens our answer as a document of its own, which the linking page cannot read; so not
    as a frame, image or script.
    """
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _is_here(name: str, arrived_at: str) -> bool:
    """Return whether a host name is localhost, a loopback address, or the address at which the connection arrived."""
    if name == "localhost":  # but not x.localhost, for which some resolvers ask the network
        return True
    try:
        address = ipaddress.ip_address(name)
        return address.is_loopback or address == ipaddress.ip_address(arrived_at)
    except ValueError:
        return False


def _quoted(text: str) -> str:
    """Return the text in quotes, so that nothing in it can start a line, a tag or an escape sequence."""
    return repr(text[:_QUOTED_CHARACTERS_MAX].encode("ascii", "replace").decode()).replace("<", "?").replace("&", "?")
