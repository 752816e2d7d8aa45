"""The history of a fleet: what of it is kept, in how many bytes, and what is said once."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace

import pytest

from mld.metrics.events import (
    BUFFERED_MAX,
    EVENTS_MAX,
    KEPT_S,
    LINES_MAX,
    NOBODY,
    PACKED_BYTES_MAX,
    TEXT_CHARACTERS_MAX,
    UNPACKED_BYTES_MAX,
    WITH_LINES_MAX,
    Event,
    EventBuffer,
    EventKind,
    merged,
    pack,
    shortened,
    unpack,
)
from mld.operating.events import events_in

NOW_S = 1_763_661_600.0


def moved(shard: str, to: str, text: str = "", at_s: int = int(NOW_S)) -> Event:
    return Event(EventKind.MOVED, text, shard, to, at_s)


def failed(number: int, *, shard: str = "shardId-0", lines: tuple[str, ...] = ()) -> Event:
    return Event(EventKind.FAILED, f"{number} in a row", shard, "w-1", int(NOW_S) + number, lines)


def test_what_was_packed_is_unpacked() -> None:
    events = (moved("shardId-0", "w-1"), failed(1, lines=("Traceback", "KeyError: 'x'")))
    assert unpack(pack(events)) == events


def test_a_move_that_both_sides_note_counts_once_and_the_old_owner_says_more() -> None:
    there = merged((), [moved("shardId-0", "w-2", "from w-1")], NOW_S)
    assert merged(there, [moved("shardId-0", "w-2")], NOW_S) == there
    other_way_round = merged((), [moved("shardId-0", "w-2"), moved("shardId-0", "w-2", "from w-1")], NOW_S)
    assert other_way_round == there
    back = merged(there, [moved("shardId-0", "w-1", at_s=int(NOW_S) + 1)], NOW_S)
    again = merged(back, [moved("shardId-0", "w-2", at_s=int(NOW_S) + 2)], NOW_S)
    assert [one.worker for one in again] == ["w-2", "w-1", "w-2"]


def test_of_the_failures_of_a_shard_the_first_and_the_last_remain() -> None:
    found: tuple[Event, ...] = ()
    for number in range(1, 50):
        found = merged(found, [failed(number), failed(number, shard="shardId-1")], NOW_S)
    assert [one.text for one in found if one.shard == "shardId-0"] == ["1 in a row", "49 in a row"]
    assert len(found) == 4


@pytest.mark.parametrize("kind", [EventKind.FAILED, EventKind.RECOVERED, EventKind.BUDGET])
def test_what_records_of_a_shard_cause_again_and_again_drives_out_no_other_event(kind: EventKind) -> None:
    found = merged((), [moved("shardId-1", "w-2")], NOW_S)
    for number in range(500):
        found = merged(found, [Event(kind, str(number), "shardId-0", "w-1", int(NOW_S) + number)], NOW_S)
    assert [one.text for one in found if one.kind is kind] == ["0", "499"]
    assert [one.kind for one in found if one.kind is not kind] == [EventKind.MOVED]


def test_many_moves_at_once_are_one_event_that_counts_all_and_names_some() -> None:
    buffer = EventBuffer()
    for number in range(3):
        buffer.note(EventKind.MOVED, shard=f"shardId-{number}")
    for number in range(10_000):
        buffer.note(EventKind.MOVED, "from w-1", shard=f"1:s:9:shardId-{number:04}", worker="w-2")
    buffer.note(EventKind.FAILED, "x", shard="shardId-0")
    taken = buffer.take()
    assert [one.shard for one in taken] == ["shardId-0", "shardId-1", "shardId-2", "", "shardId-0"]
    assert taken[3].text.startswith("10000 shards from w-1: shardId-0000, shardId-0001, ")
    assert taken[3].text.endswith("shardId-0009, …")


def test_old_events_go_and_so_do_those_beyond_the_bound() -> None:
    old = Event(EventKind.STARTED, worker="w-0", at_s=int(NOW_S - KEPT_S - 1))
    new = [Event(EventKind.STARTED, worker=f"w-{number}", at_s=int(NOW_S)) for number in range(EVENTS_MAX + 5)]
    found = merged((old,), new, NOW_S)
    assert len(found) == EVENTS_MAX
    assert found[-1] == new[-1]
    assert old not in merged((old,), new[:1], NOW_S)


def test_a_row_has_four_write_units_at_most_whatever_is_in_it() -> None:
    rng = random.Random(1)

    def noise(length: int) -> str:
        return "".join(chr(rng.randrange(32, 127)) for _ in range(length))

    lines = tuple(noise(200) for _ in range(LINES_MAX))
    events = [replace(failed(number, shard=f"s-{number}", lines=lines), text=noise(200)) for number in range(300)]
    packed = pack(merged((), events, NOW_S))
    assert len(packed) <= PACKED_BYTES_MAX
    assert unpack(packed)[-1] == events[-1], "the newest is never left out, nor are its lines"


def test_few_lines_all_stay() -> None:
    events = merged((), [failed(number, shard=f"s-{number}", lines=("a", "b")) for number in range(3)], NOW_S)
    assert [one.lines for one in unpack(pack(events))] == [("a", "b")] * 3


def test_lines_give_way_before_events_do() -> None:
    rng = random.Random(2)
    lines = tuple("".join(chr(rng.randrange(32, 127)) for _ in range(60)) for _ in range(LINES_MAX))
    events = merged((), [failed(number, shard=f"s-{number}", lines=lines) for number in range(30)], NOW_S)
    assert sum(bool(one.lines) for one in events) == WITH_LINES_MAX
    kept = unpack(pack(events))
    assert len(kept) == 30
    assert 1 <= sum(bool(one.lines) for one in kept) < WITH_LINES_MAX or all(one.lines for one in kept[-5:])


def test_two_hundred_ordinary_events_fit() -> None:
    rng = random.Random(3)
    workers = [f"{rng.getrandbits(128):032x}" for _ in range(8)]
    events = [
        moved(f"shardId-{rng.randrange(64):012}", rng.choice(workers), f"from {rng.choice(workers)}", int(NOW_S) + n)
        for n in range(EVENTS_MAX)
    ]
    assert len(unpack(pack(events))) == EVENTS_MAX


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(b"[" + b" " * (50 * UNPACKED_BYTES_MAX) + b"]")
    with pytest.raises(ValueError, match="Expecting"):
        unpack(bomb)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([[10**20, "failed", "w", "s", "t", []]], id="a time that cannot be shown"),
        pytest.param([[-1, "failed", "w", "s", "t", []]], id="a time before all"),
        pytest.param([[1, "exploded", "w", "s", "t", []]], id="a kind that nobody knows"),
        pytest.param([[1, "failed"]], id="too short"),
        pytest.param({"x": 1}, id="no list"),
    ],
)
def test_what_was_not_packed_here_is_no_history(told: object) -> None:
    packed = zlib.compress(json.dumps(told).encode())
    assert events_in({"events": {"B": packed}}) == ()


def test_an_event_of_a_kind_that_only_a_newer_version_knows_costs_no_other() -> None:
    told = [[1, "exploded", "w", "s", "t", []], [2, "failed", "w", "s", "t", []]]
    assert [one.at_s for one in unpack(zlib.compress(json.dumps(told).encode()))] == [2]


def test_no_name_is_cut_into_another() -> None:
    names = [f"shardId-{number:012}" for number in range(20)]
    cut = shortened(f"20 shards from a-worker: {', '.join(names)}")
    assert len(cut) <= TEXT_CHARACTERS_MAX and cut.endswith(" …")
    shown = cut.removesuffix(" …").partition(": ")[2].split(", ")
    assert shown and set(shown) < set(names)
    assert len(shortened("why: " + "x" * 1_000)) == TEXT_CHARACTERS_MAX


def test_texts_of_others_are_cut() -> None:
    packed = zlib.compress(json.dumps([[1, "failed", "w" * 9999, "s" * 9999, "t" * 9999, ["l" * 999] * 99]]).encode())
    (event,) = unpack(packed)
    assert {len(one) for one in (event.worker, event.shard, event.text, *event.lines)} == {TEXT_CHARACTERS_MAX}
    assert event.text.endswith("t …")
    assert len(event.lines) == LINES_MAX


def test_what_waits_for_a_write_is_bounded_and_taken_once() -> None:
    buffer = EventBuffer()
    for number in range(BUFFERED_MAX + 7):
        buffer.note(EventKind.FAILED, shard=str(number), worker=NOBODY, lines=[str(n) for n in range(100)])
    taken = buffer.take()
    assert len(taken) == BUFFERED_MAX
    assert taken[-1].shard == str(BUFFERED_MAX + 6)
    assert len(taken[-1].lines) == LINES_MAX
    assert buffer.take() == ()
    for number in range(BUFFERED_MAX + 7):
        buffer.note(EventKind.MOVED, shard="0", worker=str(number))
    assert len(buffer.take()) == BUFFERED_MAX
