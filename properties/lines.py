"""Lines of a `.properties` file: entries (key, value, line), exactly as java.util.Properties.load reads them,
references in their values, and remarks on them.

Rules: configuration#file-encoding, configuration#logical-lines, configuration#keys-and-separators. Two things differ
from Java: valid UTF-8 is read as UTF-8, and a byte order mark is dropped. This module knows no key and converts
nothing.

How a file is read: natural lines end at LF, CR or CR LF. A natural line that ends in an odd number of backslashes goes
on in the next one, without the backslash and without that line's leading blanks. The result is a logical line; its key
ends at the first unescaped `=`, `:` or blank. (javaproperties was measured against this and differs in one place: it
takes `#` after an empty continued line for data, Java for a comment. It also loses the line numbers.)

References are `${NAME}`, `${NAME:-default}` and `${file:/path}`, taken from sources that are passed in; Java leaves
them as they are. As in a shell, the default counts when the variable is missing or empty. `$${` stands for a literal
`${`. Variables may stand in the path of a file. Defaults and contents are not substituted again, so there is no
recursion.

A remark names the thing (`key`), the place (`file:line`, `-D` or the file) and the remedy: one value, used for errors,
warnings and `mld check` alike. It never holds a secret: it is made of displayed text (see `redaction`), never of a raw
value of a credentials key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum

_BLANKS = " \t\f"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(r"\r\n|\r|\n")
_ODD_BACKSLASHES_AT_END = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.?)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|\Z)", re.DOTALL)
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ESCAPED_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class GrammarError(ValueError):
    """A `\\u` without four hexadecimal digits, the only text that Java refuses; `line` is where its entry starts."""

    def __init__(self, line: int) -> None:
        super().__init__("\\u must be followed by four hexadecimal digits")
        self.line = line


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One key and its value, unescaped, trailing blanks kept; `line` (from 1) is where the key starts."""

    key: str
    value: str
    line: int


def parse(data: bytes) -> list[FileEntry]:
    """Return all entries of a file in their order, duplicates and empty keys included.

    Raises GrammarError for a malformed `\\u` escape.
    """
    return [_entry(text, line) for text, line in _logical_lines(decode(data))]


def decode(data: bytes) -> str:
    """Return the text of a file: UTF-8 where it is valid UTF-8 (without its byte order mark), else ISO-8859-1."""
    data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("iso-8859-1")


def _logical_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield logical lines that are neither blank nor a comment, each with the number of its first line that has
    text.
    """
    naturals = _LINE_END.split(text)
    pending, first, continued = "", 0, False
    for number, natural in enumerate(naturals, start=1):
        piece = natural.lstrip(_BLANKS)
        if not pending:
            # An empty continued line leaves nothing behind: what follows is again a comment, a blank or a key.
            first = number
            if piece.startswith(("#", "!")):
                continued = False
                continue
        continued = _ODD_BACKSLASHES_AT_END.search(piece) is not None
        pending += piece[:-1] if continued else piece
        if pending and not continued:
            yield pending, first
            pending = ""
    if pending and continued:
        yield pending, first


def _entry(text: str, line: int) -> FileEntry:
    key = _KEY.match(text)
    assert key is not None  # the pattern matches the empty string
    separator = _SEPARATOR.match(text, key.end())
    assert separator is not None
    try:
        return FileEntry(_unescape(key.group()), _unescape(text[separator.end() :]), line)
    except ValueError:
        raise GrammarError(line) from None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    # Java's characters are UTF-16 units: two escapes may make one character outside the basic plane.
    return _SURROGATE_PAIR.sub(_join_surrogates, _ESCAPE.sub(_unescape_one, text))


def _unescape_one(match: re.Match[str]) -> str:
    escaped: str = match.group(1)
    if escaped == "u":
        raise ValueError(match.string)
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _ESCAPED_CONTROLS.get(escaped, escaped)


def _join_surrogates(match: re.Match[str]) -> str:
    return match.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le")


# --- references in values ---------------------------------------------------------------------------------------------


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


# --- remarks ----------------------------------------------------------------------------------------------------------


OVERRIDE_PLACE = "-D"


class Level(Enum):
    """How much a remark matters: an error stops the start, `mld.strict` turns warnings into errors."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Remark:
    """One finding; `key` is empty when it concerns the file as a whole."""

    level: Level
    key: str
    place: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        subject = f"{self.place}: {self.key}: " if self.key else f"{self.place}: "
        return subject + self.message + (f"; {self.remedy}" if self.remedy else "")

    def to_json(self) -> dict[str, str]:
        """Return the remark as plain JSON types."""
        return asdict(self) | {"level": self.level.value}


def nearest(name: str, known: Iterable[str], cutoff: float) -> str | None:
    """Return the known name that a misspelled one is most like, whatever their case; None if none is alike enough."""
    import difflib  # costs start-up time, and a good file does not need it

    folded = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


class ConfigurationError(Exception):
    """The configuration cannot be used.

    `problems` are the errors, in the order in which Java would check them; `remarks` is everything that was found, with
    warnings. The text has one problem per line: place, key, what is wrong, remedy.
    """

    def __init__(self, problems: Sequence[Remark], remarks: Sequence[Remark] | None = None) -> None:
        assert problems, "an error without a problem"
        assert all(problem.level is Level.ERROR for problem in problems)
        self.problems = tuple(problems)
        self.remarks = tuple(problems if remarks is None else remarks)
        super().__init__("\n".join(str(problem) for problem in self.problems))
