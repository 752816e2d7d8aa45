"""References in the values of a file: `${NAME}`, `${NAME:-default}` and `${file:/path}`, taken from sources passed in.

Java leaves them as they are. As in a shell, the default counts when the variable is missing or empty. `$${` stands for
a literal `${`. Variables may stand in the path of a file. Defaults and contents are not substituted again, so there is
no recursion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_VARIABLE = r"\$\{(?P<inner>[^}]*)(?P<close>\}?)"
_REFERENCE = re.compile(rf"\$\$\{{|\$\{{file:(?P<path>(?:[^${{}}]|\$(?!\{{)|\$\{{[^{{}}]*\}})*)\}}|{_VARIABLE}")
_IN_PATH = re.compile(_VARIABLE)
_INNER = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<fallback>:-(?P<default>.*))?", re.ASCII | re.DOTALL)


class SubstitutionError(ValueError):
    """A reference names nothing, or nothing that can be used; the message is free of values."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def no_files(_path: str) -> str:
    """Refuse to read a file, where there are none."""
    raise SubstitutionError("a file cannot be read here", "write the value itself")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where values come from. `read_file` takes an absolute path and raises SubstitutionError."""

    env: Mapping[str, str]
    read_file: Callable[[str], str] = no_files


@dataclass(frozen=True, slots=True)
class Substituted:
    """A value with every reference replaced, and the contents of the files in it, which may be secret."""

    text: str = field(repr=False)
    contents: tuple[str, ...] = field(default=(), repr=False)


def substitute(text: str, sources: Sources) -> Substituted:
    """Return `text` with every reference replaced. Raises SubstitutionError."""
    contents: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match["path"] is None:
            return "${" if match["inner"] is None else _variable(match, sources.env)
        content = sources.read_file(_absolute(match["path"], sources.env))
        contents.append(content)
        return content

    return Substituted(_REFERENCE.sub(value, text), tuple(contents))


def has_reference(text: str) -> bool:
    """Return whether some of `text` comes from elsewhere."""
    return any(match["inner"] is not None or match["path"] is not None for match in _REFERENCE.finditer(text))


def has_file(text: str) -> bool:
    """Return whether some of `text` comes from a file."""
    return any(match["path"] is not None for match in _REFERENCE.finditer(text))


def _variable(match: re.Match[str], env: Mapping[str, str]) -> str:
    inner = _INNER.fullmatch(match["inner"])
    if not match["close"] or inner is None:
        raise SubstitutionError(
            "'${' starts a reference to an environment variable or a file, but no NAME}, NAME:-default} or file:/path} "
            "follows",
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


def _absolute(path: str, env: Mapping[str, str]) -> str:
    found = _IN_PATH.sub(lambda match: _variable(match, env), path).strip()
    if not found.startswith("/"):
        raise SubstitutionError("${file:…} does not name an absolute path", "write ${file:/path/of/the/file}")
    return found
