"""The tables of keys in docs/use/configuration.md, which `make docs` writes anew.

The tables are rendered from the table of keys, and a test keeps them current; the prose around them is written by hand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from mld.properties.checked_lines import default_text, range_text
from mld.properties.keys import KEYS, PATTERN_KEYS
from mld.properties.keytypes import Effect, Key, Section
from mld.properties.spark_keys import KEYS as SPARK_KEYS
from mld.properties.value_kinds import ValueKind

ALL_KEYS = sorted((*KEYS, *PATTERN_KEYS, *SPARK_KEYS), key=lambda key: list(Section).index(key.section))
NOTED_FROM = 3
NOTE_CHARS_MIN = 40
"""What is said of so many keys of a section at such length stands above its table."""
CLIENT = re.compile(r"^(?:kinesis|dynamoDb|cloudWatch)Client\.")
ALIKE = re.compile(rf"{CLIENT.pattern}|^(?:workerMetrics|coordinatorState)(?=[A-Z])")
"""What tells keys apart that share a row."""
PLAIN_BOUNDS = ("at least 0", "at least 1")
"""Not worth a remark: the page says once that smaller numbers are refused."""
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
    """Return a section's heading, what several of its keys have in common as numbered notes, and a row for each key.

    Keys that the clients of AWS, or the legacy tables, have alike share a row.
    """
    keys = [key for key in ALL_KEYS if key.section is section]
    counts = Counter(remark for key in keys for remark in _remarks(key) if len(remark) >= NOTE_CHARS_MIN)
    common = [remark for remark, count in counts.items() if count >= NOTED_FROM]
    alike: dict[tuple[str, str], list[Key]] = {}
    for key in keys:
        alike.setdefault((ALIKE.sub("", key.name), _default(key)), []).append(key)
    notes = [f"{number}. {remark}" for number, remark in enumerate(common, start=1)]
    heading = f"### {section.value}\n\n" + ("\n".join(notes) + "\n\n" if notes else "")
    rows = ["| Key | Value: default | Meaning |", "|---|---|---|"]
    rows += [_row(group, common) for group in alike.values()]
    return heading + "\n".join(rows) + "\n"


def _row(keys: list[Key], common: list[str]) -> str:
    key, names = keys[0], ", ".join(f"`{key.name}`" for key in keys)
    kind = key.kind.value if key.choices is None else ", ".join(f"`{choice.value}`" for choice in key.choices)
    if key.kind is ValueKind.CHOICES:
        kind = f"{key.kind.value} {kind}"
    remarks = dict.fromkeys(remark for key in keys for remark in _remarks(key))
    said = [f"({common.index(remark) + 1})" if remark in common else remark for remark in remarks]
    meaning = key.meaning
    if len(keys) > 1:
        meaning = meaning.replace("Kinesis", "the service").replace("worker-metrics table", "table")
    default = _default(key)
    if f"`{default}`" in kind:
        value = kind.replace(f"`{default}`", f"**`{default}`**")
    else:
        value = kind if default == "none" else f"{kind}: {default}"
    cells = (names, value, " ".join((meaning, *said)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    if key.kind is ValueKind.DOUBLE and isinstance(key.default, float) and key.default > _NO_LIMIT:
        return "no limit"
    return default_text(key) or "empty"


def _remarks(key: Key) -> Iterator[str]:
    match key.effect:
        case Effect.UNSUPPORTED:
            yield "*Not supported.*"
        case Effect.NONE:
            yield "*No effect.*"
    for alias in key.aliases:
        prefix = alias.removesuffix(key.name)
        yield f"Also `{alias}`." if prefix == alias or CLIENT.match(alias) else f"Also with the prefix `{prefix}`."
    bounds = range_text(key)
    if bounds and bounds not in PLAIN_BOUNDS:
        yield f"{bounds[0].upper()}{bounds[1:]}."
    if key.note:
        yield key.note
    if key.live:
        yield "[Live](running.md#reload)."
