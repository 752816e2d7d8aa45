"""Runs a story file: prose, lines that begin with ``> `` are commands, and lines indented by four are their output."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from pathlib import Path
from typing import Any

from tests.scenarios.commands import Commands
from tests.scenarios.world import StoryError
from tests.simulation.world.loop import run_world

PROMPT = "> "
INDENT = "    "
FOLDER = Path(__file__).parent
CLOSES_MAX = 10
LINES_MAX = 40


class FailedStoryError(Exception):
    """A command failed; the message says which, and what had been printed until then."""


def story_files() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def play(text: str) -> str:
    """The text of the story with the output of this run. Raises FailedStoryError."""
    logger = logging.getLogger("mld")
    before, propagates = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    left: list[asyncio.Task[Any]] = []
    try:
        return run_world(_play(text, logger, left))
    finally:
        _close(left)
        logger.setLevel(before)
        logger.propagate = propagates


async def _play(text: str, logger: logging.Logger, left: list[asyncio.Task[Any]]) -> str:
    commands = Commands()
    journal = commands.world.journal
    logger.addHandler(journal)
    bugs: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(str(context)))
    output: list[str] = []
    try:
        for line in text.splitlines():
            if line.startswith(INDENT):
                continue
            output.append(line)
            if line.startswith(PROMPT):
                output += [(INDENT + said).rstrip() for said in await _run(commands, line, output)]
                await asyncio.sleep(0)
        _check(commands, bugs, output)
    finally:
        logger.removeHandler(journal)
        await commands.end()
        left += asyncio.all_tasks() - {asyncio.current_task()}
    return "\n".join(output) + "\n"


async def _run(commands: Commands, line: str, output: list[str]) -> list[str]:
    try:
        return await commands.run(line.removeprefix(PROMPT))
    except StoryError as error:
        state = [
            f"{INDENT}{text}"
            for part in ("workers", "leases", "log")
            for text in (await commands.run(part))[-LINES_MAX:]
        ]
        raise FailedStoryError("\n".join([*output, f"{INDENT}!! {error}", *state])) from error


def _check(commands: Commands, bugs: list[str], output: list[str]) -> None:
    try:
        commands.world.check()
    except StoryError as error:
        raise FailedStoryError("\n".join([*output, f"!! {error}"])) from error
    if bugs:
        raise FailedStoryError("\n".join([*output, f"!! {bugs[0]}"]))


def _close(left: list[asyncio.Task[Any]]) -> None:
    """Unwind what the killed and the still running left behind, now and quietly instead of at some collection."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in left:
            coroutine = task.get_coro()
            for _ in range(CLOSES_MAX):
                try:
                    coroutine.close()  # type: ignore[union-attr]
                    break
                except BaseException:
                    continue  # a finally block that needs a loop
        left.clear()
        gc.collect()
