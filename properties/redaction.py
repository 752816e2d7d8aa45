"""How values of the configuration are shown: in full, in the parts with a known meaning, or hidden.

Rules: configuration#hidden-values. Secrets cannot be recognized, so nothing is guessed: each key of the table declares
how its value is shown, and of a text that may contain a secret only the parts with a known meaning are shown. The one
guess is on the safe side: if the name of a key suggests a secret, its value is always hidden. Pure.
"""

from __future__ import annotations

import re
from enum import Enum
from itertools import pairwise

HIDDEN = "***"
SHOWN_CHARACTERS_MAX = 400  # a longer value is a mistake, and must not flood the log
_TELLING = re.compile(
    r"passw|passphrase|pwd|secret|token|api[-_.]?key|access[-_.]?key|account[-_.]?key|private[-_.]?key|external[-_.]?id"
    r"|credential",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.<>*-]{0,199}", re.ASCII)
_NUMBER = re.compile(r"[-+0-9.,_]{1,40}[A-Za-z%]{0,2}", re.ASCII)
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", re.ASCII)
_SCHEME = re.compile(r"(?:jdbc:[a-z0-9]+:|[a-z][a-z0-9+.-]*:)(?://)?", re.IGNORECASE | re.ASCII)
_ODD = re.compile(r"[^\w.:/\\+~%*,\[\]-]")  # characters that begin parameters, or do not belong into a path
_FLAG = re.compile(r"--?[a-z]+(?:-[a-z]+)*", re.ASCII)
_SHORT_FLAG = re.compile(r"-[A-Za-z]", re.ASCII)
_LONG_SHORT_FLAGS = ("-jar", "-cp", "-classpath")
_SCRIPT = re.compile(r"[\w./\\-]+\.(?:py|js|mjs|cjs|ts|rb|pl|php|sh|jar|dll|exe)")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)
_PYTHON = re.compile(r"(?:.*[/\\])?python[0-9.]*", re.ASCII)
_JVM_SWITCH = re.compile(r"-XX:[+-]\w+|-XX:\w+=[0-9]+[kmgKMG%]?|-X(?:m[snx]|ss)[0-9]+[kmgKMG]?", re.ASCII)
_JVM_PROPERTY = re.compile(r"(?P<name>-D[A-Za-z0-9_.]+)=.*", re.ASCII)


class Shown(Enum):
    """How a value is shown."""

    FULL = "in full"  # names, numbers, words of a closed set
    PLACE = (
        "without user, password and parameters"  # a path, a URL of any scheme, class names: up to the first odd sign
    )
    ENDPOINT = "scheme, host and port"
    COMMAND = "program and names of flags"
    JVM_OPTIONS = "sizes, switches and names of properties"
    NAMES = "names without their values"
    PARSED = "as its parser shows it"  # credentials
    HIDDEN = "not at all"


def is_secret_key(key: str) -> bool:
    """Return whether the name of a key suggests that its value is secret."""
    return _TELLING.search(key) is not None


def redacted(key: str, how: Shown, text: str) -> str:
    """Return `text`, the value of `key`, without the parts that must not be logged. `how` says how much of it may be
    shown; a key that is named like a secret is hidden.
    """
    how = Shown.HIDDEN if is_secret_key(key) and how is not Shown.PARSED else how
    match how:
        case Shown.FULL | Shown.PARSED:
            fit = text
        case Shown.PLACE:
            fit = _place(text)
        case Shown.ENDPOINT:
            scheme, separator, rest = _place(text).partition("://")
            host, slash, path = rest.partition("/")
            fit = f"{scheme}{separator}{host}{slash}{HIDDEN if path else ''}" if separator else HIDDEN
        case Shown.COMMAND:
            fit = " ".join(_command(text.split(" ")))
        case Shown.JVM_OPTIONS:
            fit = " ".join(map(_jvm_option, text.split()))
        case Shown.NAMES:
            fit = ",".join(f"{pair.partition('=')[0]}={HIDDEN}" for pair in text.split(",") if pair)
        case Shown.HIDDEN:
            fit = HIDDEN
    return fit if len(fit) <= SHOWN_CHARACTERS_MAX else fit[:SHOWN_CHARACTERS_MAX] + "…"


def shown_name(name: str) -> str:
    """Return the name of an unknown key. It is hidden unless it looks like a name: it may be the rest of a secret with
    a line break in it.
    """
    return name if _NAME.fullmatch(name) else HIDDEN


def shown_mistake(raw: str) -> str | None:
    """Return a text that could not be converted, if it consists only of digits or is a reference. Return None if it
    must stay hidden.
    """
    return raw if _NUMBER.fullmatch(raw) or _REFERENCE.fullmatch(raw) else None


def where(text: str) -> str:
    """Return a path or a URL without user, password and parameters."""
    return redacted("", Shown.PLACE, text)


def _place(text: str) -> str:
    """Hide the user and the parameters of a path or URL."""
    user, at, rest = text.rpartition("@")  # the last @, as a password may contain others by mistake
    scheme = _SCHEME.match(text)
    # `s3://` and `jdbc:oracle:` are shown. In `user:password@host` the pattern matches `user:`, which must stay hidden.
    start = scheme.group() if scheme and (scheme.group().endswith("//") or scheme.group().count(":") == 2) else ""
    if not at:
        return _up_to_odd(text)
    if _ODD.search(user):
        return start + HIDDEN  # the @ may be in the value of a parameter
    return f"{start}{HIDDEN}@{_up_to_odd(rest)}"


def _up_to_odd(text: str) -> str:
    """Return the text up to the first odd character; hide the rest."""
    odd = _ODD.search(text)
    return text if odd is None else text[: odd.start()] + HIDDEN


def _command(words: list[str]) -> list[str]:
    """Return the words of a command. The program, a Python module, a script and the names of flags are shown; all other
    words are hidden, because they may be secret.
    """
    shown = [_place(words[0])]
    for before, word in pairwise(words):
        name, equals, _ = word.partition("=")
        if not word or word in _LONG_SHORT_FLAGS or _SHORT_FLAG.fullmatch(word) or _SCRIPT.fullmatch(word):
            shown.append(word)
        elif name.startswith("--") and _FLAG.fullmatch(name):
            shown.append(name + (f"={HIDDEN}" if equals else ""))
        elif before == "-m" and _PYTHON.fullmatch(words[0]) and _MODULE.fullmatch(word):
            shown.append(word)
        else:
            # The value of a short flag may follow it directly, as in -pSECRET.
            shown.append(word[:2] + HIDDEN if _SHORT_FLAG.match(word) else HIDDEN)
    return shown


def _jvm_option(word: str) -> str:
    """Return an option of the JVM; its value is shown only if it is a size or a switch."""
    if _JVM_SWITCH.fullmatch(word):
        return word
    match = _JVM_PROPERTY.fullmatch(word)
    return f"{match['name']}={HIDDEN}" if match else HIDDEN
