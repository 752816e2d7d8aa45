"""`substitute`: replaces the references in a value: `${NAME}`, `${NAME:-default}` and `${file:/path}`.

Java does not replace them. As in a shell, the default is used if the variable is missing or empty. `$${` stands for a
literal `${`. The path of a file may contain variables. References in defaults and in files are not replaced, so there
is no recursion.
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
    """The variable or file that a reference names is missing or cannot be used. The message contains no values."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def no_files(_path: str) -> str:
    """Refuse to read a file; used where files cannot be read."""
    raise SubstitutionError("a file cannot be read here", "write the value itself")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the values of references come from. `read_file` takes an absolute path and raises SubstitutionError."""

    env: Mapping[str, str]
    read_file: Callable[[str], str] = no_files


@dataclass(frozen=True, slots=True)
class Substituted:
    """A value with every reference replaced, and the contents of the files from which parts of it come; these may be
    secret.
    """

    text: str = field(repr=False)
    contents: tuple[str, ...] = field(default=(), repr=False)


def substitute(text: str, sources: Sources) -> Substituted:
    """Return `text` with every reference replaced. Raises SubstitutionError."""
    contents: list[str] = []

    def value(match: re.Match[str]) -> str:
        """Return the value of one reference. Note the contents of files."""
        if match["path"] is None:
            return "${" if match["inner"] is None else _variable(match, sources.env)
        content = sources.read_file(_absolute(match["path"], sources.env))
        contents.append(content)
        return content

    return Substituted(_REFERENCE.sub(value, text), tuple(contents))


def has_reference(text: str) -> bool:
    """Return whether `text` contains a reference to a variable or a file."""
    return any(match["inner"] is not None or match["path"] is not None for match in _REFERENCE.finditer(text))


def has_file(text: str) -> bool:
    """Return whether `text` contains a reference to a file."""
    return any(match["path"] is not None for match in _REFERENCE.finditer(text))


def _variable(match: re.Match[str], env: Mapping[str, str]) -> str:
    """Return the value of a reference to a variable. Raises SubstitutionError."""
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
    """Return the path of a reference to a file, with its variables replaced. Raises SubstitutionError unless it is
    absolute.
    """
    found = _IN_PATH.sub(lambda match: _variable(match, env), path).strip()
    if not found.startswith("/"):
        raise SubstitutionError("${file:…} does not name an absolute path", "write ${file:/path/of/the/file}")
    return found
