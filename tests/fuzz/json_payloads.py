"""Payloads of JSON that a hostile producer may put, and what the reader of JSON in the JVM makes of them.

Each is decoded, to what Python's own reader finds in it, or malformed with a reason; a good record beside them comes
through, and nothing takes longer than `SECONDS`, however little was put.

    python -m tests.fuzz.json_payloads --examples 20000        a long run; `make fuzz-producer`
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, InvalidOperation
from typing import Any

from mld.processors.spark.session.jvm_classes import SOURCES

SCHEMA = (
    "id INT, amount DECIMAL(10,2), big DECIMAL(38,0), ratio DOUBLE, note STRING, at TIMESTAMP, day DATE, ok BOOLEAN, "
    "raw BINARY, place STRUCT<x: INT, price: DECIMAL(5,1)>, many ARRAY<STRUCT<n: INT>>, by MAP<STRING, DECIMAL(4,0)>, "
    "any VARIANT"
)
NAMES = ("id", "amount", "big", "ratio", "note", "at", "day", "ok", "raw", "place", "many", "by", "any", "x", "stray")
SECONDS = 60.0
GOOD = {"id": 7, "note": "it is well"}
EXPONENT = "a number whose exponent is too large"
CELLS = "too many objects, lists and values"
BOUNDS = re.compile(r" (?:CELLS|DIGITS)_MAX = (\d+)")
CELLS_MAX, DIGITS_MAX = (int(number) for number in BOUNDS.findall((SOURCES / "MldJson.java").read_text()))
ATTACKS: dict[str, tuple[bytes, str | None]] = {
    "an exponent": (b'{"amount":1e100000000}', f"amount is 1e100000000, {EXPONENT}"),
    "an exponent of a fraction": (b'{"big":-0.1E+999999999}', f"big is -0.1E+999999999, {EXPONENT}"),
    "a small number": (b'{"amount":1e-100000000}', f"amount is 1e-100000000, {EXPONENT}"),
    "an exponent in a text": (b'{"amount":"1e100000000"}', f"amount is 1e100000000, {EXPONENT}"),
    "an exponent in a struct": (b'{"place":{"price":1e99999999}}', f"place.price is 1e99999999, {EXPONENT}"),
    "an exponent in a map": (b'{"by":{"k":1e99999999}}', f"by.k is 1e99999999, {EXPONENT}"),
    "digits in a text": (b'{"big":"' + b"9" * 900_000 + b'"}', "big is a text of 900000 characters"),
    "digits": (b'{"big":' + b"9" * 900_000 + b"}", ""),
    "digits of a fraction": (b'{"amount":0.' + b"1" * DIGITS_MAX + b"}", ""),
    "a long time": (b'{"at":"' + b"2026-01-01T" * 90_000 + b'"}', "at is a text of 990000 characters"),
    "objects of two letters": (b'{"many":[' + b",".join([b"{}"] * (CELLS_MAX // 20)) + b"]}", CELLS),
    "lists in lists": (b'{"any":' + b"[" * 400_000 + b"]" * 400_000 + b"}", ""),
    "objects in objects": (b'{"any":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}", ""),
    "what the schema does not name": (b'{"id":1,"stray":[' + b",".join([b"{}"] * 300_000) + b"]}", None),
    "a text like a number": (b'{"note":"1e100000000"}', None),
    "an exponent in a text of any kind": (b'{"note":1e100000000}', None),
    "a long text": (b'{"note":"' + b"9" * 900_000 + b'"}', None),
    "a large exponent of a double": (b'{"ratio":1e-100000000}', None),
}
"""What is put, and how its reason begins; "": there is one; None: it is no attack, and is decoded."""


RIGHT: dict[str, list[Any]] = {
    "id": [0, -5, 2**31 - 1],
    "amount": [1.5, "1.5", 12345678],
    "big": [10**37, "7", 1e3],
    "ratio": [1e300, -0.0, "NaN", 2**70],
    "note": ["", "ü", {"a": [1, 2.50]}, [True, None], 12],
    "at": ["2026-01-02T03:04:05Z", 1767323045],
    "day": ["2026-01-02"],
    "ok": [True, False],
    "raw": ["aGk="],
    "many": [[], [{}], [{"n": 1}, None]],
    "by": [{}, {"k": 1, "l": None}],
}


def drawn(random: random.Random) -> bytes:
    """Return a document, or what is nearly one."""
    text = json.dumps(_object(random, 3), ensure_ascii=random.random() < 0.5)
    if random.random() < 0.2:
        at = random.randrange(len(text))
        text = text[:at] + random.choice(['"', "{", "]", ",", "\\", "\x00", "e9", ""]) + text[at + 1 :]
    return text.encode("utf-8", "surrogatepass").replace(b'"<', b"").replace(b'>"', b"")


def _object(random: random.Random, depth: int) -> dict[str, Any]:
    names = random.sample(NAMES, random.randrange(1, 5))
    return {
        n: random.choice(RIGHT[n]) if n in RIGHT and random.random() < 0.8 else _value(random, depth) for n in names
    }


def _value(random: random.Random, depth: int) -> Any:
    kind = random.randrange(8 if depth else 6)
    number = f"{random.choice(['', '-'])}{random.randrange(10 ** random.randrange(1, 45))}"
    if kind < 2:
        fraction = random.choice(["", ".5", ".123456789", "0" * 30])
        return f"<{number}{fraction}{random.choice(['', '', 'e3', 'E-9', 'e12345', 'e-99999999', 'e999999999'])}>"
    if kind < 6:
        odd = [
            "",
            "1e5",
            "1e99999999",
            "2026-01-02",
            "2026-01-02T03:04:05Z",
            "aGk=",
            "ü\u0000",
            "NaN",
            True,
            None,
            number,
        ]
        return random.choice(odd)
    if kind == 6:
        return [_value(random, depth - 1) for _ in range(random.randrange(4))]
    return _object(random, depth - 1)


def check(spark: Any, payloads: Sequence[bytes]) -> list[str | None]:
    """Return the reason of each payload, None of one that is decoded; good ones come through beside them."""
    from pyspark.sql import functions as F

    from mld.processors.spark.session.decoding import PAYLOAD, decoding
    from mld.properties.spark_values import Format

    good = json.dumps(GOOD).encode()
    rows = [(n, data) for n, data in enumerate([good, *payloads, good])]
    found = decoding(spark, Format.JSON, SCHEMA)
    frame = spark.createDataFrame(rows, "n INT, data BINARY").coalesce(1)
    parsed = frame.select("n", found.decoded.alias(PAYLOAD), "data").select("*", found.bad.alias("bad"))
    clean = F.to_json(F.struct(found.clean.alias("c")))
    seen = parsed.select("n", F.when(F.col("bad"), found.reason).alias("why"), F.when(~F.col("bad"), clean).alias("c"))
    with ThreadPoolExecutor(1) as thread:  # a record that holds up the others is a TimeoutError
        answers = sorted(thread.submit(seen.collect).result(SECONDS))
    assert [answer.n for answer in answers] == [n for n, _ in rows]
    for answer, (_, data) in zip(answers, rows, strict=True):
        assert (answer.why is None) != (answer.c is None), data[:200]
        if answer.why is None:
            _check_value(data, json.loads(answer.c).get("c", {}))
        else:
            assert 0 < len(answer.why) < 400, answer.why
    assert all(json.loads(answers[at].c)["c"] == GOOD for at in (0, -1))
    return [answer.why for answer in answers[1:-1]]


def _check_value(data: bytes, got: dict[str, Any]) -> None:
    """What is decoded is JSON to Python, too, and has its texts and whole numbers."""
    pairs: list[tuple[str, Any]] = json.loads(data, object_pairs_hook=list, parse_float=_number, parse_int=str)
    wanted = dict(pairs)
    if isinstance(wanted.get("note"), str) and f'"{wanted["note"]}"'.encode() in data:
        assert got["note"] == wanted["note"], data[:200]
    if wanted.get("id") is not None:
        assert got["id"] == int(wanted["id"]), data[:200]


def _number(text: str) -> Decimal | str:
    """Return a number with a fraction or an exponent; one that Decimal does not take as it is written."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def main() -> None:
    from mld.processors.spark.testing import session

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.json_payloads", description=__doc__)
    parser.add_argument("--examples", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    source, spark = random.Random(arguments.seed), session()
    for _ in range(0, arguments.examples, 500):
        reasons = check(spark, [drawn(source) for _ in range(500)])
        print(f"500 payloads, {sum(why is not None for why in reasons)} malformed", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
