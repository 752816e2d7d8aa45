"""If no connection comes, the error names what leads to the address: a key, a variable, the profile or the region."""

from __future__ import annotations

from pathlib import Path

import pytest

from mld.aws.client_factory import client_factory
from mld.aws.service_factory import service_of
from mld.core.errors import AwsUnreachableError
from mld.operating.endpoint_probe import endpoint_finding
from mld.properties.loader import load
from tests.support.servers import free_port
from tests.unit.properties.conftest import MINIMUM

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_KINESIS", "AWS_PROFILE")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*PROXIES, *map(str.lower, PROXIES), *ENDPOINTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.fixture
def closed() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def refused(tmp_path: Path, service: str, line: str, calls_max: int | None) -> str:
    """The error of a call by a daemon with this line in its file."""
    file = tmp_path / "app.properties"
    file.write_text(f"{MINIMUM}{line}\n")
    made = service_of(
        client_factory(load(file, (), {}).settings),
        service,
        label=service,
        threads_max=1,
        read_timeout_s=1.0,
        calls_max=calls_max,
    )
    await made.open()
    operation = "GetItem" if service == "dynamodb" else "ListShards"
    try:
        with pytest.raises(AwsUnreachableError) as caught:
            await made.call(operation, {"TableName": "t", "Key": {}} if service == "dynamodb" else {"StreamName": "s"})
    finally:
        await made.close()
    return str(caught.value)


@pytest.mark.parametrize("calls_max", [None, 2], ids=["botocore", "wire"])
@pytest.mark.parametrize(
    ("service", "key"),
    [("kinesis", "kinesisEndpoint"), ("dynamodb", "dynamoDBEndpoint"), ("dynamodb", "dynamoDbClient.proxyUrl")],
)
async def test_a_key_that_leads_to_a_closed_port_is_named(
    tmp_path: Path, closed: str, service: str, key: str, calls_max: int | None
) -> None:
    assert (await refused(tmp_path, service, f"{key}={closed}", calls_max)).endswith(f"; check {key}")


@pytest.mark.parametrize("calls_max", [None, 2], ids=["botocore", "wire"])
@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "HTTPS_PROXY"])
async def test_a_variable_that_leads_to_a_closed_port_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, name: str, calls_max: int | None
) -> None:
    monkeypatch.setenv(name, closed)
    assert (await refused(tmp_path, "dynamodb", "", calls_max)).endswith(f"; check {name}")


async def test_the_profile_is_named_and_the_file_wins_over_it(tmp_path: Path, closed: str) -> None:
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {closed}\n")
    assert (await refused(tmp_path, "dynamodb", "", 2)).endswith("; check endpoint_url of the AWS profile")
    of_file = f"dynamoDBEndpoint={closed}"
    assert (await refused(tmp_path, "dynamodb", of_file, 2)).endswith("; check dynamoDBEndpoint")


def test_without_an_endpoint_the_region_leads_to_it(tmp_path: Path) -> None:
    file = tmp_path / "app.properties"
    file.write_text(f"{MINIMUM}dynamoDbClient.region=xx-nowhere-1\n")
    factory = client_factory(load(file, (), {}).settings)
    client = factory.create_client("dynamodb", read_timeout_s=1.0, connect_timeout_s=1.0, pool_connections_max=1)
    assert factory.address_source("dynamodb", client) == "the region, xx-nowhere-1, and the network"


async def test_the_doctor_names_it_too(closed: str) -> None:
    found = await endpoint_finding("Kinesis endpoint", closed, None, None, "kinesisEndpoint")
    assert found.remedy.startswith("check kinesisEndpoint; ")
