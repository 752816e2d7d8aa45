"""What records make a worker ask for: pages of framed records whose schema versions a producer draws or makes up.

    python -m tests.fuzz.budgets --examples 2000     a long run; `make fuzz-producer`

Several pages of several shards go through one `SchemaPreparer` in virtual time, over a registry that answers, refuses,
fails or is slow, and a decoder that takes long for some payloads. Whatever comes:

promise   each record is delivered once, in order, decoded or as it came with the reason
calls     each shard has no more lookups than its budget allows for the time that passed
log       each shard has no more warnings than its budgets allow
time      a page waits no longer for lookups than `PAGE_LOOKUPS_S`
files     no other directory below TMPDIR is used or removed, whatever other users made there first
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mld.consumer.record_budgets import DECODING, LOOKUP_WITHOUT_RESULT, LOOKUPS, MINUTE_S, WARNINGS, RecordBudgets
from mld.core.errors import AwsError, AwsUnreachableError
from mld.core.positions import TRIM_HORIZON
from mld.core.streams import ChildBatch
from mld.core.turns import in_turns
from mld.metrics.registry import Metrics
from mld.properties.values import SchemaMode
from mld.retrieval.rawbody import page_of
from mld.schemas.decoder_process import DecoderJob
from mld.schemas.definition_files import DefinitionFiles
from mld.schemas.frame import UndecodableError
from mld.schemas.preparer import PAGE_LOOKUPS_S, SchemaPreparer
from mld.schemas.registry import LOOKUPS_AT_ONCE_MAX, SchemaRegistry
from tests.support.kpl import User, aggregate
from tests.twins.streams import VirtualClock
from tests.virtual_time import run_virtual

FIRST = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898
KNOWN = 1_000
"""Versions below this number are in the registry."""
BOMB = b"bomb"
BOMB_S = 0.5
SHARDS = ("shardId-000000000000", "shardId-000000000001")
MADE_UP = 20_000
"""Ids in one aggregate of half a megabyte."""


class Asked(NamedTuple):
    """A page of a shard. `versions` are the numbers of the schema versions that its records name."""

    shard: str
    versions: Sequence[int]
    payload: bytes
    pause_s: float
    in_one_record: bool


class Registry:
    """Knows the versions below `KNOWN`. It answers after `takes_s`; each `fails_each`th call is throttled."""

    def __init__(self, takes_s: float, fails_each: int) -> None:
        self.calls = 0
        self._takes_s = takes_s
        self._fails_each = fails_each

    async def call(self, operation: str, params: dict[str, Any], timeout_s: float, **_: Any) -> dict[str, Any]:
        self.calls += 1
        number = self.calls
        await asyncio.sleep(min(self._takes_s, timeout_s))
        if self._takes_s >= timeout_s:
            raise AwsUnreachableError(operation, "no answer")
        if self._fails_each and number % self._fails_each == 0:
            raise AwsError(operation, "ThrottlingException", "slowly")
        if int(params["SchemaVersionId"].replace("-", ""), 16) >= KNOWN:
            raise AwsError(operation, "EntityNotFoundException", "no such version")
        return {"DataFormat": "JSON", "SchemaDefinition": "{}"}


class Warnings(logging.Handler):
    """Counts lines of the log at WARNING or above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


async def decode(jobs: Sequence[DecoderJob], may_go_on: Callable[[float], bool]) -> list[bytes | UndecodableError]:
    """Take half a second for each bomb, and nothing for other payloads."""
    done: list[bytes | UndecodableError] = []
    for job in jobs:
        if base64.b64decode(job.text) != BOMB:
            done.append(job.text)
            continue
        if not may_go_on(BOMB_S):
            break
        done.append(UndecodableError("it takes too long"))
    return done


def framed(number: int, payload: bytes) -> bytes:
    return b"\x03" + (b"\x05" if payload == BOMB else b"\x00") + number.to_bytes(16) + payload


