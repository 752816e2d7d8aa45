"""The processor's settings from the daemon's file."""

from __future__ import annotations

import pytest

from mld.processors.spark.settings import SettingsError, load
from mld.processors.spark.writer_identity import SEVERAL, WriterIdentity

GOOD = "streamName = clicks\napplicationName = app\nmld.spark.pipeline = p.py:transform\n"


def loaded(tmp_path, text, overrides=(), env=None):
    file = tmp_path / "app.properties"
    file.write_text(text)
    return load(str(file), overrides, env or {})


def test_defaults_and_names(tmp_path):
    settings = loaded(tmp_path, GOOD)
    assert (settings.stream, settings.application, settings.pipeline) == ("clicks", "app", "p.py:transform")
    assert (settings.is_local, settings.sinks) == (True, ())
    assert (settings.trigger_interval_s, settings.trigger_quiet_s) == (30.0, 120.0)


@pytest.mark.parametrize(
    ("text", "interval_s"),
    [
        ("mld.spark.triggerIntervalMillis = 1000", 1.0),
        ("mld.spark.triggerIntervalMillis = 60000", 60.0),
    ],
)
def test_an_interval_of_the_users_is_kept_whatever_waits(tmp_path, text, interval_s):
    settings = loaded(tmp_path, GOOD + text)
    assert (settings.trigger_interval_s, settings.trigger_quiet_s) == (interval_s, interval_s)


def test_what_the_daemon_says_wins(tmp_path):
    env = {"MLD_STREAM_NAME": "other", "MLD_APPLICATION_NAME": "them"}
    settings = loaded(tmp_path, GOOD, ["mld.spark.master=spark://h:7077", "mld.spark.spool=/spool"], env)
    assert (settings.stream, settings.application, settings.is_local) == ("other", "them", False)


def test_the_name_of_a_stream_arn(tmp_path):
    text = GOOD + "streamArn = arn:aws:kinesis:eu-west-1:123456789012:stream/of-arn"
    assert loaded(tmp_path, text).stream == "of-arn"


def test_a_sink(tmp_path):
    text = GOOD + (
        "mld.spark.sink.out.path = /lake\nmld.spark.sink.out.format = ORC\nmld.spark.sink.out.partitionBy = day, hour\n"
        "mld.spark.sink.out.options.compression = zstd"
    )
    (sink,) = loaded(tmp_path, text).sinks
    assert (sink.name, sink.format, sink.path, sink.partition_by) == ("out", "orc", "/lake", ("day", "hour"))
    assert (dict(sink.options), sink.mode) == ({"compression": "zstd"}, "append")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("streamName = s\n", "mld.spark.pipeline: is required"),
        (GOOD + "mld.spark.format = xml\n", "mld.spark.format"),
        (GOOD + "mld.spark.mode = streaming\n", "mld.spark.mode: .* are a query of Spark's over a table"),
        ("a = \\u12\n", "backslash"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path, text, said):
    with pytest.raises(SettingsError, match=said):
        loaded(tmp_path, text)


def test_no_file_gets_a_sentence(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load(str(tmp_path / "none"), (), {})


ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"
CREATED = "2026-01-02T03:04:05.678Z"
TOLD = {"MLD_STREAM_ARN": ARN, "MLD_STREAM_CREATED": CREATED}


@pytest.mark.parametrize(
    ("text", "env", "writer"),
    [
        ("", TOLD, WriterIdentity("app", "main", "clicks", ARN, CREATED)),
        ("mld.spark.pipelineId = again", TOLD, WriterIdentity("app", "again", "clicks", ARN, CREATED)),
        ("mld.spark.streamId = ours", {}, WriterIdentity("app", "main", "clicks", "ours")),
        ("", TOLD | {"MLD_STREAM_ID": "1:clicks:2"}, WriterIdentity("app", "main", arn=SEVERAL)),
        ("", {"MLD_STREAM_ID": "1:clicks:2"}, WriterIdentity("app", "main", arn=SEVERAL)),
        ("mld.spark.streamId = ours", TOLD, WriterIdentity("app", "main", "clicks", "ours")),
        ("", {}, None),
        ("", {"MLD_STREAM_ARN": ARN}, None),
    ],
)
def test_who_writes_into_the_sinks(tmp_path, text, env, writer):
    settings = loaded(tmp_path, f"{GOOD}{text}\nmld.spark.sink.out.path = /x", env=env)
    assert settings.writer == writer
    assert settings.sinks[0].writer == (writer or WriterIdentity())


@pytest.mark.parametrize(("writers", "shared"), [("shared", True), ("one", False)])
def test_whether_others_may_write_into_a_sink(tmp_path, writers, shared):
    text = f"{GOOD}mld.spark.sink.out.path = /x\nmld.spark.sink.out.writers = {writers}"
    assert loaded(tmp_path, text).sinks[0].shared is shared


def test_how_a_sink_merges(tmp_path):
    out = "mld.spark.sink.out."
    text = f"{GOOD}{out}mode = merge\n{out}keys = id , day\n{out}deleteWhen = op = 'REMOVE'\n{out}orderBy = at, seq"
    (sink,) = loaded(tmp_path, text).sinks
    assert (sink.mode, sink.keys, sink.delete_when) == ("merge", ("id", "day"), "op = 'REMOVE'")
    assert sink.order_by == ("at", "seq")


@pytest.mark.parametrize(("text", "one_file"), [("", None), ("files = one", True), ("files = many", False)])
def test_files_of_a_sink(tmp_path, text, one_file):
    lines = "".join(f"mld.spark.sink.out.{line}\n" for line in ("path = /x", *text.split("\n")) if line)
    (sink,) = loaded(tmp_path, GOOD + lines).sinks
    assert sink.one_file == one_file
