"""Where CPU figures come from: trees of /proc and /sys, a metadata service (metrics#cpu-sources)."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mld.aws import host_reader as host_module
from mld.aws.host_reader import HostReader, HostReadError
from mld.fleet.report import platform
from mld.fleet.report.platform import ECS_V3, ECS_V4, LoadSource, LoadUnreadableError, detect
from tests.support.servers import free_port

EKS = {platform.EKS_TOKEN: "secret"}
PROC = {"/proc/stat": "cpu  100 0 100 1000 100 0 0 0\n"}
V2 = {"/sys/fs/cgroup/cpu.max": "max 100000\n", "/sys/fs/cgroup/cpu.stat": "usage_usec 1000000\n",
      "/sys/fs/cgroup/cpuset.cpus.effective": "0-3\n"}  # fmt: skip
V2_LIMITED = V2 | {"/sys/fs/cgroup/cpu.max": "200000 100000\n"}
DAMAGED = {"/sys/fs/cgroup/cpu.max": "much\n"}
METADATA = {
    "/v4/abc": {"DockerId": "own"},
    "/v4/abc/task": {"Limits": {"CPU": 1}, "Containers": [{"DockerId": "own", "Limits": {"CPU": 256}}]},
    "/v4/abc/stats": {
        "cpu_stats": {"cpu_usage": {"total_usage": 600}, "system_cpu_usage": 9000, "online_cpus": 2},
        "precpu_stats": {"cpu_usage": {"total_usage": 500}, "system_cpu_usage": 8000},
    },
}


class SteppedClock:
    """A clock that the test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return -self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def plant(root: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[HostReader]:
    reader = HostReader(tmp_path)
    yield reader
    reader.close()


class Metadata:
    """A metadata service; `asked` has the paths it was asked for."""

    def __init__(self) -> None:
        self.documents: dict[str, Any] = dict(METADATA)
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                found = self.path in service.documents
                self.send_response(200 if found else 404)
                self.end_headers()
                self.wfile.write(json.dumps(service.documents.get(self.path)).encode())

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    thread = threading.Thread(target=service.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield service
    service.server.shutdown()
    service.server.server_close()
    thread.join()


def name_of(source: LoadSource | None) -> str | None:
    return None if source is None else source.name


# --- detection


@pytest.mark.parametrize("figure", [math.inf, 10**400, "9" * 100_000])
async def test_a_metadata_service_that_says_what_is_no_figure_keeps_nobody_from_starting(
    figure: object, host: HostReader, tmp_path: Path, metadata: Metadata, clock: SteppedClock
) -> None:
    plant(tmp_path, PROC)
    metadata.documents["/v4/abc/stats"] = {"cpu_stats": {"cpu_usage": {"total_usage": figure}}}
    assert name_of(await detect(host, {ECS_V4: f"{metadata.address}/v4/abc"}, clock)) == "/proc/stat"


async def test_neither_does_a_document_that_our_reading_of_it_has_a_bug_for(
    host: HostReader, tmp_path: Path, metadata: Metadata, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(_: object) -> None:
        raise OverflowError("a defect")

    plant(tmp_path, PROC)
    monkeypatch.setattr(platform, "parse_ecs_stats", stumble)
    assert name_of(await detect(host, {ECS_V4: f"{metadata.address}/v4/abc"}, clock)) == "/proc/stat"


@pytest.mark.parametrize(
    ("files", "environ", "expected"),
    [
        ({}, {}, None),
        (DAMAGED, {}, None),
        (PROC, {}, "/proc/stat"),
        (PROC | V2, {}, "/proc/stat"),  # no limit of its own: the machine, as Java on EC2
        (PROC | V2_LIMITED, {}, "cgroup v2"),
        (PROC | V2 | EKS, {}, "cgroup v2"),
        (PROC | DAMAGED | EKS, {}, "/proc/stat"),
        (PROC | EKS, {}, "/proc/stat"),
        (EKS, {}, None),
        (PROC | V2, {ECS_V3: "http://169.254.170.2/v3"}, "cgroup v2"),
        (PROC | V2, {ECS_V3: "", ECS_V4: ""}, "/proc/stat"),
        ({"/proc/stat": "nonsense\n"}, {}, None),
    ],
)
async def test_the_first_source_that_works_is_used(
    files: dict[str, str],
    environ: dict[str, str],
    expected: str | None,
    tmp_path: Path,
    host: HostReader,
    clock: SteppedClock,
) -> None:
    plant(tmp_path, files)
    assert name_of(await detect(host, environ, clock)) == expected


async def test_ecs_comes_first(tmp_path: Path, host: HostReader, clock: SteppedClock, metadata: Metadata) -> None:
    plant(tmp_path, PROC | V2 | EKS)
    source = await detect(host, {ECS_V4: f"{metadata.address}/v4/abc"}, clock)
    assert name_of(source) == "ECS task metadata"


@pytest.mark.parametrize("gone", ["/v4/abc", "/v4/abc/stats", "/v4/abc/task"])
async def test_a_metadata_service_without_answers_is_passed_over(
    gone: str, tmp_path: Path, host: HostReader, clock: SteppedClock, metadata: Metadata
) -> None:
    plant(tmp_path, PROC | V2)
    del metadata.documents[gone]
    source = await detect(host, {ECS_V4: f"{metadata.address}/v4/abc"}, clock)
    assert name_of(source) == "cgroup v2"


@pytest.mark.parametrize(
    "base",
    [f"http://127.0.0.1:{free_port()}/v4", "https://127.0.0.1/v4", "nonsense", "http://[/"],
    ids=["closed port", "not http", "no address", "broken"],
)
async def test_an_address_nobody_answers_at_is_passed_over(
    base: str, tmp_path: Path, host: HostReader, clock: SteppedClock
) -> None:
    plant(tmp_path, PROC)
    assert name_of(await detect(host, {ECS_V4: base}, clock)) == "/proc/stat"


async def test_without_ecs_nothing_is_asked_of_the_network(tmp_path: Path, clock: SteppedClock) -> None:
    class NoNetwork(HostReader):
        async def document(self, url: str) -> Any:
            raise AssertionError(url)

    host = NoNetwork(tmp_path)
    plant(tmp_path, PROC | V2 | EKS)
    assert await detect(host, {ECS_V3: "http://169.254.170.2/v3"}, clock) is not None
    host.close()


# --- sources


async def test_the_machine(tmp_path: Path, host: HostReader) -> None:
    plant(tmp_path, PROC)
    source = platform.ProcStatSource(host)
    assert await source.read() is None
    plant(tmp_path, {"/proc/stat": "cpu  130 20 100 1150 100 0 0 0\n"})
    assert await source.read() == 25.0
    assert await source.read() is None


async def test_a_container_of_v2_follows_a_changed_limit(tmp_path: Path, host: HostReader, clock: SteppedClock) -> None:
    plant(tmp_path, V2)
    source = platform.CgroupSource(host, clock, needs_limit=False)
    assert await source.read() is None
    clock.now = 1.0
    plant(tmp_path, {"/sys/fs/cgroup/cpu.stat": "usage_usec 2000000\n"})
    assert await source.read() == 25.0  # one second of four processors
    clock.now = 3.0
    plant(tmp_path, V2_LIMITED | {"/sys/fs/cgroup/cpu.stat": "usage_usec 5000000\n"})
    assert await source.read() == 75.0  # three seconds in two, of two processors


async def test_an_ecs_container_asks_for_its_limits_once(host: HostReader, metadata: Metadata) -> None:
    source = platform.EcsSource(host, f"{metadata.address}/v4/abc/")
    assert [await source.read(), await source.read()] == [20.0, 20.0]
    assert metadata.asked == ["/v4/abc/stats", "/v4/abc", "/v4/abc/task", "/v4/abc/stats"]


async def test_what_figures_are_of_is_the_machine_or_the_container(
    tmp_path: Path, host: HostReader, clock: SteppedClock
) -> None:
    sources = [
        platform.ProcStatSource(host),
        platform.CgroupSource(host, clock, needs_limit=False),
        platform.EcsSource(host, "http://meta/v4/abc/"),
    ]
    assert [await source.meter() for source in sources] == ["", "", "http://meta/v4/abc"], "an unknown machine is none"
    plant(tmp_path, V2 | {platform.BOOT_ID: "6f9c2f1e\n"})
    group = (tmp_path / "sys/fs/cgroup").stat().st_ino
    assert [await source.meter() for source in sources] == ["6f9c2f1e", f"6f9c2f1e {group}", "http://meta/v4/abc"]


async def test_a_source_that_breaks_says_so_and_recovers(tmp_path: Path, host: HostReader) -> None:
    plant(tmp_path, PROC)
    source = platform.ProcStatSource(host)
    await source.read()
    (tmp_path / "proc/stat").unlink()
    with pytest.raises(LoadUnreadableError, match="/proc/stat"):
        await source.read()
    plant(tmp_path, {"/proc/stat": "cpu  200 0 100 1000 100 0 0 0\n"})
    assert await source.read() == 100.0


# --- reading the host


async def test_a_service_that_hangs_is_given_up(tmp_path: Path) -> None:
    silent = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # accepts in its backlog, never answers
    host = HostReader(tmp_path, timeout_s=0.05)
    with pytest.raises(HostReadError, match=r"not read within 0\.05 s"):
        await host.document(f"http://127.0.0.1:{silent.server_port}/")
    host.close()
    silent.server_close()


async def test_a_document_too_large_or_not_json_is_refused(
    host: HostReader, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await host.document(f"{metadata.address}/v4/abc") == {"DockerId": "own"}
    monkeypatch.setattr(host_module, "DOCUMENT_BYTES_MAX", 4)
    with pytest.raises(HostReadError, match="bytes"):
        await host.document(f"{metadata.address}/v4/abc")


async def test_a_proxy_of_the_environment_is_not_used(
    host: HostReader, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert await host.document(f"{metadata.address}/v4/abc") == {"DockerId": "own"}


async def test_only_the_beginning_of_a_file_is_read(tmp_path: Path, host: HostReader) -> None:
    plant(tmp_path, {"/big": "x" * (host_module.FILE_BYTES_MAX + 1)})
    assert len(await host.text("/big")) == host_module.FILE_BYTES_MAX


async def test_a_closed_reader_answers_with_an_error(tmp_path: Path) -> None:
    plant(tmp_path, PROC)
    host = HostReader(tmp_path)
    assert await host.exists("/proc/stat")
    host.close()
    assert not await host.exists("/proc/stat")
    with pytest.raises(HostReadError, match="closed"):
        await host.text("/proc/stat")
