"""What becomes of a record processor that fails: the keys together, and the policy in words."""

from __future__ import annotations

import pytest

from mld.check.command import failures_in_words as in_words
from mld.properties.values import ChildFailurePolicy, DeadLetterKind
from tests.unit.properties.conftest import Configure, problems, remarks_on

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/letters"
QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/letters"


@pytest.mark.parametrize(
    ("text", "kind", "name", "prefix", "region"),
    [
        ("/var/lib/mld/letters", DeadLetterKind.DIRECTORY, "/var/lib/mld/letters", "", None),
        ("letters", DeadLetterKind.DIRECTORY, "letters", "", None),
        ("s3://my-bucket", DeadLetterKind.S3, "my-bucket", "", None),
        ("s3://my-bucket/a/b/", DeadLetterKind.S3, "my-bucket", "a/b", None),
        (ARN, DeadLetterKind.KINESIS, ARN, "", "eu-west-1"),
        (QUEUE, DeadLetterKind.SQS, QUEUE, "", "eu-central-1"),
        ("https://vpce-1.sqs.us-east-2.vpce.amazonaws.com/1/q.fifo", DeadLetterKind.SQS, None, "", "us-east-2"),
        ("http://127.0.0.1:5000/123456789012/q", DeadLetterKind.SQS, None, "", None),
    ],
)
def test_a_dead_letter_is_a_directory_a_bucket_a_stream_or_a_queue(
    configure: Configure, text: str, kind: DeadLetterKind, name: str | None, prefix: str, region: str | None
) -> None:
    loaded = configure(f"mld.deadLetter={text}\nmld.poisonAttempts=3")
    letter = loaded.settings.child.dead_letter
    assert letter is not None
    assert (letter.kind, letter.name, letter.prefix, letter.region) == (kind, name or text, prefix, region)
    assert loaded.remarks == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("${NO_SUCH_VARIABLE:-}", "is empty"),
        ("s3://", "has no bucket"),
        ("s3://BUCKET/x", "has no bucket"),
        ("arn:aws:sqs:eu-west-1:123456789012:q", "is the ARN of something else"),
        (f"{ARN}/consumer/c:1", "is the ARN of something else"),
        ("https://sqs.eu-west-1.amazonaws.com", "is not the URL of a queue"),
        ("https://user:secret@host/queue", "is not the URL of a queue"),
        ("ftp://host/queue", "is not the URL of a queue"),
        ("http://[/queue", "is not the URL of a queue"),
    ],
)
def test_what_names_no_place_is_refused(configure: Configure, text: str, problem: str) -> None:
    (found,) = problems(lambda: configure(f"mld.deadLetter={text}\nmld.poisonAttempts=3"))
    assert found.startswith(f"mld.deadLetter {problem}")


def test_the_policy_is_to_park_and_its_words_say_that_nothing_is_skipped(configure: Configure) -> None:
    loaded = configure()
    assert loaded.settings.child.failure_policy is ChildFailurePolicy.PARK
    assert loaded.settings.child.poison_attempts is None
    assert in_words(loaded.settings) == (
        "A record processor that fails is started again from the last checkpoint after 1 s, doubling to 300 s, for "
        "ever; its shard waits, and all others go on. No record is ever skipped."
    )


def test_the_words_of_the_other_policies(configure: Configure) -> None:
    restarts = in_words(configure("mld.childFailurePolicy=restart").settings)
    assert "after 5 restarts without checkpoint progress the daemon ends with exit code 1" in restarts
    assert "first failure" in in_words(configure("mld.childFailurePolicy=exit").settings)
    words = in_words(configure("mld.poisonAttempts=4\nmld.deadLetter=s3://bucket/x").settings)
    assert words.endswith(
        "a record that then fails 4 times alone is written to the bucket s3://bucket/x and passed over."
    )


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("mld.poisonAttempts=3", "mld.poisonAttempts says when"),
        ("mld.poisonAttempts=1\nmld.deadLetter=x", "mld.poisonAttempts is out of range"),
        ("mld.poisonAttempts=3\nmld.deadLetter=x\nmld.childFailurePolicy=restart", "mld.poisonAttempts needs a daemon"),
        ("mld.poisonAttempts=3\nmld.deadLetter=x\nexecutableName=mld-spark a", "mld.poisonAttempts does not fit"),
        (
            f"mld.poisonAttempts=3\nmld.deadLetter={ARN}\nstreamName=letters",
            "mld.deadLetter is the stream that is read",
        ),
    ],
)
def test_what_does_not_fit_together_is_an_error(configure: Configure, lines: str, problem: str) -> None:
    found = problems(lambda: configure(lines, without=("executableName",) if "mld-spark" in lines else ()))
    assert any(one.startswith(problem) for one in found), found


def test_a_place_alone_sets_nothing_aside_and_says_so(configure: Configure) -> None:
    (remark,) = remarks_on(configure("mld.deadLetter=/x"), "mld.deadLetter")
    assert "without it no record is ever set aside" in remark
