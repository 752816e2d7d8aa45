"""Places in a stream as an operator writes them."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from mld.core.positions import Position
from mld.operating.options import PointType
from mld.operating.points import (
    LATEST_POINT,
    TRIM_HORIZON_POINT,
    Point,
    PointError,
    PointKind,
    parse_point,
)

NOW_S = datetime(2026, 11, 23, 12, 0, tzinfo=UTC).timestamp()
SEQUENCE = "49653600000000000000000000000000000000000000000000000002"


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("trim-horizon", TRIM_HORIZON_POINT),
        ("TRIM_HORIZON", TRIM_HORIZON_POINT),
        (" latest ", LATEST_POINT),
        ("checkpoint", Point(PointKind.CHECKPOINT)),
        (SEQUENCE, Point(PointKind.SEQUENCE, position=Position(SEQUENCE))),
        (f"{SEQUENCE}/7", Point(PointKind.SEQUENCE, position=Position(SEQUENCE, 7))),
        ("now", Point(PointKind.TIME, NOW_S)),
        ("0s", Point(PointKind.TIME, NOW_S)),
        ("2h", Point(PointKind.TIME, NOW_S - 7_200)),
        ("2h ago", Point(PointKind.TIME, NOW_S - 7_200)),
        ("1d2h3m4s", Point(PointKind.TIME, NOW_S - 93_784)),
        ("1792000000", Point(PointKind.TIME, 1_792_000_000.0)),
        ("1792000000.25", Point(PointKind.TIME, 1_792_000_000.25)),
        ("2026-11-23T12:00:00Z", Point(PointKind.TIME, NOW_S)),
        ("2026-11-23T13:00:00+01:00", Point(PointKind.TIME, NOW_S)),
        ("2026-11-23 11:59:59.5Z", Point(PointKind.TIME, NOW_S - 0.5)),
    ],
)
def test_every_form_names_one_place(text: str, point: Point):
    assert parse_point(text, NOW_S) == point


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("yesterday", "names no place in a stream: give trim-horizon, latest, checkpoint, now, a time"),
        ("", "names no place"),
        ("ago", "names no place"),
        ("-5m", "names no place"),
        ("2026-11-23T12:00:00", "has no zone: add Z"),
        ("2026-11-23", "has no zone"),
        ("2026-11-23T12:00:01Z", "lies in the future"),
        ("1792000000000", "if these are milliseconds, divide by 1000"),
        ("5/3", "no sequence number"),
        ("99999d", "lies before 1970"),
        ("9" * 12 + "d", "lies before 1970"),
        ("9" * 5_000 + "d", "names no place"),
        ("9" * 130, "names no place"),
        (f"{SEQUENCE}/9999999999999999999", "larger than a sub-sequence number"),
        ("٣h", "names no place"),
    ],
)
def test_what_names_no_place_gets_a_sentence(text: str, words: str):
    with pytest.raises(PointError, match=words):
        parse_point(text, NOW_S)


def test_a_place_that_the_command_cannot_use_is_refused_with_those_it_can():
    with pytest.raises(PointError, match="give trim-horizon or a sequence number"):
        parse_point("latest", NOW_S, {PointKind.SEQUENCE, PointKind.TRIM_HORIZON})
    with pytest.raises(PointError, match=r"names no place in a stream: give trim-horizon or a sequence number$"):
        parse_point("yesterday", NOW_S, {PointKind.SEQUENCE, PointKind.TRIM_HORIZON})


@pytest.mark.parametrize("text", [SEQUENCE, f"{SEQUENCE}/7", "trim-horizon", "2026-11-23T11:59:59.500000+00:00"])
def test_a_place_is_printed_so_that_it_can_be_read_again(text: str):
    point = parse_point(text, NOW_S)
    assert parse_point(str(point), NOW_S) == point


def test_the_option_refuses_in_the_words_of_the_parser():
    assert PointType().convert("latest", None, None) == LATEST_POINT
    with pytest.raises(click.BadParameter, match="has no zone"):
        PointType().convert("2026-11-23", None, None)
