"""Completion in a shell: offers a file, or a shard or worker of the lease table, as the next word of a command."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from mld.core.terminal import (
    FILE_VARIABLE,
)

COMPLETION_S = 3.0
FILE_SUFFIX = ".properties"
SHARD, WORKER = "SHARD", "WORKER"
"""Names of the arguments for which the table has the possible words."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+%,=-]*", re.ASCII)
"""Matches a name that is safe to offer: a shell reads it as one plain word, and a command does not read it as an
option. A shell inserts an offered word without quoting it, and a row may name a shard or worker `$(reboot)` or
`--execute`."""


def complete_word(
    argument_names: Sequence[str], context: click.Context, _: click.Parameter, begun: str
) -> list[CompletionItem]:
    """Return what a shell may offer for the next word: files, or the shards or workers of the lease table. `begun` is
    the part of the word that is typed already. `argument_names` are the names of the command's arguments, such as
    SHARD.

    Returns nothing if the table does not answer within `COMPLETION_S`.
    """
    typed_words = [word for word in context.params.get("words") or () if word]
    file = context.params.get("option_file")
    if file is None and typed_words and typed_words[0].endswith(FILE_SUFFIX):
        file, typed_words = typed_words[0], typed_words[1:]
    file = file or os.environ.get(FILE_VARIABLE)
    if file is None and not typed_words:
        return [CompletionItem(begun, type="file")]
    wanted = argument_names[len(typed_words)] if len(typed_words) < len(argument_names) else ""
    if file is None or wanted not in (SHARD, WORKER):
        return []
    import asyncio

    from mld.operating.fleet_reader import fleet_reader
    from mld.operating.shard_view import LAG_MAX_S
    from mld.properties.loader import load

    async def look() -> list[str]:
        """Return the names that the fleet has now: those of its open shards, or of its workers."""
        settings = load(file, context.params.get("overrides") or (), os.environ).settings
        async with asyncio.timeout(COMPLETION_S), fleet_reader(settings, LAG_MAX_S) as reader:
            fleet = await reader.look()
        return [one.key for one in fleet.open_shards] if wanted == SHARD else [one.worker for one in fleet.workers]

    try:
        names_now = asyncio.run(look())
        return [CompletionItem(name) for name in names_now if name.startswith(begun) and _PLAIN.fullmatch(name)]
    except Exception:  # a shell that completes a word has no place to show an error
        return []
