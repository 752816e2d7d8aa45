"""Lists of packages in the settings of Spark, to which we add ours without naming an artifact twice.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable

JARS = ("spark.jars", "spark.driver.extraClassPath")
PACKAGES = "spark.jars.packages"


def joined(given: str | None, more: Iterable[str]) -> str:
    """Return what is given, and more, in one list; of an artifact that is given no other release is added."""
    theirs = [part for item in (given or "").split(",") if (part := item.strip())]
    ours = (one for one in more if not any(_artifact(one) == _artifact(other) for other in theirs))
    return ",".join(dict.fromkeys((*theirs, *ours)))


def _artifact(coordinate: str) -> list[str]:
    return coordinate.split(":")[:2]
