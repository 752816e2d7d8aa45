"""Rows that anybody may have written: any attribute of any row that we read, with any value that DynamoDB takes.

Three checks. `check_row` takes a row through the whole way of reading, by our decoding and by botocore's, and through
what is decided and written because of it: the row is read, or named as corrupt, and hides no other. `check_fleet` puts
such rows into the table of a fleet at work, which renews, assigns or takes, audits, watches, and in the end leaves.
`check_streams` damages the list of streams of a fleet with several. The attributes of ours are those that are declared.

    python -m tests.fuzz.rows --examples 200000 --fleets 2000     a long run; `make fuzz-rows`
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import botocore.parsers
import botocore.session
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mld.aws.wire.json_bodies import decode_answer, encode_params
from mld.consumer.checkpoint_range import CheckpointRange
from mld.core.errors import StartupError
from mld.core.positions import SHARD_END
from mld.core.steps import at_once
from mld.core.stillness import Stillness
from mld.core.stream_ids import StreamId
from mld.fleet.leader import lock
from mld.fleet.migrate import states
from mld.fleet.migrate.states import CLIENT_VERSION, TABLE_MIGRATION, Kind, UnreadableStateError
from mld.fleet.report import reports
from mld.fleet.report.reports import ReportRules
from mld.leases import rows, writes
from mld.leases.own_attribute import OwnAttribute
from mld.leases.rows import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, REPORTS_TABLE_KEY, Place
from mld.leases.throughput import Throughput
from mld.leases.write_request import request_of
from mld.metrics.events import Event, EventKind, pack
from mld.metrics.identity import Identity
from mld.operating import listings, plain_values
from mld.operating.events import KEY
from mld.operating.faults import PAUSE_HOLD_S
from mld.operating.fleet_reader import status_steps, view_rules
from mld.operating.fleet_sight import FleetSight
from mld.operating.fleet_status import FleetStatus
from mld.operating.plan import raw_table
from mld.operating.verdicts import faults_of
from mld.properties.scrubber import Scrubber
from mld.serving.alert_book import AlertBook, Post
from mld.serving.alert_post import document
from mld.tracking import stream_list
from mld.tracking.stream_list import ListedStream, TrackedList
from tests.support.chats import ATTACKS, acted_on, texts_in
from tests.support.declared import own_attributes
from tests.support.fleet import TABLE, fleet, settings_of
from tests.support.many import many_fleet
from tests.virtual_time import run_virtual

Row = dict[str, dict[str, Any]]

DIGITS_MAX = 38  # of a DynamoDB number
MESSAGE_MAX = 3000  # a key of 2 KB and a short reason
POST_BYTES_MAX = 400_000
"""Of 20 faults, each with names of 128 and a reason of 300 characters, in JSON's ASCII."""
ME = Identity("clicks", "clicks-stream", "w1", "0.3")
RULES = ReportRules()
NOW_S = 1_700_000_000
SEQUENCE = "49039857314204006299212589664082056738427629321519628402"

# --- values -----------------------------------------------------------------------------------------------------------


def _number(digits: int, exponent: int, sign: str) -> str:
    return f"{sign}{digits}" if exponent == 0 else f"{sign}{digits}E{exponent:+d}"


numbers = st.one_of(
    st.integers(-2, 12).map(str),
    st.sampled_from(["1E+22", "1E+125", "-1E+125", "1E-130", "9" * DIGITS_MAX, "0.5", "9223372036854775808", "1E+18"]),
    st.builds(
        _number,
        st.integers(1, 10**DIGITS_MAX - 1),
        st.integers(-130, 125 - DIGITS_MAX),
        st.sampled_from(["", "-"]),
    ),
)
texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "LATEST", "SHARD_END", "TRIM_HORIZON", "AT_TIMESTAMP", "0", "-1", "1e5", "w1", "ghost", "LEASE"]
    ),
    st.sampled_from(
        ["WORKER_METRIC_STATS", "LEADER", "LEASE", "CLIENT_VERSION_3X", "fenced by w9", "0" * 16 + ".7", SEQUENCE]
    ),
    st.sampled_from(["9" * 128, "9" * 129, "9" * 130, "9" * 5000, "x" * 9000, "٣" * 20, "1_000", "\x00", "1" * 40]),
    st.sampled_from([*ATTACKS, *(f"failing {attack}" for attack in ATTACKS)]),
    st.builds(lambda c, n: c * n, st.characters(codec="utf-8"), st.integers(1, 5000)),
)
binaries = st.binary(max_size=40)
plain = st.one_of(
    texts.map(lambda text: {"S": text}),
    numbers.map(lambda number: {"N": number}),
    binaries.map(lambda data: {"B": data}),
    st.booleans().map(lambda flag: {"BOOL": flag}),
    st.just({"NULL": True}),
    st.sets(texts, min_size=1, max_size=4).map(lambda found: {"SS": sorted(found)}),
    st.lists(numbers, min_size=1, max_size=4, unique=True).map(lambda found: {"NS": found}),
    st.sets(binaries, min_size=1, max_size=3).map(lambda found: {"BS": sorted(found)}),
)
members = st.sampled_from(["C", "cv", "mb", "mts", "M", "S", "B", "THROUGHPUT", ""])
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda found: {"L": found}),
        st.dictionaries(
            st.sampled_from(["C", "cv", "mb", "mts", "M", "S", "B", "THROUGHPUT", ""]), inner, max_size=4
        ).map(lambda found: {"M": found}),
    ),
    max_leaves=8,
)

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2**64), st.floats(), texts.filter(lambda text: len(text) < 99)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["label", "x"]), inner)),
    max_leaves=4,
)


