"""`document`: makes the JSON document that is posted to the webhook for an alert. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mld.core.clock import iso_time
from mld.metrics.identity import Identity
from mld.operating.faults import (
    FleetFault,
    runbook_of,
)
from mld.properties.scrubber import Scrubber
from mld.serving.alert_book import Post, is_own

ZERO_WIDTH_SPACE = "\u200b"
_BRACKETS = str.maketrans("<>", "\u2039\u203a")
_MARKUP = re.compile(r"@(?=\w)|\](?=\()")
SUBJECTS_MAX = 20
"""A post names at most so many subjects, and gives the number of all."""


def _plain(text: str) -> str:
    """Return the text without markup that a chat would show as a link or a mention: parts of it may
    come from records.
    """
    return _MARKUP.sub(lambda found: found[0] + ZERO_WIDTH_SPACE, text.translate(_BRACKETS))


def document(post: Post, me: Identity, wall_s: float, scrub: Scrubber) -> Mapping[str, Any]:
    """Return the document for the webhook. Chats show only its `text`, so the text contains everything, in words."""
    named = post.alerts[:SUBJECTS_MAX]
    names = ", ".join(alert.subject for alert in named) + (", …" if len(post.alerts) > len(named) else "")
    first = named[0]
    why = f": {first.words} → {first.remedy}" if post.begins else ""
    over = "" if post.begins else "over: "
    where = f" of worker {me.worker}" if is_own(post.kind) else ""
    return {
        "text": _plain(scrub(f"{me.application}: {over}{post.kind} ({len(post.alerts)}){where}: {names}{why}")),
        "application": me.application,
        "alert": post.kind,
        "severity": first.severity.value,
        "status": "begun" if post.begins else "ended",
        "count": len(post.alerts),
        "subjects": [_subject(one, scrub) for one in named],
        "runbook": runbook_of(post.kind),
        "at": iso_time(wall_s),
        "worker": me.worker,
    }


def _subject(fault: FleetFault, scrub: Scrubber) -> Mapping[str, Any]:
    return {
        "name": fault.subject,
        "owner": fault.owner,
        "why": scrub(fault.words) or None,
        "remedy": scrub(fault.remedy) or None,
    }
