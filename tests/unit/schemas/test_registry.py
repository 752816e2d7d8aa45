"""Lookups of schema versions, and batches that wait for them, over a scripted Glue in virtual time."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mld.consumer.parts import JoinedBatch, records_of
from mld.consumer.record_budgets import RecordBudgets
from mld.core.errors import AwsError, AwsUnreachableError, BudgetSpentError, SchemaUnknownError, SchemaUnreachableError
from mld.core.positions import TRIM_HORIZON
from mld.core.streams import ChildBatch
from mld.metrics.instruments import Tally
from mld.metrics.registry import Metrics
from mld.properties.values import SchemaMode
from mld.retrieval.rawbody import page_of
from mld.schemas import preparer
from mld.schemas.decoder_process import DecoderJob
from mld.schemas.definition_files import DefinitionFiles
from mld.schemas.frame import UndecodableError
from mld.schemas.preparer import PAGE_LOOKUPS_S, RETRY_FIRST_S, SchemaPreparer
from mld.schemas.registry import KEPT_S, NEGATIVE_S, NO_ANSWER_S, VERSIONS_MAX, KeptVersion, SchemaRegistry
from tests.twins.decoding import decode_here
from tests.twins.streams import VirtualClock
from tests.virtual_time import virtual

ID = "00112233-4455-6677-8899-aabbccddeeff"
FRAMED = bytes.fromhex("030000112233445566778899aabbccddeeff7b2261223a317d")
ARN = "arn:aws:glue:eu-west-1:123456789012:schema/r/orders"
ANSWER = {"SchemaVersionId": ID, "SchemaArn": ARN, "DataFormat": "JSON", "SchemaDefinition": "{}"}
UNKNOWN = AwsError("GetSchemaVersion", "EntityNotFoundException", "not found")


class ScriptedGlue:
    """Answers in order, each after `takes_s`; the last answer for ever."""

    def __init__(self, *answers: Any, takes_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.takes_s = takes_s
        self.asked: list[str] = []

    async def call(self, operation: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert operation == "GetSchemaVersion"
        self.asked.append(params["SchemaVersionId"])
        await asyncio.sleep(self.takes_s)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def registry(glue: ScriptedGlue, folder: Path, size: int = 200) -> SchemaRegistry:
    async def at_once(write: Any, *what: Any) -> Any:
        return write(*what)

    return SchemaRegistry(glue, VirtualClock(), size=size, write_file=DefinitionFiles(folder).write, in_thread=at_once)


def shard(metrics: Metrics | None = None, key: str = "shard") -> RecordBudgets:
    return RecordBudgets(key, VirtualClock(), (metrics or Metrics()).begin(key, 0.0))


async def version(found: SchemaRegistry, version_id: str = ID, of: RecordBudgets | None = None) -> KeptVersion:
    """Look up one version. Raises the error that is the answer."""
    answer = (await found.versions([version_id], (of or shard()).lookups, 60.0))[version_id]
    if not isinstance(answer, KeptVersion):
        raise answer
    return answer


class Prepared:
    """Strips, and delivers what it cannot."""

    def __init__(self, glue: ScriptedGlue, folder: Path, clock: VirtualClock | None = None, **more: Any) -> None:
        self.metrics = Metrics()
        self.budgets = shard(self.metrics)
        options = {"decode": decode_here, "waits": False, **more}
        self._preparer = SchemaPreparer(registry(glue, folder), clock or VirtualClock(), SchemaMode.STRIP, **options)

    async def prepare(self, given: ChildBatch) -> ChildBatch:
        return await self._preparer.prepare(given, self.budgets)


def batch(*datas: bytes) -> ChildBatch:
    records = [
        {
            "Data": base64.b64encode(data).decode(),
            "PartitionKey": "p",
            "SequenceNumber": str(100 + number),
            "ApproximateArrivalTimestamp": 1.7e9,
        }
        for number, data in enumerate(datas)
    ]
    page = page_of(json.dumps({"Records": records, "NextShardIterator": "n", "MillisBehindLatest": 5}).encode())
    assert page.bears_frames is any(data[:2] in (b"\x03\x00", b"\x03\x05") for data in datas)
    return page.after(TRIM_HORIZON)


def records_in(given: ChildBatch) -> list[dict[str, Any]]:
    return json.loads(b"".join(given.line()))["records"]


@virtual
async def test_a_version_is_asked_for_once_and_again_after_its_time(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER, takes_s=0.5)
    found = registry(glue, tmp_path)
    answers = await asyncio.gather(*(version(found) for _ in range(5)))
    assert len(glue.asked) == 1
    file = answers[0].schema_file
    assert answers[0].found.name == "orders"
    assert file is not None
    assert Path(file).read_text() == "{}"
    assert Path(file).parent.stat().st_mode & 0o777 == 0o700
    assert Path(file).stat().st_mode & 0o777 == 0o600
    await asyncio.sleep(KEPT_S - 1)
    await version(found)
    assert len(glue.asked) == 1
    await asyncio.sleep(2)
    await version(found)
    assert len(glue.asked) == 2


@virtual
async def test_an_unknown_id_is_not_asked_for_again_for_a_minute(tmp_path: Path) -> None:
    glue = ScriptedGlue(UNKNOWN, UNKNOWN, ANSWER)
    found = registry(glue, tmp_path)
    for _ in range(3):
        with pytest.raises(SchemaUnknownError, match=ID):
            await version(found)
    assert len(glue.asked) == 1
    await asyncio.sleep(NEGATIVE_S + 1)
    with pytest.raises(SchemaUnknownError):
        await version(found)
    await asyncio.sleep(NEGATIVE_S + 1)
    assert (await version(found)).found.name == "orders"


@pytest.mark.parametrize(
    "error",
    [
        AwsError("GetSchemaVersion", "AccessDeniedException", "no"),
        AwsError("GetSchemaVersion", "ThrottlingException", "slowly"),
        AwsUnreachableError("GetSchemaVersion", "no answer"),
        {"SchemaDefinition": "{}"},
        RuntimeError("a bug"),
    ],
)
@virtual
async def test_what_is_no_answer_is_asked_again_after_some_seconds(tmp_path: Path, error: Any) -> None:
    glue = ScriptedGlue(error, ANSWER)
    found = registry(glue, tmp_path)
    for _ in range(3):
        with pytest.raises(SchemaUnreachableError):
            await version(found)
    assert len(glue.asked) == 1, "a page of such records waits for one answer"
    await asyncio.sleep(NO_ANSWER_S + 1)
    assert (await version(found)).found.name == "orders"


@virtual
async def test_a_version_outlives_its_time_while_the_registry_is_out(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER, AwsUnreachableError("GetSchemaVersion", "no answer"), UNKNOWN)
    found = registry(glue, tmp_path)
    await version(found)
    await asyncio.sleep(KEPT_S + 1)
    assert (await version(found)).found.name == "orders"
    await asyncio.sleep(NO_ANSWER_S + 1)
    with pytest.raises(SchemaUnknownError):
        await version(found)
    assert len(glue.asked) == 3


@virtual
async def test_unknown_ids_do_not_drive_out_known_ones(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER, UNKNOWN)
    found = registry(glue, tmp_path, size=2)
    await version(found)
    for number in range(10):
        with pytest.raises(SchemaUnknownError):
            await version(found, f"damaged {number}")
    await version(found)
    assert glue.asked.count(ID) == 1


@virtual
async def test_a_page_that_inflates_without_end_keeps_its_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparer, "BATCH_BYTES_MAX", 3_000_000)
    bomb = b"\x03\x05" + FRAMED[2:18] + zlib.compress(bytes(1_000_000))
    found = Prepared(ScriptedGlue(ANSWER), tmp_path)
    first, second, third = records_in(await found.prepare(batch(bomb, bomb, bomb)))
    assert base64.b64decode(first["data"]) == base64.b64decode(second["data"]) == bytes(1_000_000)
    assert base64.b64decode(third["data"]) == bomb
    assert "its page inflates" in third["schemaError"]


@virtual
async def test_only_so_many_versions_are_kept(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER)
    found = registry(glue, tmp_path, size=2)
    for version_id in ("a", "b", "c", "c", "a"):
        await version(found, version_id)
    assert glue.asked == ["a", "b", "c", "a"]


@virtual
async def test_a_batch_loses_its_frames_and_keeps_everything_else(tmp_path: Path) -> None:
    prepared = Prepared(ScriptedGlue(ANSWER), tmp_path)
    given = batch(b"plain", FRAMED, b"\x03\x00short")
    found = await prepared.prepare(given)
    before, after = records_in(given), records_in(found)
    assert [base64.b64decode(one["data"]) for one in after] == [b"plain", b'{"a":1}', b"\x03\x00short"]
    assert (before[0], before[2]) == (after[0], after[2])
    assert after[1]["schemaName"] == "orders"
    assert (found.largest, found.count, found.data_bytes) == (given.largest, 3, 5 + 7 + 7)
    plain = batch(b"plain")
    assert await prepared.prepare(plain) is plain
    empty = batch()
    assert await prepared.prepare(empty) is empty


@virtual
async def test_a_record_whose_schema_is_unknown_is_delivered_as_it_came(tmp_path: Path) -> None:
    results = Tally()
    glue = ScriptedGlue(UNKNOWN, ANSWER)
    clock = VirtualClock()
    found = Prepared(glue, tmp_path, clock, results=results)
    (record,) = records_in(await found.prepare(batch(FRAMED)))
    assert results.value() == {"unknown": 1}
    await asyncio.sleep(NEGATIVE_S + 1)
    await found.prepare(batch(FRAMED, b"plain", FRAMED))
    assert results.value() == {"unknown": 1, "decoded": 2}
    assert base64.b64decode(record["data"]) == FRAMED
    assert "does not know schema version" in record["schemaError"]


@virtual
async def test_a_batch_waits_until_its_schema_is_there(tmp_path: Path) -> None:
    denied = AwsError("GetSchemaVersion", "AccessDeniedException", "no")
    clock = VirtualClock()
    glue = ScriptedGlue(denied, UNKNOWN, denied, ANSWER)
    found = Prepared(glue, tmp_path, clock, waits=True)
    began = clock.monotonic()
    (record,) = records_in(await found.prepare(batch(FRAMED)))
    assert base64.b64decode(record["data"]) == b'{"a":1}'
    assert clock.monotonic() - began > NEGATIVE_S
    waiting = asyncio.create_task(Prepared(ScriptedGlue(denied), tmp_path, clock, waits=True).prepare(batch(FRAMED)))
    await asyncio.sleep(3600)
    assert not waiting.done()
    waiting.cancel()


@pytest.mark.parametrize("versions", [1, 10])
@virtual
async def test_a_page_waits_once_for_a_registry_that_answers_again(tmp_path: Path, versions: int) -> None:
    """Its records are rewritten fifty at a time; each fifty waited for itself, with the answers of the outage."""
    clock = VirtualClock()
    silent = AwsUnreachableError("GetSchemaVersion", "gone")
    found = Prepared(ScriptedGlue(*[silent] * versions, ANSWER), tmp_path, clock, waits=True)
    began = clock.monotonic()
    datas = [framed(number * versions // 500) for number in range(500)]
    after = records_in(await found.prepare(batch(*datas)))
    assert not any("schemaError" in one for one in after)
    assert clock.monotonic() - began == pytest.approx(RETRY_FIRST_S * (1 + 2 + 4 + 8))  # the first after NO_ANSWER_S


@pytest.mark.parametrize("count", [1, 9, 40, 500])
@pytest.mark.parametrize("framed", [(0,), (3,), (-1,), (0, 1), (2, 5, -1)])
@virtual
async def test_few_framed_records_are_replaced_among_the_others(
    tmp_path: Path, count: int, framed: tuple[int, ...]
) -> None:
    """Whether a page is framed once more or spliced, the child gets the same line."""
    datas = [b"x" * (number % 7) + str(number).encode() for number in range(count)]
    for number in framed:
        datas[number % count] = FRAMED
    given = batch(*datas)
    found = await Prepared(ScriptedGlue(ANSWER), tmp_path).prepare(given)
    assert isinstance(found, JoinedBatch) is (len({n % count for n in framed}) * 8 <= count)
    line = b"".join(found.line())
    assert line == b"".join(found.line()), "every call starts a new, equal line"
    after = json.loads(line)["records"]
    unframed = [data if data != FRAMED else b'{"a":1}' for data in datas]
    assert [base64.b64decode(one["data"]) for one in after] == unframed
    assert [one["sequenceNumber"] for one in after] == [one["sequenceNumber"] for one in records_in(given)]
    assert (found.count, found.largest, found.data_bytes) == (count, given.largest, sum(map(len, unframed)))
    again = [record.framed for record in await records_of(found)]
    assert [base64.b64decode(str(one.fields()["data"])) for one in again] == unframed
    assert [base64.b64decode(str(one.as_it_came().fields()["data"])) for one in again] == datas


# --- what a producer makes us ask for ---------------------------------------------------------------------------------


def framed(number: int, payload: bytes = b"{}") -> bytes:
    """A record with the frame of schema version `number`, which the registry need not have."""
    return b"\x03\x00" + number.to_bytes(16) + payload


@virtual
async def test_ids_that_a_producer_makes_up_cost_a_page_twenty_calls_and_delay_it_no_longer_than_a_slow_registry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    glue = ScriptedGlue(UNKNOWN, takes_s=0.1)
    found = Prepared(glue, tmp_path, clock)
    datas = [framed(number) for number in range(4_000)]
    began = clock.monotonic()
    after = records_in(await found.prepare(batch(*datas)))
    took_s = clock.monotonic() - began
    assert [base64.b64decode(one["data"]) for one in after] == datas, "each is delivered as it came"
    assert all(one["schemaError"] for one in after)
    assert 20 <= len(glue.asked) <= 23, "three more may be under way when the budget is used up"
    assert took_s < 1.0
    warnings = [one for one in caplog.records if one.levelname == "WARNING"]
    assert len(warnings) <= 10 + 2, "ten of records, and one for each budget that is used up"
    (refused,) = [one for one in warnings if vars(one).get("budget") == "schema_lookups"]
    assert vars(refused)["action"] == "budget_spent"
    part = found.metrics.shards["shard"]
    assert part.budget_refusals["schema_lookups"] == 4_000 - len(glue.asked)
    assert "schema_lookups" in found.metrics.spent_budgets(clock.wall())["shard"]
    assert found.metrics.spent_budgets(clock.wall() + 601.0) == {}
    assert [event.shard for event in found.metrics.events.take()] == ["shard"] * (len(warnings) - 10)


@virtual
async def test_the_budget_of_a_shard_is_its_own_and_comes_back(tmp_path: Path) -> None:
    glue = ScriptedGlue(UNKNOWN)
    found, hostile, other = registry(glue, tmp_path), shard(key="hostile"), shard(key="other")
    ids = [str(number) for number in range(1_000)]
    await found.versions(ids, hostile.lookups, 10.0)
    spent = len(glue.asked)
    with pytest.raises(BudgetSpentError):
        await version(found, "one more", hostile)
    with pytest.raises(SchemaUnknownError):
        await version(found, "one more", other)
    await asyncio.sleep(60.0)
    await found.versions([f"new {one}" for one in ids], hostile.lookups, 10.0)
    assert len(glue.asked) <= 2 * spent + 1


@virtual
async def test_a_version_that_most_records_name_is_looked_up_before_ids_that_are_made_up(tmp_path: Path) -> None:
    class One(ScriptedGlue):
        async def call(self, operation: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
            await super().call(operation, params)
            if params["SchemaVersionId"] != ID:
                raise UNKNOWN
            return ANSWER

    glue = One(ANSWER)
    found = Prepared(glue, tmp_path)
    datas = [framed(number) for number in range(100)] + [FRAMED, FRAMED]
    after = records_in(await found.prepare(batch(*datas)))
    assert glue.asked[0] == ID
    assert [base64.b64decode(one["data"]) for one in after[100:]] == [b'{"a":1}'] * 2


@virtual
async def test_as_many_real_versions_as_are_kept_can_be_looked_up_at_once(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER, takes_s=0.02)
    found = Prepared(glue, tmp_path)
    after = records_in(await found.prepare(batch(*[framed(number) for number in range(VERSIONS_MAX)])))
    assert not any("schemaError" in one for one in after)
    assert len(glue.asked) == VERSIONS_MAX


@virtual
async def test_a_page_waits_no_longer_for_lookups_than_a_bound(tmp_path: Path) -> None:
    clock = VirtualClock()
    glue = ScriptedGlue(ANSWER, takes_s=9.0)
    found = Prepared(glue, tmp_path, clock)
    datas = [framed(number) for number in range(40)]
    began = clock.monotonic()
    after = records_in(await found.prepare(batch(*datas)))
    assert clock.monotonic() - began == pytest.approx(PAGE_LOOKUPS_S)
    assert [base64.b64decode(one["data"]) for one in after] == [b"{}"] * 4 + datas[4:]
    assert "has waited long enough" in after[-1]["schemaError"]
    await asyncio.sleep(9.0)
    again = records_in(await found.prepare(batch(*datas[:8])))
    assert not any("schemaError" in one for one in again), "lookups under way go on, and their answers are kept"


@virtual
async def test_a_known_version_stays_in_use_when_the_budget_is_used_up(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER, UNKNOWN)
    found, budgets = registry(glue, tmp_path), shard()
    await version(found, ID, budgets)
    await asyncio.sleep(KEPT_S + 1)
    await found.versions([str(number) for number in range(100)], budgets.lookups, 10.0)
    asked = len(glue.asked)
    assert (await version(found, ID, budgets)).found.name == "orders"
    assert len(glue.asked) == asked


@virtual
async def test_a_batch_that_waits_goes_on_waiting_without_a_budget(tmp_path: Path) -> None:
    """What fails must not be delivered, and asks no more than the budget allows."""
    glue = ScriptedGlue(UNKNOWN)
    found = Prepared(glue, tmp_path, waits=True)
    waiting = asyncio.create_task(found.prepare(batch(*[framed(number) for number in range(500)])))
    await asyncio.sleep(600.0)
    assert not waiting.done()
    assert len(glue.asked) <= 20 * 11 + 40
    waiting.cancel()


@virtual
async def test_records_that_take_the_decoder_longer_than_usual_use_up_its_budget_and_are_delivered_as_they_came(
    tmp_path: Path,
) -> None:
    decoded: list[int] = []

    async def dear(jobs: Sequence[DecoderJob], may_go_on: Callable[[float], bool]) -> list[bytes | UndecodableError]:
        answers: list[bytes | UndecodableError] = []
        for _ in jobs:
            answers.append(UndecodableError("decoding it takes more CPU time than a record of its size may take"))
            if not may_go_on(0.5):
                break
        decoded.append(len(answers))
        return answers

    found = Prepared(ScriptedGlue(ANSWER), tmp_path, decode=dear)
    bomb = b"\x03\x05" + FRAMED[2:18] + b"bomb"
    datas = [bomb, FRAMED] * 300
    after = records_in(await found.prepare(batch(*datas)))
    assert sum(decoded) <= 6, "three seconds of half a second each"
    assert [base64.b64decode(one["data"]) for one in after] == [bomb, b'{"a":1}'] * 300
    assert "too much of the decoder's CPU time" in after[-2]["schemaError"]
    part = found.metrics.shards["shard"]
    assert part.budget_refusals["decoding"] > 0
    await asyncio.sleep(60.0)
    await found.prepare(batch(bomb))
    assert decoded[-1] == 1


@virtual
async def test_a_page_that_is_too_large_is_not_decoded_any_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparer, "BATCH_BYTES_MAX", 3_000_000)
    decoded: list[int] = []

    async def counting(jobs: Sequence[DecoderJob], *_: Any) -> list[bytes | UndecodableError]:
        decoded.append(len(jobs))
        return await decode_here(jobs)

    bomb = b"\x03\x05" + FRAMED[2:18] + zlib.compress(bytes(1_000_000))
    await Prepared(ScriptedGlue(ANSWER), tmp_path, decode=counting).prepare(batch(*[bomb] * 500))
    assert sum(decoded) <= 2 * preparer.RECORDS_PER_TURN
