"""Requests to a fork server and their place."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.protocol import fork_requests
from mld.protocol.fork_requests import Request
from mld.protocol.meeting import MeetingError

NAMES = st.binary(min_size=1, max_size=8).filter(lambda name: b"\0" not in name and b"=" not in name)
VALUES = st.binary(max_size=12).filter(lambda value: b"\0" not in value)


@given(
    cwd=VALUES.filter(bool),
    arguments=st.lists(VALUES),
    environment=st.dictionaries(
        NAMES | st.sampled_from(sorted(fork_requests.OF_SHARD | fork_requests.OF_STREAM)), VALUES
    ),
    own_group=st.booleans(),
)
def test_a_request_arrives_as_it_was_sent(cwd, arguments, environment, own_group):
    request = Request.of(cwd, arguments, environment, own_group=own_group)
    data = request.encode()
    assert int(data[: fork_requests.LENGTH_BYTES]) == len(data) - fork_requests.LENGTH_BYTES
    got = Request.decode(data[fork_requests.LENGTH_BYTES :])
    assert (got.shared, got.variables, got.own_group) == (request.shared, request.variables, own_group)
    own = fork_requests.OF_SHARD | (fork_requests.OF_STREAM if b"MLD_STREAM_ID" in environment else frozenset())
    assert dict(got.variables) == {name: value for name, value in environment.items() if name in own}
    assert got.shared == fork_requests.shared_part(cwd, arguments, environment)


def of(cwd=b"/", arguments=(b"a.py",), environment=None):
    return Request.of(cwd, arguments, environment or {b"A": b"1"}, own_group=False)


def test_children_of_one_command_share_a_server_whatever_their_shard():
    one = of(environment={b"A": b"1", b"B": b"2", b"MLD_SHARD_ID": b"x", b"PWD": b"/"})
    other = of(environment={b"B": b"2", b"MLD_SHARD_ID": b"y", b"A": b"1"})
    assert one.server_name() == other.server_name()


def test_children_of_several_streams_share_a_server():
    one = {b"MLD_SHARD_ID": b"x", b"MLD_LEASE_KEY": b"1:a:2:x", b"MLD_STREAM_ID": b"1:a:2", b"MLD_STREAM_NAME": b"a"}
    other = {b"MLD_SHARD_ID": b"x", b"MLD_LEASE_KEY": b"1:b:2:x", b"MLD_STREAM_ID": b"1:b:2", b"MLD_STREAM_NAME": b"b"}
    arns = {b"MLD_STREAM_ARN": b"arn:b", b"MLD_STREAM_CREATED": b"2026"}
    assert of(environment=one).server_name() == of(environment=other | arns).server_name()
    assert dict(of(environment=other | arns).variables) == other | arns


def test_the_name_of_the_one_stream_is_common_so_that_imports_may_look_at_it():
    assert of(environment={b"MLD_STREAM_NAME": b"a"}).variables == []
    assert of(environment={b"MLD_STREAM_NAME": b"a"}).shared != of(environment={b"MLD_STREAM_NAME": b"b"}).shared


@pytest.mark.parametrize(
    "other",
    [
        of(cwd=b"/tmp"),
        of(arguments=(b"a.py", b"")),
        of(arguments=(b"a.py", b"A=1"), environment={b"B": b"1"}),
        of(environment={b"A": b"2"}),
        of(environment={b"A": b"1", b"B": b""}),
    ],
)
def test_another_directory_command_or_environment_has_another_server(other):
    assert other.server_name() != of().server_name()
    assert other.shared != of().shared


@pytest.mark.parametrize(
    "what", [fork_requests.PID, fork_requests.PLAIN, fork_requests.STALE, fork_requests.EXIT, fork_requests.SIGNAL]
)
@pytest.mark.parametrize("number", [0, 255, 4194304])
def test_records_have_one_size(what, number):
    record = fork_requests.encode_record(what, number)
    assert len(record) == fork_requests.RECORD_BYTES
    assert fork_requests.decode_record(record) == (what, number)


def test_half_a_record_is_none():
    assert fork_requests.decode_record(b"") is None
    assert fork_requests.decode_record(fork_requests.encode_record(fork_requests.EXIT)[:-1]) is None


def test_a_request_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version"):
        Request.decode(b"9" + of().encode()[fork_requests.LENGTH_BYTES + 1 :])


def test_a_process_is_known_by_its_start(tmp_path):
    assert fork_requests.process_identity(os.getpid()) == fork_requests.process_identity(os.getpid())
    assert fork_requests.process_identity(2**22 + 1) is None


def test_the_directory_must_be_ours_alone(tmp_path):
    good = tmp_path / "good"
    good.mkdir(mode=0o700)
    os.close(fork_requests.open_runtime_directory(str(good)))
    good.chmod(0o750)
    with pytest.raises(MeetingError, match="750"):
        fork_requests.open_runtime_directory(str(good))
    (tmp_path / "link").symlink_to(good)
    with pytest.raises(MeetingError):
        fork_requests.open_runtime_directory(str(tmp_path / "link"))
    with pytest.raises(MeetingError):
        fork_requests.open_runtime_directory(str(tmp_path / "missing"))
