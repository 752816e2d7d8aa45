"""The decoder in a process of its own: what a producer's record may cost, and what becomes of the records beside it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mld.schemas import decoder_process
from mld.schemas.decoder import MEMORY_BYTES_MAX, SCHEMAS_MAX, serve
from mld.schemas.decoder_process import DecoderAnswers, DecoderJob, DecoderProcess, DecoderRequests
from mld.schemas.frame import UndecodableError
from tests.fuzz.schemas import ATTACKS, GOOD, Attack

GOOD_JSON = b'{"a":7}'


def decode(jobs: Sequence[DecoderJob]) -> list[bytes | UndecodableError]:
    async def run() -> list[bytes | UndecodableError]:
        decoder = DecoderProcess()
        try:
            return await decoder.decode(jobs)
        finally:
            decoder.close()

    return asyncio.run(run())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_record_that_takes_too_much_ends_nothing_but_its_own_decoding(attack: Attack) -> None:
    before, failure, after = decode([GOOD, attack.job, GOOD])
    assert isinstance(failure, UndecodableError)
    assert any(why in str(failure) for why in attack.why), failure
    assert isinstance(before, bytes) and isinstance(after, bytes)
    assert b64decode(before) == b64decode(after) == GOOD_JSON


def test_a_decoder_that_somebody_ends_is_started_again_and_loses_no_record() -> None:
    async def run() -> list[bytes | UndecodableError]:
        decoder = DecoderProcess()
        await decoder.decode([GOOD])
        assert decoder.pid is not None
        os.kill(decoder.pid, signal.SIGKILL)
        try:
            return await decoder.decode([GOOD] * 3)
        finally:
            decoder.close()

    assert [b64decode(one) for one in asyncio.run(run()) if isinstance(one, bytes)] == [GOOD_JSON] * 3


def test_shards_take_turns_after_a_record_that_ends_the_decoder() -> None:
    """A shard of nothing but such records holds up another one for one of them, not for all."""
    bad = next(attack for attack in ATTACKS if attack.name == "a number of many digits")

    async def run() -> int:
        decoder = DecoderProcess()
        hostile = asyncio.create_task(decoder.decode([bad.job] * 100))
        await asyncio.sleep(0)
        await decoder.decode([GOOD])
        done = hostile.done()
        hostile.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hostile
        decoder.close()
        return done

    assert not asyncio.run(run())


def test_a_stop_in_the_middle_leaves_no_answer_for_the_next_record() -> None:
    async def run() -> bytes | UndecodableError:
        decoder = DecoderProcess()
        other = DecoderJob(b64encode(b"\x02"), is_compressed=False, definition='"int"')
        asked = asyncio.create_task(decoder.decode([other]))
        while decoder.pid is None:
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        try:
            return (await decoder.decode([GOOD]))[0]
        finally:
            decoder.close()

    answer = asyncio.run(run())
    assert isinstance(answer, bytes)
    assert b64decode(answer) == GOOD_JSON


@pytest.mark.parametrize("failing", ["connection", "process"])
def test_a_start_that_fails_leaves_no_process_and_no_connection(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    spawned: list[subprocess.Popen[bytes]] = []
    spawn = decoder_process._spawn

    def noted(connection: int) -> subprocess.Popen[bytes]:
        if failing == "process":
            raise OSError("no more processes")
        spawned.append(spawn(connection))
        return spawned[-1]

    async def refused(**_: Any) -> NoReturn:
        raise OSError("no more connections")

    async def run() -> set[Path]:
        before = set(Path("/proc/self/fd").iterdir())
        decoder = DecoderProcess()
        (answer,) = await decoder.decode([GOOD])
        assert f"cannot be started: no more {'processes' if failing == 'process' else 'connections'}" in str(answer)
        await asyncio.sleep(0)  # a transport closes in the next turn
        return set(Path("/proc/self/fd").iterdir()) - before

    monkeypatch.setattr(decoder_process, "_spawn", noted)
    if failing == "connection":
        monkeypatch.setattr(asyncio, "open_connection", refused)
    try:
        assert asyncio.run(run()) == set()
        assert [one.pid for one in spawned if one.poll() is None] == []
    finally:
        for one in spawned:
            one.kill()
            one.wait()


def test_the_process_has_no_secrets_and_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")

    async def run() -> tuple[str, str]:
        decoder = DecoderProcess()
        await decoder.decode([GOOD])
        about = Path("/proc", str(decoder.pid))
        found = (about / "environ").read_text(), (about / "limits").read_text()
        decoder.close()
        return found

    environment, limits = asyncio.run(run())
    assert "planted-secret" not in environment
    assert str(MEMORY_BYTES_MAX) in next(line for line in limits.splitlines() if "address space" in line)


def test_only_so_many_schemas_are_kept_and_each_is_sent_with_its_first_record() -> None:
    jobs = [
        DecoderJob(b64encode(b"\x0e"), is_compressed=False, definition=json.dumps({"type": "long", "doc": str(number)}))
        for number in range(SCHEMAS_MAX + 2)
    ]
    requests = DecoderRequests()
    assert [len(requests.of(job)) for job in (jobs[0], jobs[0], jobs[1])] == [4, 2, 4]
    answers = decode([*jobs, *jobs])
    assert [one for one in answers if one != b64encode(b"7")] == []


def test_what_zlib_makes_of_a_payload_is_counted_while_it_is_made() -> None:
    bomb, good = decode(
        [
            DecoderJob(b64encode(zlib.compress(bytes(40_000_000))), is_compressed=True),
            DecoderJob(b64encode(zlib.compress(b"x")), is_compressed=True),
        ]
    )
    assert "inflates to more than" in str(bomb)
    assert good == b64encode(b"x")


def test_what_a_record_takes_beyond_its_size_is_reported_and_ordinary_records_take_nothing() -> None:
    """The budget of a shard is charged with it."""
    bad = next(attack for attack in ATTACKS if attack.name == "an array of nothing")

    async def run() -> tuple[list[float], list[float]]:
        decoder = DecoderProcess()
        ordinary: list[float] = []
        dear: list[float] = []

        def stop(seconds: float) -> bool:
            dear.append(seconds)
            return False

        try:
            await decoder.decode([GOOD] * 2_000, lambda seconds: bool(ordinary.append(seconds)) or True)
            found = await decoder.decode([GOOD, bad.job, bad.job, GOOD], stop)
            assert len(found) <= 2, "the first record is decoded, and the second one ends it"
        finally:
            decoder.close()
        return ordinary, dear

    ordinary, dear = asyncio.run(run())
    assert sum(ordinary) < 0.1
    assert 0.1 < sum(dear) < 5.0


def test_what_reading_requests_takes_counts_for_their_answers_and_not_for_a_record_that_ends_the_process() -> None:
    spent_s = 0.0

    class Requests(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            nonlocal spent_s
            found = super().read(size)
            spent_s += len(found)
            return found

    requests, answers, parsed = DecoderRequests(), io.BytesIO(), DecoderAnswers()
    asked = b"".join(piece for _ in range(100) for piece in requests.of(GOOD))
    serve(Requests(asked), answers, lambda _: None, lambda: spent_s)
    assert len(list(parsed.feed(answers.getvalue()))) == 100
    assert (parsed.took_s, parsed.excess_s) == (spent_s, 0.0)


def test_payloads_that_inflate_a_thousandfold_are_charged_and_others_wait_for_no_more_of_them_than_are_allowed() -> (
    None
):
    flags = b"\x80\xb5\x18" + bytes(200_000) + b"\x00"  # an Avro array of 200,000 times False
    bomb = DecoderJob(
        b64encode(zlib.compress(flags)), is_compressed=True, definition='{"type":"array","items":"boolean"}'
    )
    charged: list[float] = []

    def allow_two(seconds: float) -> bool:
        charged.append(seconds)
        return len(charged) < 2

    async def run() -> tuple[int, list[bytes | UndecodableError]]:
        decoder = DecoderProcess()
        hostile = asyncio.create_task(decoder.decode([bomb] * 50, allow_two))
        await asyncio.sleep(0)
        try:
            ordinary = await decoder.decode([GOOD])
            return len(await hostile), ordinary
        finally:
            decoder.close()

    done, ordinary = asyncio.run(run())
    assert 2 <= done < 50
    assert min(charged) > 0.001
    assert ordinary == [b64encode(GOOD_JSON)]