async def batch_of(asked: Asked) -> tuple[ChildBatch, list[bytes]]:
    datas = [framed(number, asked.payload) for number in asked.versions]
    puts = [aggregate([User("k", data) for data in datas])] if asked.in_one_record else datas
    records = [
        {"SequenceNumber": str(FIRST + place), "ApproximateArrivalTimestamp": 1.7e9, "PartitionKey": "k"}
        | {"Data": base64.b64encode(data).decode()}
        for place, data in enumerate(puts)
    ]
    page = page_of(json.dumps({"Records": records, "NextShardIterator": "n", "MillisBehindLatest": 0}).encode())
    batch = page.after(TRIM_HORIZON)
    await in_turns(batch.opening())
    return batch, datas


async def check(pages: Sequence[Asked], takes_s: float, fails_each: int) -> None:
    """Send the pages through one preparer, one after the other, and hold it to what the module promises."""
    clock, metrics, seen = VirtualClock(), Metrics(), Warnings()
    glue = Registry(takes_s, fails_each)
    budgets = {shard: RecordBudgets(shard, clock, metrics.begin(shard, 0.0)) for shard in SHARDS}
    registry = SchemaRegistry(glue, clock, write_file=lambda *_: None, in_thread=_not_at_all)
    preparer = SchemaPreparer(registry, clock, SchemaMode.STRIP, decode, waits=False)
    began_s = clock.monotonic()
    logger = logging.getLogger("mld")
    logger.addHandler(seen)
    try:
        for asked in pages:
            batch, datas = await batch_of(asked)
            before_s = clock.monotonic()
            prepared = await preparer.prepare(batch, budgets[asked.shard])
            assert clock.monotonic() - before_s <= PAGE_LOOKUPS_S + 0.001
            records = json.loads(b"".join(prepared.line()))["records"]
            assert len(records) == len(datas)
            for record, data in zip(records, datas, strict=True):
                given = base64.b64decode(record["data"])
                assert given == data if record.get("schemaError") else given == asked.payload
            await asyncio.sleep(asked.pause_s)
    finally:
        logger.removeHandler(seen)
    minutes = (clock.monotonic() - began_s) / MINUTE_S
    unknown = {number for asked in pages for number in asked.versions if number >= KNOWN}
    dear = LOOKUPS.tokens * (1 + minutes) / LOOKUP_WITHOUT_RESULT
    ways = len({asked.shard for asked in pages})
    if len(unknown) > dear and not fails_each and takes_s < 1:
        named = len({number for asked in pages for number in asked.versions})
        assert glue.calls <= ways * (dear + LOOKUPS_AT_ONCE_MAX) + min(
            named - len(unknown), ways * LOOKUPS.tokens * (1 + minutes)
        )
    assert glue.calls <= ways * (LOOKUPS.tokens * (1 + minutes) + LOOKUPS_AT_ONCE_MAX)
    assert seen.count <= ways * (WARNINGS.tokens * (1 + minutes) + 4 * (1 + minutes))
    await registry.close()


async def _not_at_all(*_: object) -> None:
    return None


# --- named attacks ----------------------------------------------------------------------------------------------------


def check_made_up_ids(count: int = MADE_UP) -> None:
    """One record with many ids that the registry does not have, and an ordinary record of the other shard after it."""
    hostile = Asked(SHARDS[0], range(KNOWN, KNOWN + count), b"{}", 0.0, in_one_record=True)
    ordinary = Asked(SHARDS[1], [1], b"{}", 0.0, in_one_record=False)

    async def story() -> None:
        clock, metrics = VirtualClock(), Metrics()
        glue = Registry(0.02, 0)
        registry = SchemaRegistry(glue, clock, write_file=lambda *_: None, in_thread=_not_at_all)
        preparer = SchemaPreparer(registry, clock, SchemaMode.STRIP, decode, waits=False)
        began_s = clock.monotonic()
        for asked in (hostile, ordinary):
            batch, datas = await batch_of(asked)
            budgets = RecordBudgets(asked.shard, clock, metrics.begin(asked.shard, 0.0))
            records = json.loads(b"".join((await preparer.prepare(batch, budgets)).line()))["records"]
            found = [base64.b64decode(one["data"]) for one in records]
            assert found == (datas if asked is hostile else [b"{}"])
        assert glue.calls <= LOOKUPS.tokens / LOOKUP_WITHOUT_RESULT + LOOKUPS_AT_ONCE_MAX
        assert clock.monotonic() - began_s < 1.0
        assert set(metrics.spent_budgets(clock.wall())) == {hostile.shard}
        await registry.close()

    run_virtual(story())


