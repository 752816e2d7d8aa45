"""Several streams: what the keys mean, what is refused, how a list in a file is read (docs/use/multi-stream.md)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mld.properties.credentials import ProviderKind
from mld.properties.live_changes import changes_between
from mld.properties.loader import LoadedConfiguration, bytes_of_list
from mld.properties.remarks import ConfigurationError, Level
from mld.properties.stream_list import StreamList, StreamsFile
from mld.properties.values import FormerStreams, InitialPositionKind, InitialPositionSetting
from tests.unit.properties.conftest import Configure, problems, remarks_on

ARN = "arn:aws:kinesis:eu-west-1:111111111111:stream/orders"
OTHER_REGION = "arn:aws:kinesis:us-east-1:111111111111:stream/clicks"
CONSUMER = f"{ARN}/consumer/app:1700000000"
LATEST = InitialPositionSetting(InitialPositionKind.LATEST)


def read_streams(file: StreamsFile) -> StreamList:
    return file.parse(bytes_of_list(file))


def streams(configure: Configure, text: str, *more: str) -> LoadedConfiguration:
    return configure("\n".join([text, *more]), without=["streamName"])


def test_a_list_of_names_is_a_list_of_streams_with_the_defaults_of_the_application(configure: Configure) -> None:
    loaded = streams(configure, "mld.streams = orders, clicks", "initialPositionInStream=TRIM_HORIZON")
    settings = loaded.settings
    assert settings.is_multi_stream
    assert (settings.stream_name, settings.stream_arn) == ("", None)
    assert [stream.name for stream in settings.streams] == ["orders", "clicks"]
    (first, _) = settings.streams
    assert first.stream_name == "orders"
    assert (first.arn, first.region, first.account, first.epoch) == (None, None, None, None)
    assert (first.consumer_arn, first.credentials, first.executable_name) == (None, None, None)
    assert first.initial_position.kind is InitialPositionKind.TRIM_HORIZON
    assert (settings.shards.former_streams, settings.shards.former_streams_wait_s) == (FormerStreams.STOP, 3600.0)
    assert loaded.streams_file is None


def test_without_a_list_one_stream_is_read(configure: Configure) -> None:
    settings = configure().settings
    assert not settings.is_multi_stream
    assert (settings.stream_name, settings.streams, settings.streams_file) == ("s", (), None)


def test_a_stream_has_keys_of_its_own(configure: Configure) -> None:
    loaded = streams(
        configure,
        "mld.streams = o, my.clicks",
        f"mld.stream.o.arn = {ARN}",
        "mld.stream.o.epoch = 1712000000",
        "mld.stream.o.initialPosition = 1767225600",
        f"mld.stream.o.consumerArn = {CONSUMER}",
        "mld.stream.o.credentials = ProfileCredentialsProvider|partner",
        "mld.stream.my.clicks.executableName = node clicks.js",
        "mld.stream.my.clicks.initialPosition = trim_horizon",
    )
    first, second = loaded.settings.streams
    assert (first.name, first.stream_name, first.region, first.account) == ("o", "orders", "eu-west-1", "111111111111")
    assert str(first.arn) == ARN
    assert first.epoch == 1712000000
    assert first.initial_position == InitialPositionSetting(InitialPositionKind.AT_TIMESTAMP, 1767225600)
    assert first.consumer_arn == CONSUMER
    assert first.credentials is not None
    assert [provider.kind for provider in first.credentials.providers] == [ProviderKind.PROFILE]
    assert second.executable_name == "node clicks.js"
    assert second.initial_position.kind is InitialPositionKind.TRIM_HORIZON
    rows = {value.key: value.value for value in loaded.effective}
    assert rows["mld.streams"] == "o,my.clicks"
    assert rows["mld.stream.o.credentials"] == "ProfileCredentialsProvider|partner"
    assert rows["mld.stream.my.clicks.executableName"] == "node clicks.js"


def test_the_arn_of_a_consumer_names_its_stream(configure: Configure) -> None:
    (stream,) = streams(configure, "mld.streams=orders", f"mld.stream.orders.consumerArn={CONSUMER}").settings.streams
    assert str(stream.arn) == ARN


def test_secrets_of_a_stream_are_hidden_and_known_to_the_scrubber(configure: Configure) -> None:
    role = "StsAssumeRoleCredentialsProvider|arn:aws:iam::111111111111:role/r|s|externalId=geheim"
    loaded = streams(configure, "mld.streams=orders", f"mld.stream.orders.credentials={role}")
    assert "geheim" in loaded.secrets
    assert "geheim" not in str(loaded.to_json())
    assert "geheim" not in repr(loaded)


@pytest.mark.parametrize(
    ("lines", "key", "says"),
    [
        (["mld.streams=a", "streamName=s"], "streamName", "cannot be used together with mld.streams"),
        (["mld.streams=a", f"streamArn={ARN}"], "streamArn", "cannot be used together with mld.streams"),
        (["mld.streams=a,b,a"], "mld.streams", "name 3 of the list, a, is in it twice"),
        (["mld.streams=a,,b"], "mld.streams", "name 2 of the list is no name of a stream"),
        (["mld.streams=a b"], "mld.streams", "name 1 of the list is no name of a stream"),
        (["mld.streams="], "mld.streams", "is empty"),
        (["mld.streams=a", "mld.streamsFile=/nowhere"], "mld.streamsFile", "cannot be used together with mld.streams"),
        (["mld.streamsFile=/nowhere/list"], "", "cannot be read: No such file or directory"),
        (
            ["streamName=s", "mld.stream.a.epoch=1"],
            "mld.stream.a.epoch",
            "is about one of several streams, and there is no mld.streams",
        ),
        (["mld.streams=a", "mld.stream.b.epoch=1"], "mld.stream.b.epoch", "is about b, which is not in the list"),
        (["mld.streams=a", "mld.stream.a.arm=1"], "mld.stream.a.arm", "is no key of a stream"),
        (["mld.streams=a", "mld.streams.a.epoch=1"], "mld.streams.a.epoch", "is no key"),
        (["mld.streams=a", "mld.streams.a=1"], "mld.streams.a", "is no key of a stream"),
        ([f"mld.streams={ARN}"], "mld.streams", "name 1 of the list is no name of a stream"),
        (["mld.streams=a", "mld.stream.a.arn="], "mld.stream.a.arn", "is empty"),
        (["mld.streams=a", "mld.stream.a.executableName="], "mld.stream.a.executableName", "is empty"),
        (["mld.streams=a", "mld.stream.arn=1"], "mld.stream.arn", "is no key of a stream"),
        (["mld.streams=a", "mld.stream.a.epoch=soon"], "mld.stream.a.epoch", "is not a whole number"),
        (["mld.streams=a", "mld.stream.a.epoch=0"], "mld.stream.a.epoch", "is out of range: '0'"),
        (["mld.streams=a", "mld.stream.a.initialPosition=NOW"], "mld.stream.a.initialPosition", "has no such value"),
        (["mld.streams=a", "mld.stream.a.arn=orders"], "mld.stream.a.arn", "is not the ARN of a stream of Kinesis"),
        (
            ["mld.streams=a", "mld.stream.a.credentials=Nobody"],
            "mld.stream.a.credentials",
            "unknown credentials provider, skipped",
        ),
        (
            ["mld.streams=a", f"mld.stream.a.consumerArn={ARN}"],
            "mld.stream.a.consumerArn",
            "is no ARN of a consumer",
        ),
        (
            ["mld.streams=a", f"mld.stream.a.consumerArn={CONSUMER}"],
            "mld.stream.a.consumerArn",
            "is a consumer of the stream orders, not of a",
        ),
        (
            ["mld.streams=a", f"mld.stream.a.arn={OTHER_REGION}", f"mld.stream.a.consumerArn={CONSUMER}"],
            "mld.stream.a.consumerArn",
            f"is a consumer of {ARN}, but {OTHER_REGION} is read",
        ),
        (
            ["mld.streams=a,b", f"mld.stream.a.arn={ARN}", f"mld.stream.b.arn={ARN}"],
            "mld.stream.b.arn",
            "is the stream that a is as well",
        ),
        (
            ["mld.streams=a,orders", f"mld.stream.a.arn={ARN}", f"mld.stream.orders.consumerArn={CONSUMER}"],
            "mld.stream.orders.consumerArn",
            "is the stream that a is as well",
        ),
        (
            ["mld.streams=a,b", f"mld.stream.a.arn={ARN}", f"mld.stream.b.arn={ARN.replace('eu-west', 'us-east')}"],
            "mld.stream.b.arn",
            "has the account and the name of a (eu-west-1)",
        ),
        (
            ["mld.streams=a,b", f"mld.stream.a.arn={ARN}", f"mld.stream.b.arn={OTHER_REGION.replace('aws', 'aws-cn')}"],
            "mld.stream.b.arn",
            "is in the partition aws-cn, and mld.stream.a.arn is in aws",
        ),
        (
            ["mld.streams=a", f"mld.stream.a.arn={ARN.replace('aws', 'aws-cn')}"],
            "mld.stream.a.arn",
            "names the partition aws-cn, but its region is in aws",
        ),
        (
            ["mld.streams=orders", "retrievalMode=FANOUT", f"fanoutConfig.consumerArn={CONSUMER}"],
            "fanoutConfig.consumerArn",
            "is the consumer of one stream",
        ),
        (
            ["mld.streams=a", f"mld.stream.a.arn={OTHER_REGION}", "kinesisEndpoint=https://x.vpce.amazonaws.com"],
            "kinesisEndpoint",
            "is an endpoint of AWS, which serves one region, and the stream a is in us-east-1",
        ),
        (
            ["mld.streams=a", "mld.spark.streamId=x", "mld.spark.pipeline=p.py:f"],
            "mld.spark.streamId",
            "names one stream, and mld.streams names several",
        ),
        (
            ["mld.streams=a", "mld.stream.a.executableName=mld-spark"],
            "mld.stream.a.executableName",
            "is mld-spark, and there is no mld.spark.pipeline",
        ),
        (["mld.streams=a", "workerId=a"], "workerId", "a is the key of another row of the lease table"),
        (
            ["mld.streams=a", f"mld.stream.a.arn={ARN}", "mld.poisonAttempts=3", f"mld.deadLetter={ARN}"],
            "mld.deadLetter",
            "is the stream that is read",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(configure: Configure, lines: list[str], key: str, says: str) -> None:
    (found,) = problems(lambda: streams(configure, *lines))
    assert found.startswith(f"{key} {says}")


def test_a_command_of_a_stream_takes_no_secret(configure: Configure) -> None:
    (found,) = problems(
        lambda: streams(configure, "mld.streams=a", "mld.stream.a.executableName=child ${file:/run/secret}")
    )
    assert "every user of this machine can read a command line" in found
    loaded = streams(configure, "mld.streams=a", "mld.stream.a.executableName=child --password=abc")
    (said,) = remarks_on(loaded, "mld.stream.a.executableName")
    assert said.startswith("puts a secret on the command line of the record processor")


def test_credentials_of_a_stream_are_no_secret_by_themselves(configure: Configure) -> None:
    loaded = configure(
        "mld.streams=a\nmld.stream.a.credentials=DefaultCredentialsProvider",
        ["mld.stream.a.credentials=ProfileCredentialsProvider"],
        without=["streamName"],
    )
    assert [remark for remark in loaded.remarks if "secret" in remark.message] == []
    (stream,) = loaded.settings.streams
    assert stream.credentials is not None, "an override counts"
    assert stream.credentials.providers[0].kind is ProviderKind.PROFILE


def test_a_bad_list_is_the_only_problem_named(configure: Configure) -> None:
    (found,) = problems(lambda: streams(configure, "mld.streams=a,a", "mld.stream.a.epoch=1712000000"))
    assert found.startswith("mld.streams name 2")


def test_an_epoch_in_milliseconds_is_doubted(configure: Configure) -> None:
    (said,) = remarks_on(streams(configure, "mld.streams=a", "mld.stream.a.epoch=1712000000000"), "mld.stream.a.epoch")
    assert "1712000000 in seconds" in said


class ListInFile:
    def __init__(self, configure: Configure, path: Path) -> None:
        self.configure = configure
        self.path = path

    def load(self, text: str, *lines: str) -> LoadedConfiguration:
        self.path.write_text(text, encoding="utf-8")
        return streams(self.configure, f"mld.streamsFile={self.path}", *lines)


@pytest.fixture
def file(configure: Configure, tmp_path: Path) -> ListInFile:
    return ListInFile(configure, tmp_path / "streams.txt")


def test_a_file_has_a_name_on_each_line_and_keys_of_streams(file: ListInFile) -> None:
    text = (
        f"# ours\norders\n\n  clicks  \nmld.stream.orders.arn = {ARN}\nmld.stream.clicks.initialPosition=TRIM_HORIZON\n"
    )
    loaded = file.load(text, "mld.stream.clicks.epoch = 5")
    first, second = loaded.settings.streams
    assert loaded.settings.is_multi_stream
    assert (first.name, str(first.arn)) == ("orders", ARN)
    assert (second.name, second.epoch, second.initial_position.kind) == ("clicks", 5, InitialPositionKind.TRIM_HORIZON)
    sources = {value.key: value.source for value in loaded.effective}
    assert sources["mld.stream.orders.arn"] == f"{file.path}:5"


def test_the_file_is_read_again_with_what_the_properties_file_says(file: ListInFile) -> None:
    loaded = file.load("orders\n", "mld.stream.clicks.epoch = 5", "initialPositionInStream=TRIM_HORIZON")
    (said,) = remarks_on(loaded, "mld.stream.clicks.epoch", Level.INFO)
    assert said.startswith(f"is not used: {file.path} does not name clicks")
    assert loaded.streams_file is not None
    file.path.write_text("clicks\nnew\nmld.stream.new.credentials=ProfileCredentialsProvider|p\n", encoding="utf-8")
    found = read_streams(loaded.streams_file)
    assert [(stream.name, stream.epoch) for stream in found.streams] == [("clicks", 5), ("new", None)]
    assert all(stream.initial_position.kind is InitialPositionKind.TRIM_HORIZON for stream in found.streams)
    assert found.streams[1].credentials is not None


def test_an_unchanged_file_gives_the_streams_of_the_start(file: ListInFile) -> None:
    loaded = file.load(f"orders\nmld.stream.orders.arn={ARN}\nmld.stream.orders.epoch=7\nclicks\n")
    assert loaded.streams_file is not None
    assert read_streams(loaded.streams_file).streams == loaded.settings.streams


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("", "mld.streamsFile", "names no stream"),
        ("# orders\n", "mld.streamsFile", "names no stream"),
        ("orders, clicks\n", "orders", "is neither the name of a stream nor"),
        ("orders clicks\n", "orders", "is neither the name of a stream nor"),
        ("streamName=s\n", "streamName", "is neither the name of a stream nor"),
        ("a\nb\na\n", "a", "is already named at"),
        ("a\nmld.stream.b.epoch=1\n", "mld.stream.b.epoch", "is about b, which is not in the list"),
        ("a\nmld.stream.a.arm=1\n", "mld.stream.a.arm", "is no key of a stream"),
        ("a\nmld.stream.a.epoch=x\n", "mld.stream.a.epoch", "is not a whole number"),
        ("a\nmld.stream.a.initialPosition=LATEST\n", "mld.stream.a.initialPosition", "is also given at"),
        ("a\nmld.stream.a.credentials=${NOBODY}\n", "mld.stream.a.credentials", "environment variable NOBODY"),
        ("a\n\\u00\n", "", "\\u must be followed by four hexadecimal digits"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_at_the_start_and_later(
    file: ListInFile, text: str, key: str, says: str
) -> None:
    own = "mld.stream.a.initialPosition=LATEST"
    (at_start,) = problems(lambda: file.load(text, own))
    loaded = file.load("a\n", own)
    assert loaded.streams_file is not None
    source = loaded.streams_file
    file.path.write_text(text, encoding="utf-8")
    (later,) = problems(lambda: read_streams(source))
    assert at_start.startswith(f"{key} {says}")
    assert later == at_start


def test_a_pipe_is_refused_without_waiting_for_its_writer(file: ListInFile) -> None:
    os.mkfifo(file.path)
    with pytest.raises(ConfigurationError, match="is no regular file"):
        streams(file.configure, f"mld.streamsFile={file.path}")


def test_the_stream_of_a_table_has_its_epoch(configure: Configure) -> None:
    arn = "arn:aws:dynamodb:eu-west-1:111111111111:table/t/stream/2026-01-02T03:04:05.678"
    lines = ["mld.streams=t", f"mld.stream.t.arn={arn}", "retrievalMode=POLLING"]
    (found,) = problems(lambda: streams(configure, *lines, "mld.stream.t.epoch=1712000000"))
    assert found.startswith("mld.stream.t.epoch is not possible: in lease tables")
    (stream,) = streams(configure, *lines, "mld.stream.t.epoch=1").settings.streams
    assert (stream.account, stream.region) == ("111111111111", "eu-west-1")
    assert stream.stream_name == "eu-west-1$111111111111$t$2026-01-02T03_04_05.678"


def test_a_file_that_is_gone_is_refused(file: ListInFile) -> None:
    loaded = file.load("a\n")
    file.path.unlink()
    assert loaded.streams_file is not None
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_streams(loaded.streams_file)


def test_a_strict_file_takes_no_doubtful_list(file: ListInFile) -> None:
    loaded = file.load("a\n", "mld.strict=true")
    file.path.write_text("a\nmld.stream.a.epoch=1712000000000\n", encoding="utf-8")
    assert loaded.streams_file is not None
    with pytest.raises(ConfigurationError, match="looks like milliseconds"):
        read_streams(loaded.streams_file)


def test_a_reload_names_a_changed_list_but_not_that_of_a_file(configure: Configure, file: ListInFile) -> None:
    before = streams(configure, "mld.streams=a")
    after = streams(configure, "mld.streams=a", "mld.stream.a.epoch=5")
    assert changes_between(before, after).waiting == ("mld.streams",)
    assert changes_between(file.load("a\n"), file.load("b\n")).waiting == ()
