"""The variants of what a fleet in 3.x mode needs: the lock, reports, assignment, handoffs, discovery, the failover
watcher.

Their plans are those of mode `3x`; `needs` names a rare combination of `plan3x.special_of`.
"""

from __future__ import annotations

from tests.simulation.variants.patching import Patch
from tests.simulation.variants.variant import Variant

_HANDOFF = "conditions, the_row, refused, sets=sets)\n\n\ndef assign("
_COUNTED = "conditions, the_row, refused, sets=sets, adds=((rows.COUNTER, ONE),))\n\n\ndef assign("
_OWNERS = (
    '        _is_or_absent(rows.OWNER, ":owner", lease.owner),\n'
    '        _is_or_absent(rows.CHECKPOINT_OWNER, ":checkpointOwner", lease.checkpoint_owner),\n'
)
_ANYBODY = "(#rvn = :mine OR #rvn <> :mine) AND (#ownerName = :me OR #ownerName <> :me)"


def _variant(name: str, breaks: str, *patches: tuple[str, str, str], needs: str = "") -> Variant:
    return Variant(name, breaks, tuple(Patch(f"mld.{module}", old, new) for module, old, new in patches), needs, "3x")


VARIANTS_3X: tuple[Variant, ...] = (
    _variant(
        "handoff_counts",
        "the beginning of a handoff raises the counter, and the owner's next write fails",
        ("leases.writes", _HANDOFF, _COUNTED),
    ),
    _variant(
        "assign_without_owner_pair",
        "an assignment does not look whether the owners are those that were seen",
        ("leases.writes", _OWNERS, ""),
        needs="shuffles",
    ),
    _variant(
        "receiver_does_not_wait",
        "the next owner renews and begins while the previous one still finishes",
        (
            "leases.discovery",
            "lease.owner == self.worker_id and lease.actual_owner != self.worker_id:\n",
            "not lease.key:\n",
        ),
        (
            "leases.resumer",
            "        is_ours = lease.actual_owner == self.worker_id != lease.handoff_to",
            "        is_ours = lease.owner == self.worker_id",
        ),
        (
            "daemon.worker",
            "            case Standing.CONSUMED if holding.lease.handoff_to is None:\n",
            "            case Standing.CONSUMED:\n",
        ),
        (
            "leases.writes",
            '"renew", lease.key, _guard(lease, span), the_row',
            '"renew", lease.key, (_within(span),), the_row',
        ),
    ),
    _variant(
        "transferred_at_once",
        "a lease is transferred while its processor goes on",
        (
            "daemon.worker",
            "                running.consumer.hand_off()\n",
            "                asyncio.ensure_future(self.parts.keeper.give_away(key, held[key].token))\n",
        ),
        (
            "leases.keeper",
            "giving.give(holding)\n        finally:\n            self.forget(holding)\n",
            "giving.give(holding)\n        finally:\n            pass\n",
        ),
    ),
    _variant(
        "lock_heartbeat_without_condition",
        "a leader writes its heartbeat whoever holds the lock, and never finds that it has expired",
        (
            "fleet.leader.lock",
            '    request["UpdateExpression"] = "SET #duration = :duration, #rvn = :next"\n',
            f'    request["ConditionExpression"] = "{_ANYBODY}"\n'
            '    request["UpdateExpression"] = "SET #duration = :duration, #rvn = :next"\n',
        ),
        (
            "fleet.leader.lock_election",
            "        return self._holding is not None and self._holding.is_valid(self.clock.monotonic())\n",
            "        return self._holding is not None\n",
        ),
        needs="leaders",
    ),
    _variant(
        "leader_outlives_its_lock",
        "a leader that cannot renew its lock goes on leading",
        (
            "fleet.leader.lock_election",
            "        return self._holding is not None and self._holding.is_valid(self.clock.monotonic())\n",
            "        return self._holding is not None\n",
        ),
        needs="leaders",
    ),
    _variant(
        "lock_taken_too_early",
        "a lock counts as given up before its lease is over",
        (
            "fleet.leader.lock",
            "    return None if now > stale_at else stale_at\n",
            "    return None if now > stale_at - 95.0 else stale_at\n",
        ),
        needs="leaders",
    ),
    _variant(
        "new_leader_trusts_nobody",
        "a new leader takes every lease that it sees for the first time for an expired one",
        (
            "fleet.observations",
            "now, NEVER if lease.actual_owner is None else now)\n",
            "now, NEVER)\n",
        ),
        needs="leaders",
    ),
    _variant(
        "moves_without_handoff",
        "the leader takes leases away from living owners",
        (
            "fleet.assign.fleet_load",
            "hands_off = self.settings.leases.hands_off_gracefully and lease.actual_owner is not None\n",
            "hands_off = False\n",
        ),
    ),
    _variant(
        "pending_handoff_forced",
        "the leader completes handoffs before their deadline",
        (
            "fleet.observations",
            "        return not self._handoffs.is_still(lease.key, now, self._patience_s)\n",
            "        return lease.key not in self._handoffs\n",
        ),
        needs="hangs",
    ),
    _variant(
        "discovered_without_renewal",
        "a discovered lease is held from its reading on",
        (
            "leases.resumer",
            "        shown = await self.keeper.send(row, lambda span: writes.renew(row, span=span))\n",
            "        from mld.leases.own_writes import RowShown\n\n"
            "        shown = RowShown(seen, self.clock.monotonic(), self.clock.monotonic())\n",
        ),
    ),
    _variant(
        "twin_resumed_at_once",
        "a lease that a twin goes on with is resumed within a second, for ever",
        (
            "leases.resumer",
            "        if lease.key not in self._contested:\n",
            "        if lease.key not in self._contested or lease.counter >= 0:\n",
        ),
        needs="twin",
    ),
    _variant(
        "takes_over_without_counter",
        "the failover watcher takes a silent lease whatever has happened to it since it looked",
        (
            "fleet.assign.move_writer",
            "    if counter_matters or _is_from_silent(move):\n",
            "    if not counter_matters and _is_from_silent(move):\n",
        ),
        needs="silences",
    ),
)
