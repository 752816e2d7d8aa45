"""`document`: makes the JSON document that is posted to the webhook for an alert. Pure.

`text` is what a chat shows. It has only our own words, and names without markup. Reasons may repeat what a record, a
child or a row contains, so they are in a field of their own, `details`, and only if the operator wants them there
(`mld.notifyDetails`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mld.core.chat_text import NAME_CHARACTERS_MAX, chat_text, foreign_chat_text
from mld.core.clock import iso_time
from mld.metrics.identity import Identity
from mld.operating.faults import (
    FleetFault,
)
from mld.properties.scrubber import Scrubber
from mld.serving.alert_book import Post

SUBJECTS_MAX = 20
"""How many subjects a post names at most; it also gives the number of all."""


def document(post: Post, me: Identity, wall_s: float, scrub: Scrubber, *, with_details: bool) -> Mapping[str, Any]:
    """Return the document for the webhook; `with_details` adds the reasons, which others may have written."""
    named = post.alerts[:SUBJECTS_MAX]
    application, worker = chat_text(scrub(me.application)), chat_text(scrub(me.worker))
    kind = named[0].declared
    names = ", ".join(_name(one.subject, scrub) for one in named) + (", …" if len(post.alerts) > len(named) else "")
    words = f". {kind.meaning} {kind.first} {named[0].runbook}"
    head = f"{application}: {'' if post.begins else 'over: '}{post.kind} ({len(post.alerts)})"
    where = f" of worker {worker}" if kind.is_own else ""
    content = {
        "text": f"{head}{where}: {names}{words if post.begins else ''}",
        "application": application,
        "alert": post.kind,
        "severity": named[0].severity.value,
        "status": "begun" if post.begins else "ended",
        "count": len(post.alerts),
        "subjects": [_subject(one, scrub) for one in named],
        "runbook": named[0].runbook,
        "at": iso_time(wall_s),
        "worker": worker,
    }
    return content | {"details": [_detail(one, scrub) for one in named]} if with_details else content


def _subject(fault: FleetFault, scrub: Scrubber) -> Mapping[str, Any]:
    return {"name": _name(fault.subject, scrub), "owner": fault.owner and _name(fault.owner, scrub)}


def _detail(fault: FleetFault, scrub: Scrubber) -> Mapping[str, Any]:
    """Return the reason of a fault, which may contain what others wrote."""
    return {"name": _name(fault.subject, scrub), "why": foreign_chat_text(scrub(fault.words)) or None}


def _name(name: str, scrub: Scrubber) -> str:
    """Return a name as a post may have it: without secrets and markup, and of bounded length."""
    return foreign_chat_text(scrub(name), NAME_CHARACTERS_MAX)
