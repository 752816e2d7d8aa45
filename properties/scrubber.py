"""Replaces secrets in foreign text: in an exception, an answer, a line of a child.

Secrets of the configuration are known: they are looked for as they are, and in the forms in which programs pass them
on. Unknown ones, such as a password in the environment's proxy, are recognized by their place: before the @ of a URL,
after `password=`, after `Bearer`. The work is linear in the text, whatever it is.

Rules: configuration#hidden-values. Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

from mld.properties.printable import printable
from mld.properties.redaction import HIDDEN, Shown, is_secret_key

SECRET_CHARACTERS_MIN = 6  # shorter ones would be found in half of all words; `true` and `false` are among them
ENVIRONMENT_PLACES = ("_FILE", "_URI", "_PATH", "_DIR")  # variables with telling names that say where something is
DIRECTORIES = ("PWD", "OLDPWD")  # shells set them; a password in them would be one of a path
_ACCOUNT = re.compile(r"[0-9]{12}", re.ASCII)
_TOKEN = re.compile(r"\S+")
_ADDRESS = re.compile(r"(?:jdbc:\w{1,32}:)?//|jdbc:\w{1,32}:")
_WORDS = (
    "passw(?:or)?d|passphrase|pwd|secret|token|api[-_]?key|access[-_.]?key|account[-_.]?key|private[-_.]?key|"
    "credential|signature"
)
_HINTS = ("passw", "passphrase", "pwd", "secret", "token", "key", "credential", "sig", "auth")
"""Whatever `_ASSIGNED` finds contains one of them; looking for them costs a tenth as much."""
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s,;&|()\[\]{}"']+)"""
_ASSIGNED = re.compile(
    rf"""((?:(?:{_WORDS})[\w.-]{{0,64}}|\b(?:sig|auth))(?:["']?\s{{0,4}}=\s{{0,4}}|["']\s{{0,4}}:\s{{0,4}}))b?{_VALUE}""",
    re.IGNORECASE,
)
_AUTHORIZED = re.compile(
    r"""\b(Bearer\s{1,4}|authorization["']?\s{0,4}[:=]\s{0,4}["']?(?:\w{1,20}\s+)?)[^\s"',]+""", re.I
)
_PARAMETER = re.compile(r"""=\s*["']?([^&;,(){}\s"']+)""")


class Scrubber:
    """Replaces secrets in text. `hide` adds to what is known."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        self._known |= {form for secret in secrets for form in _forms(secret)}
        longest_first = sorted(self._known, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(_exactly, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """Return `text` without them."""
        if self._pattern is not None and any(form in text for form in self._known):
            text = self._pattern.sub(HIDDEN, text)
        if "@" in text and _ADDRESS.search(text):
            text = _TOKEN.sub(_without_user, text)
        lower = text.lower()
        if ("=" in text or ":" in text) and any(hint in lower for hint in _HINTS):
            text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
        if "bearer" in lower or "authorization" in lower:
            text = _AUTHORIZED.sub(rf"\1{HIDDEN}", text)
        return text


def secrets_in(key: str, how: Shown, text: str) -> Iterator[str]:
    """Yield what is secret in a value of the configuration that is shown in the way `how`."""
    if how is not Shown.PARSED and is_secret_key(key):
        yield text
    elif how is Shown.HIDDEN and not (text.isalpha() or text.isdigit()):
        yield text  # a word or a number may stand anywhere in a log: only a telling name makes a secret of it
    if how in (Shown.HIDDEN, Shown.PLACE, Shown.ENDPOINT):
        user, at, _ = text.rpartition("@")
        if at:
            user = user.rpartition("//")[2]
            yield user
            yield user.partition(":")[2]
            yield user.rpartition("/")[2]
    if how in (Shown.HIDDEN, Shown.PLACE, Shown.ENDPOINT, Shown.JVM_OPTIONS):
        yield from _PARAMETER.findall(text)
    if how is Shown.COMMAND:
        words = text.split(" ")
        for before, word in zip(["", *words], words, strict=False):
            name, equals, value = word.partition("=")
            if equals and is_secret_key(name):
                yield value
            elif before.startswith("-") and is_secret_key(before):
                yield word


def secrets_of_environment(env: Mapping[str, str]) -> Iterator[str]:
    """Yield variables with a telling name (AWS_SECRET_ACCESS_KEY), and the users of proxies."""
    for name, value in env.items():
        if _ACCOUNT.fullmatch(value):
            continue  # stand-ins take it for an access key, and it stands in every ARN
        if is_secret_key(name) and not name.endswith(ENVIRONMENT_PLACES) and name not in DIRECTORIES:
            yield value
        elif name.lower().endswith("_proxy"):
            yield from secrets_in(name, Shown.ENDPOINT, value)


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret as it is, and as in URLs, JSON, logs and headers."""
    plain = unquote(secret)
    for text in {secret, plain}:
        forms = (
            text,
            quote(text, safe=""),
            quote_plus(text),
            json.dumps(text)[1:-1],
            repr(text)[1:-1],
            printable(text),
            base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii").rstrip("="),
        )
        yield from (form for form in forms if len(form) >= SECRET_CHARACTERS_MIN)


def _exactly(form: str) -> str:
    """Return a pattern for the form; digits are looked for as a whole number only: sequence numbers hold any others."""
    return rf"(?<![0-9]){form}(?![0-9])" if form.isdigit() else re.escape(form)


def _without_user(match: re.Match[str]) -> str:
    token = match.group()
    address = _ADDRESS.search(token)
    at = token.rfind("@")
    return token if address is None or at < address.end() else f"{token[: address.end()]}{HIDDEN}{token[at:]}"
