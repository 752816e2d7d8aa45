"""Which partitions of a frame fail: found in few jobs, though Spark ends a job at its first failure.

The frame is planned once. Where a job over its partitions fails, Spark knows the task; those before it are taken
for done, but for the last ones, which may have been running, and the next job has those and all behind it. So one short
job is what a failing partition costs. What is found is a suspicion: who acts on it computes the rest first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

GROUP = "spark.jobGroup.id"
STATUS_WAIT_S = 10.0
"""Spark's own listener learns of a failed task a moment after the job has ended."""
STATUS_PAUSE_S = 0.002
TASKS_MAX = 100
"""Failed ones of one job that are asked for."""


def failing(frame: DataFrame, count: int) -> Mapping[int, str] | None:
    """Return the partitions of a frame that fail, each with what Spark says of it. None if there are not so many, or if
    a job fails otherwise than by a task. Raises what Spark raises while it plans."""
    java: Any = frame._jdf
    rdd = java.queryExecution().toRdd().toJavaRDD()
    if rdd.getNumPartitions() != count:
        return None
    context = frame.sparkSession.sparkContext
    jvm: Any = context._jvm
    computed = rdd.sample(False, 0.0, 0)  # every row is computed, and none reaches the driver
    running_max = max(2, context.defaultParallelism)
    ints = jvm.java.util.stream.IntStream
    found: dict[int, str] = {}
    begin = 0
    while True:
        left = ints.empty()
        for at in sorted(at for at in {*found, count} if at >= begin):
            left = ints.concat(left, ints.range(begin, at))
            begin = at + 1
        group = f"mld-{uuid4().hex}"
        context.setLocalProperty(GROUP, group)
        try:
            computed.collectPartitions(left.toArray())
            return found
        except Exception:
            failed = _failed(context, group)
            if not failed:
                return None
            found |= failed
            begin = max(0, min(failed) - running_max)
        finally:
            context.setLocalProperty(GROUP, None)  # type: ignore[arg-type]


def _failed(context: SparkContext, group: str) -> dict[int, str]:
    """Return the partitions of the group's job whose tasks have failed, with their messages."""
    tracker, jvm = context.statusTracker(), context._jvm
    assert jvm is not None
    java: Any = context._jsc
    wanted = jvm.java.util.List.of(jvm.org.apache.spark.status.api.v1.TaskStatus.FAILED)
    until = time.monotonic() + STATUS_WAIT_S
    while time.monotonic() < until:
        for job in tracker.getJobIdsForGroup(group):
            about = tracker.getJobInfo(job)
            stage = max(about.stageIds) if about is not None else 0  # that of the results
            tasks = java.sc().statusStore().taskList(stage, 0, 0, TASKS_MAX, None, True, wanted)
            found = [tasks.apply(index) for index in range(tasks.size())]
            if found:
                return {int(one.partitionId()): str(one.errorMessage().getOrElse(None)) for one in found}
        time.sleep(STATUS_PAUSE_S)
    return {}
