"""What the file says to the Spark processor, as values: its keys, sinks, catalogs, settings of Spark, and remarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mld.properties.remarks import Remark
from mld.properties.spark_names import PREFIX


@dataclass(slots=True)
class SinkLines:
    """What the file says about one sink, as text; `place` is that of its first line."""

    name: str
    place: str
    values: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SparkLines:
    """All keys of the processor: values by the name after `mld.spark.`, with defaults filled in (None where there is
    none)."""

    values: Mapping[str, Any]
    sinks: tuple[SinkLines, ...]
    conf: Mapping[str, str]
    remarks: tuple[Remark, ...]
    catalogs: Mapping[str, Mapping[str, str]]
    """Properties of each catalog of tables, which may be secret."""
    shown: Mapping[str, tuple[str, str]]
    """Text fit for a log, and place, of every key given."""
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The value of every key given, which may be secret."""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def pipeline_is_given(self) -> bool:
        """Also true for a bad value, which has a remark of its own."""
        name = f"{PREFIX}pipeline"
        return name in self.shown or any(remark.key == name for remark in self.remarks)
