"""What may be shown of a value. A credentials value is shown by its parsed form only; others lose what looks secret.

Rules: configuration#hidden-values. Credentials-related values never reach a log, `mld check` or an error message.
"""

from __future__ import annotations

import re

HIDDEN = "***"
SHOWN_CHARACTERS_MAX = 400  # a value longer than this is somebody's mistake; it must not flood the log

_TELLING_WORD = r"(?:passw(?:or)?d|secret|token|api[-_]?key|access[-_]?key(?:[-_]?id)?|external[-_]?id|credentials?)"
_SECRET_KEY = re.compile(_TELLING_WORD, re.IGNORECASE)
_SECRET_ARGUMENT = re.compile(
    rf"(?P<name>-[-\w]*{_TELLING_WORD}[-\w]*\s+|[-\w]*{_TELLING_WORD}[-\w]*\s*[=:]\s*)[^\s|,]+", re.IGNORECASE
)
_URL_USER = re.compile(r"://\S*@")  # up to the last @: a password may have others, and slashes, by mistake
_PROXY_USER = re.compile(r"^.*@", re.DOTALL)  # even of what is no URL
_PROXY_KEY = "proxyUrl"


def is_secret_key(key: str) -> bool:
    """Whether the name of a key says that its value is nobody's business."""
    return _SECRET_KEY.search(key) is not None


def shown(key: str, text: str) -> str:
    """`text` fit for a log: nothing of a key with a secret name, no user in URLs, no `--password …` argument."""
    if is_secret_key(key):
        return HIDDEN
    if key.endswith(_PROXY_KEY):
        text = _PROXY_USER.sub(f"{HIDDEN}@", text)
    text = _URL_USER.sub(f"://{HIDDEN}@", text)
    text = _SECRET_ARGUMENT.sub(rf"\g<name>{HIDDEN}", text)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "…"
