"""The status page in a real browser: what it shows of 1,000 shards, what a refresh leaves alone, what it never does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page

from mld.core.positions import SHARD_END, Position
from mld.leases.lease import ChildFigures, Failing, Lease, ShardStatus
from mld.metrics.activity import ShardActivity
from mld.metrics.children import ChildLoad, ChildLoads
from mld.metrics.events import Event, EventKind
from tests.support.browser import Browser, find_browser
from tests.support.served_page import NOW_S, ServedPage, leases

MANY = 1000
HOSTILE = '"><img src=x onerror=window.pwned=1><script>window.pwned=1</script>\u202e'
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(find_browser()) as running:
        yield running


@contextmanager
def opened(browser: Browser, served: ServedPage, path: str = "/", **options: Any) -> Iterator[Page]:
    """The page, loaded and filled; fails if its script fails, or anything is blocked or asked of another host."""
    faults: list[str] = []
    with served, browser.tab(**{"viewport": WIDE, **options}) as page:
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if "500" not in said.text else None)
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.on("request", lambda request: None if request.url.startswith(served.base) else faults.append(request.url))
        page.goto(served.base + path)
        page.wait_for_selector("#facts b")
        yield page
        assert faults == []


def refresh(page: Page) -> None:
    page.evaluate("refresh()")


def column(page: Page, title: str) -> list[str]:
    return page.locator(f'#shards tbody td[data-name="{title}"]').all_inner_texts()


def names(page: Page) -> list[int]:
    return [int(text.split()[0].rsplit("-", 1)[1]) for text in column(page, "Shard")]


def test_a_thousand_shards_come_in_pages_the_furthest_behind_first(browser: Browser) -> None:
    with opened(browser, ServedPage(leases(MANY))) as page:
        assert names(page) == list(range(MANY - 1, MANY - 101, -1))
        assert page.inner_text("#page") == "1000 shards, page 1 of 10"
        assert page.is_disabled("#back")
        page.click("#next")
        assert names(page)[0] == MANY - 101
        assert page.inner_text("#page") == "1000 shards, page 2 of 10"
        for _ in range(8):
            page.click("#next")
        assert page.is_disabled("#next")
        assert names(page)[-1] == 0


def test_the_first_page_has_what_is_worst_however_many_shards_lag(browser: Browser) -> None:
    rows = leases(MANY)
    for number in (7, 207, 407):
        rows[number] = replace(rows[number], owner=None, status=None)
    forbidden = ShardStatus("unreadable", NOW_S, 5_000, why="since 2026-11-25T09:40:12Z: GetRecords is forbidden")
    rows[300] = replace(rows[300], status=forbidden)
    with opened(browser, ServedPage(rows)) as page:
        assert names(page)[:4] == [7, 207, 407, 300]
        assert column(page, "State")[:4] == ["stopped", "stopped", "stopped", "unreadable"]
        assert "GetRecords is forbidden" in column(page, "Why, or last error")[3]
        facts = {one.split("\n")[1]: one.split("\n")[0] for one in page.locator(".fact").all_inner_texts()}
        assert (facts["stopped"], facts["unreadable"], facts["lag unknown"]) == ("3", "1", "3")


def test_figures_of_an_old_read_are_grey_and_carry_its_time(browser: Browser) -> None:
    served = ServedPage(leases(3))

    def opacity(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.querySelector('#shards tbody tr')).opacity"))

    with opened(browser, served, timezone_id="UTC", locale="en-GB") as page:
        assert opacity(page) == "1"
        served.read_s_ago = 200.0
        refresh(page)
        page.wait_for_selector("body.old")
        assert opacity(page) == "0.55"
        assert page.inner_text("#when") == "as of 18:03:20; what is grey was read from the table at 18:00:00"
        served.read_s_ago, served.fails = 0.0, True
        refresh(page)
        page.wait_for_selector("body.lost")
        assert "This page is not up to date" in page.inner_text("#notice")
        served.fails = False
        refresh(page)
        page.wait_for_selector("body:not(.old)")
        assert opacity(page) == "1"


def test_columns_sort_both_ways_by_mouse_and_by_keyboard_and_the_unknown_is_last(browser: Browser) -> None:
    rows = leases(30)
    rows[7] = replace(rows[7], status=None)
    with opened(browser, ServedPage(rows)) as page:
        behind = page.locator("#shards").get_by_role("columnheader", name="Behind")
        assert behind.get_attribute("aria-sort") is None
        assert names(page)[:2] == [7, 29], "the worst first, and of those that are alike the furthest behind"
        behind.get_by_role("button").click()
        assert behind.get_attribute("aria-sort") == "descending"
        assert names(page)[0] == 29
        assert names(page)[-1] == 7
        behind.get_by_role("button").click()
        assert behind.get_attribute("aria-sort") == "ascending"
        assert names(page)[0] == 0
        assert names(page)[-1] == 7
        page.get_by_role("columnheader", name="Shard").get_by_role("button").focus()
        page.keyboard.press("Enter")
        assert names(page) == list(range(30))
        assert behind.get_attribute("aria-sort") is None
        assert page.evaluate("document.activeElement.textContent") == "Shard"


def test_words_filter_by_name_owner_state_and_error_and_the_choice_by_trouble(browser: Browser) -> None:
    rows = leases(MANY)
    rows[5] = replace(rows[5], owner=None)
    rows[8] = replace(rows[8], failing=Failing(3, NOW_S - 60, rows[8].checkpoint))
    rows[9] = replace(rows[9], checkpoint=SHARD_END)
    with opened(browser, ServedPage(rows)) as page:
        assert page.inner_text("#page").startswith("999 shards")
        for words, found in (
            ("nobody", [5]),
            ("w-3 FAILING", [8]),
            ("without a checkpoint", [8]),
            ("000000000042", [42]),
            ("nowhere", []),
        ):
            page.fill("#filter", words)
            assert names(page) == found
        page.fill("#filter", "")
        page.select_option("#which", "trouble")
        assert page.inner_text("#page").startswith("941 shards"), "939 lag by more than a minute, 2 have troubles"
        page.select_option("#which", "all")
        page.fill("#filter", "ended")
        assert names(page) == [9]


def test_a_refresh_changes_what_has_changed_and_nothing_else(browser: Browser) -> None:
    served = ServedPage(leases(MANY))
    with opened(browser, served) as page:
        page.fill("#filter", "w-2")
        page.click("#next")
        page.get_by_role("columnheader", name="Owner").get_by_role("button").focus()
        page.evaluate("scrollTo(0, 900)")
        page.evaluate("document.querySelector('#shards tbody tr').dataset.mark = 'kept'")
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#shards tbody tr td'))")
        before, selected = names(page), page.evaluate("String(getSelection())")
        served.rows = [
            replace(row, status=ShardStatus("idle", NOW_S, row.status.behind_ms)) for row in served.rows if row.status
        ]
        refresh(page)
        assert set(column(page, "State")) == {"lagging"}
        assert names(page) == before
        assert page.evaluate("scrollY") == 900
        assert page.evaluate("document.activeElement.textContent") == "Owner"
        assert page.evaluate("document.querySelector('#shards tbody tr').dataset.mark") == "kept"
        assert page.evaluate("String(getSelection())") == selected
        assert page.input_value("#filter") == "w-2"


def test_what_is_chosen_survives_a_reload_and_can_be_passed_on(browser: Browser) -> None:
    with opened(browser, ServedPage(leases(MANY)), "/#filter=w-2&sort=shard&page=2") as page:
        chosen = list(range(301, 601, 3))
        assert names(page) == chosen
        page.reload()
        page.wait_for_selector("#facts b")
        assert names(page) == chosen


@pytest.mark.full
def test_it_refreshes_by_itself_unless_it_is_told_to_pause(browser: Browser) -> None:
    with opened(browser, ServedPage(leases(3))) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        with page.expect_request("**/status.json"):
            pass
        page.click("#pause")
        assert page.get_attribute("#pause", "aria-pressed") == "true"
        count = len(asked)
        assert page.evaluate("timer = 0, paused") is True
        with page.expect_request("**/status.json"):
            page.click("#pause")
        assert len(asked) == count + 1


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desk", "phone"])
def test_nothing_is_wider_than_the_screen(browser: Browser, size: dict[str, int]) -> None:
    rows = [
        replace(row, owner=f"ip-10-0-0-{row.key[-3:]}.eu-central-1.compute.internal:{'5f0c' * 9}")
        for row in leases(120)
    ]
    rows[3] = replace(rows[3], key="shard-with-a-name-of-no-kinesis-" + "x" * 200)
    served = ServedPage(rows, application="a" * 200)
    name = f"worker-{'5f0c' * 40}"
    served.events = (Event(EventKind.FAILED, "x" * 200, "shardId-000000000001", name, NOW_S, ("y" * 200,) * 20),)
    with opened(browser, served, viewport=size) as page:
        for summary in page.locator("summary").all():
            summary.click()
        width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width[0] <= width[1]
        if size is PHONE:
            card = page.locator("#shards tbody tr").first
            assert "Behind" in card.evaluate("row => getComputedStyle(row.cells[4], '::before').content")
            assert card.evaluate("row => row.getBoundingClientRect().right <= innerWidth")
            page.select_option("#order", "shard")
            assert names_by_text(page)[:2] == ["shardId-000000000000", "shardId-000000000001"]
            assert page.get_by_role("table", name="Shards").get_by_role("row").count() > 100


def names_by_text(page: Page) -> list[str]:
    return [text for text in column(page, "Shard") if text.startswith("shardId")]


def test_it_is_dark_where_the_reader_wants_it_dark(browser: Browser) -> None:
    def brightness(page: Page, what: str) -> float:
        colour: list[int] = page.evaluate(f"getComputedStyle(document.body).{what}.match(/\\d+/g).map(Number)")
        return sum(colour) / len(colour)

    with opened(browser, ServedPage(leases(3)), color_scheme="light") as page:
        assert brightness(page, "backgroundColor") > 200 > 100 > brightness(page, "color")
        page.emulate_media(color_scheme="dark")
        assert brightness(page, "backgroundColor") < 60 < 200 < brightness(page, "color")


def test_holes_are_drawn_where_they_are_and_told_in_words(browser: Browser) -> None:
    rows = leases(8)
    del rows[2:4]
    with opened(browser, ServedPage(rows)) as page:
        x, _, wide = page.evaluate(
            "(({x, y, width}) => [x, y, width])(document.querySelector('#bars .hole').getBBox())"
        )
        assert (x, x + wide) == (pytest.approx(250, abs=1), pytest.approx(500, abs=1))
        assert "No lease covers 25.00 % to 50.00 % of the hash keys." in page.inner_text("#under")
        bar = page.locator("#ranges").bounding_box()
        assert bar is not None
        page.mouse.move(bar["x"] + bar["width"] * 0.3, bar["y"] + bar["height"] / 2)
        assert page.inner_text("#under") == "No lease covers 25.0 % of the hash keys"
        page.mouse.click(bar["x"] + bar["width"] * 0.9, bar["y"] + bar["height"] / 2)
        assert names(page) == [7]
        assert page.input_value("#filter") == "shardId-000000000007"


def test_lineage_of_splits_and_merges_is_drawn_and_told(browser: Browser) -> None:
    rows = leases(4)
    halves = [row.key for row in rows[:2]]
    parent = replace(rows[0], key="shardId-000000000008", checkpoint=SHARD_END, children=frozenset(halves))
    rows[:2] = [replace(row, parents=frozenset({parent.key})) for row in rows[:2]]
    old = [f"shardId-00000000001{number}" for number in range(2)]
    merged = replace(rows[3], parents=frozenset(old))
    ended = [replace(rows[3], key=key, checkpoint=SHARD_END, children=frozenset({merged.key})) for key in old]
    with opened(browser, ServedPage([*rows[:3], merged, parent, *ended])) as page:
        page.select_option("#which", "all")
        told = {text.split("\n")[0][-2:]: text.split("\n")[-1] for text in column(page, "Shard")}
        assert told["08"] == "split into 0, 1"
        assert told["00"] == told["01"] == "split from 8"
        assert told["10"] == told["11"] == "merged into 3"
        assert told["03"] == "merged from 10, 11"
        assert page.evaluate("document.querySelector('#bars .ended').getBBox().y") < page.evaluate(
            "document.querySelector('#bars .processing').getBBox().y"
        )


def test_a_lineage_that_is_a_circle_is_shown_all_the_same(browser: Browser) -> None:
    one, two = (replace(row, checkpoint=SHARD_END) for row in leases(2))
    circle = [replace(one, parents=frozenset({two.key})), replace(two, parents=frozenset({one.key}))]
    with opened(browser, ServedPage(circle), "/#which=all") as page:
        assert sorted(names(page)) == [0, 1]


def test_of_its_own_shards_the_page_shows_the_last_hour_and_the_child(browser: Browser) -> None:
    served = ServedPage(leases(3))
    part = served.metrics.begin("shardId-000000000000", 0.0)
    for number in range(20):
        part.batches.note(100 * number)
        part.saw_lag(500 * number, NOW_S)
        part.trend.noted(500 * number, NOW_S - 120 * (19 - number))
        part.sample(4.0 * number)
    part.forced_activity, part.busy_since = ShardActivity.PROCESSING, 700.0
    part.restarts.add("exit", 2)
    part.last_error, part.last_error_wall_s = "closed its output", NOW_S - 120
    with opened(browser, served, "/#filter=shardId-000000000000") as page:
        assert page.locator("#shards svg.spark path").count() == 1
        hour = page.locator("#shards svg.spark").first.get_attribute("aria-label")
        assert hour == "behind, last 40 min: 0 ms to 8 s, now 8 s"
        assert column(page, "Batch in hand") == ["5 min"]
        assert column(page, "Restarts") == ["2"]
        assert column(page, "Why, or last error") == ["closed its output (2 min ago)"]
        assert column(page, "Records/s")[0].strip() == "475.0"


def test_the_children_of_a_shard_are_told_by_number_and_stay_open_over_a_refresh(browser: Browser) -> None:
    served = ServedPage(leases(3))
    part, alone = (served.metrics.begin(served.rows[number].key, 0.0) for number in (0, 1))
    served.rows[1] = replace(served.rows[1], owner="w-1")
    part.busy_since, alone.busy_since = 995.0, 990.0
    loads = [ChildLoad(0, "pid 7"), ChildLoad(1, "pid 8", 1, 995.0, 40, lately=90), ChildLoad(2, "pid 9", lately=10)]
    part.children = ChildLoads(loads, 0.0)
    with opened(browser, served) as page:
        cell = page.locator('#shards tr[data-row="shardId-000000000000"] td[data-name="Batch in hand"]')
        assert cell.inner_text().split("\n") == ["5 s", "3 children, the busiest gets 90 %"]
        cell.locator("summary").click()
        loads[1].waiting = 41
        refresh(page)
        page.wait_for_selector("text=41 waiting")
        assert cell.locator("pre").inner_text().split("\n") == [
            "0: 0 records in hand, 0 waiting",
            "1: 1 record in hand for 5 s, 41 waiting",
            "2: 0 records in hand, 0 waiting",
        ]
        assert "10 s" in column(page, "Batch in hand"), "a shard with one child is shown as ever"


def test_texts_of_others_are_text(browser: Browser) -> None:
    rows = [replace(row, key=f"{row.key}{HOSTILE}", owner=HOSTILE) for row in leases(3)]
    rows[1] = replace(rows[1], parents=frozenset({HOSTILE}), failing=Failing(2, NOW_S, Position("1")))
    served = ServedPage(rows, application=HOSTILE, stream=HOSTILE)
    served.spark = [
        {"pid": HOSTILE, "ui": "javascript:window.pwned=1", "spark": HOSTILE, "counters": {"triggers": HOSTILE}}
    ]
    part = served.metrics.begin(rows[0].key, 0.0)
    part.last_error = HOSTILE
    with opened(browser, served, "/#filter=%3Cimg%20src%3Dx%20onerror%3Dwindow.pwned%3D1%3E&sort=-constructor") as page:
        assert HOSTILE in column(page, "Owner")
        assert page.evaluate("window.pwned") is None
        assert page.locator("main img, main script, main a").count() == 0


def test_lag_of_the_last_hour_is_drawn_for_all_shards_of_the_fleet(browser: Browser) -> None:
    rows = leases(150)
    for number, row in enumerate(rows):
        assert row.status is not None
        told = replace(row.status, at_s=NOW_S, trend="0G--" if number else "0GGU")  # 32 s, nobody knows, 813 s
        rows[number] = replace(row, status=told)
    with opened(browser, ServedPage(rows)) as page:
        assert page.locator("#lag path").count() == 100
        assert page.inner_text("#lag-text") == "At most 14 min; 150 shards, of which the 100 furthest behind are drawn"
        worst = page.locator("#lag path").first.get_attribute("d")
        assert worst is not None and worst.startswith("M900.0,97.0L933.3,") and worst.endswith("L1000.0,3.0")
        assert "M900.0" in str(page.locator("#lag path").last.get_attribute("d"))
        line = page.locator("#shards .spark").first.get_attribute("aria-label")
        assert line is not None and line.startswith("behind, last 8 min: ")


def test_the_lag_has_an_axis_and_the_value_under_the_pointer(browser: Browser) -> None:
    rows = leases(3)
    for number, letters in enumerate(("0G", "0GG", "0GGU")):  # at most 32 s, 32 s, 813 s
        row = rows[number]
        assert row.status is not None
        rows[number] = replace(row, status=replace(row.status, at_s=NOW_S, trend=letters))
    with opened(browser, ServedPage(rows), timezone_id="UTC", locale="en-GB") as page:
        assert page.locator("#lag-times span").all_inner_texts() == ["17:00", "17:15", "17:30", "17:45", "18:00"]
        assert (page.inner_text("#lag-top"), page.inner_text("#lag-half")) == ("14 min", "7 min")
        before = page.inner_text("#lag-text")
        box = page.locator("#lag").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 5)
        words = "shardId-000000000002: 14 min behind at 18:00 · w-3"
        assert page.inner_text("#lag-text") == words
        assert page.locator("#lag path.near").count() == page.locator("#lag line.at").count() == 1
        refresh(page)
        assert page.inner_text("#lag-text") == words, "a refresh leaves it alone"
        page.mouse.move(0, 0)
        assert page.inner_text("#lag-text") == before
        assert page.locator("#lag .near, #lag .at").count() == 0
        page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 5)
        assert names(page) == [2]


def test_shards_come_before_workers_while_one_is_in_trouble(browser: Browser) -> None:
    def titles(page: Page) -> list[str]:
        return page.locator("#workers-title, #shards-title").all_inner_texts()

    well = leases(3)
    served = ServedPage(well)
    with opened(browser, served) as page:
        assert titles(page) == ["Workers", "Shards"]
        page.focus("#filter")
        served.rows = [replace(well[0], owner=None), *well[1:]]
        refresh(page)
        page.wait_for_selector("td .stopped")
        assert titles(page) == ["Shards", "Workers"]
        assert page.evaluate("document.activeElement.id") == "filter"
        served.rows = well
        refresh(page)
        page.wait_for_selector("td .stopped", state="detached")
        assert titles(page) == ["Workers", "Shards"]


def test_the_applications_of_the_account_are_read_only_when_they_are_opened(browser: Browser) -> None:
    served = ServedPage(leases(3))
    app = dict.fromkeys(("streams", "workers", "openShards", "behindSeconds", "note")) | {"companions": []}
    with opened(browser, served) as page:
        refresh(page)
        assert served.asked_apps == 0
        box = page.locator("#apps-section summary")
        served.apps = {
            "applications": [
                app | {"table": "clicks", "streams": ["s"], "workers": 3, "openShards": 3, "behindSeconds": 2.0},
                app | {"table": HOSTILE, "note": HOSTILE},
            ],
            "unseen": ["orders: not seen, allow dynamodb:DescribeTable"],
        }
        box.click()
        page.wait_for_selector("#apps tbody tr")
        cells = page.locator("#apps tbody tr").first.locator("td").all_inner_texts()
        assert cells[:5] == ["clicks (this page)", "s", "3", "3", "2 s"]
        assert page.inner_text("#apps-text") == "2 applications. orders: not seen, allow dynamodb:DescribeTable"
        assert HOSTILE in page.locator('#apps td[data-name="Application"]').all_inner_texts()
        assert page.evaluate("window.pwned") is None


def test_the_applications_of_the_account_are_listed_before_the_fleet_has_been_read(browser: Browser) -> None:
    served = ServedPage(leases(3))
    app = dict.fromkeys(("streams", "workers", "openShards", "behindSeconds", "note")) | {"companions": []}
    served.apps = {"applications": [app | {"table": "clicks"}], "unseen": []}
    with opened(browser, served) as page:
        page.evaluate("() => { paused = true; data = null; }")
        page.click("#apps-section summary")
        page.wait_for_selector("#apps-text:not(:has-text('Reading'))")
        assert page.inner_text("#apps-text") == "1 application"


def test_why_the_applications_of_the_account_cannot_be_listed_is_told(browser: Browser) -> None:
    with opened(browser, ServedPage(leases(3))) as page:
        page.click("#apps-section summary")
        page.wait_for_selector("#apps-text:has-text('ListTables')")
        assert page.inner_text("#apps-text") == "the tables: not seen, allow dynamodb:ListTables"
        assert page.is_hidden("#apps-table")


def test_what_each_child_of_the_fleet_does_is_shown_from_its_row(browser: Browser) -> None:
    rows = leases(3)
    status = rows[1].status
    assert status is not None
    rows[1] = replace(rows[1], status=replace(status, child=ChildFigures(475.3, 310, 2)))
    with opened(browser, ServedPage(rows), "/#filter=shardId-000000000001") as page:
        assert column(page, "Records/s") == ["475.3"]
        assert column(page, "Batch in hand") == ["5 min"]
        assert column(page, "Restarts") == ["2"]


def test_events_and_the_last_lines_of_a_child_stay_open_over_a_refresh(browser: Browser) -> None:
    served = ServedPage(leases(3))
    lines = ("Traceback (most recent call last):", '  File "p.py", line 7', f"KeyError: {HOSTILE}")
    served.events = (
        Event(EventKind.STARTED, "mld 0.2.0", worker="w-1", at_s=NOW_S - 90_000),
        Event(EventKind.FAILED, HOSTILE, "shardId-000000000001", "w-2", NOW_S - 60, lines),
        Event(EventKind.DIED, "found dead by w-1", worker="w-3", at_s=NOW_S - 30),
    )
    with opened(browser, served, timezone_id="UTC", locale="en-GB") as page:
        assert page.locator('#events td[data-name="Event"]').all_inner_texts() == ["died", "failed", "started"]
        times = page.locator('#events td[data-name="Time"]').all_inner_texts()
        assert times == ["17:59:30", "17:59:00", "19/11/2025, 17:00:00"]
        for where in ("#events", "#shards"):
            box = page.locator(f"{where} details:has(pre)")
            assert box.count() == 1
            assert not box.locator("pre").is_visible()
            box.locator("summary").click()
            assert box.locator("pre").inner_text() == "\n".join(lines)
        served.events = (*served.events, Event(EventKind.ENDED, worker="w-1", at_s=NOW_S))
        refresh(page)
        page.wait_for_selector('#events td:has-text("ended")')
        for where in ("#events", "#shards"):
            assert page.locator(f"{where} pre").is_visible()
        assert page.evaluate("window.pwned") is None
        served.events = ()
        refresh(page)
        page.wait_for_selector("#events-section", state="hidden")


def test_a_failure_is_told_and_forgotten_when_it_is_over(browser: Browser) -> None:
    served = ServedPage(leases(3))
    with opened(browser, served) as page:
        served.fails = True
        refresh(page)
        assert "This page is not up to date: 500" in page.inner_text("#notice")
        assert len(names(page)) == 3
        served.fails = False
        refresh(page)
        assert page.is_hidden("#notice")


def test_triggers_and_the_ui_of_spark_are_shown(browser: Browser) -> None:
    served = ServedPage(leases(1))
    counters = {"triggers": 12, "records": 3400, "rows": 3300, "commits": 24, "dropped": 100, "retries": 0}
    served.spark = [
        {"pid": 4711, "ui": "http://127.0.0.1:4040", "spark": "4.0.1", "updatedAt": NOW_S - 3, "counters": counters}
    ]
    with opened(browser, served) as page:
        assert page.inner_text("#spark-body") == (
            "Session host 4711, Spark 4.0.1: 12 triggers, 3400 records, 3300 rows, 24 commits, 100 dropped since its "
            "start, the last trigger 3 s ago. Spark UI (on the machine of this worker)"
        )
        assert page.get_by_role("link", name="Spark UI").get_attribute("href") == "http://127.0.0.1:4040"


@pytest.mark.full
def test_ten_thousand_shards_are_filled_in_without_a_long_pause(browser: Browser) -> None:
    with opened(browser, ServedPage(leases(10_000))) as page:
        took_ms = page.evaluate(
            "(() => { const began = performance.now(); show(); return performance.now() - began; })()"
        )
        assert page.inner_text("#page").startswith("10000 shards")
        assert page.locator("*").count() < 5000
        assert took_ms < 3000


def several_streams(count: int) -> list[Lease]:
    """So many streams of four shards; a later one is further behind, and the third one lacks a lease."""
    rows = []
    for number in range(count):
        stream = f"111111111111:stream-{number:04}:17"
        for row in leases(4):
            if (number, row.key[-1]) != (2, "1"):
                status = replace(row.status, behind_ms=1000 * number) if row.status else None
                rows.append(replace(row, key=f"{stream}:{row.key}", stream=stream, status=status))
    return rows


def test_a_thousand_streams_have_a_line_each_and_one_of_them_its_own_page(browser: Browser) -> None:
    with opened(browser, ServedPage(several_streams(1000))) as page:
        assert "1000 streams" in page.inner_text("#what")
        assert page.inner_text("#page").startswith("3999 shards")
        assert page.inner_text("#ranges-title").startswith("Hash ranges: a line for each stream, 20 of 1000")
        top, bottom = page.evaluate(
            "(({y, height}) => [y, y + height])(document.querySelector('#bars .hole').getBBox())"
        )
        assert (top, bottom) == (2, 20), "the stream with a hole comes first"
        assert "25.00 % to 50.00 % of 111111111111:stream-0002:17" in page.inner_text("#under")
        assert page.locator("*").count() < 8000
        page.select_option("#stream", "111111111111:stream-0002:17")
        assert names(page) == [0, 2, 3]
        assert page.inner_text("#ranges-title") == "Hash ranges: the open shards below, their parents above them"
        page.reload()
        page.wait_for_selector("#facts b")
        assert names(page) == [0, 2, 3]
        page.select_option("#stream", "111111111111:stream-0005:17")
        assert page.locator("#bars .hole").count() == 0
        assert names(page) == [0, 1, 2, 3]


def test_a_browser_without_javascript_shows_what_to_use_instead(browser: Browser) -> None:
    with ServedPage(leases(3)) as served, browser.tab(java_script_enabled=False) as page:
        page.goto(served.base)
        assert "run mld status on the machine of the worker" in page.inner_text("main")
    with opened(browser, ServedPage(leases(3))) as page:
        assert "needs JavaScript" not in page.inner_text("main")


def test_a_page_of_one_stream_has_no_column_of_streams(browser: Browser) -> None:
    with opened(browser, ServedPage(leases(3))) as page:
        assert not page.is_visible("#streams")
        assert column(page, "Stream") == []