@st.composite
def near(draw: st.DrawFn, attribute: OwnAttribute[object]) -> dict[str, Any]:
    """A value that differs in one place from one that mld writes: only such values come past the first look."""
    example = attribute.example
    if attribute.kind == "M":
        return {"M": {**example, draw(st.sampled_from(sorted(example))): draw(values)}}
    if not isinstance(example, str) or example[:1] not in ("[", "{"):
        return draw(values)
    if draw(st.integers(0, 9)) == 0:
        return {"S": draw(st.sampled_from(["[" * 100_000, '{"a":' * 100_000, example[:-1], example * 2]))}
    document: Any = json.loads(example)
    places = list(_places(document))
    inside, name = draw(st.sampled_from(places))
    inside[name] = draw(json_values)
    return {"S": json.dumps(document)}


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    for name, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield document, name
        if isinstance(value, dict | list):
            yield from _places(value)


OWN = own_attributes()

# --- rows -------------------------------------------------------------------------------------------------------------

LEASE: Row = {
    "leaseKey": {"S": "shardId-000000000003"},
    "leaseCounter": {"N": "7"},
    "leaseOwner": {"S": "w1"},
    "checkpointOwner": {"S": "w2"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": SEQUENCE},
    "checkpointSubSequenceNumber": {"N": "0"},
    "pendingCheckpoint": {"S": SEQUENCE},
    "pendingCheckpointSubSequenceNumber": {"N": "1"},
    "pendingCheckpointState": {"B": b"state"},
    "parentShardId": {"SS": ["shardId-000000000001"]},
    "childShardIds": {"SS": ["shardId-000000000009"]},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "170141183460469231731687303715884105727"},
    "throughputKBps": {"N": "12.5"},
    "entityType": {"S": "LEASE"},
    "mldHeartbeat": {"S": "0" * 16},
}
REPORT: Row = {
    "leaseKey": {"S": "ghost"},
    "entityType": {"S": "WORKER_METRIC_STATS"},
    "lut": {"N": str(NOW_S)},
    "sts": {"M": {"C": {"L": [{"N": "12.5"}, {"N": "-1.0"}, {"N": "40.0"}]}}},
    "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
    "sup": {"N": "1"},
    "slu": {"N": str(NOW_S)},
    "mldVersion": {"S": "0.1"},
    "mldHeartbeat": {"S": "0" * 16 + ".7"},
}
LISTED = ListedStream("111111111111:a:9", "a", "arn:aws:kinesis:us-east-1:111111111111:stream/a", 9_000)
LIST: Row = {"leaseKey": {"S": stream_list.KEY}, **stream_list.values_of(TrackedList(7, (LISTED,)))}
EVENTS: Row = {
    "leaseKey": {"S": KEY},
    "entityType": {"S": "LEADER"},
    "events": {"B": pack((Event(EventKind.FAILED, "x", "shardId-0", "w1", NOW_S, ("trace",)),))},
    "alerts": {"SS": ["failing shardId-0"]},
}
LOCK: Row = {
    "leaseKey": {"S": "Leader"},
    "entityType": {"S": "LEADER"},
    "ownerName": {"S": "ghost"},
    "leaseDuration": {"S": "120000"},
    "recordVersionNumber": {"S": "5e5d"},
    "isReleased": {"S": "0"},
    "data": {"B": b""},
}
STATE: Row = {
    "leaseKey": {"S": "Migration3.0"},
    "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
    "cv": {"S": "CLIENT_VERSION_3X"},
    "mb": {"S": "w1"},
    "mts": {"N": "1700000000000"},
    "h": {"L": [{"M": {"cv": {"S": "CLIENT_VERSION_INIT"}, "mb": {"S": "w1"}, "mts": {"N": "1"}}}]},
}
MIGRATION: Row = {
    "key": {"S": "TableMigration3.5"},
    "tm": {"S": "TABLE_MIGRATION_STATUS_INIT"},
    "mb": {"S": "w1"},
    "mts": {"N": "1700000000000"},
    "h": {"L": [{"M": {"tm": {"S": "TABLE_MIGRATION_STATUS_INIT"}}}]},
}


