"""The options of a read: which are keys of the daemon's file, which are the source's own, and what is wrong. Pure.

Spark compares names of options without case, so each is matched with the keys of `properties` in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mld.core.positions import SHARD_END_NAME, SUB_MAX, TRIM_HORIZON_NAME, Position
from mld.operating.points import Point, PointError, PointKind, parse_point
from mld.properties.keys import BY_NAME

LEASES = "leases"
"""What names the lease table instead of positions."""
_SHORT = {"region": "regionName", "endpoint": "kinesisEndpoint", "credentials": "AwsCredentialsProvider"}
_OWN = {"properties", "stream", "from", "to", "fromcheckpoints", "tocheckpoints", "ondataloss"}
_KEYS = {name.lower(): name for name in BY_NAME}
_TIMES = (PointKind.TIME, PointKind.TRIM_HORIZON)


class OptionsError(ValueError):
    """Options that cannot be used: each problem with its remedy."""


class OnDataLoss(Enum):
    """What to do when records of a range have left the stream's retention."""

    FAIL = "fail"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read is asked for. `overrides` are lines of a properties file, `key=value`."""

    properties: str | None
    overrides: tuple[str, ...]
    start: Point | None
    until: Point | None
    start_checkpoints: Mapping[str, Position] | None
    until_checkpoints: Mapping[str, Position] | None
    start_leases: bool
    """Checkpoints of the application's leases, as they are when the read is planned, instead of given ones."""
    until_leases: bool
    on_data_loss: OnDataLoss


def options_of(given: Mapping[str, str], now_s: float) -> ReadOptions:
    """Return the options of a read. Raises OptionsError with every problem."""
    options = {name.lower(): value for name, value in given.items()}
    problems: list[str] = []
    overrides = []
    for name, value in options.items():
        if name in _OWN:
            continue
        key = _SHORT.get(name) or _KEYS.get(name)
        if key is None or "\n" in value:
            problems.append(
                f"{name}: no such option; options are the keys of app.properties and {', '.join(sorted(_OWN))}"
            )
        else:
            overrides.append(f"{key}={value}")
    if "stream" in options:
        key = "streamArn" if options["stream"].startswith("arn:") else "streamName"
        overrides.append(f"{key}={options['stream']}")
    for time, checkpoints in (("from", "fromcheckpoints"), ("to", "tocheckpoints")):
        if time in options and checkpoints in options:
            problems.append(f"{time}, {checkpoints}: give one of them")

    def point(name: str) -> Point | None:
        if name not in options:
            return None
        try:
            return parse_point(options[name], now_s, _TIMES)
        except PointError as error:
            problems.append(f"{name}: {error}")
            return None

    def checkpoints_of(name: str) -> Mapping[str, Position] | None:
        if name not in options or options[name].lower() == LEASES:
            return None
        try:
            return parse_checkpoints(options[name])
        except ValueError as error:
            problems.append(f"{name}: {error}")
            return None

    loss = options.get("ondataloss", "fail").lower()
    if loss not in {one.value for one in OnDataLoss}:
        problems.append(f"ondataloss: {loss!r} is neither fail nor continue")
        loss = "fail"
    made = ReadOptions(
        properties=options.get("properties"),
        overrides=tuple(overrides),
        start=point("from"),
        until=point("to"),
        start_checkpoints=checkpoints_of("fromcheckpoints"),
        until_checkpoints=checkpoints_of("tocheckpoints"),
        start_leases=options.get("fromcheckpoints", "").lower() == LEASES,
        until_leases=options.get("tocheckpoints", "").lower() == LEASES,
        on_data_loss=OnDataLoss(loss),
    )
    if LEASES in (options.get("fromcheckpoints"), options.get("tocheckpoints")) and not (
        {"properties", "applicationname"} & options.keys()
    ):
        problems.append("fromcheckpoints, tocheckpoints: leases needs applicationName or properties")
    if made.start and made.until and (made.start.time_s or 0) >= (made.until.time_s or 0):
        problems.append("from, to: the range is empty; from must lie before to")
    if problems:
        raise OptionsError("mld: " + "; ".join(problems))
    return made


def parse_checkpoints(text: str) -> dict[str, Position]:
    """Parse JSON of shard id -> position: a sequence number, with ``/SUB`` for a user record of an aggregate,
    TRIM_HORIZON or SHARD_END. A number without ``/SUB`` means the whole record. Raises ValueError.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ValueError('is no JSON of positions; write {"shardId-000000000000": "4959…"}')
    return {shard: _position(shard, one) for shard, one in value.items()}


def _position(shard: str, text: object) -> Position:
    if text in (TRIM_HORIZON_NAME, SHARD_END_NAME):
        return Position(str(text))
    sequence, slash, sub = str(text).partition("/")
    is_number = sequence.isascii() and sequence.isdigit() and (not slash or (sub.isascii() and sub.isdigit()))
    if not isinstance(text, str) or not is_number:
        raise ValueError(
            f"{shard}: {text!r} is no position; write a sequence number as text, TRIM_HORIZON or SHARD_END"
        )
    return Position(sequence, min(int(sub), SUB_MAX) if slash else SUB_MAX)
