"""``python -m tests.fuzz --records N``: what `make fuzz` runs. Raw pages against the plain ones, on drawn bodies.

Every body is read both ways and must give the same page and the same lines; and a damaged copy of it must be refused,
or be read as the plain way reads it. A failure prints the seed and the body.
"""

from __future__ import annotations

import argparse
import time
from random import Random

from mld.retrieval.rawbody import page_of
from tests.support.bodies import BodyMaker, read_in_parts, reference_page
from tests.support.pages import assert_same

RECORDS_MAX = (3, 12, 60, 600)  # of a body: small ones for their variety, large ones for their number
REPORT_S = 20.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="records to read (default %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the first body; default: drawn from the clock")
    parser.add_argument("--bodies", type=int, default=None, help="stop after so many bodies")
    arguments = parser.parse_args()
    seed = time.time_ns() % 2**32 if arguments.seed is None else arguments.seed
    print(f"first seed {seed}", flush=True)
    records = bodies = 0
    reported_at = time.monotonic()
    while records < arguments.records and bodies != arguments.bodies:
        records += one(seed + bodies)
        bodies += 1
        if time.monotonic() - reported_at > REPORT_S:
            reported_at = time.monotonic()
            print(f"{records} records in {bodies} bodies", flush=True)
    print(f"{records} records in {bodies} bodies: no difference", flush=True)
    return 0


def one(seed: int) -> int:
    """Read the body of a seed both ways; how many records it had."""
    rng = Random(seed)
    body = BodyMaker(rng, records_max=rng.choice(RECORDS_MAX)).body()
    try:
        reference = reference_page(body)
        assert_same(page_of(body) if rng.random() < 0.5 else read_in_parts(body, rng), reference, rng)
        assert_refused(body[: rng.randrange(len(body.rstrip(b" \t\r\n")))])
    except Exception:
        print(f"seed {seed}: {body!r}", flush=True)
        raise
    return len(reference.records)


def assert_refused(body: bytes) -> None:
    try:
        page_of(body)
    except ValueError:
        return
    raise AssertionError(f"accepted: {body!r}")


if __name__ == "__main__":
    raise SystemExit(main())
