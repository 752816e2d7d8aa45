"""Parses one line of a child's output. The result is a message, or the reason why the line is not one.

Rules: protocol#json-form, protocol#tolerated-lines. A child may print anything, so parsing never raises. Nothing here
does I/O.
"""

from __future__ import annotations

import json

from mld.protocol.json_fields import NumberText, Unreadable, coerce_integer, coerce_text, refuse_constant
from mld.protocol.messages import (
    ActionName,
    ActionStatus,
    CheckpointRequest,
    ChildMessage,
    Dialect,
    Ignored,
)

CROWDED_CHARS = 16 * 1024
MEMBERS_MAX = 1000
"""If a line longer than CROWDED_CHARS has more commas and opening brackets than this, only its first CROWDED_CHARS are
parsed. Parsing half a million members would block the event loop. Deep nesting takes memory, and the depth that Python
refuses depends on its version and on the size of the stack. A message has five members, so a message at the beginning
of such a line is still found."""
REASON_CHARS_MAX = 80
"""How many characters of a child's line are quoted in an `Ignored.reason`."""
_WHITESPACE = " \t\r\n\ufeff"
"""Includes the byte order mark that some systems write before UTF-8."""
_OTHER_ACTIONS = frozenset(action.value for action in ActionName) | {"shutdown", "record"}
_DECODER = json.JSONDecoder(parse_int=NumberText, parse_float=NumberText, parse_constant=refuse_constant)


def parse_child_line(line: str, dialect: Dialect = Dialect.KCL_2) -> ChildMessage | Ignored:
    """Return the meaning of one line of a child's output. Never raises.

    Unlike in Java, extra keys and `null` are accepted wherever that is safe (protocol#tolerated-lines). But a
    checkpoint request that lacks `sequenceNumber` and has unknown keys is refused. If it counted as "everything
    delivered so far", it could checkpoint records that the child has not finished.

    Of a very long line with very many members, only the beginning is parsed (`MEMBERS_MAX`). `is_log` marks a line that
    the child probably meant for a log, not for the daemon.
    """
    if not line:
        return Ignored("an empty line", quiet=True)
    if len(line) > CROWDED_CHARS and sum(map(line.count, ",[{")) > MEMBERS_MAX:
        line = line[:CROWDED_CHARS]
    start = len(line) - len(line.lstrip(_WHITESPACE))
    try:
        value, _ = _DECODER.raw_decode(line, start)  # ignores text after the object, as Java does
    except (ValueError, RecursionError):
        return Ignored(f"not a JSON object: {shorten(line)}", is_log=not line.startswith("{", start))
    if type(value) is not dict:
        return Ignored(f"not a JSON object: {shorten(line)}", is_log=True)
    try:
        match value.get("action"):
            case "status":
                return ActionStatus(coerce_text(value, "responseFor"))
            case "checkpoint":
                return _checkpoint_request(value, dialect)
            case str(action) if action in _OTHER_ACTIONS:
                return Ignored(f"only the daemon sends {action!r} messages")
            case _:
                return Ignored(f"no known action: {shorten(line)}", is_log="action" not in value)
    except Unreadable as error:
        return Ignored(f"{error}: {shorten(line)}")


def _checkpoint_request(value: dict[str, object], dialect: Dialect) -> CheckpointRequest:
    """Return the checkpoint request in a message. Raises Unreadable.

    In the 1.x protocol the position may be under `checkpoint` instead of `sequenceNumber`. Under 2.x that is refused,
    because a request without a position would checkpoint everything delivered so far. For the same reason a request
    that lacks the key of the position is refused if it has unknown keys.
    """
    sequence = coerce_text(value, "sequenceNumber")
    sub = coerce_integer(value, "subSequenceNumber")
    if sequence is None and value.get("checkpoint") is not None:
        if dialect is Dialect.KCL_1:
            return CheckpointRequest(coerce_text(value, "checkpoint"), sub, legacy_key=True)
        raise Unreadable("a position under the 1.x key 'checkpoint'; use 'sequenceNumber' or the 1.x protocol")
    # In 1.x, `"checkpoint": null` means "everything delivered so far", as `"sequenceNumber": null` does in 2.x.
    legacy = dialect is Dialect.KCL_1 and "checkpoint" in value and "sequenceNumber" not in value
    unknown = value.keys() - {"action", "sequenceNumber", "subSequenceNumber", "error", "checkpoint"}
    if unknown and "sequenceNumber" not in value and not legacy:
        raise Unreadable("a checkpoint request with unknown keys and without 'sequenceNumber'")
    return CheckpointRequest(sequence, sub, legacy_key=legacy)


def shorten(line: str) -> str:
    """Return a child's line as a short, quoted ASCII text for the log."""
    head = ascii(line[:REASON_CHARS_MAX])
    return head if len(line) <= REASON_CHARS_MAX else f"{head} and {len(line) - REASON_CHARS_MAX} characters more"
