"""Which values of a configuration are looked for in what others write."""

from __future__ import annotations

import pytest

from properties.redaction import Shown
from properties.scrubbing import Scrubber, secrets_in, secrets_of_environment


@pytest.mark.parametrize("word", ["production", "100000"])
def test_a_plain_word_or_number_is_no_secret_by_itself(word: str) -> None:
    assert list(secrets_in("mld.spark.conf.spark.custom.stage", Shown.HIDDEN, word)) == []
    text = f"shard 7 of {word} has {word} records"
    assert Scrubber(secrets_in("mld.spark.conf.spark.custom.stage", Shown.HIDDEN, word))(text) == text


@pytest.mark.parametrize("word", ["swordfish", "100000", "sword-fish"])
def test_with_a_telling_name_it_is_one(word: str) -> None:
    assert word in secrets_in("mld.spark.options.password", Shown.HIDDEN, word)
    assert word not in Scrubber(secrets_in("mld.spark.options.password", Shown.HIDDEN, word))(f"refused {word}!")


def test_what_is_neither_word_nor_number_is_one_whatever_its_name() -> None:
    assert list(secrets_in("mld.spark.conf.spark.custom.stage", Shown.HIDDEN, "a1b2-c3d4")) == ["a1b2-c3d4"]


def test_the_number_of_an_account_is_none_though_stand_ins_take_it_for_an_access_key() -> None:
    env = {"AWS_ACCESS_KEY_ID": "123456789012", "AWS_SECRET_ACCESS_KEY": "a1b2c3d4e5", "PATH": "/usr/bin"}
    assert list(secrets_of_environment(env)) == ["a1b2c3d4e5"]
