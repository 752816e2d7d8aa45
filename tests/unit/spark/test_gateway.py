"""How the JVM is told its settings: by a file of this user alone that is gone when it has been read."""

from __future__ import annotations

import os
import re
import shlex

import pytest

from mld.processors.spark.session import gateway
from mld.processors.spark.session.gateway import ARGUMENTS, FILE, encode

CONF = {"spark.hadoop.fs.s3a.secret.key": "s3cret=", "spark.app.name": " a:b\\c\n#é\U0001f600"}


def decoded(text: str) -> dict[str, str]:
    """Decode by the rules of java.util.Properties, as far as ASCII lines with escapes need them."""
    found = {}
    for line in text.splitlines():
        at = line.index("=")
        name, value = (re.sub(r"\\u([0-9a-f]{4})", _character, part) for part in (line[:at], line[at + 1 :]))
        found[name] = value.encode("utf-16", "surrogatepass").decode("utf-16")
    return found


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def test_a_file_says_what_the_settings_say():
    assert encode(CONF).isascii()
    assert decoded(encode(CONF)) == CONF


def test_only_this_user_reads_the_file_and_it_goes_when_the_jvm_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv(ARGUMENTS, "--jars a.jar pyspark-shell")  # of another Spark
    (tmp_path / FILE).write_text("left behind by one that was killed")
    (tmp_path / FILE).chmod(0o666)
    with pytest.raises(RuntimeError), gateway.passed_in_file(CONF, tmp_path / FILE):
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
        assert decoded((tmp_path / FILE).read_text()) == CONF
        assert shlex.split(os.environ[ARGUMENTS]) == [
            "--properties-file",
            str(tmp_path / FILE),
            "--load-spark-defaults",
            "pyspark-shell",
        ]
        raise RuntimeError("no JVM")
    assert not (tmp_path / FILE).exists()
    assert ARGUMENTS not in os.environ
