"""Words that the log, the metrics and the faults of a fleet share. Pure.

Nothing of this package is imported here, because commands use these words without any metrics.
"""

from __future__ import annotations

from collections.abc import Sequence

DYNAMODB, KINESIS = "DynamoDB", "Kinesis"
"""Names of the services that can be slow."""


def refusal_words(why: str) -> str:
    """Return the text that says why a file cannot be used, and what follows from that."""
    return f"cannot be used: {why}; nothing changes until it can, and a start fails"


def restart_words(keys: Sequence[str]) -> str:
    """Return the text that says which keys wait for a restart."""
    return f"the new value of {', '.join(keys)} needs a restart"
