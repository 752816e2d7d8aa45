"""Which shard, and which lease, a person means where a file names several streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from mld.core.positions import TRIM_HORIZON
from mld.leases.lease import Lease
from mld.operating.iam_policy import policy
from mld.operating.naming import chosen_shard, lease_of
from mld.operating.plan import ActRefusedError
from mld.operating.probes import by_stream
from mld.properties.loader import load
from mld.properties.settings import Settings

FILE = """\
executableName = child
applicationName = app
AwsCredentialsProvider = DefaultCredentialsProvider
regionName = eu-west-1
retrievalMode = POLLING
"""
SEVERAL = """\
mld.streams = orders, pay
mld.stream.orders.executableName = orders-child
mld.stream.pay.arn = arn:aws:kinesis:us-east-1:222222222222:stream/payments
mld.stream.pay.credentials = StsAssumeRoleCredentialsProvider|arn:aws:iam::222222222222:role/r|s
"""
SHARD = "shardId-000000000003"


@pytest.fixture
def several(tmp_path: Path) -> Settings:
    path = tmp_path / "app.properties"
    path.write_text(FILE + SEVERAL)
    return load(path).settings


def lease(stream: str | None, shard: str = SHARD) -> Lease:
    return Lease(shard if stream is None else f"{stream}:{shard}", TRIM_HORIZON, stream=stream)


@pytest.mark.parametrize(
    ("text", "stream"),
    [
        ("orders:3", "orders"),
        (f"orders:{SHARD}", "orders"),
        ("pay:3", "pay"),
        ("payments:3", "pay"),
        (f"111111111111:orders:17:{SHARD}", "orders"),
        (f"222222222222:payments:17:{SHARD}", "pay"),
    ],
)
def test_a_shard_is_named_with_its_stream_or_by_the_key_of_its_lease(several: Settings, text: str, stream: str) -> None:
    found = chosen_shard(several, text)
    assert found.stream is not None
    assert (found.stream.name, found.shard_id) == (stream, SHARD)
    assert not found.settings.is_multi_stream
    assert found.settings.stream_name == found.stream.stream_name
    assert found.settings.kinesis.region == (found.stream.region or "eu-west-1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3", "3 may be a shard of several streams: write STREAM:SHARD, with a stream of orders, pay"),
        ("clicks:3", "the file has no stream clicks; it has orders, pay"),
        (f"333333333333:payments:17:{SHARD}", "the file has no stream 333333333333:payments:17"),
    ],
)
def test_a_shard_of_no_stream_or_of_several_is_refused(several: Settings, text: str, says: str) -> None:
    with pytest.raises(ActRefusedError, match=says):
        chosen_shard(several, text)


def test_one_stream_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "one.properties"
    path.write_text(FILE + "streamName = s\n")
    found = chosen_shard(load(path).settings, "3")
    assert (found.shard_id, found.stream) == (SHARD, None)
    assert lease_of([lease(None, "other"), lease(None)], found) == lease(None)
    path.write_text(FILE + "mld.streams = orders\n")
    assert chosen_shard(load(path).settings, "3").shard_id == SHARD


def test_the_lease_is_that_of_the_stream_and_of_its_latest_incarnation(several: Settings) -> None:
    former, now = lease("111111111111:orders:17"), lease("111111111111:orders:101")
    leases = [former, now, lease("222222222222:payments:500"), lease("111111111111:orders:101", "shardId-000000000004")]
    assert lease_of(leases, chosen_shard(several, "orders:3")) == now
    assert lease_of(leases, chosen_shard(several, former.key)) == former
    assert lease_of([lease("333333333333:payments:500")], chosen_shard(several, "pay:3")) is None


def test_each_stream_is_probed_with_its_own_settings_and_former_ones_not(several: Settings) -> None:
    leases = [lease("222222222222:payments:5"), lease("1:gone:5"), lease("1:orders:5"), lease("1:orders:5", "other")]
    found = [(one.stream_name, one.kinesis.region, len(some)) for one, some in by_stream(several, leases)]
    assert found == [("payments", "us-east-1", 1), ("orders", "eu-west-1", 2)]


def test_a_policy_is_about_the_streams_that_are_read_with_it_and_the_roles_of_others(several: Settings) -> None:
    resources = {one["Sid"]: one["Resource"] for one in policy(several)["Statement"]}
    assert resources["ReadStream"] == ["arn:aws:kinesis:eu-west-1:*:stream/orders"]
    assert resources["AssumeRoles"] == ["arn:aws:iam::222222222222:role/r"]
