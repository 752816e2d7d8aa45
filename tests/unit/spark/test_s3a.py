"""What Spark is told when it has to speak to S3 itself."""

from __future__ import annotations

import pytest

from mld.processors.spark.session.packages import PACKAGES
from mld.processors.spark.session.s3a import EXCLUDES, HADOOP, PROVIDERS, is_needed, s3a_settings
from mld.processors.spark.session_errors import SessionError
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_spec import S3Access, SinkSpec
from mld.properties.credentials_syntax import parse_chain

ROLE = "arn:aws:iam::123456789012:role/lake"
FILES, TABLE, LOCAL = (
    SinkSpec("f", "parquet", "s3://b/f"),
    SinkSpec("d", "delta", "s3a://b/d"),
    SinkSpec("l", "json", "/data/l"),
)


def told(chain: str, **theirs: str) -> dict[str, str]:
    credentials, _ = parse_chain(chain)
    assert credentials is not None
    found = s3a_settings(S3Access(credentials, "eu-west-1"), "3.5.0", theirs)
    return {key.removeprefix(HADOOP): value for key, value in found.items()}


@pytest.mark.parametrize(
    ("sinks", "dead_letter", "spool", "elsewhere", "needed"),
    [
        ((FILES,), None, None, False, False),
        ((FILES,), None, "/spool", True, True),
        ((LOCAL,), None, "/spool", True, False),
        ((LOCAL,), None, "s3://b/spool", True, True),
        ((LOCAL,), "s3://b/dead", "/spool", True, True),
        ((LOCAL,), "s3://b/dead", None, False, False),
        ((TABLE,), None, None, False, True),
        ((SinkSpec("i", "iceberg", "lake.db.t"),), None, "/spool", True, False),
    ],
)
def test_who_needs_it(sinks, dead_letter, spool, elsewhere, needed):
    assert is_needed(sinks, dead_letter, spool, elsewhere=elsewhere) is needed


def test_only_the_bucket_of_the_spool_is_read_a_page_at_a_time():
    of_spool = {f"{HADOOP}fs.s3a.bucket.fast.readahead.range": "16M"}
    access = S3Access(SDK_CREDENTIALS)
    for spool, more in (("s3a://fast/spool", of_spool), ("/spool", {}), (None, {})):
        assert s3a_settings(access, "3.5.0", {}, spool) == s3a_settings(access, "3.5.0", {}) | more
    theirs = dict.fromkeys(of_spool, "1M")
    assert not s3a_settings(access, "3.5.0", theirs, "s3a://fast/spool").keys() & theirs.keys()


def test_a_store_of_its_own_and_the_modules_of_its_sdk():
    access = S3Access(SDK_CREDENTIALS, "us-east-1", "http://127.0.0.1:9000", path_style=True, kms_key="key")
    found = s3a_settings(access, "3.4.2", {PACKAGES: "a:b:1", EXCLUDES: "c:d"})
    packages = found[PACKAGES].split(",")
    assert packages[:2] == ["a:b:1", "org.apache.hadoop:hadoop-aws:3.4.2"]
    assert {one.rpartition(":")[2] for one in packages[2:]} == {"2.29.52"}
    assert found[EXCLUDES].split(",")[:2] == ["c:d", "software.amazon.awssdk:bundle"]
    assert {key.removeprefix(HADOOP): value for key, value in found.items() if key.startswith(HADOOP)} == {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3n.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.encryption.algorithm": "SSE-KMS",
        "fs.s3a.encryption.key": "key",
        "fs.s3a.input.stream.type": "classic",
        PROVIDERS: "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
    }


def test_what_the_user_gives_is_left_as_it_is():
    found = told(
        "DefaultCredentialsProvider", **{PACKAGES: "org.apache.hadoop:hadoop-aws:3.3.6", f"{HADOOP}{PROVIDERS}": "x"}
    )
    assert not {PACKAGES, EXCLUDES, PROVIDERS} & found.keys()
    assert (
        told("DefaultCredentialsProvider", **{f"{HADOOP}fs.s3a.endpoint.region": "x"}).keys()
        & {"fs.s3a.endpoint.region"}
        == set()
    )


def test_providers_of_the_daemon_are_those_of_the_executors():
    found = told(f"ProfileCredentialsProvider|lake,StsAssumeRoleCredentialsProvider|{ROLE}|s|externalId=e")
    assert [one.rpartition(".")[2] for one in found[PROVIDERS].split(",")] == [
        "ProfileAWSCredentialsProvider",
        "AssumedRoleCredentialProvider",
    ]
    assert found["fs.s3a.auth.profile.name"] == "lake"
    assert (found["fs.s3a.assumed.role.arn"], found["fs.s3a.assumed.role.external.id"]) == (ROLE, "e")


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ("my_module:credentials|secret", "executors cannot use my_module:credentials"),
        ("ProfileCredentialsProvider|a,ProfileCredentialsProvider|b", "S3A takes one ProfileCredentialsProvider"),
    ],
)
def test_what_executors_cannot_have_is_refused(chain, said):
    with pytest.raises(SessionError, match=said) as refused:
        told(chain)
    assert "secret" not in str(refused.value)
    assert told(chain, **{f"{HADOOP}{PROVIDERS}": "theirs"})


def test_a_hadoop_that_is_not_known_is_refused():
    with pytest.raises(SessionError, match=r"Hadoop 9\.9 .* mld\.spark\.packages"):
        s3a_settings(S3Access(SDK_CREDENTIALS), "9.9", {})
