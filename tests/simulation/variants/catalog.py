"""The variants: what is broken on purpose, and which checker must notice. The seeds that do stand in `seeds.py`."""

from __future__ import annotations

from tests.simulation.variants.catalog3x import VARIANTS_3X
from tests.simulation.variants.catalog_children import VARIANTS_CHILDREN
from tests.simulation.variants.catalog_fanout import VARIANTS_FAN_OUT
from tests.simulation.variants.catalog_live import VARIANTS_LIVE
from tests.simulation.variants.catalog_streams import VARIANTS_STREAMS
from tests.simulation.variants.patching import Patch
from tests.simulation.variants.variant import Variant


def _variant(name: str, breaks: str, *patches: tuple[str, str, str]) -> Variant:
    needs = _NEEDS.get(name, "")
    return Variant(name, breaks, tuple(Patch(f"mld.{module}", old, new) for module, old, new in patches), needs)


_RENEWED = '"renew", lease.key, {}, the_row'
_NEEDS = {
    "take_validity_from_response": "starts",
    "release_without_condition": "deploys",
    "merge_child_with_one_parent": "crossed",
    "twin_taken_for_resend": "twin",
    "renew_without_owner": "reassign",
    "shard_end_unguarded": "finish",
    "retries_without_delay": "outage",
    "unknown_stream_is_end": "gone",
    "old_range_for_new_child": "endings",
    "first_iterator_replaced_after_checkpoint": "iterators",
    "exception_ends_keeper": "surprises",
    "exception_ends_taker": "surprises",
    "exception_is_a_stored_checkpoint": "surprises",
    "exception_is_passed_on": "surprises",
}


_PORT_LEAKS = (
    "aws.boundary",
    "        if (what, type(error)) in self._reported:\n            return\n",
    "        raise error\n",
)
"""The ports let through what nobody expected, so that it is the loops that must survive it."""


