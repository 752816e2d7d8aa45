"""The tables of keys in docs/use/configuration.md, which `make docs` writes anew.

The tables are rendered from the table of keys, and a test keeps them current; the prose around them is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from mld.properties.keys import KEYS, PATTERN_KEYS
from mld.properties.keytypes import Effect, Key, Section, ValueKind
from mld.properties.spark import KEYS as SPARK_KEYS
from mld.properties.validation import default_text, range_text

ALL_KEYS = sorted((*KEYS, *PATTERN_KEYS, *SPARK_KEYS), key=lambda key: list(Section).index(key.section))
_NO_LIMIT = 1e300  # Java spells "no limit" as the largest double

BEGIN, END = f"### {next(iter(Section)).value}\n", "\n## Differences from Java\n"
"""What the page has before and after the tables."""


def tables() -> str:
    """Return a table for each section."""
    return "\n".join(_table(section) for section in Section)


def updated(page: str) -> str:
    """Return the page with these tables in place of those that it has."""
    return page[: page.index(BEGIN)] + tables() + page[page.index(END) :]


def _table(section: Section) -> str:
    """Return a section's heading, what its keys have in common, and a row for each key."""
    keys = [key for key in ALL_KEYS if key.section is section]
    common = keys[0].note if len({key.note for key in keys}) == 1 else ""
    prefix = _common_prefix(keys)
    sentences = [common] if common else []
    if prefix:
        sentences.append(f"Each key may also be written with the prefix `{prefix}`.")
    heading = f"### {section.value}\n\n" + (" ".join(sentences) + "\n\n" if sentences else "")
    rows = ["| Key | Type | Default | Meaning | Remarks |", "|---|---|---|---|---|"]
    rows += [_row(key, known_note=common, known_prefix=prefix) for key in keys]
    return heading + "\n".join(rows) + "\n"


def _common_prefix(keys: list[Key]) -> str:
    """Return the prefix that makes every key's one alias out of its name; empty if there is none."""
    prefixes = {key.aliases[0].removesuffix(key.name) if len(key.aliases) == 1 else "" for key in keys}
    return prefixes.pop() if len(prefixes) == 1 else ""


def _row(key: Key, *, known_note: str, known_prefix: str) -> str:
    remarks = " ".join(_remarks(key, known_note=known_note, known_prefix=known_prefix))
    kind = key.kind.value if key.choices is None else ", ".join(f"`{choice.value}`" for choice in key.choices)
    if key.kind is ValueKind.CHOICES:
        kind = f"{key.kind.value} {kind}"
    cells = (f"`{key.name}`", kind, _default(key), key.meaning, remarks)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    if key.kind is ValueKind.DOUBLE and isinstance(key.default, float) and key.default > _NO_LIMIT:
        return "no limit"
    return default_text(key) or "empty"


def _remarks(key: Key, *, known_note: str, known_prefix: str) -> Iterator[str]:
    match key.effect:
        case Effect.UNSUPPORTED:
            yield "*Not supported.*"
        case Effect.NONE:
            yield "*No effect.*"
    if key.aliases and not known_prefix:
        yield f"Also {', '.join(f'`{alias}`' for alias in key.aliases)}."
    bounds = range_text(key)
    if bounds:
        yield f"{bounds[0].upper()}{bounds[1:]}."
    if key.note and not known_note:
        yield key.note
    if key.live:
        yield "[May change](running.md#reload) while the daemon runs."
