"""`unit`: makes the text of a daemon's systemd unit from `ServiceFacts`.

docs/use/running.md explains which rights each line of the unit takes away, and which it leaves. The template is
`templates/mld.service`.
"""

from __future__ import annotations

import math
import re

from mld.operating.filling import Value, filled
from mld.operating.service_facts import ServiceFacts, UnitRefused
from mld.properties.printable import printable

STOP_MARGIN_S = 15.0
"""Time after the grace period, for giving leases back (5 s) and cleaning up after the last worker (10 s)."""
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
"""Matches a word that needs no quotes in a unit."""


def unit(service: ServiceFacts) -> str:
    """Return the text of ``NAME.service``. Raises UnitRefused if a value has a character that would break a line of it,
    or join two.
    """
    directory = service.working_directory
    values: dict[str, Value] = {
        "name": service.name,
        "stream": _literal(service.stream),
        # A single $ begins a variable in a command line of systemd.
        "command": " ".join(_word(word).replace("$", "$$") for word in service.command),
        "user": service.user and _literal(service.user),
        "group": service.user and _literal(service.group or service.user),
        "directory": f"%S/{service.name}" if directory is None else _literal(directory),
        "path": service.search_path and _word(f"PATH={service.search_path}"),
        "python_path": service.python_path and _word(f"PYTHONPATH={service.python_path}"),
        "is_spark": service.is_spark,
        "variables": ", ".join(service.variables),
        "credentials": tuple(_word(f"{name}:/etc/mld/{name}") for name in service.credentials),
        "grace": f"{service.grace_s:g}",
        # A child is waited for twice: after the end of its input, and after SIGTERM.
        "stop": str(math.ceil(service.grace_s + 2 * service.child_stop_s + STOP_MARGIN_S)),
        "writable": " ".join(map(_word, service.writable)),
        "is_in_home": service.is_in_home,
        "makes_code": service.makes_code,
    }
    lines = list(filled("mld.service", values))
    for line in lines:
        if not line.isprintable() or line.endswith("\\"):
            raise UnitRefused(f"use another name: {printable(line)} has a character that cannot stand in a unit")
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    """Return the text with each % doubled, because a single % begins a specifier of systemd."""
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """Return the text as one word of a list in a unit, quoted if necessary."""
    plain = _literal(text)
    return plain if _PLAIN.fullmatch(text) else '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
