"""A slice of the drawn records of the schema registry; the long run is `make fuzz-producer`."""

from __future__ import annotations

from tests.fuzz.schemas import run

EXAMPLES = 40


def test_no_drawn_record_harms_the_records_beside_it() -> None:
    run(EXAMPLES, derandomize=True)
