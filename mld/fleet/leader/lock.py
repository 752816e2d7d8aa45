"""The leader lock of a 3.x fleet: its row, its conditional writes, and what a look at it allows. Pure.

Rules: coordination#leader-lock, coordination#lock-staleness. Every write changes the version of the row
(`recordVersionNumber`, a new UUID), and every write is conditional on what was seen. Nobody compares clocks:

* A challenger may take a row over that has kept one version for longer than the duration *in the row*, counted from the
  end of its own first look at that version.
* The holder may act for the duration counted from before it *sent* the last write known to be applied. It therefore
  stops before any challenger can start.

A version is unique, so a row that shows one of ours was written by this very process, whatever became of the reply:

    row                                            what to do
    absent                                         claim
    released (`isReleased` = "1")                  claim
    a version of ours, its time not over           hold
    a version of ours, its time over or given up   claim, nobody else can be acting on it
    another, first seen now                        wait, observe
    another, unchanged beyond its duration         claim
    damaged, unchanged beyond our own duration     claim

A restarted worker has no versions, hence no claim on the row of its predecessor, even under the same worker id.

A damaged row (an attribute is missing or is not what the protocol says) makes Java workers fail at every check. No rule
says how long it is valid. It gets our own duration, the fleet's default, and is then replaced on condition that none of
its three attributes has changed: if somebody still renews it, it is never replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mld.core.stillness import Stillness
from mld.leases.rows import EntityType, Place

Row: TypeAlias = Mapping[str, Mapping[str, Any]]
Request: TypeAlias = dict[str, Any]

LOCK_KEY = "Leader"
LEASE_S = 120.0  # Java's: long enough that a leader survives a few failed heartbeats
DURATION_TEXT = str(round(LEASE_S * 1000))
GIVEN_UP = float("-inf")
SHOWN_MAX = 100  # of a value in a message: an attribute may have 400 KB
VERSIONS_MAX = 32  # the writes of one lease duration that may still be on their way: a heartbeat each 5 s, and releases

OWNER = "ownerName"
DURATION = "leaseDuration"
VERSION = "recordVersionNumber"
RELEASED = "isReleased"
ENTITY = "entityType"

_ESSENTIAL = (OWNER, DURATION, VERSION)
_IS_RELEASED = "1"
_MILLIS = re.compile(r"\+?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class LockRow:
    """The lock as it stands in the table."""

    owner: str
    lasts_s: float
    version: str
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class DamagedLock:
    """A lock row that cannot be read: its essential attributes as found, and what is wrong with them."""

    attributes: Row
    reason: str


SeenLock: TypeAlias = LockRow | DamagedLock | None
"""The lock as read; None if there is no row."""


WatchedLock: TypeAlias = Stillness[str, LockRow | DamagedLock]
"""Since when the row of somebody else, `LOCK_KEY`, is known to be as it is."""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock held by us: the version that our last applied write gave it, and when (monotonic) that was sent."""

    version: str
    sent_at: float
    lasts_s: float

    @property
    def valid_until(self) -> float:
        return self.sent_at + self.lasts_s

    def is_valid(self, now: float) -> bool:
        return now < self.valid_until


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions that this process has sent as `owner`, each with the monotonic time before sending."""

    owner: str
    sent_at: Mapping[str, float] = field(default_factory=dict)

    def sending(self, version: str, sent_at: float) -> Versions:
        """Return these with one more version, without the oldest if there are too many."""
        newest = [*(dict(self.sent_at) | {version: sent_at}).items()][-VERSIONS_MAX:]
        return Versions(self.owner, dict(newest))

    def without(self, version: str) -> Versions:
        """Return the belief after a write with this version was certainly not applied."""
        return Versions(self.owner, {known: at for known, at in self.sent_at.items() if known != version})

    def giving_up(self, version: str) -> Versions:
        """Return the belief once a release of this version is sent. From now on a row showing it may vanish at any
        time.
        """
        return self.sending(version, GIVEN_UP)

    def find(self, lock: SeenLock) -> HeldLock | None:
        """Return the holding that the row proves, over or not; None if the row is not of our writing."""
        if not isinstance(lock, LockRow) or lock.owner != self.owner or lock.version not in self.sent_at:
            return None
        return HeldLock(lock.version, self.sent_at[lock.version], lock.lasts_s)


# --- decisions -------------------------------------------------------------------------------------------------------


def judge(lock: SeenLock, watched: WatchedLock, ours: Versions, now: float) -> HeldLock | float | None:
    """Return what the lock just read means: it is ours, or until when somebody else may lead; None: it is to be
    claimed.

    `now`: monotonic, after the read; `watched` hears of a row of somebody else.
    """
    if lock is None or (isinstance(lock, LockRow) and lock.is_released):
        return None
    if (holding := ours.find(lock)) is not None:
        return holding if holding.is_valid(now) else None
    watched.saw(LOCK_KEY, lock, now)
    stale_at = watched.since(LOCK_KEY) + (lock.lasts_s if isinstance(lock, LockRow) else LEASE_S)
    return None if now > stale_at else stale_at


def judge_refused_heartbeat(lock: SeenLock, ours: Versions) -> HeldLock | None:
    """Return what is held after the row refused a heartbeat: an earlier one without an answer may have been applied."""
    holding = ours.find(lock)
    return holding if holding is not None and holding.sent_at != GIVEN_UP else None


# --- the row ---------------------------------------------------------------------------------------------------------


def parse_lock(row: Row | None) -> SeenLock:
    """Read a row; whatever is wrong with it, this does not raise."""
    if not row:
        return None
    texts: dict[str, str] = {}
    for name in _ESSENTIAL:
        text = row.get(name, {}).get("S")
        if not isinstance(text, str):
            return _damaged(row, f"{name} is {'not a string' if name in row else 'missing'}")
        texts[name] = text
    millis = int(texts[DURATION]) if _MILLIS.fullmatch(texts[DURATION]) else 0
    if millis <= 0:
        return _damaged(row, f"{DURATION} {texts[DURATION][:SHOWN_MAX]!r} is no number of milliseconds above 0")
    is_released = row.get(RELEASED, {}).get("S") == _IS_RELEASED
    return LockRow(texts[OWNER], millis / 1000, texts[VERSION], is_released)


def _damaged(row: Row, reason: str) -> DamagedLock:
    return DamagedLock({name: row[name] for name in _ESSENTIAL if name in row}, reason)


# --- requests, without `TableName` -----------------------------------------------------------------------------------


def claim(place: Place, over: SeenLock, owner: str, version: str) -> Request:
    """Return a PutItem of the whole row, if what was seen still stands."""
    condition, names, values = _unchanged(place, over)
    return {
        "Item": key_in(place)
        | {
            OWNER: {"S": owner},
            DURATION: {"S": DURATION_TEXT},
            VERSION: {"S": version},
            ENTITY: {"S": EntityType.LEADER.value},
        },
        "ConditionExpression": condition,
        "ExpressionAttributeNames": names,
        **({"ExpressionAttributeValues": values} if values else {}),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def heartbeat(place: Place, owner: str, version: str, next_version: str) -> Request:
    """Return an UpdateItem, if the lock is still `owner`'s under `version`."""
    request = _held(place, owner, version)
    request["UpdateExpression"] = "SET #duration = :duration, #rvn = :next"
    request["ExpressionAttributeNames"] |= {"#duration": DURATION}
    request["ExpressionAttributeValues"] |= {":duration": {"S": DURATION_TEXT}, ":next": {"S": next_version}}
    return request


