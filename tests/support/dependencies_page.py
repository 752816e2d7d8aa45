"""How many packages the locks name, for docs/develop/dependencies.md: `make docs` writes it."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from tests.support.make_locks import LOCKS, PINNED

BEGIN, END = "<!-- locks -->", "<!-- end of locks -->"


def sentence() -> str:
    """Return how many packages there are, and in how many versions."""
    locks = sorted(LOCKS.glob("*.txt"))
    pins = {
        (canonicalize_name(pinned[1]), line.split()[0].partition("==")[2])
        for lock in locks
        for line in lock.read_text("utf-8").splitlines()
        if (pinned := PINNED.match(line))
    }
    names = {name for name, _ in pins}
    return f"The {len(locks)} files of `locks/` name {len(names)} packages of Python, in {len(pins)} versions."


def updated(page: str) -> str:
    """Return the page with this sentence in place of the one that it has."""
    return page[: page.index(BEGIN)] + BEGIN + "\n" + sentence() + "\n" + page[page.index(END) :]
