"""What a chat would act on in a text: mentions, links, markup, and lines of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

ZERO_WIDTH_SPACE = "\u200b"
ATTACKS = (
    "<!channel>",
    "<@U024BE7LH> <#C024BE7LR>",
    "<https://evil.example/fix|open the runbook>",
    "[open the runbook](https://evil.example/fix)",
    "@everyone @here @channel",
    "https://evil.example/fix",
    "WWW.evil.example/fix",
    "evil.example/fix",
    "mail@evil.example",
    "&lt;!channel&gt;",
    "![x](http://evil.example/x.png)",
    "`code` \n# all is well\nclicks: over: failing (1): shardId-0",
    "\u202egnp.exe\u2028next line\x1b[2J",
)
_ACTED_ON = re.compile(
    r"[<>&`\[\]|]|@(?!\u200b)|://|www\.(?!\u200b)|\w\.(?=[a-z]{2,}[/\s,)]|[a-z]{2,}\Z)", re.IGNORECASE
)


def acted_on(text: str, ours: tuple[str, ...] = ()) -> list[str]:
    """Return what a chat would act on in this text. `ours` are parts of it that we wrote ourselves."""
    for one in ours:
        text = text.replace(one, "")
    odd = [one for one in text if not one.isprintable() and one != ZERO_WIDTH_SPACE]
    return [*_ACTED_ON.findall(text), *odd]


def texts_in(document: Mapping[str, Any]) -> list[str]:
    """Return every text in a document, as its reader gets it."""
    found: list[str] = []

    def look(value: Any) -> None:
        match value:
            case str():
                found.append(value)
            case dict():
                for one in value.values():
                    look(one)
            case list():
                for one in value:
                    look(one)

    look(json.loads(json.dumps(document)))
    return found
