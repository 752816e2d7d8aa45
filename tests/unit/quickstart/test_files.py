"""The files that the tour on Spark hands to its user: the shipped samples, and a good configuration."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from mld import processors, properties
from mld.properties.lines import parse
from mld.properties.loader import load
from mld.quickstart.spark import SparkTour, with_values

SAMPLE = Path(properties.__file__).parent / "samples" / "spark.properties"
ENDPOINT = "http://127.0.0.1:4567"


def values(text):
    return {entry.key: entry.value for entry in parse(text.encode())}


def test_the_sample_is_a_good_configuration_and_names_every_file():
    loaded = load(SAMPLE)
    assert [remark for remark in loaded.remarks if remark.level.value != "info"] == []
    assert loaded.settings.child.command == "mld-spark"
    assert (Path(processors.__file__).parent / "samples" / "clicks.py").is_file()


def test_the_tour_runs_the_sample_on_the_embedded_aws(tmp_path):
    tour = SparkTour(tmp_path, Console(file=io.StringIO()), 100)
    ours, theirs = values(tour.properties(ENDPOINT)), values(SAMPLE.read_text())
    assert {key for key in ours if ours[key] != theirs.get(key)} == {
        "streamName", "applicationName", "AwsCredentialsProvider", "regionName", "kinesisEndpoint", "dynamoDBEndpoint",
        "mld.spark.conf.spark.ui.enabled", "mld.spark.conf.spark.driver.extraJavaOptions",
    }  # fmt: skip
    assert theirs.keys() <= ours.keys()


def test_a_key_that_the_sample_has_not_is_a_slip():
    assert with_values("a = 1\nb = 2\n", {"b": "3"}) == "a = 1\nb = 3\n"
    with pytest.raises(AssertionError, match="c stands 0 times"):
        with_values("a = 1\n", {"c": "3"})


def test_only_what_a_tour_wrote_is_cleared(tmp_path):
    ours, theirs = tmp_path / "lake" / "clicks", tmp_path / "lake" / "per_minute"
    (ours / "_mld").mkdir(parents=True)
    theirs.mkdir()
    SparkTour(tmp_path, Console(file=io.StringIO()), 100).clear()
    assert (ours.exists(), theirs.exists()) == (False, True)
