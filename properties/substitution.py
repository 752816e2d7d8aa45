"""`${NAME}`, `${NAME:-default}` and `${file:/path}` in values, taken from sources that are passed in.

Java leaves such text as it is. As in a shell, the default counts when the variable is missing or empty. `$${` stands
for a literal `${`. Variables may stand in the path of a file. Defaults and contents are not substituted again, so there
is no recursion.

`secret_of` reads what a path names: a secret of Docker or Kubernetes, a credential of systemd. The content is the
value, without the line break at its end. What cannot be a value is refused in a sentence that names the path and never
the content.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mld.properties.redaction import printable

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
    """Where there are no files to read."""
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
    """`text` with every reference replaced. Raises SubstitutionError."""
    contents: list[str] = []

    def value(match: re.Match[str]) -> str:
        if match["path"] is None:
            return "${" if match["inner"] is None else _variable(match, sources.env)
        content = sources.read_file(_absolute(match["path"], sources.env))
        contents.append(content)
        return content

    return Substituted(_REFERENCE.sub(value, text), tuple(contents))


def has_reference(text: str) -> bool:
    """Whether some of `text` comes from elsewhere."""
    return any(match["inner"] is not None or match["path"] is not None for match in _REFERENCE.finditer(text))


def has_file(text: str) -> bool:
    """Whether some of `text` comes from a file."""
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


SECRET_BYTES_MAX = 64 * 1024  # a key, a token or a certificate has a few kilobytes


def secret_of(path: str) -> str:
    """The content of the file. Raises SubstitutionError."""
    shown = printable(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SubstitutionError(f"{shown} is no regular file", "name a file")
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        remedy = "check the path, and that the daemon's user may read the file"
        raise SubstitutionError(f"{shown} cannot be read: {error.strerror}", remedy) from None
    except SubstitutionError:
        raise
    except ValueError:  # a NUL in the path
        raise SubstitutionError("${file:…} does not name a file", "write ${file:/path/of/the/file}") from None
    if len(data) > SECRET_BYTES_MAX:
        raise SubstitutionError(f"{shown} is larger than {SECRET_BYTES_MAX} bytes", "is this the right file?")
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SubstitutionError(f"{shown} is no text", "write the value as text in UTF-8")
    if not text.strip():
        raise SubstitutionError(f"{shown} is empty", "write the value into it, or remove the line")
    return text
