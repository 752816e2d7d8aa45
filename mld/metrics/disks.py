"""Free space on the file systems that a daemon writes to.

A place is a directory that the daemon writes to, named by its purpose: `deadLetter`, `archive`, `spool` and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mld.core.disks import DiskPlace, DiskRoom, in_words
from mld.metrics.declaring import Instant, shown


@dataclass(slots=True, eq=False)
class DiskMetrics:
    """Results of the last check of each place; None for a place that did not answer in time."""

    rooms: dict[DiskPlace, DiskRoom | None] = field(init=False, default_factory=dict)

    def _known(self) -> Mapping[str, DiskRoom]:
        """Return the results of the places that have answered, by name."""
        return {place.name: room for place, room in self.rooms.items() if room is not None}

    @shown("mld_disk_free_bytes", "Room for the daemon's user where it writes.", "place")
    def free_bytes(self, _: Instant) -> Mapping[str, int]:
        return {name: room.free_bytes for name, room in self._known().items()}

    @shown("mld_disk_free_ratio", "Share of the blocks, or of the inodes, that is free there, from 0 to 1.", "place")
    def free_ratio(self, _: Instant) -> Mapping[str, float]:
        return {name: room.free_share for name, room in self._known().items()}

    @shown("mld_disk_writable", "1 if a trial write succeeded there, 0 if it failed or did not end.", "place")
    def writable(self, _: Instant) -> Mapping[str, int]:
        return {place.name: int(room is not None and room.why is None) for place, room in self.rooms.items()}

    def faults(self) -> dict[str, str]:
        """Return for each place with a fault, by name, a text that describes the fault: the place did not answer the
        last check in time, cannot be written, or has little room.
        """
        found = {
            place.name: f"{place.name}: {place.path} does not answer" if room is None else in_words(place, room)
            for place, room in self.rooms.items()
        }
        return {name: words for name, words in found.items() if words is not None}

    def troubles(self) -> Iterator[tuple[str, str, str, bool]]:
        """Yield each place with a fault: its name, the fault, the remedy, and whether nothing can be written there."""
        for name, words in self.faults().items():
            room = next(room for place, room in self.rooms.items() if place.name == name)
            remedy = "see what hangs: a disk, or a mount of the network" if room is None else room.remedy
            is_lost = room is None or room.why is not None
            yield name, words.partition(": ")[2], remedy or "free some room there before it is full", is_lost

    def value(self) -> list[dict[str, Any]]:
        """Return everything as plain values, for JSON."""
        faults = self.faults()
        return [
            {
                "place": place.name,
                "path": str(place.path),
                "freeBytes": None if room is None else room.free_bytes,
                "freeShare": None if room is None else room.free_share,
                "why": faults.get(place.name),
            }
            for place, room in self.rooms.items()
        ]
