"""Chooses how records are fetched: the rule configuration#choice-of-retrieval as pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from properties.values import RetrievalMode

# Any value, even 0, of the first two selects polling; 0 of the others means "not set" (zero rule).
SELECTING_WHEN_PRESENT = ("retryGetRecordsInSeconds", "maxGetRecordsThreadPool")
SELECTING_WHEN_NOT_ZERO = ("idleTimeBetweenReadsInMillis", "millisBehindLatestThresholdForReducedTps", "maxRecords")

CONSUMER_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}", re.ASCII)
CONSUMER_ARN = re.compile(
    r"arn:aws[^:]*:kinesis:[^:]+:[0-9]{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)/consumer/[a-zA-Z0-9_.-]+:[0-9]+", re.ASCII
)

_SET_POLLING = "set retrievalMode=POLLING to say so"
_SET_LEAN = "set mld.wireClient=lean, or retrievalMode=POLLING"


@dataclass(frozen=True, slots=True)
class RetrievalChoice:
    """`mode` is POLLING or FANOUT; `problem` and `remedy` are empty when the choice is plain from the file.

    With `is_error` the file asks for what it makes impossible.
    """

    mode: RetrievalMode
    problem: str = ""
    remedy: str = ""
    is_error: bool = False


def choose_retrieval(
    mode: RetrievalMode, polling_keys_given: Sequence[str], *, fan_out_available: bool = True
) -> RetrievalChoice:
    """The mode to run in. Fan-out is not available with botocore's client, which reads events far too slowly."""
    match mode:
        case RetrievalMode.POLLING:
            return RetrievalChoice(RetrievalMode.POLLING)
        case RetrievalMode.DEFAULT if polling_keys_given:
            return RetrievalChoice(
                RetrievalMode.POLLING, f"DEFAULT polls because {', '.join(polling_keys_given)} is set", _SET_POLLING
            )
        case _ if fan_out_available:
            return RetrievalChoice(RetrievalMode.FANOUT)
        case RetrievalMode.FANOUT:
            return RetrievalChoice(
                RetrievalMode.FANOUT, "enhanced fan-out is not possible with mld.wireClient=botocore", _SET_LEAN, True
            )
    return RetrievalChoice(
        RetrievalMode.POLLING,
        "DEFAULT means enhanced fan-out, which is not possible with mld.wireClient=botocore; it polls instead",
        _SET_LEAN,
    )


def consumer_problem(name: str, arn: str | None, stream: str) -> str:
    """Why a consumer cannot be that of `stream`; empty if it can. An ARN wins over a name."""
    if arn is None:
        return "" if CONSUMER_NAME.fullmatch(name) else f"{name!r} is no name of a consumer: {CONSUMER_NAME.pattern}"
    match = CONSUMER_ARN.fullmatch(arn)
    if match is None:
        return "is no ARN of a consumer (arn:aws:kinesis:REGION:ACCOUNT:stream/STREAM/consumer/NAME:TIMESTAMP)"
    if match["stream"] != stream:
        return f"is a consumer of the stream {match['stream']}, but {stream} is read"
    return ""
