"""A letter box in memory, behind the port of `mld.aws.letters`, with the faults of a real one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mld.aws.letters import Letter
from mld.core.errors import DeadLetterError


class MemoryBox:
    """`letters` are those that arrived, in order. `fails` of the next are refused; `loses` arrive without an answer."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.fails = 0
        self.loses = 0
        self.hangs = False

    async def open(self) -> None:
        pass

    async def put(self, letter: Letter) -> str:
        await asyncio.sleep(0.01)
        if self.fails:
            self.fails -= 1
            raise DeadLetterError("memory: full (key mld.deadLetter)")
        self.letters.append(letter)
        if self.hangs:
            await asyncio.Event().wait()
        if self.loses:
            self.loses -= 1
            raise DeadLetterError("memory: no answer (key mld.deadLetter)")
        return f"memory {len(self.letters)}"

    async def close(self) -> None:
        pass

    def contents(self) -> list[dict[str, Any]]:
        return [json.loads(letter.body) for letter in self.letters]
