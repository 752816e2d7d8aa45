"""`LetterBox`: the port by which dead letters are written: records that the child could not process.

`put` returns only when the letter is durable. If that is not certain, it raises DeadLetterError, and the record is not
set aside. A letter is named after its record. If the same letter is written twice, the second file or object replaces
the first. A stream or a queue keeps both, but a FIFO queue drops the second one if it comes within five minutes. A
letter is never shortened: a service refuses a letter that is too large for it. A queue takes 1 MiB; a stream takes as
much as it is configured for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

PUT_TIMEOUT_S = 60.0
"""Time limit of writing one letter, which has up to 14 MB. If it is exceeded, the letter is written again later."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. `path` says where its record is from: application, stream, shard. `name` is unique in this
    shard. `body` is one JSON object.
    """

    path: tuple[str, str, str]
    name: str
    body: bytes

    @property
    def shard_id(self) -> str:
        return self.path[-1]


class LetterBox(Protocol):
    """A place into which dead letters are written."""

    async def open(self) -> None:
        """Prepare for writing letters. Raises StartupError if it is already clear that none can be written."""
        ...

    async def put(self, letter: Letter) -> str:
        """Write a letter durably, and return where it is. Raises DeadLetterError if it may not be durable."""
        ...

    async def close(self) -> None: ...


def file_name(text: str) -> str:
    """Return `text`, percent-encoded so that it can be one component of a path."""
    name = quote(text, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name
