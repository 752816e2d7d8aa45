"""`Scrubber`: replaces secrets in foreign text, such as an exception, an answer of a server or a line of a child.

Secrets of the configuration are known: the text is searched for them as they are, and in the forms in which programs
pass them on. Unknown secrets, such as the password of a proxy in the environment, are recognized by their place: before
the @ of a URL, after `password=`, after `Bearer`. The work is linear in the length of any text.

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

SECRET_CHARACTERS_MIN = 6  # shorter secrets would be found in many harmless words; `true` and `false` are shorter
ENVIRONMENT_PLACES = ("_FILE", "_URI", "_PATH", "_DIR")  # a variable like AWS_WEB_IDENTITY_TOKEN_FILE has a path
DIRECTORIES = ("PWD", "OLDPWD")  # shells set these to a path; "PWD" in them does not mean a password
_ACCOUNT = re.compile(r"[0-9]{12}", re.ASCII)
_TOKEN = re.compile(r"\S+")
_ADDRESS = re.compile(r"(?:jdbc:\w{1,32}:)?//|jdbc:\w{1,32}:")
_WORDS = (
    "passw(?:or)?d|passphrase|pwd|secret|token|api[-_]?key|access[-_.]?key|account[-_.]?key|private[-_.]?key|"
    "credential|signature"
)
_HINTS = ("passw", "passphrase", "pwd", "secret", "token", "key", "credential", "sig", "auth")
"""Every text that `_ASSIGNED` matches contains one of these. Looking for them first costs a tenth of the match."""
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
    """Replaces secrets in text. `hide` adds secrets to the known ones."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Hide these secrets as well from now on, in all forms in which programs pass them on."""
        self._known |= {form for secret in secrets for form in _forms(secret)}
        longest_first = sorted(self._known, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(_exactly, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """Return `text` with all known and recognized secrets replaced.

        Each pattern is used only if a cheap search shows that it may match: most texts have no secret.
        """
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
    """Yield the secret parts of the value `text` of a key; `how` says how the value is shown.

    They are the whole text if it is hidden, the user of a URL, parameters after `=`, and in a command the words whose
    flag or name suggests a secret. Some of the texts may be empty.
    """
    # A PARSED value is a chain of credentials providers: its key looks secret, but most of its text is not.
    if how is not Shown.PARSED and is_secret_key(key):
        yield text
    elif how is Shown.HIDDEN and not (text.isalpha() or text.isdigit()):
        yield text  # but not a plain word or number, which may be anywhere in a log
    if how in (Shown.HIDDEN, Shown.PLACE, Shown.ENDPOINT):
        user, at, _ = text.rpartition("@")
        if at:
            user = user.rpartition("//")[2]
            yield user
            yield user.partition(":")[2]  # the password of user:password@host
            yield user.rpartition("/")[2]  # the password of jdbc:oracle:thin:user/password@host
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
    """Yield the values of variables whose names suggest a secret (AWS_SECRET_ACCESS_KEY), and the users in URLs of
    proxies.
    """
    for name, value in env.items():
        if _ACCOUNT.fullmatch(value):
            continue  # an account id, used as an access key for stand-ins; it is in every ARN
        if is_secret_key(name) and not name.endswith(ENVIRONMENT_PLACES) and name not in DIRECTORIES:
            yield value
        elif name.lower().endswith("_proxy"):
            yield from secrets_in(name, Shown.ENDPOINT, value)


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret as it is, and as it appears in URLs, JSON, logs and headers."""
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
    """Return a pattern for one form of a secret. A form of digits matches only a whole number: within sequence numbers,
    any digits occur.
    """
    return rf"(?<![0-9]){form}(?![0-9])" if form.isdigit() else re.escape(form)


def _without_user(match: re.Match[str]) -> str:
    """Return a word in which the user of a URL is hidden."""
    token = match.group()
    address = _ADDRESS.search(token)
    at = token.rfind("@")
    return token if address is None or at < address.end() else f"{token[: address.end()]}{HIDDEN}{token[at:]}"
