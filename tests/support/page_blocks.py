"""Blocks of the pages of users, word for word."""

from __future__ import annotations

import re
from pathlib import Path

USE = Path(__file__).resolve().parents[2] / "docs" / "use"


def block(language: str, word: str, page: str) -> str:
    """The one block of the page that has this in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (USE / page).read_text("utf-8"), re.DOTALL)
    [found] = [text for text in blocks if word in text]
    return str(found)
