"""Fills the templates of generated files: lines with placeholders, in the directory `templates` beside this module."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

TEMPLATES = Path(__file__).with_name("templates")
Value: TypeAlias = str | tuple[str, ...] | bool | None
_HOLE = re.compile(r"@([?!]?)([a-z_]+)@")
"""Matches a placeholder: its mark (``?``, ``!`` or none) and its name."""


def filled(template: str, values: Mapping[str, Value]) -> Iterator[str]:
    """Yield the lines of a template, with values in place of ``@name@``.

    A line is left out if a value named in it is None, False or empty. A line whose value is a tuple is repeated for
    each part. ``@?name@`` is replaced by nothing; it only leaves the line out if the value is empty. ``@!name@`` leaves
    the line out if the value is not empty.
    """
    for line in (TEMPLATES / template).read_text("utf-8").splitlines():
        holes = _HOLE.findall(line)
        if any(bool(values[name]) is (mark == "!") for mark, name in holes):
            continue
        # A line with a tuple is repeated for each part; any other line is yielded once.
        parts = next((found for mark, name in holes if not mark and isinstance(found := values[name], tuple)), ("",))
        for part in parts:
            yield _HOLE.sub(lambda hole, part=part: "" if hole[1] else _text(values[hole[2]], part), line)  # type: ignore[misc]


def _text(value: Value, part: str) -> str:
    """Return the text for a placeholder: its value, or the present `part` of a value that is a tuple."""
    return part if isinstance(value, tuple) else str(value)


def inner(text: str) -> str:
    """Return the text escaped as in JSON, without the quotes around it."""
    return json.dumps(text)[1:-1]
