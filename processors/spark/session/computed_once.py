"""Computes what the frames of several sinks have in common only once: the highest node that all their plans share.

A pipeline that makes several frames makes them of the same records, often after the same steps. Each sink runs a job of
its own, so without this each job would read, parse and transform the records again. The common part is kept in the
executors' memory, and on their disks where memory is short, until the last sink has its rows. All sinks then see one
evaluation of it, which matters for functions that do not give the same result twice.
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
"""Of a plan; a larger one is not searched."""


@contextmanager
def computed_once(records: DataFrame, frames: Sequence[DataFrame]) -> Iterator[None]:
    """Compute once what `frames` share, which are made of `records`. Of one frame nothing is kept."""
    shared = None
    if len(frames) > 1:
        try:
            shared = _shared(records, frames)
        except Exception as error:  # nothing depends on it but time
            log.debug("what the frames share is not found: %s", error)
    try:
        yield
    finally:
        if shared is not None:
            with suppress(Exception):  # the session may be gone
                shared.unpersist(False)


def _shared(records: DataFrame, frames: Sequence[DataFrame]) -> Any:
    """Return the Dataset of Java that is kept; None if there is none."""
    session = records.sparkSession
    of_spark: Any = session._jvm.org.apache.spark  # type: ignore[union-attr]
    root, *plans = (frame._jdf.queryExecution().analyzed() for frame in (records, *frames))
    first, *others = map(_nodes, plans)
    for node in first:
        if all(any(map(node.equals, nodes)) for nodes in others) and any(map(root.equals, _nodes(node))):
            dataset = of_spark.sql.classic.Dataset.ofRows(session._jsparkSession, node)
            return dataset.persist(of_spark.storage.StorageLevel.MEMORY_AND_DISK())
    return None


def _nodes(plan: Any) -> list[Any]:
    """Return the nodes of a plan from the top, level by level."""
    found = [plan]
    for node in found:
        children = node.children()
        found += [children.apply(index) for index in range(children.size())]
        if len(found) > NODES_MAX:
            return []
    return found