VARIANTS_2X: tuple[Variant, ...] = (
    # --- what nobody expected ---
    _variant(
        "exception_ends_keeper",
        "an exception that a port lets through, in one renewal, ends the renewal of all leases",
        _PORT_LEAKS,
        (
            "leases.keeper",
            '                    failure = survived(error, "renewing a lease", key)\n',
            "                    if not isinstance(error, MldError):\n                        raise\n"
            "                    failure = error\n",
        ),
        (
            "leases.keeper",
            '            holding.renewing = False\n            survived(error, "renewing a lease", key)\n',
            "            holding.renewing = False\n            raise\n",
        ),
        (
            "core.tasks",
            "kept_running(wanted[name].run, name, self._clock)",
            "(wanted[name].run() if name == 'keeping leases' else kept_running(wanted[name].run, name, self._clock))",
        ),
    ),
    _variant(
        "exception_ends_taker",
        "an exception that a port lets through, in one pass, ends the taking of leases",
        _PORT_LEAKS,
        (
            "leases.taker",
            "            except Exception as error:\n                failures += 1\n",
            '            except Exception as error:\n                if type(error).__module__ != "mld.core.errors":\n'
            "                    raise\n                failures += 1\n",
        ),
        ("core.tasks", "kept_running(wanted[name].run, name, self._clock)", "wanted[name].run()"),
    ),
    _variant(
        "exception_is_a_stored_checkpoint",
        "a checkpoint that failed by an exception that a port lets through counts as stored",
        _PORT_LEAKS,
        (
            "leases.keeper",
            '            return survived(error, "storing a checkpoint", holding.lease.key)\n',
            '            failure = survived(error, "storing a checkpoint", holding.lease.key)\n'
            "            storing = holding.storing\n"
            "            if failure is not error and storing is not None and not storing.stored.done():\n"
            "                storing.stored.set_result(position)\n"
            "            return failure\n",
        ),
    ),
    _variant(
        "exception_is_passed_on",
        "loops survive nothing but our own errors",
        ("core.error_boundary", "    if is_broken_invariant(error):\n        raise error\n", "    raise error\n"),
    ),
    # --- leases ---
    _variant(
        "validity_from_response",
        "a renewed lease is valid from the answer on, not from the sending",
        (
            "leases.keeper",
            "valid_from = self._counts_from(key, sent) if is_accepted else None\n",
            "valid_from = self.clock.monotonic() if is_accepted else None\n",
        ),
    ),
    _variant(
        "take_validity_from_response",
        "a taken lease is valid from the answer on",
        (
            "leases.taker",
            "self._settle(lease, answer, sent_at if unknown_since is None else unknown_since, is_steal)",
            "self._settle(lease, answer, self.clock.monotonic(), is_steal)",
        ),
    ),
    _variant(
        "failed_renewal_prolongs",
        "a renewal with unknown outcome counts as a success",
        (
            "leases.keeper",
            "may_be_applied=not isinstance(error, MldError) or may_be_applied(error))\n            raise\n",
            "may_be_applied=not isinstance(error, MldError) or may_be_applied(error))\n"
            "            if holding is not None:\n                holding.confirmed_at = self.clock.monotonic()\n"
            "            raise\n",
        ),
    ),
    _variant(
        "expired_lease_is_kept",
        "a lease that has expired is still written, and comes back to life",
        (
            "leases.keeper",
            "        return self.clock.monotonic() < holding.until\n",
            "        return True\n",
        ),
    ),
    _variant(
        "renew_without_owner",
        "the renewal looks at the counter only, not at the owner",
        (
            "leases.writes",
            _RENEWED.format("_guard(lease, span)"),
            _RENEWED.format("(_within(span),)"),
        ),
    ),
    _variant(
        "renew_without_counter",
        "the renewal looks at the owner only, not at the counter",
        (
            "leases.writes",
            _RENEWED.format("_guard(lease, span)"),
            _RENEWED.format("(Condition.equal(rows.OWNER, _text(':me', lease.actual_owner or '')),)"),
        ),
    ),
    _variant(
        "checkpoint_without_counter",
        "a checkpoint looks at the owner only: one that was delayed in the network still counts",
        (
            "leases.writes",
            "    conditions = _guard(lease, span)\n    if not position.is_shard_end:\n",
            "    conditions = (Condition.equal(rows.OWNER, _text(':me', lease.actual_owner or '')),)\n    if False:\n",
        ),
        ("leases.writes", "    if not span.is_exact:\n", "    if False:\n"),
    ),
    _variant(
        "shard_end_unguarded",
        "a checkpoint may be written over SHARD_END",
        ("leases.writes", "    if not position.is_shard_end:\n", "    if False:\n"),
    ),
    _variant(
        "lost_reply_taken_for_twin",
        "a renewal or checkpoint whose reply was lost is taken for a twin's write",
        (
            "leases.keeper",
            "may_be_applied=not isinstance(error, MldError) or may_be_applied(error))",
            "may_be_applied=False)",
        ),
    ),
    _variant(
        "twin_taken_for_resend",
        "whatever the counter of a row of ours, our own writes explain it",
        (
            "leases.own_writes",
            "        explained = newest <= row.ceiling and not row.is_of_twin\n",
            "        explained = True\n",
        ),
    ),
    _variant(
        "release_without_condition",
        "a release removes the owner whoever it is",
        (
            "leases.writes",
            "(EXISTS, *_owners_as_seen(lease)), (rows.OWNER",
            "(EXISTS,), (rows.OWNER",
        ),
    ),
    _variant(
        "take_without_counter",
        "the taker takes a lease whatever has happened to it since the scan",
        (
            "leases.writes",
            '"take",\n        lease.key,\n        (_seen(lease),),\n',
            '"take",\n        lease.key,\n        (Condition.present(rows.KEY),),\n',
        ),
    ),
    _variant(
        "steals_without_rest",
        "the taker steals although everybody has the same",
        ("leases.take_plan", "    if needed <= 0 or most < target:\n", "    if most < target:\n"),
        ("leases.take_plan", "    if needed > 1 and count == 0:\n", "    if count <= 0:\n"),
        ("leases.take_plan", "    if even_shares and (needed == 1 or most == target):\n", "    if False:\n"),
    ),
    _variant(
        "retries_without_delay",
        "a failed lease write is repeated at once, and again, and again",
        (
            "leases.validity",
            "    return min(rng.uniform(ceiling_s / 2, ceiling_s), remaining_s / 2)\n",
            "    return 0.0\n",
        ),
    ),
    # --- checkpoints ---
    _variant(
        "checkpoint_error_is_success",
        "a checkpoint that failed is answered as stored, and counts as stored",
        (
            "consumer.checkpoints",
            '            log.warning("checkpoint failed: %s", error, extra=about("checkpoint_failed", self._key))\n'
            "            return CheckpointErrorName.DEPENDENCY\n",
            '            log.warning("checkpoint failed: %s", error, extra=about("checkpoint_failed", self._key))\n',
        ),
        (
            "consumer.checkpoints",
            "            return CheckpointErrorName.THROTTLING\n",
            "            pass\n",
        ),
    ),
    _variant(
        "checkpoint_beyond_delivery",
        "a child may checkpoint what it never got",
        (
            "consumer.checkpoint_range",
            "        if position != self.last and not self._was_given(position):\n",
            "        if False:\n",
        ),
    ),
    _variant(
        "old_range_for_new_child",
        "a child that was started again may checkpoint what its predecessor had got",
        (
            "consumer.consumer",
            "            self._checkpoints.begin(self._lease.checkpoint)\n",
            "",
        ),
    ),
    # --- records ---
    _variant(
        "batch_of_dead_child_dropped",
        "what a child that died had been given is not given again",
        ("consumer.consumer", "            self._delivered = self._lease.checkpoint\n        reader", "        reader"),
    ),
    _variant(
        "restart_too_far",
        "a restart goes on one record after the one that follows the checkpoint",
        (
            "retrieval.rawpage",
            "            return Piece((place.text[place.start :],), count, data_bytes, piece.bears_frame)\n",
            "            return Piece((place.text[place.end :],), count - 1, 0, False) if count > 1 else None\n",
        ),
    ),
    _variant(
        "new_iterator_at_tip",
        "a reader that lost its iterator goes on at LATEST",
        (
            "retrieval.starting_points",
            "        return StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=state.last_sequence)\n",
            "        return StartingPoint(IteratorType.LATEST)\n",
        ),
    ),
    _variant(
        "restart_after_aggregate",
        "reading starts after the checkpoint's record, not at it: the rest of an aggregate is skipped",
        (
            "retrieval.starting_points",
            "    return StartingPoint(IteratorType.AT_SEQUENCE_NUMBER, sequence=checkpoint.sequence)\n",
            "    return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=checkpoint.sequence)\n",
        ),
    ),
    _variant(
        "first_iterator_replaced_after_checkpoint",
        "an iterator lost before anything was read is replaced by one after the checkpoint's record",
        (
            "retrieval.starting_points",
            "    return state.start\n",
            "    at = state.start.sequence\n"
            "    return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=at) if at else state.start\n",
        ),
    ),
    _variant(
        "aggregate_from_its_start",
        "a restart inside an aggregate delivers all of it",
        (
            "retrieval.rawbatch",
            "        return users.after(self._floor[1]) if number == self._floor[0] else users\n",
            "        return users\n",
        ),
    ),
    _variant(
        "misrouted_aggregate_delivered",
        "an aggregate that was built for another shard is delivered",
        (
            "consumer.parts",
            "    batch = page.after(delivered, hash_range)\n",
            "    batch = page.after(delivered)\n",
        ),
    ),
    _variant(
        "sub_number_not_stored",
        "a checkpoint inside an aggregate covers all of it",
        (
            "consumer.checkpoint_range",
            "        return NoWrite() if position == self.last else Write(position)\n",
            "        position = Position(position.sequence, self.largest.sub)\n"
            "        return NoWrite() if position == self.last else Write(position)\n",
        ),
    ),
    _variant(
        "page_lost_with_error",
        "an error while pages are waiting empties the buffer",
        (
            "retrieval.polling",
            "        reaction = reaction_to(error)\n",
            "        reaction = reaction_to(error)\n        self._buffer.take()\n",
        ),
    ),
    _variant(
        "pages_out_of_order",
        "the youngest page in the buffer is delivered first",
        (
            "retrieval.prefetch",
            "        item, records, data_bytes = self._items.popleft()\n",
            "        item, records, data_bytes = self._items.pop()\n",
        ),
    ),
    # --- ends of shards ---
    _variant(
        "end_without_children",
        "SHARD_END is checkpointed before the children have rows",
        (
            "consumer.consumer",
            '            match await contained(preparing, "preparing the end of a shard", self.key):\n',
            "            preparing.close()\n            match EndVerdict.READY:\n",
        ),
    ),
    _variant(
        "children_do_not_wait",
        "a child shard is read before its parents are finished",
        ("tracking.tracked_stream", "        if blocking is None:\n", "        if True:\n"),
    ),
    _variant(
        "merge_child_with_one_parent",
        "a merge child gets its row although one parent has none, and will not wait for it",
        (
            "shards.ending",
            "            return BlockedOnMergeParent(missing[0])\n",
            "            pass\n",
        ),
    ),
    _variant(
        "children_at_initial_position",
        "the children of a shard are read from LATEST",
        (
            "shards.ending",
            "new_lease(child, TRIM_HORIZON)",
            'new_lease(child, type(TRIM_HORIZON)("LATEST"))',
        ),
    ),
    _variant(
        "missing_is_end",
        "ResourceNotFound is taken for the end of the shard",
        (
            "consumer.consumer",
            "            case ShardMissing():\n                return ActivityOutcome.SHARD_MISSING\n",
            "            case ShardMissing():\n                return ActivityOutcome.SHARD_ENDED\n",
        ),
        (
            "shards.ending",
            "        scan, listing, survey = await self.stream.survey()\n",
            "        return Prepared(())\n        scan = listing = survey = None\n",
        ),
    ),
    _variant(
        "unknown_stream_is_end",
        "a shard that nobody knows any more is finished even if the whole stream is gone",
        (
            "tracking.tracked_stream",
            "                return MissingVerdict.UNKNOWN\n",
            "                return MissingVerdict.OVER\n",
        ),
        (
            "shards.ending",
            'Blocked(reason if isinstance(listing, ShardsListed) else f"{reason} ({listing.reason})")\n',
            "Prepared(())\n",
        ),
    ),
    _variant(
        "cleanup_too_early",
        "the row of a finished shard goes before its children are started",
        ("shards.cleanup", "    if waiting is not None:\n", "    if False:\n"),
    ),
    # --- life of consumers ---
    _variant(
        "loss_goes_unheard",
        "a consumer is not told that its lease is lost, and takes it for held",
        ("daemon.worker", "                running.consumer.lose_lease()\n", "                pass\n"),
        (
            "leases.keeper",
            "        return holding is not None and self._is_believed(holding)\n",
            "        return True\n",
        ),
    ),
    _variant(
        "finished_token_forgotten",
        "a finished consumer of a lease that is still held is started again and again",
        ("daemon.worker", "        self._finished_tokens.add(consumer.token)\n", "        pass\n"),
    ),
    _variant(
        "old_child_left_running",
        "the child of a lost lease is not ended",
        (
            "consumer.consumer",
            "_failed(error)\n        await self._dismiss_child()\n        return ActivityOutcome.DONE\n",
            "_failed(error)\n        self._processor = None\n        return ActivityOutcome.DONE\n",
        ),
    ),
    _variant(
        "reader_left_running",
        "the reader of a lost lease goes on reading",
        ("consumer.consumer", "        await reader.stop()\n", "        pass\n"),
    ),
    _variant(
        "dead_worker_keeps_leases",
        "nobody takes the leases of a worker that is gone",
        (
            "leases.take_plan",
            "        if owner is None or seen.is_still(lease.key, now, dead_after_s):\n",
            "        if owner is None:\n",
        ),
    ),
)

VARIANTS = (*VARIANTS_2X, *VARIANTS_3X, *VARIANTS_CHILDREN, *VARIANTS_FAN_OUT, *VARIANTS_LIVE, *VARIANTS_STREAMS)
BY_NAME = {variant.name: variant for variant in VARIANTS}
