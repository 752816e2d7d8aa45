"""Which way records are fetched: the selection rule of configuration spec, section 9, as a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from properties.values import RetrievalMode

# Any value, even 0, of the first two selects polling; 0 of the others means "not set" (zero rule).
SELECTING_WHEN_PRESENT = ("retryGetRecordsInSeconds", "maxGetRecordsThreadPool")
SELECTING_WHEN_NOT_ZERO = ("idleTimeBetweenReadsInMillis", "millisBehindLatestThresholdForReducedTps", "maxRecords")

_SET_POLLING = "set retrievalMode=POLLING to say so"


@dataclass(frozen=True, slots=True)
class RetrievalChoice:
    """`mode` is POLLING or FANOUT; `warning` and `remedy` are empty when the choice is plain from the file."""

    mode: RetrievalMode
    warning: str = ""
    remedy: str = ""


def choose_retrieval(
    mode: RetrievalMode, polling_keys_given: Sequence[str], *, fan_out_available: bool = False
) -> RetrievalChoice:
    """The mode to run with. Without fan-out everything polls, with a warning where Java would not."""
    match mode:
        case RetrievalMode.POLLING:
            return RetrievalChoice(RetrievalMode.POLLING)
        case RetrievalMode.DEFAULT if polling_keys_given:
            return RetrievalChoice(
                RetrievalMode.POLLING, f"DEFAULT polls because {', '.join(polling_keys_given)} is set", _SET_POLLING
            )
        case _ if fan_out_available:
            return RetrievalChoice(RetrievalMode.FANOUT)
    return RetrievalChoice(
        RetrievalMode.POLLING,
        f"{mode.value} means enhanced fan-out, which this version does not have; it polls instead",
        _SET_POLLING,
    )
