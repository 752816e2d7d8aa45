"""`mld.childrenPerShard`: what it can be used with, and what `mld check` says it takes."""

from __future__ import annotations

import pytest

from mld.check.command import processes_in_words
from mld.properties.remarks import ConfigurationError
from mld.properties.settings import CHILDREN_PER_SHARD_MAX
from tests.unit.properties.conftest import Configure

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"


@pytest.mark.parametrize(("text", "count"), [("", 1), ("mld.childrenPerShard=8", 8), ("mld.childrenPerShard=64", 64)])
def test_a_number(configure: Configure, text: str, count: int) -> None:
    assert configure(text).settings.child.children_per_shard == count


@pytest.mark.parametrize("value", ["0", "-1", "auto", str(CHILDREN_PER_SHARD_MAX + 1)])
def test_anything_else_is_refused(configure: Configure, value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure(f"mld.childrenPerShard={value}")
    assert [problem.key for problem in caught.value.problems] == ["mld.childrenPerShard"]


@pytest.mark.parametrize(
    "text",
    [
        "executableName=mld-spark",
        "executableName=/opt/venv/bin/mld-spark pipeline.properties",
        "executableName=env HOME=/tmp mld-spark pipeline.properties",
        f"mld.streams=clicks\nmld.stream.clicks.arn={ARN}\nmld.stream.clicks.executableName=mld-spark a.properties",
    ],
)
@pytest.mark.parametrize("key", ["mld.childrenPerShard", "mld.poisonAttempts"])
def test_mld_spark_is_refused_in_every_form(configure: Configure, text: str, key: str) -> None:
    more = "\nmld.deadLetter=/x" if key == "mld.poisonAttempts" else ""
    without = ("streamName",) if "mld.streams" in text else ("executableName",)
    with pytest.raises(ConfigurationError) as caught:
        configure(f"{text}\n{key}=8{more}", without=without)
    (problem,) = (one for one in caught.value.problems if one.key == key)
    assert "mld-spark" in problem.message
    assert problem.remedy


def test_mld_spark_alone_is_fine(configure: Configure) -> None:
    text = "executableName=mld-spark a.properties\nmld.childrenPerShard=1"
    assert configure(text, without=("executableName",)).settings.child.children_per_shard == 1


def test_a_processor_for_kcl_1_may_have_siblings(configure: Configure) -> None:
    assert configure("mld.childrenPerShard=8\nmld.protocolVersion=1").settings.child.children_per_shard == 8


def test_check_says_how_many_processes_that_makes(configure: Configure) -> None:
    assert processes_in_words(configure("").settings) is None
    words = processes_in_words(configure("mld.childrenPerShard=8").settings)
    assert words == (
        "8 children share each shard by partition key: 8 processes and about 48 open files for each lease that a "
        "worker holds, and maxLeasesForWorker sets no limit. They have memory of their own each: mld-zygote shares it."
    )
    words = processes_in_words(configure("mld.childrenPerShard=8\nmaxLeasesForWorker=250").settings)
    assert words is not None
    assert "so for 250 shards 2,000 processes and 12,000 files" in words
    forked = "mld.childrenPerShard=2\nmaxLeasesForWorker=1\nexecutableName=mld-zygote app.py"
    words = processes_in_words(configure(forked, without=("executableName",)).settings)
    assert words is not None
    assert "so for 1 shard 2 processes and 12 files" in words
    assert words.endswith("They share what mld-zygote has imported.")
