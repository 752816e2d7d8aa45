"""The fields of a line of the log."""

from __future__ import annotations


def about(action: str, shard: str, **more: object) -> dict[str, object]:
    """Return the fields of a line about one shard, by the key of its lease: what happened to it, and `more`."""
    return {"action": action, "shard": shard, **more}