@st.composite
def damaged(draw: st.DrawFn, row: Row, keys: tuple[str, ...] = (LEASE_TABLE_KEY, "key", "wid")) -> Row:
    """`row` with some attributes replaced, dropped or added, ours among them; the key stays."""
    names = {name for name in row if name not in keys} | {one.name for one in OWN} | {"unknown"}
    result = dict(row)
    for name in draw(st.lists(st.sampled_from(sorted(names)), min_size=1, max_size=4, unique=True)):
        declared = [near(one) for one in OWN if one.name == name]
        if draw(st.integers(0, 7)) == 0:
            result.pop(name, None)
        else:
            result[name] = draw(st.one_of(values, *declared))
    return result


# --- one row ----------------------------------------------------------------------------------------------------------


def check_lease(row: Row) -> None:
    try:
        lease = rows.parse_row(row)
    except rows.CorruptRowError as error:
        assert len(str(error)) < MESSAGE_MAX
        return
    if lease is None:
        return
    Throughput(lease.throughput_kbps, 3.3).sample_kbps()
    assert lease.checkpoint <= SHARD_END
    if lease.failing is not None:
        assert 1 <= lease.failing.failures <= rows.FAILURES_KEPT_MAX
        assert rows.parse_row({**row, rows.FAILING: rows.failing_value(lease.failing)}) == lease
    CheckpointRange.starting_at(lease.checkpoint).resolve(lease.checkpoint.sequence, lease.checkpoint.sub)
    ours = replace(lease, owner="me", checkpoint_owner=None)
    for write in (
        writes.renew(ours),
        writes.checkpoint(ours, lease.checkpoint),
        writes.take(lease, "me"),
        writes.assign(lease, "me"),
        writes.assign_expired(lease, "me"),
        writes.release(ours),
    ):
        assert all(len(number.strip("-")) <= DIGITS_MAX for number in _numbers_in(request_of(write)[1]))


def _numbers_in(request: Mapping[str, Any]) -> Iterator[str]:
    for value in request["ExpressionAttributeValues"].values():
        if "N" in value:
            yield value["N"].split(".")[0]


def check_report(row: Row) -> None:
    legacy = {**row, REPORTS_TABLE_KEY: row[LEASE_TABLE_KEY]}
    for key, item in ((LEASE_TABLE_KEY, row), (REPORTS_TABLE_KEY, legacy)):
        healthy = {**REPORT, key: {"S": "healthy"}}
        found = reports.parse_rows([item, healthy], key)
        assert "healthy" in {report.worker for report in found.reports}, "one corrupt row hides another"
        assert all(len(reason) < MESSAGE_MAX for _, reason in found.corrupt)
        reports.sort_out(found.reports, NOW_S, RULES)
        for report in found.reports:
            for samples in report.samples.values():
                reports.average(samples, RULES.ema_alpha)
    rows.heartbeats_in([row])


def check_lock(row: Row) -> None:
    place = Place(TABLE, LEASE_TABLE_KEY)
    seen = lock.parse_lock(row)
    lock.claim(place, seen, "me", "v2")
    lock.judge(seen, Stillness(), lock.Versions("me"), 0.0)


def check_state(row: Row) -> None:
    _check_state_of(CLIENT_VERSION, row, Place(TABLE, LEASE_TABLE_KEY))


def check_migration(row: Row) -> None:
    _check_state_of(TABLE_MIGRATION, row, Place("coordinator", COORDINATOR_TABLE_KEY))


def _check_state_of(kind: Kind[Any], row: Row, place: Place) -> None:
    try:
        read = states.parse_state(kind, row, place)
    except UnreadableStateError as error:
        assert len(str(error)) < MESSAGE_MAX
        return
    states.item_of(states.advanced(read, read.state, "me", NOW_S * 1000), place)


