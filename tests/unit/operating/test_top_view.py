"""What `mld top` shows of looks: order, rates, and what fits."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mld.operating.top_view import TopLook, TopTable, look_of, top_table


def shard(number: int, behind_s: float | None = 0.0, **more: Any) -> dict[str, Any]:
    return {"shard": f"shardId-{number:012d}", "state": "idle", "behindSeconds": behind_s, **more}


def look(*shards: dict[str, Any], at_s: float = 100.0) -> TopLook:
    return look_of({"shards": list(shards)}, at_s, "clicks")


def column(table: TopTable, name: str) -> list[str]:
    number = [one for one, _ in table.columns].index(name)
    return [row[number] for row in table.rows]


def test_the_worst_verdicts_come_first_and_of_those_the_furthest_behind() -> None:
    found = look(
        shard(0, 1.0),
        shard(1, 60.0),
        shard(2, None),
        shard(3, None, verdict="stopped", state="stopped"),
        shard(4, 5.0, verdict="failing", state="failing"),
        shard(5, 0.0, state="ended"),
    )
    table = top_table(found, None, None)
    assert column(table, "shard") == [f"shardId-{number:012d}" for number in (3, 4, 1, 0, 2)]
    assert column(table, "state") == ["stopped", "failing", "idle", "idle", "idle"]
    assert table.summary == (
        "clicks",
        "5 shards: 3 idle, 1 failing, 1 stopped; furthest behind: 60 s",
    )


def test_rates_come_from_the_difference_of_two_looks() -> None:
    before = look(shard(0, records=1_000, recordBytes=0), shard(1, records=900), at_s=100)
    now = look(shard(0, records=1_500, recordBytes=10_240), shard(1, records=10), at_s=110)
    table = top_table(now, before, None)
    assert column(table, "records/s") == ["50", ""], "a count that began anew says nothing"
    assert column(table, "KB/s") == ["1.0", ""]
    assert table.summary[1].endswith("; 50 records/s")
    assert "records/s" not in dict(top_table(now, None, None).columns)


def test_the_source_s_own_rates_are_shown_where_it_counts_nothing() -> None:
    table = top_table(look(shard(0, recordsPerSecond=12.0, kbPerSecond=0.25)), None, None)
    assert (column(table, "records/s"), column(table, "KB/s")) == (["12"], ["0.2"])


def test_a_trend_needs_news() -> None:
    def trend(before_s: float, now_s: float, told_ago: float = 0.0) -> list[str]:
        before = look(shard(0, before_s, toldSecondsAgo=0.0), at_s=100)
        table = top_table(look(shard(0, now_s, toldSecondsAgo=told_ago), at_s=110), before, None)
        return column(table, "trend") if "trend" in dict(table.columns) else [""]

    assert trend(300, 200) == ["caught up in 20 s"]
    assert trend(200, 300) == ["falls behind"]
    assert trend(300, 300) == [""]
    assert trend(300, 0.2) == [""]
    assert trend(300, 200, told_ago=10) == [""], "the same news as before"


def test_a_thousand_shards_fit_a_small_screen() -> None:
    table = top_table(look(*(shard(number, number / 10) for number in range(1000))), None, 7)
    assert len(table.rows) == 7
    assert column(table, "behind")[0] == "100 s"
    assert table.rest == "… and 993 more, at most 99 s behind"
    assert table.summary[1].startswith("1,000 shards: 1000 idle")
    assert top_table(look(shard(0)), None, -3).rows == ()


def test_columns_that_say_nothing_are_left_out() -> None:
    names = [name for name, _ in top_table(look(shard(0)), None, None).columns]
    assert names == ["shard", "state", "behind"]
    full = shard(1, owner="w1", busySeconds=3.0, restarts=2, lastError="died", verdict="ok")
    names = [name for name, _ in top_table(look(shard(0), full), None, None).columns]
    assert names == ["shard", "state", "owner", "behind", "busy", "restarts", "note"]


def test_no_shard_and_trouble_are_said() -> None:
    assert top_table(look(), None, 10).summary[1] == "no open shard"
    troubled = look_of({"shards": [], "trouble": "the tables cannot be read: throttled"}, 1.0, "clicks")
    assert top_table(troubled, None, 10).summary[1] == "the tables cannot be read: throttled"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["shard", "state", "verdict", "owner", "behindSeconds", "toldSecondsAgo", "records", "recordBytes",
     "recordsPerSecond", "kbPerSecond", "busySeconds", "restarts", "note", "lastError"]
)  # fmt: skip


@given(st.lists(st.dictionaries(NAMES, ANYTHING), max_size=5) | ANYTHING, st.integers(-1, 10))
def test_whatever_a_daemon_says_a_table_is_shown(shards: Any, rows_max: int) -> None:
    first = look_of({"shards": shards}, 100.0, "clicks")
    second = look_of({"shards": shards}, 101.0, "clicks")
    assert len(top_table(second, first, rows_max).rows) <= max(0, rows_max)


def test_shards_of_several_streams_are_told_apart_and_one_stream_can_be_chosen() -> None:
    ids = {"shop": "111111111111:orders:17", "clicks": "111111111111:clicks:18"}
    shards = [shard(3, 1.0, stream=name, streamId=id_, key=f"{id_}:x", records=5) for name, id_ in ids.items()]
    table = top_table(look(*shards), look(*shards, at_s=90.0), None)
    assert column(table, "stream") == ["clicks", "shop"]
    assert column(table, "shard") == ["shardId-000000000003"] * 2
    for name in ("shop", "orders", ids["shop"]):
        only = look_of({"shards": shards}, 100.0, "clicks", name)
        assert [one.stream for one in only.shards] == ["shop"]
    assert "stream" not in dict(top_table(look(shard(0)), None, None).columns)
