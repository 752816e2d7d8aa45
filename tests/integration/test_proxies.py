"""Both clients through a real HTTP proxy: the calls, the event streams, the credentials, and which way is taken."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mld.aws.client_factory import client_factory
from mld.aws.service_factory import service_of
from mld.aws.wire.client import WireService
from mld.core.errors import AwsError, AwsUnreachableError
from mld.local.event_frames import initial_response
from mld.properties.loader import load
from tests.support.certificates import write_corporate_certificates
from tests.support.forward_proxy import ForwardProxy
from tests.support.patience import PATIENCE_S
from tests.support.strict_aws import StrictAws

PASSWORD = "pa:ss@word"
ENCODED = "pa%3Ass%40word"
SUBSCRIBE = {
    "ConsumerARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/s/consumer/a:1",
    "ShardId": "shardId-0",
    "StartingPosition": {"Type": "LATEST"},
}
NewAws = Callable[[str], StrictAws]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys, no profile, and no proxy of the machine the tests run on."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy") or name == "REQUESTS_CA_BUNDLE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SKENV")


@pytest.fixture
def new_aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewAws]:
    """Starts a Kinesis that speaks http or https."""
    started: list[StrictAws] = []

    def start(scheme: str) -> StrictAws:
        context = None
        if scheme == "https":
            trusted, public, secret = write_corporate_certificates(tmp_path, "127.0.0.1")
            monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(public, secret)
        documents = {"SubscribeToShard": initial_response()}
        started.append(StrictAws(secrets={"AKENV": "SKENV"}, documents=documents, context=context))
        return started[-1].__enter__()

    yield start
    for server in started:
        server.__exit__()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForwardProxy]:
    with ForwardProxy(tmp_path_factory.mktemp("proxy")) as server:
        yield server


@pytest.fixture(scope="module")
def asking_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForwardProxy]:
    """Wants a password."""
    with ForwardProxy(tmp_path_factory.mktemp("proxy"), user=f"user:{PASSWORD}") as server:
        yield server


@asynccontextmanager
async def kinesis_at(aws: StrictAws, directory: Path, *lines: str) -> AsyncIterator[WireService]:
    file = directory / "app.properties"
    keys = (
        "executableName=x",
        "applicationName=a",
        "streamName=s",
        "regionName=eu-west-1",
        f"kinesisEndpoint={aws.url}",
    )
    file.write_text("\n".join([*keys, "AwsCredentialsProvider=EnvironmentVariableCredentialsProvider", *lines]))
    service = service_of(
        client_factory(load(file).settings), "kinesis", label="Kinesis", threads_max=2, calls_max=2,
        read_timeout_s=PATIENCE_S,
    )  # fmt: skip
    assert isinstance(service, WireService)
    await service.open()
    try:
        yield service
    finally:
        await service.close()


async def call_everything(service: WireService) -> None:
    await service.call("ListShards", {"StreamName": "s"})  # by botocore
    for _ in range(2):  # by the lean client, in a thread and on the loop
        await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)
    stream = await service.open_stream("SubscribeToShard", SUBSCRIBE)
    assert b"".join(await stream.next() or ()) == initial_response()
    stream.close()


EVERYTHING = ["ListShards", "GetRecords", "GetRecords", "SubscribeToShard"]
CONNECTIONS = 3  # of botocore, of the lean client, and of the stream


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("how", ["environment", "key"])
async def test_all_calls_go_through_the_proxy(
    new_aws: NewAws, proxy: ForwardProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, how: str
) -> None:
    aws = new_aws(scheme)
    lines = []
    if how == "key":
        monkeypatch.setenv("NO_PROXY", "*")
        lines = [f"kinesisClient.proxyUrl=http://{proxy.address}"]
    else:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://{proxy.address}")
    async with kinesis_at(aws, tmp_path, *lines) as service:
        await call_everything(service)
        assert service.can_stream
    assert aws.served == EVERYTHING
    await proxy.has_logged(f"{'CONNECT' if scheme == 'https' else 'POST'} 127.0.0.1:{aws.port}", times=CONNECTIONS)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_gets_its_password_and_nobody_else_sees_it(
    new_aws: NewAws, asking_proxy: ForwardProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    aws = new_aws(scheme)
    caplog.set_level("DEBUG", "mld")
    async with kinesis_at(
        aws, tmp_path, f"kinesisClient.proxyUrl=http://user:{ENCODED}@{asking_proxy.address}"
    ) as service:
        await call_everything(service)
    assert aws.served == EVERYTHING
    assert PASSWORD not in caplog.text
    assert ENCODED not in caplog.text


@pytest.mark.parametrize("operation", ["ListShards", "GetRecords"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_wants_another_password_is_named_without_it(
    new_aws: NewAws, asking_proxy: ForwardProxy, tmp_path: Path, scheme: str, operation: str
) -> None:
    aws = new_aws(scheme)
    params = {"StreamName": "s"} if operation == "ListShards" else {"ShardIterator": "i"}
    async with kinesis_at(
        aws, tmp_path, f"kinesisClient.proxyUrl=http://user:hunter2@{asking_proxy.address}"
    ) as service:
        with pytest.raises((AwsUnreachableError, AwsError), match=r"407|connect to proxy") as caught:
            await service.call(operation, params)
    assert "hunter2" not in str(caught.value)
    assert aws.served == []


@pytest.mark.parametrize(
    ("scheme", "variables"),
    [
        ("https", {"http_proxy": "http://127.0.0.1:1", "all_proxy": "http://127.0.0.1:1"}),
        ("http", {"https_proxy": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1"}),
        ("https", {"https_proxy": "http://127.0.0.1:1", "no_proxy": "localhost,127.0.0.1"}),
        ("http", {"http_proxy": "http://127.0.0.1:1", "no_proxy": "*"}),
    ],
)
async def test_a_proxy_for_other_addresses_is_none(
    new_aws: NewAws,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    variables: dict[str, str],
) -> None:
    aws = new_aws(scheme)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with kinesis_at(aws, tmp_path) as service:
        await call_everything(service)
        assert service.can_stream
    assert aws.served == EVERYTHING


async def test_a_proxy_that_speaks_tls_is_left_to_botocore(
    new_aws: NewAws, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aws = new_aws("https")
    caplog.set_level("INFO")
    async with kinesis_at(aws, tmp_path, "kinesisClient.proxyUrl=https://user:hunter2@127.0.0.1:1") as service:
        assert not service.can_stream
        with pytest.raises(AwsUnreachableError) as caught:
            await service.fetch("GetRecords", {"ShardIterator": "i"}, bytes)
    assert "called through botocore: a proxy that is not spoken to in plain HTTP" in caplog.text
    assert "hunter2" not in caplog.text + str(caught.value)
