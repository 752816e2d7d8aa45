"""What an operator reads: one worked fleet, as text, and the same as values."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from mld.core.errors import MldError
from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.fleet.leader.lock import LockRow
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.operating import listings, plain_values, printing
from mld.operating.durations import duration
from mld.operating.faults import FleetFault
from mld.operating.fleet_sight import FleetSight
from mld.operating.fleet_status import FleetStatus, fleet_status
from mld.operating.shard_view import ViewRules
from mld.operating.text_table import Listing
from mld.operating.verdicts import faults_of, general_faults
from tests.virtual_time import run_virtual

NOW_S = 1_763_661_600
SEQUENCE = "49039857314204006299212589664082056738427629321519628402"


def shard_id(number: int) -> str:
    return f"shardId-{number:012}"


def ranges(count: int) -> list[HashRange]:
    step = (HASH_KEY_MAX + 1) // count
    return [HashRange(n * step, (n + 1) * step - 1 if n < count - 1 else HASH_KEY_MAX) for n in range(count)]


@pytest.fixture
def fleet() -> FleetStatus:
    """Two live workers, a dead one, one of Java; a split; a failing, a parked and a handed-over shard; a hole."""
    own = ranges(8)
    at = Position(SEQUENCE)

    def told(activity: str, behind_ms: int | None, age_s: int = 2, why: str | None = None) -> ShardStatus:
        return ShardStatus(activity, NOW_S - age_s, behind_ms, why=why)

    leases = [
        Lease(shard_id(0), SHARD_END, children=frozenset({shard_id(1), shard_id(2)})),
        Lease(
            shard_id(1),
            at,
            owner="a:1",
            hash_range=own[0],
            parents=frozenset({shard_id(0)}),
            status=told("processing", 340),
            throughput_kbps=512.25,
        ),
        Lease(shard_id(2), at, owner="a:1", hash_range=own[1], status=told("idle", 7_300_000)),
        Lease(
            shard_id(3),
            at,
            owner="a:2",
            hash_range=own[2],
            status=told("failing", 0, why="noon: broke"),
            failing=Failing(7, NOW_S - 100, at, 7),
        ),
        Lease(
            shard_id(4),
            at,
            owner="a:2",
            hash_range=own[3],
            status=told("parked", 0, why="since 12:00: Kinesis does not know it"),
        ),
        Lease(shard_id(5), TRIM_HORIZON, owner="java", hash_range=own[4]),
        Lease(shard_id(6), at, owner="b:3", hash_range=own[5], status=told("idle", 0, 90)),
        Lease(shard_id(7), at, owner="a:2", checkpoint_owner="a:1", hash_range=own[6], status=told("idle", 0)),
    ]
    reports = [
        WorkerReport("a:1", NOW_S - 5, mld={"version": "0.2.0"}, samples={"C": (42.0,)}, ranges={"C": (100,)}),
        WorkerReport("a:2", NOW_S - 8, mld={"version": "0.2.0"}),
        WorkerReport("b:3", NOW_S - 80, mld={"version": "0.2.0"}),
    ]
    lock = LockRow("a:2", 120.0, "v")
    return fleet_status(leases, reports, lock, NOW_S, ViewRules(10.0), corrupt=[])


def faults_in(status: FleetStatus) -> tuple[FleetFault, ...]:
    return faults_of(FleetSight(fleet=status, file="app"))


def printed(listing: Listing, monkeypatch: pytest.MonkeyPatch) -> str:
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    printing.print_listing(listing)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


HOLE = (
    "no open lease covers the hash keys from 297747071055821155530452781502797185024 to "
    "340282366920938463463374607431768211455 -> mld doctor app"
)
LEASES = """\
shard                 state       owner   behind   KB/s  checkpoint     note
shardId-000000000006  stopped     b:3    unknown         …321519628402  its owner is dead -> mld workers app
shardId-000000000004  parked      a:2       0 ms         …321519628402  since 12:00: Kinesis does not know it -> mld doctor app
shardId-000000000003  failing     a:2       0 ms         …321519628402  failed 7 times without a checkpoint, noon: broke -> mld peek app 3 --at checkpoint
shardId-000000000005  unknown     java   unknown         TRIM_HORIZON   its worker does not tell -> mld lag app --probe
shardId-000000000002  lagging     a:1        2 h         …321519628402  mld lag app --watch
shardId-000000000001  processing  a:1     340 ms  512.2  …321519628402  child of 0
shardId-000000000007  idle        a:1       0 ms         …321519628402  goes to a:2
7 open shards: 1 stopped, 1 parked, 1 failing, 1 unknown, 1 lagging, 2 ok; 1 ended; furthest behind: 2 h
"""  # noqa: E501 - the lines of a wide terminal

WORKERS = """\
worker  kind       leases  share   CPU  furthest behind  last heard  note
a:1     mld 0.2.0       3    43%  42 %              2 h     2 s ago
a:2     mld 0.2.0       2    29%                   0 ms     2 s ago  leader
b:3     mld 0.2.0       1    14%                unknown    80 s ago  dead
java    unknown         1    14%                unknown   no report  of KCL 2.x, which never reports, or gone
2 live workers, 1 unknown, led by a:2
"""

LAG = """\
shard                 verdict   behind  owner  note
shardId-000000000006  stopped  unknown  b:3    its owner is dead -> mld workers app
shardId-000000000004  parked      0 ms  a:2    since 12:00: Kinesis does not know it -> mld doctor app
shardId-000000000003  failing     0 ms  a:2    failed 7 times without a checkpoint, noon: broke -> mld peek app 3 --at checkpoint
shardId-000000000005  unknown  unknown  java   its worker does not tell -> mld lag app --probe
shardId-000000000002  lagging      2 h  a:1    mld lag app --watch
shardId-000000000001  ok        340 ms  a:1    child of 0
shardId-000000000007  ok          0 ms  a:1    goes to a:2
7 open shards: 1 stopped, 1 parked, 1 failing, 1 unknown, 1 lagging, 2 ok; 1 ended; furthest behind: 2 h
"""  # noqa: E501


def test_leases(fleet: FleetStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(listings.leases_listing(fleet, fleet.open_shards, faults_in(fleet)), monkeypatch) == LEASES + HOLE


@pytest.mark.parametrize("leader", ["b:3", "gone"])
def test_a_leader_that_does_not_live_is_said_to_be_none_of_the_living(leader: str, fleet: FleetStatus) -> None:
    (words,) = listings.workers_listing(replace(fleet, leader=leader)).notes
    assert words == f"2 live workers, 1 unknown, led by {leader}, which is not among them"


def test_a_long_listing_looks_as_a_short_one(fleet: FleetStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = listings.leases_listing(fleet, fleet.open_shards, faults_in(fleet))
    short = printed(listing, monkeypatch)
    monkeypatch.setattr(printing, "ROWS_MAX", 0)
    assert printed(listing, monkeypatch) == short


def test_wide_and_hostile_characters_are_aligned_in_a_long_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "ROWS_MAX", 0)
    listing = Listing((("name", False), ("n", True)), (("日本", "1"), ("a\x1b[2J", "10")))
    assert printed(listing, monkeypatch) == "name       n\n日本       1\na\\x1b[2J  10"


def test_workers(fleet: FleetStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        printed(listings.workers_listing(fleet, general_faults(FleetSight(fleet=fleet, file="app"))), monkeypatch)
        == WORKERS + HOLE
    )


def test_lag(fleet: FleetStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(listings.lag_listing(fleet, faults_in(fleet)), monkeypatch) == LAG + HOLE


def test_a_name_cannot_break_out_of_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = fleet_status([Lease("x\x1b[2J\nfake", TRIM_HORIZON, owner="w")], [], None, NOW_S, ViewRules(10.0))
    text = printed(listings.leases_listing(evil, evil.shards), monkeypatch)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 3


def test_values_are_json(fleet: FleetStatus) -> None:
    value = json.loads(json.dumps(plain_values.fleet_value(fleet)))
    assert value["leader"] == "a:2"
    by_shard = {shard["shard"]: shard for shard in value["shards"]}
    assert by_shard[shard_id(5)]["behindSeconds"] is None
    assert by_shard[shard_id(1)]["behindSeconds"] == 0.34
    assert [worker["isAlive"] for worker in value["workers"]] == [True, True, False, None]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "unknown"), (0.0, "0 ms"), (0.34, "340 ms"), (1.0, "1 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h")]
    + [(172_800.0, "2.0 d")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_drained_worker_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [WorkerReport("b", NOW_S - 5, mld={"version": "0.2.0", "drain": "by me"})]
    drained = fleet_status([], reports, None, NOW_S, ViewRules(lease_duration_s=10.0))
    assert "drained by me" in printed(listings.workers_listing(drained), monkeypatch)


WORKER = "f2bea819-e548-4c5d-a607-dde05e93434b"
OF_A_TABLE = "shardId-00000001541626099285-f35f62ef"


@pytest.mark.parametrize(("columns", "shard", "owner"), [(200, shard_id(3), WORKER), (112, "3", "f2bea819…")])
def test_a_narrow_terminal_shows_short_ids_each_on_one_line(
    columns: int, shard: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [Lease(one, TRIM_HORIZON, owner=WORKER) for one in (shard_id(3), OF_A_TABLE)]
    status = fleet_status(leases, [], None, NOW_S, ViewRules(lease_duration_s=10.0))
    monkeypatch.setattr(printing, "PLAIN_WIDTH", columns)
    text = printed(listings.leases_listing(status, status.shards), monkeypatch)
    assert f"\n{shard} " in text and f"\n{OF_A_TABLE} " in text
    assert text.count(f" {owner} ") == 2


def test_each_row_is_one_line_of_whole_ids_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    status = fleet_status([Lease(shard_id(3), TRIM_HORIZON, owner=WORKER)], [], None, NOW_S, ViewRules(10.0))
    printing.print_wide(listings.leases_listing(status, status.shards))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"{shard_id(3)}  ") and f"  {WORKER}  " in lines[1]
    assert lines[2].startswith("1 open shards: ")


ORDERS, CLICKS = "111111111111:orders:17", "111111111111:clicks:18"


@pytest.fixture
def several() -> FleetStatus:
    left, right = ranges(2)
    at = Position(SEQUENCE)
    told = ShardStatus("idle", NOW_S - 2, 0)
    leases = [
        Lease(f"{ORDERS}:{shard_id(0)}", at, owner="a", hash_range=left, stream=ORDERS, status=told),
        Lease(f"{ORDERS}:{shard_id(1)}", at, owner="a", hash_range=right, stream=ORDERS, status=told),
        Lease(f"{CLICKS}:{shard_id(0)}", at, owner="a", hash_range=left, stream=CLICKS, status=told),
    ]
    return fleet_status(leases, [], None, NOW_S, ViewRules(10.0), labels={ORDERS: "shop", CLICKS: "clicks"})


def test_several_streams_have_a_column_and_each_its_holes(
    several: FleetStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(listings.leases_listing(several, several.shards, faults_in(several)), monkeypatch)
    assert [line.split()[:2] for line in text.splitlines()[:4]] == [
        ["stream", "shard"],
        ["clicks", shard_id(0)],
        ["shop", shard_id(0)],
        ["shop", shard_id(1)],
    ]
    assert text.splitlines()[-1].endswith("of stream clicks -> mld doctor app")
    assert printed(listings.lag_listing(several), monkeypatch).splitlines()[1].split()[0] == "clicks"


def test_streams_are_listed_with_their_identifiers(several: FleetStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(listings.streams_listing(several), monkeypatch).splitlines()
    assert lines[1].split() == ["clicks", CLICKS, "1", "1", "ok", "0", "ms", "0.0", "1"]
    assert lines[2].split() == ["shop", ORDERS, "2", "2", "ok", "0", "ms", "0.0", "0"]


def test_values_of_several_streams_name_them(several: FleetStatus) -> None:
    value = plain_values.fleet_value(several)
    assert [(one["stream"], one["streamId"], one["shard"]) for one in value["shards"]] == [
        ("clicks", CLICKS, shard_id(0)),
        ("shop", ORDERS, shard_id(0)),
        ("shop", ORDERS, shard_id(1)),
    ]
    assert len({one["key"] for one in value["shards"]}) == 3
    assert [one["stream"] for one in value["holes"]] == ["clicks"]


# --- --watch on a terminal --------------------------------------------------------------------------------------------

SCREEN_LINES, SCREEN_COLUMNS = 20, 60


class TableGoneError(MldError): ...


def screens(looks: Iterator[Listing | BaseException]) -> list[list[str]]:
    """What stood on the screen after each look."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=SCREEN_COLUMNS, height=SCREEN_LINES, highlight=False)

    async def look() -> Listing:
        outcome = next(looks)
        if isinstance(outcome, Listing):
            return outcome
        raise outcome

    with pytest.raises(asyncio.CancelledError):
        run_virtual(printing.follow(look, console))
    assert "\x1b[?1049h" in out.getvalue() and out.getvalue().endswith("\x1b[?25h\x1b[?1049l"), "left as it was"
    shown = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", one) for one in out.getvalue().split("\x1b[H")]
    return [one.rstrip().split("\n") for one in shown if one.strip()]


def test_a_watched_listing_fits_the_screen_and_stays_while_there_is_no_answer() -> None:
    rows = tuple((shard_id(number), "w" * 80) for number in range(10_000))
    long = Listing((("shard", False), ("owner", False)), rows, ("10,000 open",))
    gone = TableGoneError("the table is gone: https://x/?X-Amz-Signature=pl4nted")
    first, without, again = screens(iter((long, gone, long, asyncio.CancelledError())))
    assert first == again
    assert (len(first), first[0].rstrip(), first[1].split()) == (SCREEN_LINES, "10,000 open", ["shard", "owner"])
    assert first[2].startswith("0  ") and first[-1].rstrip() == "… and 9,983 more"
    assert re.match(r"no answer, this is as of \d\d:\d\d:\d\d: the table is gone", without[0])
    assert without[3].startswith("0  ") and len(without) == SCREEN_LINES
    assert [line for line in (*first, *without) if len(line) > SCREEN_COLUMNS] == []
    assert "pl4nted" not in "".join(without)
