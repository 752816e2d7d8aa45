"""The fields of a log line about a shard."""

from __future__ import annotations


def about(action: str, shard: str, **more: object) -> dict[str, object]:
    """Return the fields of a log line about one shard: the action, the key of its lease, and `more`."""
    return {"action": action, "shard": shard, **more}


def of_child(number: int | None) -> dict[str, object]:
    """Return the field for which of several children a line is about; none for the only child of a shard."""
    return {} if number is None else {"child_number": number}
