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
    of_user = [part for item in (given or "").split(",") if (part := item.strip())]
    ours = (package for package in more if not any(_artifact(package) == _artifact(other) for other in of_user))
    return ",".join(dict.fromkeys((*of_user, *ours)))


def _artifact(coordinate: str) -> list[str]:
    """Return the group and the name in the Maven coordinate of a package, without its version."""
    return coordinate.split(":")[:2]
