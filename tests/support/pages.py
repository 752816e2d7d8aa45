"""What two pages made of one body must have in common, and where they are compared."""

from __future__ import annotations

from random import Random

from mld.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.retrieval.page import RecordsPage
from mld.streams import HASH_KEY_MAX, HashRange, Page

RANGES = (None, HashRange(0, HASH_KEY_MAX), HashRange(0, HASH_KEY_MAX // 2))


def assert_same(page: Page, reference: RecordsPage, rng: Random) -> None:
    """Every value of the page, and a few batches at positions around its records."""
    for name in (
        "count",
        "data_bytes",
        "first_sequence",
        "first_arrival_ms",
        "last_sequence",
        "next_iterator",
        "millis_behind_latest",
        "child_shards",
    ):
        assert getattr(page, name) == getattr(reference, name), name
    for position in positions_around(reference, rng):
        hash_range = rng.choice(RANGES)
        ours, theirs = page.after(position, hash_range), reference.after(position, hash_range)
        assert ours.largest == theirs.largest, position
        assert b"".join(ours.line()) == b"".join(theirs.line()), position
        assert (ours.data_bytes, ours.malformed) == (theirs.data_bytes, theirs.malformed), position
        assert ours.misrouted == theirs.misrouted, position


def positions_around(page: RecordsPage, rng: Random) -> list[Position]:
    positions = [rng.choice((LATEST, TRIM_HORIZON, AT_TIMESTAMP, SHARD_END))]
    if page.records:
        number = int(rng.choice(page.records).sequence_number)
        positions += [TRIM_HORIZON, Position(str(number), rng.randint(0, 2)), Position(str(max(0, number - 1)))]
    return positions
