"""What the frames of several sinks have in common, computed once: the highest node of the plans that all of them share.

A pipeline that makes several frames makes them of the same records, often after the same steps. Each sink runs a job of
its own, so without this each of them would read, parse and transform again. The common part is kept in the executors'
memory, and on their disks where that is short, until the last sink has its rows. All sinks then see one evaluation of
it, which matters for functions that do not give the same result twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("mld.spark")

NODES_MAX = 2_000
"""Of a plan; a larger one is not searched."""


@contextmanager
def computed_once(records: DataFrame, frames: Sequence[DataFrame]) -> Iterator[None]:
    """Compute once what `frames` share, which are made of `records`. One frame, or a session without a JVM of ours:
    nothing is kept.
    """
    shared = None
    if len(frames) > 1 and hasattr(records, "_jdf"):
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
    java = session._jvm
    assert java is not None
    root = _plan(records)
    others = [_nodes(_plan(frame)) for frame in frames[1:]]
    for node in _nodes(_plan(frames[0])):
        if all(any(node.equals(other) for other in nodes) for nodes in others) and _has(node, root):
            dataset = java.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, node)
            return dataset.persist(java.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK())
    return None


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _has(node: Any, root: Any) -> bool:
    return any(root.equals(one) for one in _nodes(node))


def _nodes(plan: Any) -> list[Any]:
    """Return the nodes of a plan from the top, level by level."""
    found = [plan]
    for node in found:
        children = node.children()
        found += [children.apply(index) for index in range(children.size())]
        if len(found) > NODES_MAX:
            return []
    return found
