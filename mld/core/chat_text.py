"""Makes texts plain for a chat: nothing in them is shown as a mention or a link, or taken for markup. Pure.

A chat shows the alerts that `mld.notify` posts, and people act on them. Slack, Mattermost and Teams mark up texts in
ways of their own, so nothing is escaped for one of them: each character that any of them acts on is replaced by a
lookalike, or is followed by a space without width.
"""

from __future__ import annotations

import re

from mld.properties.printable import printable

NAME_CHARACTERS_MAX = 128
"""Ids of shards and workers are shorter; a lease key may have 2 KB."""
WORDS_CHARACTERS_MAX = 300
ZERO_WIDTH_SPACE = "\u200b"
_LOOKALIKES = str.maketrans("<>&[]|`", "\u2039\u203a\uff06\uff3b\uff3d\u00a6\u2018")
_ACTED_ON = re.compile(r"@|:(?=//)|(?<=www)(?:\.|\Z)", re.IGNORECASE)
"""Matches the character that makes a text a mention, a mail address, or a URL; and the end of a text after `www`,
because the sentence around the text may go on with a dot.
"""
_BARE_DOMAIN = re.compile(r"(?<=\w)\.(?=[^\W\d_]{2})")
"""Matches a dot before a word, as in `example.com`, which some chats show as a link."""


def chat_text(text: str) -> str:
    """Return `text`, which we or the operator wrote, in one line and without anything that a chat acts on."""
    return _ACTED_ON.sub(_apart, printable(text).translate(_LOOKALIKES))


def foreign_chat_text(text: str, characters_max: int = WORDS_CHARACTERS_MAX) -> str:
    """Return `text`, which anybody may have written, as `chat_text` does, and shortened. No domain in it is a link."""
    short = text if len(text) <= characters_max else text[:characters_max] + "…"
    return _BARE_DOMAIN.sub(_apart, chat_text(short))


def _apart(sign: re.Match[str]) -> str:
    """Return the character that was found, followed by a space without width."""
    return sign[0] + ZERO_WIDTH_SPACE
