"""Who watches whom: the ring a leader publishes. Pure; what a watcher does with it is `watching`.

Every live worker that holds a lease, a Java worker too, is watched by the two mld workers that follow it on a ring.
Places on the ring are hashes of the ids: when a worker comes or goes only its neighbours' duties change, and the Java
workers of a mixed fleet do not all lie between the same two mld workers, as they might in the order of their names.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from mld.fleet.observing import STEP_LEASES
from mld.leases.lease import Lease
from mld.steps import Steps, finish

WATCHERS = 2  # one watcher may die together with whom it watches
PLACE_BYTES = 8

Duties: TypeAlias = tuple[tuple[str, str], ...]
"""(watched worker, key of the lease that stands for it), sorted."""


def watch_ring(mld_workers: Collection[str], workers: Collection[str], leases: Iterable[Lease]) -> dict[str, Duties]:
    """The duties of each mld worker, empty ones too. `workers` are all live ones, of both kinds.

    The representative is the first lease by key that the worker holds, not complete and not on its way elsewhere.
    """
    return finish(watch_ring_steps(mld_workers, workers, leases))


def watch_ring_steps(
    mld_workers: Collection[str], workers: Collection[str], leases: Iterable[Lease]
) -> Steps[dict[str, Duties]]:
    """`watch_ring`, in pieces."""
    ring = sorted((_place(worker), worker) for worker in mld_workers)
    duties: dict[str, list[tuple[str, str]]] = {worker: [] for worker in mld_workers}
    representatives = yield from _representatives(set(workers), leases)
    for number, (watched, key) in enumerate(sorted(representatives.items())):
        for watcher in _followers(ring, watched):
            duties[watcher].append((watched, key))
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
    return {worker: tuple(entries) for worker, entries in duties.items()}


def changed(duties: Mapping[str, Duties], published: Mapping[str, Duties]) -> dict[str, Duties]:
    """What has to be published: duties that differ from the last ones known to have been."""
    return {worker: entries for worker, entries in duties.items() if published.get(worker) != entries}


def _representatives(workers: Collection[str], leases: Iterable[Lease]) -> Steps[dict[str, str]]:
    first: dict[str, str] = {}
    for number, lease in enumerate(leases):
        if number % STEP_LEASES == STEP_LEASES - 1:
            yield
        owner = lease.owner
        if owner is None or owner not in workers or lease.checkpoint_owner is not None or lease.is_complete:
            continue
        if owner not in first or lease.key < first[owner]:
            first[owner] = lease.key
    return first


def _followers(ring: list[tuple[bytes, str]], watched: str) -> list[str]:
    start = bisect_right(ring, (_place(watched), watched))
    around = (ring[(start + step) % len(ring)][1] for step in range(len(ring)))
    followers: list[str] = []
    for watcher in around:
        if len(followers) == WATCHERS:
            break
        if watcher != watched:
            followers.append(watcher)
    return followers


def _place(worker: str) -> bytes:
    return hashlib.blake2b(worker.encode(), digest_size=PLACE_BYTES).digest()
