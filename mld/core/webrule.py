"""Decides who may call our HTTP servers: programs, not pages in a browser. Pure.

Our servers ask for no password, and a browser lets any page send requests to this machine. But a page cannot hide that
it is one, and cannot choose the name by which it calls:

* It sends ``Origin`` with every request that could change something (POST, preflight, WebSocket), also as ``null``.
* Where it may leave ``Origin`` out (images, links, ``no-cors`` GETs), it sends ``Sec-Fetch-Site`` to a loopback
  address. ``none`` (typed by the user) and ``same-origin`` (our own page) pass, everything else does not.
* A page that points its own name at this machine (DNS rebinding) is of the same origin and sends neither, but its name
  stands in ``Host``. So ``Host`` has to be loopback, the local address of the connection, or a name that the operator
  has allowed.

Ambiguous requests are refused: no ``Host`` or several, a target that is not a path. None of our answers has an
``Access-Control-`` header, and a refused request is not examined further.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

FORBIDDEN = 403
_OWN_SITES = frozenset(("none", "same-origin"))
# One host: an IPv6 address in brackets or another name, perhaps with a port.
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@?#,\s]+))(?::[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
_QUOTED_CHARACTERS_MAX = 100
"""Longest quotation of a foreign header: a host name has 253 characters at most, and its beginning identifies it."""


@dataclass(frozen=True, slots=True)
class WebRule:
    """`names`, in lower case, are host names that the operator has allowed; `remedy` says how to allow another one.

    With `links`, a link on a page of another site may open ours as a document of its own. That page learns nothing by
    it, and nothing may change by being opened.
    """

    names: frozenset[str]
    remedy: str
    links: bool = False

    def refusal(self, target: str, headers: Mapping[str, str], arrived_at: str) -> str | None:
        """Return why the request gets 403, in a sentence with the remedy; None if it may pass.

        `headers` have lower-case names, and several of one name are joined with commas, as RFC 9110 has it; ``host`` is
        ``:authority`` in HTTP/2. `arrived_at` is the local IP address of the connection.
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
    """Return whether the answer becomes a whole document that its opener cannot read: no frame, image or script."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _is_here(name: str, arrived_at: str) -> bool:
    if name == "localhost":  # not what ends in it: some resolvers ask the network for that
        return True
    try:
        address = ipaddress.ip_address(name)
        return address.is_loopback or address == ipaddress.ip_address(arrived_at)
    except ValueError:
        return False


def _quoted(text: str) -> str:
    """Return the text quoted, so that nothing in it can begin a line, a tag or an escape sequence."""
    return repr(text[:_QUOTED_CHARACTERS_MAX].encode("ascii", "replace").decode()).replace("<", "?").replace("&", "?")