def check_list(row: Row) -> None:
    found = stream_list.parse(row)
    stream_list.labels_of(found)
    stream_list.without(found, found.newest().keys() and [found.streams[0].stream])
    written = stream_list.next_list(found, [LISTED], [StreamId("2", "b", 1)], NOW_S)
    assert written is not None
    assert stream_list.parse(stream_list.values_of(written)) == written
    assert set(stream_list.unchanged(written.seen)["ExpressionAttributeNames"].values()) == set(stream_list.FIELDS)


VIEW = view_rules(settings_of())


def check_seen(row: Row) -> None:
    """What the commands that look at a fleet show of a table with this row."""
    scan = raw_table([{**LEASE, "leaseKey": {"S": "healthy"}}, row]).scan
    status = at_once(status_steps)(scan, float(NOW_S), VIEW)
    assert "healthy" in {shard.key for shard in status.shards}
    json.dumps(plain_values.fleet_value(status))
    for made in (listings.leases_listing(status, status.shards), listings.workers_listing(status)):
        assert all(isinstance(cell, str) for cells in made.rows for cell in cells)
    listings.lag_listing(status)
    listings.streams_listing(status)
    listings.events_listing(status.events)
    for post in _posts(status):
        told = document(post, ME, float(NOW_S), Scrubber(), with_details=True)
        runbook = told["runbook"]
        assert not [found for text in texts_in(told) for found in acted_on(text, (runbook,))], told
        assert len(json.dumps(told)) < POST_BYTES_MAX
    json.dumps([plain_values.event_value(one) for one in status.events])


def _posts(status: FleetStatus) -> list[Post]:
    """What is posted to the webhook because of the table, also of alerts that it says were raised."""
    book, found = AlertBook(status.alerts), faults_of(FleetSight(fleet=status, file="app.properties"))
    book.due(found, 0.0)
    return book.due(found, PAUSE_HOLD_S)


CHECKS: tuple[tuple[Row, Callable[[Row], None]], ...] = (
    (LEASE, check_lease),
    (REPORT, check_report),
    (LOCK, check_lock),
    (STATE, check_state),
    (MIGRATION, check_migration),
    (LIST, check_list),
    *((row, check_seen) for row in (LEASE, REPORT, LOCK, LIST, EVENTS)),
)
one_row = st.one_of(*(damaged(row).map(lambda found, check=check: (found, check)) for row, check in CHECKS))


@lru_cache(maxsize=1)
def _shape() -> Any:
    return botocore.session.Session().get_service_model("dynamodb").operation_model("GetItem").output_shape


def decoded(row: Row) -> Row:
    """The row as it comes out of an answer, which our decoding and botocore's read alike."""
    body = encode_params({"Item": row})
    item: Row = decode_answer(body)["Item"]
    parser = botocore.parsers.create_parser("json")
    theirs = parser.parse({"body": body, "headers": {}, "status_code": 200}, _shape())["Item"]
    assert item == theirs
    return item


def check_row(found: tuple[Row, Callable[[Row], None]]) -> None:
    row, check = found
    check(decoded(row))


# --- a fleet at work --------------------------------------------------------------------------------------------------

