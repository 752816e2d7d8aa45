"""Joins lists of packages in Spark's settings without naming an artifact twice.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable

JARS = ("spark.jars", "spark.driver.extraClassPath")
PACKAGES = "spark.jars.packages"


def joined(given: str | None, more: Iterable[str]) -> str:
    """Return the user's packages (`given`) and ours (`more`) as one list. If the user names an artifact, in any
    version, our package of it is left out.
    """
    theirs = [part for item in (given or "").split(",") if (part := item.strip())]
    ours = (one for one in more if not any(_artifact(one) == _artifact(other) for other in theirs))
    return ",".join(dict.fromkeys((*theirs, *ours)))


def _artifact(coordinate: str) -> list[str]:
    return coordinate.split(":")[:2]
