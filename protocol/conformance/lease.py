"""Answers checkpoint requests like the daemon, by protocol#checkpoint-range, from a lease in memory."""

from __future__ import annotations

import re

from mld.protocol.messages import CheckpointErrorName, CheckpointRequest, Record

SHARD_END = "SHARD_END"
SUB_MAX = 2**63 - 1
"""The daemon's bound, as sub-sequence numbers are a `long` in Java."""
_NUMBER = re.compile(r"[0-9]{1,129}", re.ASCII)  # 129 digits are the bound of the Kinesis API, and so the daemon's
_SENTINELS = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1}

Place = tuple[int, int, int]
"""(0, number or rank of a sentinel, sub-sequence number), or the last place of all."""
_END: Place = (1, 0, 0)


class ExaminedLease:
    """The last checkpoint of one shard and the largest position delivered."""

    def __init__(self, start: str) -> None:
        place = _place(start, 0)
        assert place is not None
        self._last = self._largest = place
        self._shard_end: Place | None = None

    @property
    def at_shard_end(self) -> bool:
        return self._last == _END

    @property
    def checkpointed(self) -> str:
        """The sequence number of the last checkpoint, or the name of a sentinel."""
        number = self._last[1]
        return next((name for name, rank in _SENTINELS.items() if rank == number), str(number))

    @property
    def caught_up(self) -> bool:
        """Whether the last record delivered is checkpointed."""
        return self._last == self._largest

    def deliver(self, record: Record) -> None:
        place = _place(record.sequence_number, record.sub_sequence_number)
        assert place is not None
        self._largest = max(self._largest, place)

    def end_shard(self) -> None:
        self._shard_end = self._largest
        self._largest = _END

    def checkpoint(self, request: CheckpointRequest) -> CheckpointErrorName | None:
        """Carry out a request."""
        if request.sequence_number is None:
            self._last = self._largest
            return None
        sub = request.sub_sequence_number or 0
        place = _place(request.sequence_number, sub)
        if place is None or not 0 <= sub <= SUB_MAX or not self._last <= place <= self._largest:
            return CheckpointErrorName.ILLEGAL_ARGUMENT
        self._last = _END if place == self._shard_end else place
        return None


def _place(sequence: str, sub: int) -> Place | None:
    if sequence == SHARD_END:
        return _END
    if sequence in _SENTINELS:
        return (0, _SENTINELS[sequence], sub)
    return (0, int(sequence), sub) if _NUMBER.fullmatch(sequence) else None
