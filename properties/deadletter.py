"""What becomes of a record processor that fails: the value of `mld.deadLetter`, what the keys ask of each other, and
the policy in words. Pure.

Ours, not Java's: its daemon ends at the first failure, and has no dead letter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from properties.redaction import where
from properties.remarks import Level
from properties.settings import Settings
from properties.values import ChildFailurePolicy, DeadLetter, DeadLetterKind, StreamArn

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_REGION_IN_SQS_HOST = re.compile(r"(?:.*\.)?sqs\.(?P<region>[a-z]{2}[-a-z0-9]+-[0-9]+)\..+", re.ASCII)


class NoDeadLetter(ValueError):
    """Text that names no place for dead letters; the text says what is wrong."""


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


@dataclass(frozen=True, slots=True)
class Objection:
    """What does not fit together; `key` is the line to change."""

    level: Level
    key: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What the file asks for; None where it says nothing."""

    policy: ChildFailurePolicy
    restarts_max_given: bool
    dead_letter: DeadLetter | None
    attempts: int | None
    endpoint_given: bool
    reads_stream: str | None
    reads_region: str | None
    is_spark: bool


def objections(asked: Asked) -> tuple[Objection, ...]:
    """What is wrong with the keys together."""
    found = []
    error, warning = Level.ERROR, Level.WARNING
    if asked.restarts_max_given and asked.policy is not ChildFailurePolicy.RESTART:
        why = f"is not used: mld.childFailurePolicy is {asked.policy.value}"
        found.append(
            Objection(warning, "mld.childRestartsMax", why, "set mld.childFailurePolicy=restart, or remove it")
        )
    if asked.attempts is None:
        if asked.dead_letter is not None:
            why = "is not used: mld.poisonAttempts is not set, and without it no record is ever set aside"
            found.append(Objection(warning, "mld.deadLetter", why, "set mld.poisonAttempts, for example to 3"))
        return tuple(found)
    if asked.dead_letter is None:
        why = "says when a record is set aside, and mld.deadLetter does not say where"
        found.append(Objection(error, "mld.poisonAttempts", why, "set mld.deadLetter, or remove mld.poisonAttempts"))
    if asked.policy is not ChildFailurePolicy.PARK:
        why = f"needs a daemon that lives on, and mld.childFailurePolicy is {asked.policy.value}"
        found.append(Objection(error, "mld.poisonAttempts", why, "set mld.childFailurePolicy=park"))
    if asked.is_spark:
        why = "does not fit mld-spark, which accepts records long before it commits them"
        found.append(Objection(error, "mld.poisonAttempts", why, "use mld.spark.deadLetter and mld.spark.attemptsMax"))
    if _is_read(asked):
        why = "is the stream that is read: a record would come back for ever"
        found.append(Objection(error, "mld.deadLetter", why, "name another stream"))
    if asked.endpoint_given and (asked.dead_letter is None or not asked.dead_letter.takes_endpoint):
        why = "is not used: mld.deadLetter is neither a bucket nor a stream"
        found.append(Objection(warning, "mld.deadLetterEndpoint", why, "remove the line"))
    return tuple(found)


def _is_read(asked: Asked) -> bool:
    arn = None if asked.dead_letter is None else StreamArn.parse(asked.dead_letter.name)
    return arn is not None and (arn.name, arn.region) == (asked.reads_stream, asked.reads_region)


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
