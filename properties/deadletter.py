"""What becomes of a record processor that fails: the value of `mld.deadLetter`, and the policy in words. Pure.

This is ours: Java's daemon ends at the first failure, and has no dead letter.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from properties.redaction import where
from properties.settings import Settings
from properties.values import ChildFailurePolicy, DeadLetter, DeadLetterKind, StreamArn

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_REGION_IN_SQS_HOST = re.compile(r"(?:.*\.)?sqs\.(?P<region>[a-z]{2}[-a-z0-9]+-[0-9]+)\..+", re.ASCII)


class NoDeadLetter(ValueError):
    """The value names no place for dead letters; the message says what is wrong."""


def parse(text: str) -> DeadLetter:
    """The place that a value names. Raises NoDeadLetter."""
    if not text.strip():  # letters would go to the working directory
        raise NoDeadLetter("is empty")
    if text.startswith("s3://"):
        bucket, _, prefix = text.removeprefix("s3://").partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise NoDeadLetter("has no bucket of S3 after s3://")
        return DeadLetter(DeadLetterKind.S3, text, name=bucket, prefix=prefix.strip("/"))
    if text.startswith("arn:"):
        arn = StreamArn.parse(text)
        if arn is None or arn.text != text:
            raise NoDeadLetter("is the ARN of something else than a Kinesis stream")
        return DeadLetter(DeadLetterKind.KINESIS, text, name=arn.text, region=arn.region)
    if "://" in text:
        return _queue(text)
    return DeadLetter(DeadLetterKind.DIRECTORY, text, name=text)


def _queue(text: str) -> DeadLetter:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and len(parts.path) > 1
        good = good and not (parts.query or parts.fragment or parts.username) and (parts.port is None or True)
    except ValueError:
        good = False
    if not good or any(character.isspace() for character in text):
        raise NoDeadLetter("is not the URL of a queue")
    match = _REGION_IN_SQS_HOST.fullmatch(str(parts.hostname))
    return DeadLetter(DeadLetterKind.SQS, text, name=text, region=None if match is None else match["region"])


def in_words(settings: Settings) -> str:
    """What a failure of the record processor leads to, for `mld check`."""
    first_s, longest_s = settings.child_restart_backoff_millis / 1000, settings.child_restart_backoff_max_millis / 1000
    again = f"is started again from the last checkpoint after {first_s:g} s, doubling to {longest_s:g} s"
    match settings.child_failure_policy:
        case ChildFailurePolicy.EXIT:
            return "The first failure of a record processor ends the daemon with exit code 1, as Amazon's."
        case ChildFailurePolicy.RESTART:
            most = settings.child_restarts_max
            return (
                f"A record processor that fails {again}; after {most} restarts without checkpoint progress the daemon "
                "ends with exit code 1. No record is ever skipped."
            )
        case ChildFailurePolicy.PARK:
            kept = f"A record processor that fails {again}, for ever; its shard waits, and all others go on. "
            return kept + _set_aside(settings)


def _set_aside(settings: Settings) -> str:
    attempts, letter = settings.poison_attempts, settings.dead_letter
    if attempts is None or letter is None:
        return "No record is ever skipped."
    return (
        f"A batch that failed {attempts} times is delivered in halves; a record that then fails {attempts} times alone "
        f"is written to the {letter.kind.value} {where(letter.text)} and passed over."
    )