def check_bombs(count: int = 5_000) -> None:
    """One page of payloads that each take the decoder half a second."""
    spent: list[float] = []

    async def counting(
        jobs: Sequence[DecoderJob], may_go_on: Callable[[float], bool]
    ) -> list[bytes | UndecodableError]:
        return await decode(jobs, lambda seconds: bool(spent.append(seconds)) or may_go_on(seconds))

    async def story() -> None:
        clock = VirtualClock()
        registry = SchemaRegistry(Registry(0.02, 0), clock, write_file=lambda *_: None, in_thread=_not_at_all)
        preparer = SchemaPreparer(registry, clock, SchemaMode.STRIP, counting, waits=False)
        batch, datas = await batch_of(Asked(SHARDS[0], [1] * count, BOMB, 0.0, in_one_record=True))
        budgets = RecordBudgets(SHARDS[0], clock, Metrics().begin(SHARDS[0], 0.0))
        records = json.loads(b"".join((await preparer.prepare(batch, budgets)).line()))["records"]
        assert [base64.b64decode(one["data"]) for one in records] == datas
        assert sum(spent) <= DECODING.tokens + BOMB_S
        await registry.close()

    run_virtual(story())


def check_directories_made_first() -> None:
    """Every name that a local user can foresee is taken, by whatever may have a name."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        foreseen = [f"mld-schemas-{os.getuid()}{end}" for end in ("", "-", "-0", "-link", "-file", "-fifo")]
        for path in (place / one for one in foreseen[:3]):
            path.mkdir(0o755)
        (place / foreseen[3]).symlink_to("/")
        (place / foreseen[4]).touch()
        os.mkfifo(place / foreseen[5])
        files = DefinitionFiles(place)
        files.sweep()
        written = Path(files.write("version", "{}") or "")
        assert written.read_text() == "{}"
        assert written.parent.parent == place and written.parent.name not in foreseen
        assert written.parent.stat().st_mode & 0o777 == 0o700
        files.close()
        assert sorted(one.name for one in place.iterdir()) == sorted(foreseen)


# --- drawn ------------------------------------------------------------------------------------------------------------

_numbers = st.integers(0, 5) | st.integers(0, KNOWN - 1) | st.integers(KNOWN, 2**128 - 1)
_versions = (
    st.lists(_numbers, min_size=1, max_size=40)
    | st.builds(lambda start, count: range(start, start + count), st.sampled_from([0, KNOWN]), st.integers(1, 400))
    | st.builds(lambda number, count: [number] * count, _numbers, st.integers(1, 700))
)
pages = st.lists(
    st.builds(
        Asked,
        st.sampled_from(SHARDS),
        _versions,
        st.sampled_from([b"", b"{}", BOMB]),
        st.sampled_from([0.0, 0.5, 61.0, 600.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


def run(examples: int, *, derandomize: bool) -> None:
    """Draw so many stories; raise for the smallest that breaks a promise."""

    @settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(pages, st.sampled_from([0.0, 0.02, 3.0, 60.0]), st.sampled_from([0, 1, 3]))
    def trial(asked: list[Asked], takes_s: float, fails_each: int) -> None:
        run_virtual(check(asked, takes_s, fails_each))

    trial()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.budgets", description=__doc__)
    parser.add_argument("--examples", type=int, default=500, help="stories to draw (default %(default)s)")
    arguments = parser.parse_args()
    logging.getLogger("mld").addHandler(logging.NullHandler())
    logging.getLogger("mld").propagate = False
    began = time.monotonic()
    for attack in (check_made_up_ids, check_bombs, check_directories_made_first):
        attack()
    run(arguments.examples, derandomize=False)
    took_s = time.monotonic() - began
    print(f"3 attacks and {arguments.examples} drawn stories of budgets in {took_s:.0f} s: nothing found", flush=True)


if __name__ == "__main__":
    main()
