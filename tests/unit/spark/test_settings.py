"""The processor's settings from the daemon's file."""

from __future__ import annotations

import pytest

from processors.spark.settings import SettingsError, load

GOOD = "streamName = clicks\napplicationName = app\nmld.spark.pipeline = p.py:transform\n"


def loaded(tmp_path, text, overrides=(), env=None):
    file = tmp_path / "app.properties"
    file.write_text(text)
    return load(str(file), overrides, env or {})


def test_defaults_and_names(tmp_path):
    settings = loaded(tmp_path, GOOD)
    assert (settings.stream, settings.application, settings.pipeline) == ("clicks", "app", "p.py:transform")
    assert (settings.trigger_interval_s, settings.is_local, settings.sinks) == (1.0, True, ())


def test_what_the_daemon_says_wins(tmp_path):
    env = {"MLD_STREAM_NAME": "other", "MLD_APPLICATION_NAME": "them"}
    settings = loaded(tmp_path, GOOD, ["mld.spark.master=spark://h:7077"], env)
    assert (settings.stream, settings.application, settings.is_local) == ("other", "them", False)


@pytest.mark.parametrize(
    ("text", "seconds"), [("", None), ("timeoutInSeconds = 10", 10.0), ("timeoutInSeconds = 0", None)]
)
def test_the_patience_of_the_daemon(tmp_path, text, seconds):
    assert loaded(tmp_path, GOOD + text).reply_timeout_s == seconds


def test_the_name_of_a_stream_arn(tmp_path):
    text = GOOD + "streamArn = arn:aws:kinesis:eu-west-1:123456789012:stream/of-arn"
    assert loaded(tmp_path, text).stream == "of-arn"


def test_a_sink(tmp_path):
    text = GOOD + (
        "mld.spark.sink.out.path = /lake\nmld.spark.sink.out.format = ORC\nmld.spark.sink.out.partitionBy = day, hour\n"
        "mld.spark.sink.out.options.compression = zstd\nmld.spark.ledger = /ledger"
    )
    (sink,) = loaded(tmp_path, text).sinks
    assert (sink.name, sink.format, sink.path, sink.partition_by) == ("out", "orc", "/lake", ("day", "hour"))
    assert (dict(sink.options), sink.ledger, sink.mode) == ({"compression": "zstd"}, "/ledger", "append")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("streamName = s\n", "mld.spark.pipeline: is required"),
        (GOOD + "mld.spark.format = xml\n", "mld.spark.format"),
        ("a = \\u12\n", "backslash"),
    ],
)
def test_bad_files_get_a_sentence(tmp_path, text, said):
    with pytest.raises(SettingsError, match=said):
        loaded(tmp_path, text)


def test_no_file_gets_a_sentence(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load(str(tmp_path / "none"), (), {})
