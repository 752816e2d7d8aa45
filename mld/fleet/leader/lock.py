"""The leader lock of a 3.x fleet: parses its row, decides whether to hold, claim or watch the lock, and makes the
conditional writes. Pure.

Rules: coordination#leader-lock, coordination#lock-staleness. Every write changes the version of the row
(`recordVersionNumber`, a new UUID), and is conditional on the row as it was read. Clocks are never compared:

* A challenger may take over the lock if the version of the row has not changed for longer than the duration *in the
  row*, counted from the end of the challenger's own first read of that version.
* The holder may act for that duration, counted from the time just before it *sent* the last write that is known to be
  applied. So it stops before any challenger can start.

A version is unique. So if the row has one of our versions, this process wrote it, even if the reply was lost:

    row                                              what to do
    absent                                           claim
    released (`isReleased` = "1")                    claim
    our version, its time not over                   hold
    our version, its time over, or we gave it up     claim: no other worker can lead by it
    another version, seen for less than its          watch it
      duration
    another version, unchanged for its duration      claim
    damaged, unchanged for less than our duration    watch it
    damaged, unchanged for our duration              claim

A restarted worker does not know the versions that its predecessor wrote, so it does not hold the predecessor's lock,
even if both have the same worker id.

A damaged row (an attribute is missing, or is not of the form that the protocol requires) makes Java workers fail at
every check. No rule says how long such a row is valid. Here it is valid for our own duration, the fleet's default
(`LEASE_S`). Then it is replaced, on condition that none of its three essential attributes has changed. So as long as
somebody renews the row, it is not replaced.
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
GIVEN_UP = float("-inf")  # noted as the send time of a version that is being released, see `Versions.giving_up`
SHOWN_MAX = 100  # characters of a value that a message shows: an attribute may have 400 KB
VERSIONS_MAX = 32  # more than the writes of one duration whose answers may be missing: a heartbeat each 5 s, releases

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
    """The lock row in the table."""

    owner: str
    lasts_s: float
    version: str
    is_released: bool = False


@dataclass(frozen=True, slots=True)
class DamagedLock:
    """A lock row that cannot be understood: its essential attributes as found, and what is wrong with them."""

    attributes: Row
    reason: str


SeenLock: TypeAlias = LockRow | DamagedLock | None
"""The lock as read; None if there is no row."""


WatchedLock: TypeAlias = Stillness[str, LockRow | DamagedLock]
"""Since when the lock row of another worker, under the key `LOCK_KEY`, has been unchanged."""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock as this worker holds it: the version of its last applied write, and when (monotonic) that was sent."""

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
    """The versions that this process has sent as `owner`, each with the monotonic time just before it was sent."""

    owner: str
    sent_at: Mapping[str, float] = field(default_factory=dict)

    def sending(self, version: str, sent_at: float) -> Versions:
        """Return the versions with one more, and without the oldest if there are too many."""
        newest = [*(dict(self.sent_at) | {version: sent_at}).items()][-VERSIONS_MAX:]
        return Versions(self.owner, dict(newest))

    def without(self, version: str) -> Versions:
        """Return the versions without one whose write was certainly not applied."""
        return Versions(self.owner, {known: at for known, at in self.sent_at.items() if known != version})

    def giving_up(self, version: str) -> Versions:
        """Return the versions with this one marked as given up: its release is being sent, so the row may vanish any
        time.
        """
        return self.sending(version, GIVEN_UP)

    def find(self, lock: SeenLock) -> HeldLock | None:
        """Return our holding of the lock if this process wrote the row, even if its time is over; else None."""
        if not isinstance(lock, LockRow) or lock.owner != self.owner or lock.version not in self.sent_at:
            return None
        return HeldLock(lock.version, self.sent_at[lock.version], lock.lasts_s)


# --- decisions -------------------------------------------------------------------------------------------------------


def judge(lock: SeenLock, watched: WatchedLock, ours: Versions, now: float) -> HeldLock | float | None:
    """Decide about a lock that was just read, by the table in the module's header. Return one of three things:

    * our holding, if the lock is ours and its time is not over
    * None, if the lock may be claimed
    * the time (monotonic) until which another worker may lead by it

    `now` is monotonic, and after the read. The row of another worker is noted in `watched`.
    """
    if lock is None or (isinstance(lock, LockRow) and lock.is_released):
        return None
    if (holding := ours.find(lock)) is not None:
        return holding if holding.is_valid(now) else None
    watched.saw(LOCK_KEY, lock, now)
    stale_at = watched.since(LOCK_KEY) + (lock.lasts_s if isinstance(lock, LockRow) else LEASE_S)
    return None if now > stale_at else stale_at


def judge_refused_heartbeat(lock: SeenLock, ours: Versions) -> HeldLock | None:
    """Return our holding after a heartbeat was refused; None if the lock is lost. `lock` is the present row. If it has
    a version of ours, the lock is still ours: an earlier heartbeat, whose answer was lost, was applied.
    """
    holding = ours.find(lock)
    return holding if holding is not None and holding.sent_at != GIVEN_UP else None


# --- the row ---------------------------------------------------------------------------------------------------------


def parse_lock(row: Row | None) -> SeenLock:
    """Return the lock in a row. It never raises: a damaged row becomes a DamagedLock."""
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
    """Return the damaged lock in a row."""
    return DamagedLock({name: row[name] for name in _ESSENTIAL if name in row}, reason)


# --- requests, without `TableName` -----------------------------------------------------------------------------------


def claim(place: Place, over: SeenLock, owner: str, version: str) -> Request:
    """Return a PutItem of the whole row, by which `owner` gets the lock under `version`, on condition that the row is
    still as read (`over`).
    """
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
    """Return an UpdateItem that sets `next_version`, on condition that `owner` still has the lock under `version`."""
    request = _held(place, owner, version)
    request["UpdateExpression"] = "SET #duration = :duration, #rvn = :next"
    request["ExpressionAttributeNames"] |= {"#duration": DURATION}
    request["ExpressionAttributeValues"] |= {":duration": {"S": DURATION_TEXT}, ":next": {"S": next_version}}
    return request


def release(place: Place, owner: str, version: str) -> Request:
    """Return a DeleteItem, on condition that `owner` still has the lock under `version`."""
    return _held(place, owner, version)


def _held(place: Place, owner: str, version: str) -> Request:
    """Return the parts of a request that is made on condition that `owner` has the lock under `version`."""
    return {
        "Key": key_in(place),
        "ConditionExpression": "attribute_exists(#pk) AND #rvn = :mine AND #ownerName = :me",
        "ExpressionAttributeNames": {"#pk": place.key, "#rvn": VERSION, "#ownerName": OWNER},
        "ExpressionAttributeValues": {":mine": {"S": version}, ":me": {"S": owner}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _unchanged(place: Place, seen: SeenLock) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Return the condition that the row is still as it was read, with its names and values."""
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
    """Return the key of the lock row in this table."""
    return {place.key: {"S": LOCK_KEY}}
