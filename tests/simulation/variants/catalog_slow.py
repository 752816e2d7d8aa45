"""The variants of late answers: overlapping writes, and what an answer counts from. Their plans are those of `slow`."""

from __future__ import annotations

from tests.simulation.variants.patching import Patch
from tests.simulation.variants.variant import Variant


def _variant(name: str, breaks: str, *patches: tuple[str, str, str]) -> Variant:
    return Variant(name, breaks, tuple(Patch(f"mld.{module}", old, new) for module, old, new in patches), "", "slow")


VARIANTS_SLOW: tuple[Variant, ...] = (
    _variant(
        "late_answer_counts_from_itself",
        "an answer that took most of a lease duration counts from when it comes, as in Java",
        (
            "leases.validity",
            "LATE_SHARE * lease_duration_s else followed_until\n",
            "LATE_SHARE * lease_duration_s else answered_at\n",
        ),
    ),
    _variant(
        "late_checkpoint_replaces_anything",
        "a checkpoint that overlaps may replace whatever is stored",
        ("leases.writes", "    if not span.is_exact:\n", "    if False:\n"),
    ),
    _variant(
        "write_waits_for_the_one_before",
        "a renewal is not sent while one waits for its answer",
        (
            "leases.keeper",
            "        if newest_at is not None and waiting > 1:\n",
            "        if newest_at is not None:\n            return False\n        if newest_at and waiting > 1:\n",
        ),
        (
            "leases.keeper",
            "        if newest_at is None or newest_at <= holding.answered_at or",
            "        if holding.lease.counter >= 0 or",
        ),
    ),
    _variant(
        "overlapping_write_names_one_counter",
        "a write that overlaps is made on condition of the counter seen last alone",
        (
            "leases.own_writes",
            "        return Span(self.counter, reach, ",
            "        return Span(self.counter, self.counter, ",
        ),
    ),
)
