"""`${NAME}` and `${NAME:-default}` in values, taken from an environment that is passed in.

Java leaves such text as it is. As in a shell, the default counts when the variable is missing or empty. `$${` stands
for a literal `${`. Defaults are not substituted again, so there is no recursion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<inner>[^}]*)(?P<close>\}?)")
_INNER = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<fallback>:-(?P<default>.*))?", re.ASCII | re.DOTALL)


class SubstitutionError(ValueError):
    """A reference names no variable, or a missing one; the message is free of values."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def substitute(text: str, env: Mapping[str, str]) -> str:
    """`text` with every reference replaced. Raises SubstitutionError."""
    return _REFERENCE.sub(lambda match: _value(match, env), text)


def has_reference(text: str) -> bool:
    """Whether some of `text` comes from the environment."""
    return any(match["inner"] is not None for match in _REFERENCE.finditer(text))


def _value(match: re.Match[str], env: Mapping[str, str]) -> str:
    if match["inner"] is None:
        return "${"
    inner = _INNER.fullmatch(match["inner"])
    if not match["close"] or inner is None:
        raise SubstitutionError(
            "'${' starts a reference to an environment variable, but no NAME} or NAME:-default} follows",
            "write $${ for a literal ${",
        )
    name = inner["name"]
    value = env.get(name)
    if inner["fallback"] is not None:
        return value or inner["default"]
    if value is None:
        raise SubstitutionError(
            f"environment variable {name} is not set", f"set it, or give a default: ${{{name}:-value}}"
        )
    return value
