"""Lookups of schema versions, and batches that wait for them, over a scripted Glue in virtual time."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from mld.consumer.parts import JoinedBatch, records_of
from mld.core.errors import AwsError, AwsUnreachableError, SchemaUnknownError, SchemaUnreachableError
from mld.core.positions import TRIM_HORIZON
from mld.core.streams import ChildBatch
from mld.metrics.instruments import Tally
from mld.properties.values import SchemaMode
from mld.retrieval.rawbody import page_of
from mld.schemas import preparer
from mld.schemas.preparer import SchemaPreparer
from mld.schemas.registry import KEPT_S, NEGATIVE_S, NO_ANSWER_S, SchemaRegistry
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

    return SchemaRegistry(glue, VirtualClock(), size=size, folder=folder, in_thread=at_once)


def preparer_of(glue: ScriptedGlue, folder: Path, clock: VirtualClock | None = None, **more: Any) -> SchemaPreparer:
    """Strips, and delivers what it cannot."""
    given = {"waits": False, **more}
    return SchemaPreparer(registry(glue, folder), clock or VirtualClock(), SchemaMode.STRIP, decode_here, **given)


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
    found = registry(glue, tmp_path / "cache")
    answers = await asyncio.gather(*(found.version(ID) for _ in range(5)))
    assert len(glue.asked) == 1
    version, file = answers[0]
    assert version.name == "orders"
    assert file is not None
    assert Path(file).read_text() == "{}"
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert Path(file).stat().st_mode & 0o777 == 0o600
    await asyncio.sleep(KEPT_S - 1)
    await found.version(ID)
    assert len(glue.asked) == 1
    await asyncio.sleep(2)
    await found.version(ID)
    assert len(glue.asked) == 2


@virtual
async def test_an_unknown_id_is_not_asked_for_again_for_a_minute(tmp_path: Path) -> None:
    glue = ScriptedGlue(UNKNOWN, UNKNOWN, ANSWER)
    found = registry(glue, tmp_path)
    for _ in range(3):
        with pytest.raises(SchemaUnknownError, match=ID):
            await found.version(ID)
    assert len(glue.asked) == 1
    await asyncio.sleep(NEGATIVE_S + 1)
    with pytest.raises(SchemaUnknownError):
        await found.version(ID)
    await asyncio.sleep(NEGATIVE_S + 1)
    assert (await found.version(ID))[0].name == "orders"


@pytest.mark.parametrize(
    "error",
    [
        AwsError("GetSchemaVersion", "AccessDeniedException", "no"),
        AwsError("GetSchemaVersion", "ThrottlingException", "slowly"),
        AwsUnreachableError("GetSchemaVersion", "no answer"),
        {"SchemaDefinition": "{}"},
    ],
)
@virtual
async def test_what_is_no_answer_is_asked_again_after_some_seconds(tmp_path: Path, error: Any) -> None:
    glue = ScriptedGlue(error, ANSWER)
    found = registry(glue, tmp_path)
    for _ in range(3):
        with pytest.raises(SchemaUnreachableError):
            await found.version(ID)
    assert len(glue.asked) == 1, "a page of such records waits for one answer"
    await asyncio.sleep(NO_ANSWER_S + 1)
    assert (await found.version(ID))[0].name == "orders"


@virtual
async def test_a_surprise_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(SchemaUnreachableError):
        await registry(ScriptedGlue(RuntimeError("a bug")), tmp_path).version(ID)


@virtual
async def test_a_version_outlives_its_time_while_the_registry_is_out(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER, AwsUnreachableError("GetSchemaVersion", "no answer"), UNKNOWN)
    found = registry(glue, tmp_path)
    await found.version(ID)
    await asyncio.sleep(KEPT_S + 1)
    assert (await found.version(ID))[0].name == "orders"
    await asyncio.sleep(NO_ANSWER_S + 1)
    with pytest.raises(SchemaUnknownError):
        await found.version(ID)
    assert len(glue.asked) == 3


@virtual
async def test_unknown_ids_do_not_drive_out_known_ones(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER, UNKNOWN)
    found = registry(glue, tmp_path, size=2)
    await found.version(ID)
    for number in range(10):
        with pytest.raises(SchemaUnknownError):
            await found.version(f"damaged {number}")
    await found.version(ID)
    assert glue.asked.count(ID) == 1


@virtual
async def test_a_page_that_inflates_without_end_keeps_its_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparer, "BATCH_BYTES_MAX", 3_000_000)
    bomb = b"\x03\x05" + FRAMED[2:18] + zlib.compress(bytes(1_000_000))
    found = preparer_of(ScriptedGlue(ANSWER), tmp_path)
    first, second, third = records_in(await found.prepare(batch(bomb, bomb, bomb)))
    assert base64.b64decode(first["data"]) == base64.b64decode(second["data"]) == bytes(1_000_000)
    assert base64.b64decode(third["data"]) == bomb
    assert "its page inflates" in third["schemaError"]


@virtual
async def test_only_so_many_versions_are_kept(tmp_path: Path) -> None:
    glue = ScriptedGlue(ANSWER)
    found = registry(glue, tmp_path, size=2)
    for version_id in ("a", "b", "c", "c", "a"):
        await found.version(version_id)
    assert glue.asked == ["a", "b", "c", "a"]


@virtual
async def test_a_directory_of_others_gets_no_definitions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o755)
    _, file = await registry(ScriptedGlue(ANSWER), tmp_path).version(ID)
    assert file is None
    assert "not a directory of our user alone" in caplog.text
    assert list(tmp_path.iterdir()) == []


@virtual
async def test_a_batch_loses_its_frames_and_keeps_everything_else(tmp_path: Path) -> None:
    prepared = preparer_of(ScriptedGlue(ANSWER), tmp_path / "c")
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
    found = preparer_of(glue, tmp_path, clock, results=results)
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
    found = preparer_of(glue, tmp_path, clock, waits=True)
    began = clock.monotonic()
    (record,) = records_in(await found.prepare(batch(FRAMED)))
    assert base64.b64decode(record["data"]) == b'{"a":1}'
    assert clock.monotonic() - began > NEGATIVE_S
    waiting = asyncio.create_task(preparer_of(ScriptedGlue(denied), tmp_path, clock, waits=True).prepare(batch(FRAMED)))
    await asyncio.sleep(3600)
    assert not waiting.done()
    waiting.cancel()


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
    found = await preparer_of(ScriptedGlue(ANSWER), tmp_path / "c").prepare(given)
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