def release(place: Place, owner: str, version: str) -> Request:
    """Return a DeleteItem, if the lock is still `owner`'s under `version`."""
    return _held(place, owner, version)


def _held(place: Place, owner: str, version: str) -> Request:
    return {
        "Key": key_in(place),
        "ConditionExpression": "attribute_exists(#pk) AND #rvn = :mine AND #ownerName = :me",
        "ExpressionAttributeNames": {"#pk": place.key, "#rvn": VERSION, "#ownerName": OWNER},
        "ExpressionAttributeValues": {":mine": {"S": version}, ":me": {"S": owner}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _unchanged(place: Place, seen: SeenLock) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Return condition, names and values that say: the row is as it was seen."""
    names = {"#pk": place.key}
    match seen:
        case None:
            return "attribute_not_exists(#pk)", names, {}
        case LockRow(is_released=True):
            condition = "attribute_exists(#pk) AND #isReleased = :released"
            return condition, names | {"#isReleased": RELEASED}, {":released": {"S": _IS_RELEASED}}
        case LockRow():
            condition = "attribute_exists(#pk) AND #rvn = :seen"
            return condition, names | {"#rvn": VERSION}, {":seen": {"S": seen.version}}
        case DamagedLock():
            parts, values = ["attribute_exists(#pk)"], {}
            for name in _ESSENTIAL:
                if name in seen.attributes:
                    parts.append(f"#{name} = :{name}")
                    values[f":{name}"] = dict(seen.attributes[name])
                else:
                    parts.append(f"attribute_not_exists(#{name})")
            return " AND ".join(parts), names | {f"#{name}": name for name in _ESSENTIAL}, values


def key_in(place: Place) -> dict[str, Any]:
    return {place.key: {"S": LOCK_KEY}}
