"""The variants of several children that share a shard. Their plans are those of mode `2x` with three or two."""

from __future__ import annotations

from tests.simulation.variants.patching import Patch
from tests.simulation.variants.variant import Variant

NEEDS = "children"
_PREFIX = "consumer.safe_prefix"
_IS_DONE = "        return child in self._ended or by_position(record) <= self._confirmed[child]\n"
_MAXIMUM = "        return bool(self._ended) or by_position(record) <= max(self._confirmed)\n"
_FIRST = "        return 0 in self._ended or by_position(record) <= self._confirmed[0]\n"
_TURN_BY_TIME = "        self._turn = int(clock.monotonic()) % len(children)\n"


def _variant(name: str, breaks: str, *patches: tuple[str, str, str]) -> Variant:
    return Variant(name, breaks, tuple(Patch(f"mld.{module}", old, new) for module, old, new in patches), NEEDS)


VARIANTS_CHILDREN: tuple[Variant, ...] = (
    _variant(
        "prefix_by_maximum",
        "what any child has checkpointed counts for the records of all children",
        (_PREFIX, _IS_DONE, _MAXIMUM),
    ),
    _variant(
        "prefix_by_first_child",
        "the row follows the first child, whatever the others have done",
        (_PREFIX, _IS_DONE, _FIRST),
    ),
    _variant(
        "row_does_not_follow",
        "the row gets the prefix only when the children end",
        (
            "consumer.prefix_writer",
            "self._writing.done()) and not",
            "self._writing.done()) and self._hurried.is_set() and not",
        ),
    ),
    _variant(
        "key_order_lost_at_restart",
        "the children of a later start get other keys",
        ("consumer.parallel", "        self._turn = 0\n", _TURN_BY_TIME),
        ("protocol.sharing", "crc32(key) % children", "(crc32(key) + self.turn) % children"),
    ),
    _variant(
        "end_by_first_child",
        "the end of a shard is stored when the first of its children has asked for it",
        (_PREFIX, "len(self._ended) == len(self._confirmed)", "self._ended"),
    ),
)
