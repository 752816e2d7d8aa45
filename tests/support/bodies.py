"""Bodies of GetRecords answers in any legal form, and a plain way of reading them as the reference.

The reference is the SDK's own parser, then `PlainPage`: it shares the opening of aggregates with
`mld.retrieval.rawpage`, and nothing else.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any

import botocore.session
from botocore.parsers import create_parser

from mld.core.streams import child_shard_of
from mld.protocol.messages import Record
from mld.retrieval.rawbody import page_of
from mld.retrieval.rawpage import RawPage
from tests.support.kpl import User, aggregate
from tests.support.pages import PlainPage

SPACES = ("", "", "", " ", "\n", "\t\r\n ")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_MS = 1_763_661_600_123
KEY_CHARS = "abcXYZ019-_=:/+ ~\x7f"
ODD_CHARS = '"\\/\b\n\t\x00\x1f\u00e9\u2028\u4e2d\U0001f600\ud800'
UNKNOWN_VALUES = (
    *("text", 'te"\\xt', "\u00e9]}", "", 17, -0.5, 1e300, True, None, [], {}),
    *([{"Data": ["]"]}, "}"], {"Records": [1, {"a": "\\"}]}),
)


@cache
def _parser() -> tuple[Any, Any]:
    model = botocore.session.Session().get_service_model("kinesis")
    return create_parser("json"), model.operation_model("GetRecords").output_shape


def reference_page(body: bytes) -> PlainPage:
    """What the SDK's parser finds in a body. Raises what it or a missing field raises."""
    parser, shape = _parser()
    return plain_page(parser.parse({"status_code": 200, "headers": {}, "body": body}, shape))


def read_in_parts(body: bytes, rng: Random) -> RawPage:
    """The page of a body that comes in parts, each of which is read as soon as it may be."""
    reader = page_of.in_parts(rng.choice((1, 20, 300, 5_000, 100_000)))
    longest = rng.choice((1, 30, 400, 6_000)) if len(body) < 2_000 else rng.choice((400, 6_000, 200_000))
    at = 0
    while at < len(body):
        size = rng.randint(1, longest)
        reader.feed(body[at : at + size])
        at += size
    return reader.end()


def plain_page(answer: dict[str, Any]) -> PlainPage:
    """The page of an answer as the SDK has it."""
    return PlainPage(
        tuple(
            Record(item["Data"], item.get("PartitionKey") or "", item["SequenceNumber"], 0, _arrival_ms(item))
            for item in answer["Records"]
        ),
        answer.get("NextShardIterator") or None,
        answer.get("MillisBehindLatest"),
        tuple(child_shard_of(item) for item in answer.get("ChildShards") or ()),
    )


def _arrival_ms(item: dict[str, Any]) -> int:
    arrival = item.get("ApproximateArrivalTimestamp")
    return 0 if arrival is None else (arrival - EPOCH + timedelta(microseconds=500)) // timedelta(milliseconds=1)


class BodyMaker:
    """Draws bodies. `plain` is how likely a body is written as Kinesis does, with nothing odd in it."""

    def __init__(self, rng: Random, *, plain: float = 0.3, records_max: int = 12) -> None:
        self._rng = rng
        self._plain = plain
        self._records_max = records_max

    def body(self) -> bytes:
        rng = self._rng
        odd = rng.random() >= self._plain
        style = Style(rng, odd)
        count = rng.choice((0, 1, 2, 3, rng.randint(0, self._records_max)))
        first = rng.choice((0, 7, 10**20, 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898))
        numbers = [first + n * rng.choice((1, 1, 1, 3)) for n in range(count)]
        if odd and rng.random() < 0.1:
            rng.shuffle(numbers)
        if odd and rng.random() < 0.1 and numbers:
            numbers[-1] = numbers[0]
        records = []
        for place, number in enumerate(numbers):
            if odd and rng.random() < 0.1:
                style = Style(rng, odd)
            records.append(style.record(number, FIRST_MS + place * rng.randint(0, 2_000)))
        members = [("Records", style.array(records))]
        members += rng.choice(
            ([], [("NextShardIterator", style.text("A" * rng.randint(1, 40)))], [("NextShardIterator", "null")])
        )
        members += rng.choice(([], [("MillisBehindLatest", str(rng.choice((0, 1, 86_400_000))))]))
        if rng.random() < 0.2:
            members.append(("ChildShards", style.array([style.child(n) for n in range(rng.randint(0, 2))])))
        if odd and rng.random() < 0.2:
            members.append(style.unknown())
        rng.shuffle(members)
        return (style.space() + style.object(members) + style.space()).encode("utf-8", "surrogatepass")


