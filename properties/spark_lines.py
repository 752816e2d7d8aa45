"""`SparkLines`: the configuration of the Spark processor as values: its keys, sinks, catalogs, settings of Spark, and
remarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mld.properties.remarks import Remark
from mld.properties.spark_names import PREFIX


@dataclass(slots=True)
class SinkLines:
    """The keys of one sink in the file, as text. `place` is the place of the first of them."""

    name: str
    place: str
    values: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SparkLines:
    """All keys of the processor. `values` has the values by the name after `mld.spark.`, with all defaults; None for a
    key without a default."""

    values: Mapping[str, Any]
    sinks: tuple[SinkLines, ...]
    conf: Mapping[str, str]
    remarks: tuple[Remark, ...]
    catalogs: Mapping[str, Mapping[str, str]]
    """Properties of each catalog of tables, which may be secret."""
    shown: Mapping[str, tuple[str, str]]
    """For every given key: the text that may be logged, and the place."""
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The value of every given key, which may be secret."""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def pipeline_is_given(self) -> bool:
        """Whether the file names a pipeline; also true if its value is bad, about which there is a remark."""
        name = f"{PREFIX}pipeline"
        return name in self.shown or any(remark.key == name for remark in self.remarks)
