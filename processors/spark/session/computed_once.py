"""Computes the common part of several sinks' frames only once: up to the highest node that all their plans share.

A pipeline that makes several frames makes them from the same records, often by the same first steps. Each sink runs a
job of its own, so without this module each job would read, parse and transform the records again. The common part is
kept in the executors' memory (on their disks if memory is short) until the last sink has its rows. So all sinks get the
same values, even from functions that are not deterministic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)
NODES_MAX = 2_000
"""A plan with more nodes is not searched."""


@contextmanager
def computed_once(records: DataFrame, frames: Sequence[DataFrame]) -> Iterator[None]:
    """Compute the common part of `frames`, which are made from `records`, only once within this block.

    Do nothing for a single frame."""
    shared = None
    if len(frames) > 1:
        try:
            shared = _shared(records, frames)
        except Exception as error:  # without the common part, the jobs only take longer
            log.debug("what the frames share is not found: %s", error)
    try:
        yield
    finally:
        if shared is not None:
            with suppress(Exception):  # the session may be gone
                shared.unpersist(False)


def _shared(records: DataFrame, frames: Sequence[DataFrame]) -> Any:
    """Have Spark keep the rows of the highest common node, and return its Java Dataset; None if
    there is no such node.
    """
    session = records.sparkSession
    of_spark: Any = session._jvm.org.apache.spark  # type: ignore[union-attr]
    root, *plans = (frame._jdf.queryExecution().analyzed() for frame in (records, *frames))
    first, *others = map(_nodes, plans)
    for node in first:  # from the top, so the first node that fits is the highest
        is_in_all = all(any(map(node.equals, nodes)) for nodes in others)
        if is_in_all and any(map(root.equals, _nodes(node))):  # the rows come from the records
            dataset = of_spark.sql.classic.Dataset.ofRows(session._jsparkSession, node)
            return dataset.persist(of_spark.storage.StorageLevel.MEMORY_AND_DISK())
    return None


def _nodes(plan: Any) -> list[Any]:
    """Return the nodes of a plan from the top, level by level; none if there are more than NODES_MAX."""
    found = [plan]
    for node in found:
        children = node.children()
        found += [children.apply(index) for index in range(children.size())]
        if len(found) > NODES_MAX:
            return []
    return found
