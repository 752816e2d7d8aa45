"""Registered consumers (enhanced fan-out) of a stream (retrieval#service-limits)."""

from __future__ import annotations

from dataclasses import dataclass

CONSUMERS_MAX = 20
CREATING_MAX = 5


@dataclass(slots=True)
class Consumer:
    """CREATING until `active_s`; DELETING as soon as `gone_s` is set, until then."""

    name: str
    arn: str
    stream_arn: str
    created_s: float
    active_s: float
    gone_s: float | None = None

    def status(self, now: float) -> str:
        if self.gone_s is not None:
            return "DELETING"
        return "ACTIVE" if now >= self.active_s else "CREATING"

    def is_gone(self, now: float) -> bool:
        return self.gone_s is not None and now >= self.gone_s


def consumer_arn(stream_arn: str, name: str, created_s: float) -> str:
    return f"{stream_arn}/consumer/{name}:{int(created_s)}"


def split_consumer_arn(arn: str) -> tuple[str, str] | None:
    """Stream ARN and consumer name of a consumer's ARN; None if it is none."""
    stream_arn, found, rest = arn.partition("/consumer/")
    name, colon, stamp = rest.rpartition(":")
    return (stream_arn, name) if found and colon and name and stamp.isdigit() else None
