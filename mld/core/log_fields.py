"""Makes the fields of a log line about a shard or one of its children."""

from __future__ import annotations


def about(action: str, shard: str, **more: object) -> dict[str, object]:
    """Return the fields of a log line about one shard: the action, the key of its lease, and `more`."""
    return {"action": action, "shard": shard, **more}


def of_child(number: int | None) -> dict[str, object]:
    """Return the field that names one of several children of a shard; no field if `number` is None (the only child)."""
    return {} if number is None else {"child_number": number}
