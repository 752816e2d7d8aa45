"""`LetterBox`: the port by which dead letters are written.

`put` returns only when the letter is durable. Any doubt is a DeadLetterError, and then the record stays where it is.
The names of letters come from their records. So a letter that is written twice replaces itself in a directory or a
bucket. A stream or a queue then has it twice, but a FIFO queue drops a second one within five minutes. Nothing is cut
to fit: a service refuses a letter that is too large for it (a queue takes 1 MiB, a stream what it is set to).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

PUT_TIMEOUT_S = 60.0
"""A letter has up to 14 MB; a disk or service that hangs for longer is tried again later."""


@dataclass(frozen=True, slots=True)
class Letter:
    """`path` says whose record it is: application, stream, shard; `name` is unique there. `body` is one JSON object."""

    path: tuple[str, str, str]
    name: str
    body: bytes

    @property
    def shard_id(self) -> str:
        return self.path[-1]


class LetterBox(Protocol):
    async def open(self) -> None:
        """See that letters can probably be written. Raises StartupError."""
        ...

    async def put(self, letter: Letter) -> str:
        """Write a letter, and return where it is, once it is durable. Raises DeadLetterError if that is not certain."""
        ...

    async def close(self) -> None: ...


def file_name(text: str) -> str:
    """Return `text` as one component of a path, escaped."""
    name = quote(text, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name
