"""What a fleet at rest asks of DynamoDB, and what that costs, beside Java: ``python -m tests.benchmarks.bill``.

Whole workers in 3.x mode in virtual time, over the DynamoDB twin, which counts requests and units as AWS prices them
(`tests.twins.dynamo_prices`). Nothing is timed and nothing is random, so the figures repeat on any machine. The shards
are idle: checkpoints come on top, one write each, in Java as here.

Java's side is a formula: the periods of its loops (the constants below) times what the same request costs on the same
table here. It says nothing about what was not measured.
"""

from __future__ import annotations

import argparse
import gc
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mld.fleet.report.reports import UPDATED_AT
from mld.tracking import stream_list
from tests.support.fleet import TABLE, Fleet
from tests.support.many import ManyFleet
from tests.twins.dynamo import MemoryDynamo, Params
from tests.twins.dynamo_prices import item_bytes
from tests.virtual_time import run_virtual

PAGE = Path("docs/lab/benchmarks.md")
BEGIN, END = "<!-- bill: begin -->", "<!-- bill: end -->"
STATUS_SIZES = ((1, 1), (64, 1), (64, 10))
HOUR_S = 3600.0
SIZES = ((1, 1), (1, 10), (8, 1), (64, 1), (64, 10), (1000, 1), (1000, 10))
"""(leases, workers)"""
SETTLE_S = {1: 900.0, 8: 900.0, 64: 900.0, 1000: 2400.0}
"""To rest, by leases: they are spread, reports and duties are known."""
MEASURED_S = {1: HOUR_S, 8: HOUR_S, 64: HOUR_S, 1000: 360.0}
"""By leases. All periods divide 360 s, but for heartbeats and discovery, of which there are many."""
PAGE_ROWS_MAX = 2600  # rows of 400 bytes in a page of 1 MB
READ_UNIT_SHARE = 0.2
"""The price of a read unit in write units: AWS asks five times as much for a write, wherever and however billed."""
UUID_LENGTH = 36
QUIET = {"idleTimeBetweenReadsInMillis": "300000", "clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}

HEARTBEATS, DISCOVERY, LOOKS, SCANS, REPORTS, LOCK, LIST, OTHER = (
    "heartbeats", "discovery", "looks at a part", "scans", "reports", "leader lock", "list of streams", "other",
)  # fmt: skip
PURPOSES = (HEARTBEATS, DISCOVERY, LOOKS, SCANS, REPORTS, LOCK, OTHER)
PURPOSES_OF_STREAMS = (*PURPOSES[:-1], LIST, OTHER)
STREAMS, SHARDS_OF_STREAM, STREAMS_WORKERS = 100, 2, 4
STREAMS_SETTLE_S, STREAMS_WINDOW_S = 900.0, 360.0
JAVA_RENEWAL_S = 10.0 / 3 - 0.025
JAVA_DISCOVERY_S = 20.0 / 2 - 0.025
JAVA_SCANS_PER_HOUR = HOUR_S / 20.0 + HOUR_S / 120.0  # assignment runs and audits
JAVA_REPORT_S = JAVA_LOCK_S = 30.0
LOCK_READ_UNITS = 1.0  # consistent


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one hour."""

    requests: float = 0.0
    read_units: float = 0.0
    write_units: float = 0.0

    @property
    def price(self) -> float:
        """In write units."""
        return self.write_units + READ_UNIT_SHARE * self.read_units

    def plus(self, other: Cost) -> Cost:
        return Cost(
            self.requests + other.requests, self.read_units + other.read_units, self.write_units + other.write_units
        )


Costs = Mapping[str, Cost]


class SortingDynamo(MemoryDynamo):
    """Counts each request under its purpose instead of its sender."""

    async def request(self, sender: str, operation: str, params: Params, timeout_s: float | None) -> dict[str, Any]:
        purpose = purpose_of(sender, operation, params)
        return await super().request(purpose, operation, params, timeout_s)


def purpose_of(sender: str, operation: str, params: Mapping[str, Any]) -> str:
    """What a worker at rest wants with a request. Of its own row it is the report, of a shard's row the lease.

    A look at the whole table asks for the same as a run of the leader.
    """
    key = params.get("Key", {}).get("leaseKey", {}).get("S", "")
    match operation:
        case "Scan":
            return LOOKS if "Segment" in params else SCANS
        case "Query":
            return DISCOVERY
        case _ if key == "Leader":
            return LOCK
        case _ if key == stream_list.KEY or params.get("Item", {}).get("leaseKey", {}).get("S") == stream_list.KEY:
            return LIST
        case "UpdateItem" if key == sender and UPDATED_AT in params["ExpressionAttributeNames"].values():
            return REPORTS
        case "UpdateItem":
            return HEARTBEATS
    return OTHER


async def measure(
    leases: int,
    workers: int,
    *,
    settle_s: float | None = None,
    window_s: float | None = None,
    tells: bool = True,
    streams: int = 0,
    at_the_end: Callable[[Fleet], None] = lambda _: None,
    **keys: str,
) -> Costs:
    """What a fleet at rest costs in an hour, by purpose; the times are those of its size unless given.

    Without `tells` no row has a status. The leases are of so many `streams`, in a table of several, unless it is 0.
    `at_the_end` may look at the tables.
    """
    settle_s, window_s = settle_s or SETTLE_S[leases], window_s or MEASURED_S[leases]
    world = Fleet(leases, **QUIET, **keys) if not streams else _many(streams, leases // streams, **QUIET, **keys)
    world.dynamo = SortingDynamo(world.clock, priced=True, page_rows_max=PAGE_ROWS_MAX)
    try:
        names = [f"w{number:03d}".ljust(UUID_LENGTH, "-") for number in range(workers)]
        for number, name in enumerate(names):
            running = world.start(name, seed=number)
            if not tells:
                running.tell_nothing()
        await _pass(world, settle_s)
        before = _holders(world)
        world.dynamo.forget_usage()
        await _pass(world, window_s)
        assert sum(map(len, before)) == leases and before == _holders(world), "the fleet is not at rest"
        usages = {purpose: world.dynamo.usage(sender=purpose) for purpose in PURPOSES_OF_STREAMS}
        at_the_end(world)
        scale = HOUR_S / window_s
        return {
            purpose: Cost(usage.requests * scale, usage.read_units * scale, usage.write_units * scale)
            for purpose, usage in usages.items()
        }
    finally:
        await world.close()


def _many(streams: int, shards: int, **keys: str) -> Fleet:
    return ManyFleet(*(f"stream{number:03d}" for number in range(streams)), shard_count=shards, **keys)


async def _pass(world: Fleet, seconds: float) -> None:
    for _ in range(int(seconds // 10)):
        await world.advance(10.0)
        _forget_history(world)


def _forget_history(world: Fleet) -> None:
    world.dynamo.history.clear()
    world.dynamo.calls.clear()


def _holders(world: Fleet) -> list[frozenset[str]]:
    return [running.worker.held() for running in world.running]


def java(leases: int, workers: int, ours: Costs) -> Costs:
    """The same by the periods of Java's loops, at the units that the same requests cost on our table."""
    renewals = leases * HOUR_S / JAVA_RENEWAL_S
    queries = workers * HOUR_S / JAVA_DISCOVERY_S
    reports = workers * HOUR_S / JAVA_REPORT_S
    beats, looks = HOUR_S / JAVA_LOCK_S, (workers - 1) * HOUR_S / JAVA_LOCK_S
    return {
        HEARTBEATS: Cost(renewals, 0.0, renewals),
        DISCOVERY: _times(ours[DISCOVERY], queries),
        LOOKS: Cost(),
        SCANS: _times(ours[SCANS], JAVA_SCANS_PER_HOUR),
        REPORTS: _times(ours[REPORTS], reports),
        LOCK: Cost(beats + looks, looks * LOCK_READ_UNITS, beats),
        OTHER: Cost(),
    }


def _times(ours: Cost, requests: float) -> Cost:
    each = requests / ours.requests
    return Cost(requests, ours.read_units * each, ours.write_units * each)


def total(costs: Costs) -> Cost:
    whole = Cost()
    for cost in costs.values():
        whole = whole.plus(cost)
    return whole


# --- tables ----------------------------------------------------------------------------------------------------------

TOTALS_HEAD = (
    "| Leases | Workers | | Requests per hour | Read units | Write units | Price in write units | of it heartbeats |"
)
DETAILS_HEAD = "| Purpose | Requests per hour | Read units | Write units | Java: requests | read units | write units |"


def totals_rows(leases: int, workers: int, kinds: Mapping[str, Costs]) -> list[str]:
    rows = []
    for name, costs in kinds.items():
        whole = total(costs)
        figures = (whole.requests, whole.read_units, whole.write_units, whole.price, costs[HEARTBEATS].price)
        cells = (f"{leases:,}", str(workers), name, *(f"{value:,.0f}" for value in figures))
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def details_rows(ours: Costs, theirs: Costs, purposes: Sequence[str] = PURPOSES) -> list[str]:
    def cells(cost: Cost) -> str:
        return " | ".join(f"{value:,.0f}" for value in (cost.requests, cost.read_units, cost.write_units))

    return [f"| {purpose} | {cells(ours[purpose])} | {cells(theirs[purpose])} |" for purpose in purposes]


STATUS_HEAD = (
    "| Leases | Workers | Read units per hour, with | without | Write units per hour, with | without "
    "| Largest lease row, bytes | Largest report, bytes |"
)


def status_rows(leases: int, workers: int) -> list[str]:
    """What it costs that rows tell people how their shards are."""
    logging.disable(logging.CRITICAL)
    sizes: dict[bool, int] = {}

    def look(world: Fleet) -> None:
        for row in world.dynamo.rows(TABLE).values():
            is_report = UPDATED_AT in row
            sizes[is_report] = max(sizes.get(is_report, 0), item_bytes(row))

    told = total(run_virtual(measure(leases, workers, at_the_end=look)))
    plain = total(run_virtual(measure(leases, workers, tells=False)))
    units = (told.read_units, plain.read_units, told.write_units, plain.write_units)
    figures = " | ".join(f"{value:,.0f}" for value in (*units, sizes[False], sizes[True]))
    return [f"| {leases:,} | {workers} | {figures} |"]


def run_status() -> str:
    rows = [row for leases, workers in STATUS_SIZES for row in status_rows(leases, workers)]
    return "\n".join([STATUS_HEAD, _rule(STATUS_HEAD), *rows])


STREAMS_HEAD = (
    "| Purpose | Requests per hour, {streams} streams x {shards} shards | Read units | Write units "
    "| {leases} shards of one stream: requests | read units | write units |"
)


def run_streams(workers: int = STREAMS_WORKERS) -> str:
    """Many streams of few shards, beside as many shards of one stream."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    leases = STREAMS * SHARDS_OF_STREAM
    times = {"settle_s": STREAMS_SETTLE_S, "window_s": STREAMS_WINDOW_S}
    several = run_virtual(measure(leases, workers, streams=STREAMS, **times))
    one = run_virtual(measure(leases, workers, **times))
    head = STREAMS_HEAD.format(streams=STREAMS, shards=SHARDS_OF_STREAM, leases=leases)
    rows = details_rows(several, one, PURPOSES_OF_STREAMS)
    whole, whole_one = total(several), total(one)
    more = whole.price / whole_one.price - 1
    sentence = (
        f"{workers} workers. In all {whole.price:,.0f} write units an hour beside {whole_one.price:,.0f}: {more:+.1%}."
    )
    return "\n".join([head, _rule(head), *rows, "", sentence, ""])


def run_size(leases: int, workers: int) -> list[str]:
    """The rows of one size; the details after a blank line where they are wanted."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    ours = run_virtual(measure(leases, workers))
    theirs = java(leases, workers, ours)
    patient = run_virtual(measure(leases, workers, failoverTimeMillis="30000"))
    rows = totals_rows(leases, workers, {"mld": ours, "mld, failoverTimeMillis=30000": patient, "Java": theirs})
    return [*rows, "", DETAILS_HEAD, _rule(DETAILS_HEAD), *details_rows(ours, theirs)]


def run_all() -> str:
    """Each size in a process of its own; the details go to standard error."""
    totals = [TOTALS_HEAD, _rule(TOTALS_HEAD)]
    for leases, workers in SIZES:
        print(f"{leases} leases, {workers} workers", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "tests.benchmarks.bill", "--size", f"{leases}x{workers}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(done.stdout, file=sys.stderr, flush=True)
        totals += done.stdout.partition("\n\n")[0].splitlines()
    return "\n".join([*totals, ""])


def _rule(head: str) -> str:
    return "|" + "---|" * (head.count("|") - 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bill", description=__doc__)
    parser.add_argument("--size", help="LEASESxWORKERS: this size only, in this process")
    parser.add_argument("--status", action="store_true", help="only what it costs that rows tell people of shards")
    parser.add_argument("--streams", action="store_true", help="only several streams beside one")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE}")
    options = parser.parse_args()
    if options.status:
        print(run_status())
        return
    if options.streams:
        print(run_streams())
        return
    if options.size:
        leases, workers = map(int, options.size.split("x"))
        print("\n".join(run_size(leases, workers)))
        return
    tables = run_all()
    print(tables)
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
