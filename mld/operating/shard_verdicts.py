"""The kinds of faults of single open shards, for `verdicts`; the shard's verdict decides which one it has. Pure.

Each function gets what is known of the fleet, the shard, and the shard's name in commands. It returns what is wrong, in
words, and the command or advice that helps.
"""

from __future__ import annotations

from mld.operating.durations import duration
from mld.operating.faults import (
    PAUSE_HOLD_S,
    STUCK,
    Severity,
    of_shards,
)
from mld.operating.fleet_sight import FleetSight
from mld.operating.shard_view import ShardView, Verdict

UNTOLD = "untold"
"""The kind of fault of a shard of which its worker reports nothing."""


def _because(shard: ShardView, otherwise: str) -> str:
    """Return the reason for the shard's verdict; `otherwise` if none is known."""
    return shard.why or otherwise


def _joined(words: str, why: str | None) -> str:
    """Return the words, followed by the reason if one is known."""
    return words if why is None else f"{words}: {why}"


@of_shards(
    Verdict.STOPPED.value,
    Severity.PAGE,
    "Leases have no live owner.",
    "mld workers: is there a leader, and are there enough workers (maxLeasesForWorker)?",
    STUCK,
    alert="MldLeasesWithoutOwner",
)
def _stopped(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return why nothing is read, which is that nobody owns the shard, and the command to go on with."""
    has_living = sight.fleet is not None and any(one.is_alive is not False for one in sight.fleet.workers)
    return _because(shard, "nobody owns it"), sight.command("workers" if has_living else "run")


@of_shards(
    Verdict.UNREADABLE.value,
    Severity.PAGE,
    "All reads of a shard have failed for minutes.",
    "mld lag has the error; mld doctor tries the same calls with the same credentials.",
    STUCK,
    alert="MldUnreadable",
)
def _unreadable(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return why the reads of the shard fail, and the command that looks for the reason."""
    return _because(shard, "all of its reads fail"), sight.command("doctor")


@of_shards(
    Verdict.PARKED.value,
    Severity.PAGE,
    "A shard waits for an operator.",
    "mld leases says why; repair the processor, or mld skip past the record.",
    STUCK,
    alert="MldShardParked",
)
def _parked(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return why the shard waits for an operator, and the command that looks for the reason."""
    return _because(shard, "it waits for an operator"), sight.command("doctor")


@of_shards(
    Verdict.FAILING.value,
    Severity.PAGE,
    "The record processor of a shard fails on and on.",
    "mld lag has the error, and the mld peek that shows the record.",
    "a-shard-is-failing",
)
def _failing(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return why the shard's processor fails, and the command to go on with."""
    why = _because(shard, "its record processor fails")
    failing = shard.failing
    if failing is not None and not failing.attempts:  # it fails without a batch, so no record is to blame
        return why, "mld conformance -- COMMAND"
    # A processor that checkpoints seldom fails on a record that is far behind its checkpoint.
    first = None if failing is None or failing.first is None else failing.first.number
    return why, sight.command("peek", name, "--at", "checkpoint" if first is None else str(first))


@of_shards(
    Verdict.STALLED.value,
    Severity.PAGE,
    "A record processor has neither answered nor checkpointed for minutes, with records in its hands.",
    "mld tap shows what its child says; mld restart-child ends it, and timeoutInSeconds does so by itself.",
    STUCK,
)
def _stalled(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return why the shard's processor stands still, and the command that restarts it."""
    return _because(shard, "its record processor stands still"), sight.command("restart-child", name)


@of_shards(
    Verdict.UNKNOWN.value,
    Severity.PAGE,
    "Nobody knows how far behind a shard is.",
    "mld lag says why: it is not read yet, it waits for its parent, or its worker is silent.",
    STUCK,
    alert="MldLagUnknown",
)
def _unknown(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return why the shard's lag is unknown, and the command that shows whether its worker is alive."""
    return _because(shard, "its worker does not tell how far it is"), sight.command("workers")


@of_shards(
    UNTOLD,
    Severity.NOTE,
    "The worker of a shard tells nothing of it, as Java's do.",
    "mld lag --probe asks Kinesis.",
    STUCK,
    alert="MldLagUnknown",
    hold_s=None,
)
def _untold(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return that the shard's worker reports no lag, and the command that asks Kinesis for the lag."""
    return _because(shard, "its worker does not tell"), sight.command("lag", "--probe")


@of_shards(
    Verdict.LAGGING.value,
    Severity.TICKET,
    "A shard is behind, and moving.",
    "mld lag --watch shows whether it catches up.",
    "why-is-it-behind",
    alert="MldBehind",
)
def _lagging(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return how far the shard is behind and why, and the command that shows whether it catches up."""
    return _joined(f"{duration(shard.behind_s)} behind", shard.why), sight.command("lag", "--watch")


@of_shards(
    Verdict.PAUSED.value,
    Severity.TICKET,
    "A shard has been paused for 4 hours: perhaps somebody forgot it.",
    "mld leases says who paused it, when and why; mld resume lets it go on.",
    "move-drain-pause-restart",
    alert="MldShardPaused",
    hold_s=PAUSE_HOLD_S,
)
def _paused(sight: FleetSight, shard: ShardView, name: str) -> tuple[str, str]:
    """Return who paused the shard, when and why, and the command that ends the pause."""
    return f"paused {shard.lease.paused or ''}".strip(), sight.command("resume", name)
