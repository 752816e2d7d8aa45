"""Where the calls of a client go, as `mld doctor` names it: what a firewall has to let through."""

from __future__ import annotations

from typing import Any

import botocore.session
import pytest
from botocore import UNSIGNED
from botocore.config import Config

from mld.operating.endpoint_probe import endpoints_of

ARN = "arn:aws:kinesis:eu-west-1:111111111111:stream/clicks"


def client(service: str = "kinesis", **more: Any) -> Any:
    session = botocore.session.Session()
    return session.create_client(
        service, region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b", **more
    )


def test_a_stream_by_name_is_at_the_endpoint_of_the_region() -> None:
    assert endpoints_of(client()) == ["https://kinesis.eu-west-1.amazonaws.com"]


@pytest.mark.parametrize("config", [None, Config(signature_version=UNSIGNED)], ids=["signed", "unsigned"])
def test_a_stream_by_its_arn_is_at_two_hosts_of_its_account(config: Config | None) -> None:
    assert endpoints_of(client(config=config), ARN) == [
        "https://111111111111.control-kinesis.eu-west-1.amazonaws.com/",
        "https://111111111111.data-kinesis.eu-west-1.amazonaws.com/",
    ]


def test_an_endpoint_that_is_given_counts_for_all_calls() -> None:
    assert endpoints_of(client(endpoint_url="http://127.0.0.1:4567"), ARN) == ["http://127.0.0.1:4567/"]


def test_a_table_is_at_a_host_of_the_account_that_the_credentials_name() -> None:
    assert endpoints_of(client("dynamodb")) == ["https://dynamodb.eu-west-1.amazonaws.com/"]
    own = client("dynamodb", aws_account_id="222222222222")
    assert endpoints_of(own) == ["https://222222222222.ddb.eu-west-1.amazonaws.com/"]