class Style:
    """How one stretch of a body is written."""

    def __init__(self, rng: Random, odd: bool) -> None:
        self._rng = rng
        self._odd = odd
        self._loose = odd and rng.random() < 0.3
        self._joints = (", ", ": ") if rng.random() < 0.3 else (",", ":")
        self._order = ["Data", "PartitionKey", "ApproximateArrivalTimestamp", "SequenceNumber"]
        rng.shuffle(self._order)
        self._time = rng.choice((_e9, _e9, _plain_time, _float_time, _whole_time) if odd else (_e9, _plain_time))
        if odd and rng.random() < 0.2:
            self._order.insert(rng.randint(0, 4), "EncryptionType")
        if odd and rng.random() < 0.1:
            self._order.remove("ApproximateArrivalTimestamp")
        if rng.random() < 0.1:
            self._order.remove("PartitionKey")
        self._escapes = rng.choice((0.0, 0.0, 0.1, 0.9)) if odd else 0.0
        self._aggregates = rng.choice((0.0, 0.0, 0.3, 1.0))
        self._unknown = self.unknown() if odd and rng.random() < 0.2 else None

    def space(self) -> str:
        return self._rng.choice(SPACES) if self._loose else ""

    def text(self, value: str) -> str:
        if self._rng.random() < self._escapes:
            return '"' + "".join(self._escaped(char) for char in value) + '"'
        return json.dumps(value, ensure_ascii=self._rng.random() < 0.5 or any("\ud800" <= c <= "\udfff" for c in value))

    def _escaped(self, char: str) -> str:
        if char == "/" and self._rng.random() < 0.5:
            return "\\/"
        if self._rng.random() < 0.5 or char in '"\\' or char < " " or "\ud800" <= char <= "\udfff" or char > "\uffff":
            return json.dumps(char)[1:-1]
        return f"\\u{ord(char):04x}" if self._rng.random() < 0.3 else char

    def array(self, items: list[str]) -> str:
        return "[" + self.space() + self._joined(items) + self.space() + "]"

    def object(self, members: list[tuple[str, str]]) -> str:
        written = [self.text(name) + self.space() + self._joints[1] + self.space() + value for name, value in members]
        return "{" + self.space() + self._joined(written) + self.space() + "}"

    def _joined(self, items: list[str]) -> str:
        out = ""
        for number, item in enumerate(items):
            out += (self.space() + self._joints[0] + self.space() if number else "") + item
        return out

    def record(self, number: int, arrival_ms: int) -> str:
        rng = self._rng
        values = {
            "Data": self.text(base64.b64encode(self._data()).decode()),
            "PartitionKey": self.text(self._key()),
            "ApproximateArrivalTimestamp": "null" if self._odd and rng.random() < 0.02 else self._time(rng, arrival_ms),
            "SequenceNumber": self.text(str(number)),
            "EncryptionType": rng.choice(('"KMS"', '"NONE"', "null")),
        }
        members = [(name, values[name]) for name in self._order]
        if self._odd and rng.random() < 0.05:
            rng.shuffle(members)
        if self._odd and rng.random() < 0.03:
            members.insert(0, rng.choice([member for member in members if member[0] != "SequenceNumber"]))
        if self._unknown is not None:
            members.insert(rng.randint(0, len(members)), self._unknown)
        return self.object(members)

    def _data(self) -> bytes:
        rng = self._rng
        if rng.random() < self._aggregates:
            users = [User(self._key_of_user(), rng.randbytes(rng.randint(0, 9))) for _ in range(rng.randint(1, 3))]
            whole = aggregate(users)
            return rng.choice((whole, whole, whole, whole[:-1], whole[: rng.randint(3, 8)]))
        return rng.randbytes(rng.choice((0, 1, 2, 3, 4, rng.randint(0, 300))))

    def _key_of_user(self) -> str:
        return "".join(self._rng.choices(KEY_CHARS, k=self._rng.randint(0, 4)))

    def _key(self) -> str:
        chars = KEY_CHARS + ODD_CHARS if self._odd and self._rng.random() < 0.2 else KEY_CHARS
        return "".join(self._rng.choices(chars, k=self._rng.randint(0, 12)))

    def unknown(self) -> tuple[str, str]:
        value: Any = self._rng.choice(UNKNOWN_VALUES)
        written = self.text(value) if isinstance(value, str) else json.dumps(value)
        return self._rng.choice(("Later", "Fi\u00e9ld", "x")), written

    def child(self, number: int) -> str:
        hash_range = self.object(
            [("StartingHashKey", '"0"'), ("EndingHashKey", '"340282366920938463463374607431768211455"')]
        )
        members = [("ShardId", self.text(f"shardId-{number:012d}")), ("HashKeyRange", hash_range)]
        if self._rng.random() < 0.8:
            members.append(("ParentShards", self.array([self.text("shardId-000000000000")])))
        self._rng.shuffle(members)
        return self.object(members)


def _e9(rng: Random, ms: int) -> str:
    text = str(ms)
    return f"{text[0]}.{text[1:].rstrip('0') or '0'}E9"


def _plain_time(rng: Random, ms: int) -> str:
    return repr(ms / 1000)


def _float_time(rng: Random, ms: int) -> str:
    """To more places than milliseconds, and in other exponents."""
    seconds = ms / 1000 + rng.random() / 1000
    return rng.choice((f"{seconds:.6f}", f"{seconds:.4f}", f"{seconds:.9e}", f"{seconds:.13E}", repr(seconds)))


def _whole_time(rng: Random, ms: int) -> str:
    return str(rng.choice((ms // 1000, 0, 1, 10**9)))
