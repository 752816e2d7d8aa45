"""What an operator sees of a fleet in trouble, by commands and pages as a user calls them, with their output as text.

The fleet is that of `tests/support/operated.py`: a split, a processor that fails, a parked shard, and a worker killed
by SIGKILL. Times, counts of failures and digits of sequence numbers differ from run to run; the output is shown with
``<time>``, ``<n>`` and ``…<digits>`` in their places, throughputs are left out, and runs of blanks are two.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from mld.serving.web_pages import page_and_policy
from tests.acceptance.commands import ROOT, mld
from tests.integration.world import ENVIRONMENT, SHORT_LEASE, MakeWorld, World
from tests.support.browser import Browser, find_browser
from tests.support.operated import CHILDREN, FAILING, GOOD, PARKED, SHARDS, OperatedFleet, get
from tests.support.servers import EmbeddedAws

pytestmark = pytest.mark.full

PICTURE = ROOT / "docs" / "use" / "status-page.png"
PICTURE_VARIABLE = "MLD_TEST_SCREENSHOT"
PICTURE_SIZE = {"width": 1280, "height": 800}

_VARYING = (
    (re.compile(r"app-\d+-\d+"), "clicks-app"),
    (re.compile(r"(?<![\w.-])\d+(\.\d+)? (ms|s|min|h|d)\b"), "<time>"),
    (re.compile(r"…\d+(/\d+)?"), "…<digits>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z"), "<at>"),
    (re.compile(r"--at \d+"), "--at <sequence>"),
    (re.compile(r"failed \d+ times"), "failed <n> times"),
    (re.compile(r"\(pid \d+ "), "(pid <n> "),
    (re.compile(r"  \d+\.\d(?=  |$)", re.MULTILINE), ""),  # KB/s, which is not known of every lease
    (re.compile(r"mld \d+\.\d+\.\d+"), "mld <version>"),
    (re.compile(r" {2,}"), "  "),
    (re.compile(r" +$", re.MULTILINE), ""),
    # Whether the leader or the failover watcher gets the row of the ended shard; the latter deletes the report.
    (re.compile(r"dead[,:] found dead <time> ago by w1, which took leases of it"), "dead"),
    (re.compile(r"^w2  mld  ", re.MULTILINE), "w2  mld <version>  "),
    (re.compile(r"(mld <version>)  \S+ pid \d+"), r"\1  <where>"),
    (re.compile(r"^(w2  mld <version>)  <where>", re.MULTILINE), r"\1"),
)


def normal(text: str) -> str:
    """The text with what differs from run to run replaced."""
    for pattern, shown in _VARYING:
        text = pattern.sub(shown, text)
    return text


PARKED_WHY = "since <at>: Kinesis does not know this shard; nothing is skipped, the log says what may be wrong"
FAILING_WHY = (
    "failed <n> times without a checkpoint, at <at>: closed its output before it answered processRecords "
    "(pid <n> exited with status 0)"
)


def wanted(text: str) -> str:
    return dedent(text).lstrip("\n")


@pytest.fixture(scope="module")
def fleet(aws_server: EmbeddedAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedFleet]:
    """In trouble, and with w2 dead."""
    world = World(aws_server, tmp_path_factory.mktemp("fleet"), shards=SHARDS)
    try:
        fleet = OperatedFleet(world).start()
        fleet.put()
        fleet.split()
        fleet.put()
        fleet.until_in_trouble()
        fleet.kill()
        fleet.until_dead()
        yield fleet
    finally:
        world.close()


def see(fleet: OperatedFleet, command: str, *options: str) -> tuple[int, str]:
    """Exit code and normalized output of a command on the file of w1."""
    result = mld(command, fleet.file, *options, environment=ENVIRONMENT)
    assert result.stderr == ""
    return result.returncode, normal(result.stdout.replace(str(fleet.file), "FILE"))


def test_leases_shows_who_fails_who_is_parked_and_whose_owner_is_dead(fleet: OperatedFleet) -> None:
    assert see(fleet, "leases", "--all", "-o", "wide") == (
        1,
        wanted(
            f"""
            shard  state  owner  behind  KB/s  checkpoint  note
            shardId-000000000001  stopped  w2  unknown  …<digits>  its owner is dead -> mld workers FILE
            shardId-000000000004  stopped  w2  unknown  …<digits>  its owner is dead; child of 0 -> mld workers FILE
            shardId-000000000005  stopped  w2  unknown  …<digits>  its owner is dead; child of 0 -> mld workers FILE
            shardId-000000000009  parked  w1  unknown  TRIM_HORIZON  {PARKED_WHY} -> mld doctor FILE
            shardId-000000000002  failing  w1  <time>  TRIM_HORIZON  {FAILING_WHY} -> mld peek FILE 2 --at <sequence>
            shardId-000000000003  idle  w1  <time>  …<digits>
            shardId-000000000000  ended  w1  SHARD_END
            6 open shards: 3 stopped, 1 parked, 1 failing, 1 ok; 1 ended; furthest behind: <time>
            """
        ),
    )


def test_workers_shows_who_is_dead_and_who_leads(fleet: OperatedFleet) -> None:
    assert see(fleet, "workers") == (
        0,
        wanted(
            """
            worker  kind  where  up  leases  share  CPU  furthest behind  last heard  note
            w1  mld <version>  <where>  <time>  3  50%  <time>  <time> ago  leader
            w2  mld <version>  3  50%  unknown  <time> ago  dead
            1 live worker, led by w1
            """
        ),
    )


def test_lag_shows_the_worst_first_and_fails_with_a_bound(fleet: OperatedFleet) -> None:
    text = wanted(
        f"""
        shard  verdict  behind  owner  note
        shardId-000000000001  stopped  unknown  w2  its owner is dead -> mld workers FILE
        shardId-000000000004  stopped  unknown  w2  its owner is dead; child of 0 -> mld workers FILE
        shardId-000000000005  stopped  unknown  w2  its owner is dead; child of 0 -> mld workers FILE
        shardId-000000000009  parked  unknown  w1  {PARKED_WHY} -> mld doctor FILE
        shardId-000000000002  failing  <time>  w1  {FAILING_WHY} -> mld peek FILE 2 --at <sequence>
        shardId-000000000003  ok  <time>  w1
        6 open shards: 3 stopped, 1 parked, 1 failing, 1 ok; 1 ended; furthest behind: <time>
        """
    )
    assert see(fleet, "lag", "-o", "wide") == (1, text)
    assert see(fleet, "lag", "-o", "wide", "--max", "5m") == (1, text)


def test_machines_get_the_same_as_json(fleet: OperatedFleet) -> None:
    code, text = see(fleet, "leases", "-o", "json")
    value = json.loads(text)
    assert code == 1
    assert {one["kind"] for one in value["faults"]} == {"stopped", "parked", "failing"}
    assert {one["shard"]: one["verdict"] for one in value["shards"]}[CHILDREN[0]] == "stopped"
    assert value["leader"] == "w1"


# --- probes and pages -------------------------------------------------------------------------------------------------


def test_a_worker_with_a_failing_and_a_parked_shard_is_alive_and_ready(fleet: OperatedFleet) -> None:
    for probe in ("/livez", "/healthz", "/readyz"):
        code, headers, body = fleet.get(probe)
        assert (code, body) == (200, b"ok\n"), probe
        assert headers["content-type"].startswith("text/plain")


def test_a_page_that_is_not_there_names_those_that_are(fleet: OperatedFleet) -> None:
    code, _, body = fleet.get("/status")
    assert (code, body) == (404, b"ask for one of /, /apps.json, /healthz, /livez, /metrics, /readyz, /status.json\n")


def test_the_applications_of_the_account_are_served_to_the_page(fleet: OperatedFleet) -> None:
    code, _, body = fleet.get("/apps.json")
    mine = json.loads(fleet.get("/status.json")[2])
    (app,) = (one for one in json.loads(body)["applications"] if one["table"] == mine["application"])
    assert (code, app["streams"]) == (200, [mine["stream"]])
    assert app["openShards"] == sum(shard["state"] != "ended" for shard in mine["shards"])


def test_a_name_that_was_pointed_at_this_machine_gets_nothing(fleet: OperatedFleet) -> None:
    code, _, body = fleet.get("/status.json", Host="evil.example")
    assert code == 403
    assert b"mld.httpHosts" in body
    assert b"shard" not in body


def test_the_metrics_tell_of_the_shards_of_this_worker(fleet: OperatedFleet) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra: pip install 'mld-kinesis[metrics]'")
    code, _, body = fleet.get("/metrics")
    assert code == 200
    lines = [
        line for line in body.decode().splitlines() if line.startswith("mld_shard_state") and line.endswith(" 1.0")
    ]
    states = {re.search('shard="([^"]+)"', line)[1]: re.search('state="([^"]+)"', line)[1] for line in lines}  # type: ignore[index]
    assert states == {FAILING: "failing", GOOD: "idle", PARKED: "parked"}


def test_the_data_of_the_page_tell_what_only_the_worker_knows(fleet: OperatedFleet) -> None:
    value = fleet.status()
    shards = {one["shard"]: one for one in value["shards"]}
    assert (value["leader"], value["worker"], value["mode"]) == ("w1", "w1", "CLIENT_VERSION_3X")
    assert {name for name, one in shards.items() if one["isHere"]} == {FAILING, GOOD, PARKED}
    assert "closed its output before it answered processRecords" in shards[FAILING]["lastError"]
    assert shards[FAILING]["restarts"] > 0
    assert "Kinesis does not know this shard" in shards[PARKED]["lastError"]
    assert value["whyNotAlive"] is value["whyNotReady"] is value["trouble"] is None


def test_the_page_shows_the_fleet_to_people(fleet: OperatedFleet) -> None:
    """With MLD_TEST_SCREENSHOT=1 it also takes the picture of docs/use/status-page.md."""
    fleet.world.until(lambda: len(shard_of(fleet, GOOD)["behindHistory"]) > 0, what="values of the last hour")
    with Browser(find_browser()) as browser, browser.tab(viewport=PICTURE_SIZE) as page:
        page.goto(f"{fleet.bases['w1']}/")
        page.wait_for_selector("#shards tbody tr")
        cells = [
            [normal(cell) for cell in row.locator("td").all_inner_texts()]
            for row in page.locator("#shards tbody tr").all()
        ]
        shown = {cells[0].split("\n")[0][-4:]: (cells[1].strip(), cells[3]) for cells in cells}
        assert shown == {
            "0001": ("stopped", "w2"),
            "0002": ("failing", "w1"),
            "0003": ("idle", "w1"),
            "0004": ("stopped", "w2"),
            "0005": ("stopped", "w2"),
            "0009": ("parked", "w1"),
        }
        assert normal(page.inner_text("#what")) == (
            "stream clicks-app, mode CLIENT_VERSION_3X, led by w1, this is worker w1, mld <version>"
        )
        workers = [
            normal("  ".join(row.locator("td").all_inner_texts())) for row in page.locator("#workers tbody tr").all()
        ]
        workers[0] = workers[0].replace("  <where>", "")  # until a leader has deleted its report
        assert workers == [
            "w2  mld <version>  3  50 %  unknown  <time> ago  dead",
            "w1 (leader) (this page)  mld <version>  <where>  3  50 %  <time>  <time> ago",
        ]
        facts = page.locator(".fact").all_inner_texts()
        assert {"1\nfailing", "1\nparked", "3\nstopped", "1\nlive worker"} <= set(facts)
        if os.environ.get(PICTURE_VARIABLE) == "1":
            page.evaluate(
                "document.querySelector('#application').textContent = 'clicks-app';"
                "const what = document.querySelector('#what');"
                "what.textContent = what.textContent.replace(/app-[0-9]+-[0-9]+/, 'clicks');"
                "const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);"
                "while (all.nextNode()) {"
                "  const text = all.currentNode;"
                "  text.data = text.data.replace(/[/][^ ]*[.]properties/g, 'clicks.properties');"
                "}"
            )
            PICTURE.write_bytes(with_titles(page.screenshot(full_page=True), titles_of_the_page()))


def shard_of(fleet: OperatedFleet, name: str) -> dict[str, object]:
    return next(dict(one) for one in fleet.status()["shards"] if one["shard"] == name)  # type: ignore[return-value]


def titles_of_the_page() -> bytes:
    """The headings and columns that the page has now; the picture bears them in a comment."""
    page, _ = page_and_policy()
    found = re.findall(rb'\["\w*", "([^"]+)", "\w*", \(|<h2[^>]*>([^<]+)', page)
    return b", ".join(one or other for one, other in found)


COMMENT = b"tEXtComment\0"
IHDR_END = 33


def with_titles(png: bytes, titles: bytes) -> bytes:
    """The picture with a comment after its first chunk."""
    data = COMMENT + titles
    chunk = (len(data) - 4).to_bytes(4) + data + zlib.crc32(data).to_bytes(4)
    return png[:IHDR_END] + chunk + png[IHDR_END:]


def test_the_picture_in_the_documentation_is_one_of_this_page() -> None:
    """Whoever changes its headings or columns takes a new one."""
    data = PICTURE.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(data[16:20]) == PICTURE_SIZE["width"]
    assert b"Batch in hand" in titles_of_the_page()
    remedy = f"take a new picture: {PICTURE_VARIABLE}=1 pytest tests/acceptance/test_operations.py"
    assert COMMENT + titles_of_the_page() in data, remedy


# --- bad input --------------------------------------------------------------------------------------------------------

SEEING = ("leases", "workers", "lag")


def refused(command: str, file: Path | str, *options: str) -> tuple[int, str]:
    """Exit code and the sentence of a command that cannot do its work; nothing else may be printed."""
    result = mld(command, file, *options, environment=ENVIRONMENT)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.returncode, result.stderr


@pytest.mark.parametrize("command", SEEING)
def test_a_file_that_is_not_there(command: str, tmp_path: Path) -> None:
    code, said = refused(command, tmp_path / "nowhere.properties")
    assert code == 2
    assert "nowhere.properties" in said


@pytest.mark.parametrize("command", SEEING)
def test_a_table_that_is_not_there(fleet: OperatedFleet, command: str) -> None:
    code, said = refused(command, fleet.file, "-D", "applicationName=nobody-ran-this")
    assert code == 1
    assert "nobody-ran-this" in said


@pytest.mark.parametrize("command", SEEING)
def test_a_table_that_holds_no_leases(fleet: OperatedFleet, command: str) -> None:
    name = f"orders-of-{fleet.world.table}"
    dynamo = fleet.world.dynamo
    if name not in dynamo.list_tables()["TableNames"]:
        dynamo.create_table(
            TableName=name,
            AttributeDefinitions=[{"AttributeName": "order", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "order", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        dynamo.put_item(TableName=name, Item={"order": {"S": "4711"}, "price": {"N": "12"}})
    code, said = refused(command, fleet.file, "-D", f"applicationName={name}")
    assert code == 1
    assert name in said
    assert "no lease table" in said


@pytest.mark.parametrize("command", SEEING)
def test_no_permission(fleet: OperatedFleet, command: str) -> None:
    fault = {"service": "dynamodb", "operation": "Scan", "code": "AccessDeniedException", "message": "you may not Scan"}
    fleet.world.aws.inject_faults(fault)
    try:
        code, said = refused(command, fleet.file)
    finally:
        fleet.world.aws.clear_faults()
    assert code == 1
    assert "AccessDeniedException" in said
    assert "mld iam-policy" in said


@pytest.mark.parametrize("command", SEEING)
def test_nobody_listens_there(fleet: OperatedFleet, command: str) -> None:
    code, said = refused(command, fleet.file, "-D", "dynamoDBEndpoint=http://127.0.0.1:9")
    assert code == 1
    assert "127.0.0.1:9" in said


# --- a table out of reach ---------------------------------------------------------------------------------------------


def test_a_worker_that_cannot_reach_its_table_is_alive_and_not_ready(make_world: MakeWorld) -> None:
    world = make_world()
    daemon = world.daemon(**SHORT_LEASE, mld__http="127.0.0.1:0")
    base = f"http://{daemon.wait_for_event('http_serving')['address']}"
    world.until(lambda: get(f"{base}/readyz")[0] == 200, what="ready")
    world.aws.inject_faults({"service": "dynamodb", "drop": True})
    world.until(lambda: get(f"{base}/readyz")[0] == 503, what="not ready")
    assert b"the lease table was not reached for" in get(f"{base}/readyz")[2]
    assert get(f"{base}/livez")[0] == 200
    value = json.loads(get(f"{base}/status.json")[2])
    assert value["trouble"].startswith("the tables cannot be read")
    assert value["whyNotReady"].startswith("the lease table was not reached")
    world.aws.clear_faults()
    world.until(lambda: get(f"{base}/readyz")[0] == 200, what="ready again")