SETTLED_S = 45.0
DAMAGED_LOCK_S = 180.0  # a lock that cannot be read is replaced after 120 s; until then nobody assigns what is free
WATCHED_S = 180.0  # a start watches a worker of another application for 120 s, to see whether it lives
HEALTHY = tuple(f"shardId-{number:012d}" for number in range(3))
MODES = {
    "2x": {},
    "3x": {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"},
}
planted = st.lists(
    st.one_of(
        damaged(LEASE),
        damaged({**LEASE, "leaseKey": {"S": "stray"}}),
        damaged(REPORT),
        damaged({**REPORT, "leaseKey": {"S": "w2"}}),
        damaged(LOCK),
        damaged(STATE),
    ),
    min_size=1,
    max_size=4,
)
fleets = st.tuples(st.sampled_from(sorted(MODES)), planted, st.booleans())


class _Ears(logging.Handler):
    """Hears of what was survived, and of every trace."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or getattr(record, "action", "") in ("unexpected", "loop_failed", "consumer_failed"):
            self.heard.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


@contextmanager
def _listening() -> Iterator[_Ears]:
    ears, logger = _Ears(), logging.getLogger("mld")
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(ears)
    try:
        yield ears
    finally:
        logger.removeHandler(ears)
        logger.propagate = propagates


def check_fleet(drawn: tuple[str, list[Row], bool]) -> None:
    """Two workers go on with three healthy shards, whatever else is in the table, before one leaves and after it."""
    mode, rows_, before_start = drawn

    async def story() -> None:
        async with fleet(len(HEALTHY) + 1, **MODES[mode]) as world:
            first = world.start("w1")
            await world.until(lambda: world.dynamo.has_table(TABLE) and len(first.worker.held()) == 4, 30)
            if before_start:
                await first.stop()
            for row in rows_:
                world.dynamo.put_row(TABLE, _planted(decoded(row), world.dynamo.row(TABLE, _key(row))))
            second = world.start("w2", seed=2)
            await world.advance(_settled_s(rows_))
            if second.task.done():  # a foreign table, or a fleet in an unknown state
                assert isinstance(second.task.exception(), StartupError), second.task.exception()
                return
            world.put(12)
            owned = {key for key in HEALTHY if (lease := world.lease(key)) is not None and lease.owner is not None}
            assert not ears.heard, ears.heard
            assert owned == set(HEALTHY), f"nobody works on {set(HEALTHY) - owned}"
            await first.stop() if not before_start else None
            await world.advance(30)
            assert set(second.worker.held()) >= set(HEALTHY), second.worker.held()
            await second.stop()
            assert not ears.heard, ears.heard
            for running in (first, second):
                assert running.worker.failure is None, running.worker.failure

    with _listening() as ears:
        run_virtual(story())


def _settled_s(planted_rows: list[Row]) -> float:
    """How long the second worker may take until all healthy shards have an owner."""
    if any("mldStream" in row for row in planted_rows):
        return WATCHED_S
    return DAMAGED_LOCK_S if "Leader" in map(_key, planted_rows) else SETTLED_S


def _planted(row: Row, before: Row | None) -> Row:
    """What is there, with what was damaged: the rest must fit the stream, else the table is refused as foreign."""
    if before is None:
        return row
    changed = {name: value for name, value in row.items() if LEASE.get(name) != value}
    return {name: value for name, value in {**before, **changed}.items() if name in row or name not in LEASE}


def _key(row: Row) -> str:
    text: str = row[LEASE_TABLE_KEY]["S"]
    return text


lists = st.tuples(damaged(LIST), st.booleans())


def check_streams(drawn: tuple[Row, bool]) -> None:
    """Whatever the list of streams says, workers go on, new ones start, and the list is a list again."""
    row, before_start = drawn

    async def story() -> None:
        async with many_fleet("a", "b") as world:
            first = world.start("w1")
            await world.until(lambda: len(world.rows()) == 2 and len(first.worker.held()) == 2, 30)
            keys = set(world.rows())
            if before_start:
                await first.stop()
            there = world.dynamo.row(TABLE, stream_list.KEY) or {}
            changed = {name: value for name, value in decoded(row).items() if LIST.get(name) != value}
            kept = {name: value for name, value in there.items() if name in row}
            world.dynamo.put_row(TABLE, {**kept, **changed})
            second = world.start("w2", seed=2)
            await world.advance(SETTLED_S)
            world.put_in("a", 3)
            world.put_in("b", 3)
            await world.until(world.all_delivered, 90.0)
            written = stream_list.parse(world.dynamo.row(TABLE, stream_list.KEY) or {})
            assert {one.stream for one in written.streams if one.former_since_s is None} == {
                key.rpartition(":")[0] for key in keys
            }
            assert set(world.rows()) == keys
            for running in (first, second):
                assert running.worker.failure is None, running.worker.failure
            assert not ears.heard, ears.heard

    with _listening() as ears:
        run_virtual(story())


# --- long runs --------------------------------------------------------------------------------------------------------


def run(examples: int, drawn: st.SearchStrategy[Any], check: Callable[[Any], None], *, derandomize: bool) -> None:
    """So many examples; raises what fails, a row as small as can be; to shrink a fleet takes too long."""
    phases = [Phase.generate] if drawn in (fleets, lists) else [Phase.generate, Phase.shrink]
    limits = settings(
        max_examples=examples,
        deadline=None,  # a slow machine is no finding; outside of pytest nothing else says so
        derandomize=derandomize,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    limits(given(drawn)(check))()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.rows")
    parser.add_argument("--examples", type=int, default=20_000, help="single rows (default %(default)s)")
    parser.add_argument("--fleets", type=int, default=200, help="fleets with such rows (default %(default)s)")
    arguments = parser.parse_args()
    for what, count, drawn, check in (
        ("rows", arguments.examples, one_row, check_row),
        ("fleets", arguments.fleets, fleets, check_fleet),
        ("lists", arguments.fleets, lists, check_streams),
    ):
        began = time.monotonic()
        run(count, drawn, check, derandomize=False)
        print(json.dumps({what: count, "seconds": round(time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    main()
