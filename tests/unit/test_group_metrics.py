"""What a group says for all its members: metrics as one exposition, and probes (`mld.daemon.group_pages`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from mld.core.webrule import WebRule
from mld.daemon import group_pages
from mld.daemon.group import GroupMember
from mld.daemon.group_pages import GroupPages
from mld.serving.group_exposition import merged
from mld.serving.http import HttpServer
from mld.serving.http_answers import HttpAnswer, Question, text_answer

ONE = '# HELP mld_records_total Records.\n# TYPE mld_records_total counter\nmld_records_total{shard="s"} 3.0\n'
OTHER = ONE.replace("3.0", "4.0")


def samples(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(body.decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_each_value_has_the_worker_it_is_of_and_nothing_is_added_up() -> None:
    content_type, body = merged([("a-1", ONE), ("a-2", OTHER)], 2, {"a-1": 0, "a-2": 5}, "text/plain")
    assert content_type.startswith("text/plain")
    assert samples(body) == {
        ("mld_records_total", (("shard", "s"), ("worker", "a-1"))): 3.0,
        ("mld_records_total", (("shard", "s"), ("worker", "a-2"))): 4.0,
        ("mld_unit_workers_running", ()): 2.0,
        ("mld_unit_worker_restarts_total", (("worker", "a-1"),)): 0.0,
        ("mld_unit_worker_restarts_total", (("worker", "a-2"),)): 5.0,
    }
    assert body.decode().count("# TYPE mld_records_total") == 1


def test_what_the_supervisor_knows_is_there_when_no_worker_answers() -> None:
    assert samples(merged([], 0, {"a-1": 1}, "text/plain")[1]) == {
        ("mld_unit_workers_running", ()): 0.0,
        ("mld_unit_worker_restarts_total", (("worker", "a-1"),)): 1.0,
    }


def member(name: str, *, is_ready: bool = True) -> GroupMember:
    return GroupMember(name, Path("/p"), Path("/n"), process=Mock() if is_ready else None, is_ready=is_ready)


async def test_probes_speak_for_all_and_a_worker_that_is_being_replaced_is_alive_but_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answered(worker: GroupMember, path: str, question: Question) -> HttpAnswer:
        return text_answer(503, "no progress: renewals") if worker.name == "a-3" else text_answer(200, "ok")

    monkeypatch.setattr(group_pages, "_of_worker", answered)
    well, ended, hangs = member("a-1"), member("a-2", is_ready=False), member("a-3")

    async def probes(*workers: GroupMember) -> list[tuple[int, str]]:
        routes = GroupPages(Mock(workers=workers)).routes()
        answers = [await routes[path](Question(path, {})) for path in ("/livez", "/readyz")]
        return [(answer.status, bytes(answer.body).decode().strip()) for answer in answers]

    assert await probes(well, well) == [(200, "ok"), (200, "ok")]
    assert await probes(well, ended) == [(200, "ok"), (503, "worker a-2: is not running, and will be started again")]
    assert (await probes(well, ended, hangs))[0] == (503, "worker a-3: no progress: renewals")


async def test_a_page_is_fetched_from_the_socket_of_a_worker(tmp_path: Path) -> None:
    asked = []

    async def page(question: Question) -> HttpAnswer:
        asked.append(question)
        return HttpAnswer(200, "text/html", b"x" * 500_000, {"vary": "accept-encoding", "x-other": "kept here"})

    server = HttpServer({"/": page}, WebRule(frozenset(), ""))
    await server.start_at(tmp_path / "pages")
    worker = GroupMember("a-1", tmp_path / "pages", Path("/n"), process=Mock(), is_ready=True)
    fetch = GroupPages(Mock(workers=[worker])).routes()["/1/"]
    headers = {"accept": "text/html,\t*/*", "accept-encoding": "gzip", "cookie": "c"}
    got = await fetch(Question("/1/", headers))
    await server.close()
    assert (got.status, got.content_type, got.body) == (200, "text/html", b"x" * 500_000)
    assert sorted(got.headers) == ["content-security-policy", "vary"]
    assert (await fetch(Question("/1/", {}))).status == 503
    assert [(one.target, one.headers.get("accept-encoding"), "cookie" in one.headers) for one in asked] == [
        ("/", "gzip", False)
    ]


def test_a_group_without_the_extra_serves_its_pages_and_says_what_to_install() -> None:
    code = (
        "import asyncio, sys; sys.modules['prometheus_client'] = None\n"
        "from mld.daemon.group_pages import GroupPages\n"
        "from mld.serving.http_answers import Question\n"
        "from unittest.mock import Mock\n"
        "answer = asyncio.run(GroupPages(Mock(workers=[])).routes()['/metrics'](Question('/metrics', {})))\n"
        "print(answer.status, answer.body.decode())"
    )
    told = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True).stdout
    assert told.startswith("501 install the extra: ")
