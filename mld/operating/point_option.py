"""The type of command line options that name a place in a stream; see `points`."""

from __future__ import annotations

import time
from collections.abc import Collection

import click

from mld.operating.points import ALL_KINDS, Point, PointError, PointKind, parse_point


class PointType(click.ParamType[Point]):
    """``trim-horizon``, ``latest``, ``checkpoint``, a time or a sequence number, as far as `kinds` allow."""

    name = "place"

    def __init__(self, kinds: Collection[PointKind] = ALL_KINDS) -> None:
        self._kinds = kinds

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Point:
        if isinstance(value, Point):
            return value
        try:
            return parse_point(str(value), time.time(), self._kinds)
        except PointError as error:
            self.fail(str(error), param, ctx)
