"""Which entry of the ledger of an Iceberg table is in force."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.ledger import LedgerEntry
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.iceberg import DELETES, KEPT_PROPERTY, PROPERTY, IcebergSink, note
from mld.processors.spark.writer_identity import WriterIdentity

NOBODY = WriterIdentity()


def entry(number: int) -> LedgerEntry:
    return LedgerEntry(number, f"token{number}", {NOBODY: {StreamShard("s", "0"): RecordPosition(number)}})


def text(of: LedgerEntry) -> str:
    return ledger.encode(of).decode()


class Snapshot:
    """What the sink asks a snapshot of Iceberg."""

    def __init__(self, parent: int | None, said: str | None) -> None:
        summary = {} if said is None else {PROPERTY: said}
        self.parentId, self.summary = lambda: parent, lambda: summary


def head(*notes, kept=None, keep=None, expired=False, root=None, deletes=None, previous=()):
    """The entry in force in a table whose snapshots have these notes, the oldest first. `root` is the parent of that
    one, and `previous` are the table's metadata files before the present one."""
    first = len(notes) if expired else 1
    parents = (number - 1 or root for number in range(1, len(notes) + 1))
    snapshots = {number: Snapshot(*one) for number, one in enumerate(zip(parents, notes, strict=True), 1)}
    properties = {PROPERTY: kept, KEPT_PROPERTY: keep, DELETES: deletes}
    metadata = SimpleNamespace(
        properties=lambda: properties,
        currentSnapshot=lambda: snapshots.get(len(notes)),
        snapshot=lambda number: snapshots[number] if number >= first else None,
        metadataFileLocation=lambda: "s3://b/t/metadata/3.json",
        previousFiles=lambda: [SimpleNamespace(file=lambda name=name: name) for name in previous],
    )
    sink = IcebergSink(SinkSpec("out", "iceberg", "lake.db.t"), None)  # type: ignore[arg-type]
    sink._table = SimpleNamespace(operations=lambda: SimpleNamespace(refresh=lambda: metadata))
    return sink._look()


@pytest.mark.parametrize(
    ("notes", "kept", "expired", "number"),
    [
        ((), None, False, None),
        ((None,), None, False, None),
        ((note(entry(2)), note(entry(3))), text(entry(3)), False, 3),
        ((note(entry(3)), None, None), text(entry(3)), False, 3),
        ((note(entry(3)), None), text(entry(3)), True, 3),
    ],
    ids=["no snapshot", "of others", "both agree", "others since", "expired"],
)
def test_the_entry_in_force(notes, kept, expired, number):
    found = head(*notes, kept=kept, expired=expired)
    assert (found.number if found else None) == number
    assert found is None or found.writers == entry(number).writers


@pytest.mark.parametrize(
    ("notes", "number"),
    [((note(entry(2)),), 2), ((None, None), None), ((), None)],
    ids=["to an earlier commit", "to before the first", "emptied"],
)
def test_a_table_that_was_rolled_back_is_refused_unless_a_person_decides(notes, number):
    for keep in (None, "2"):
        with pytest.raises(SinkRefused, match=r"lake\.db\.t was rolled back .* that of commit 3") as refused:
            head(*notes, kept=text(entry(3)), keep=keep)
    for remedy in ("UNSET TBLPROPERTIES ('mld.ledger')", "SET TBLPROPERTIES ('mld.ledger.keep' = '3')"):
        assert f"ALTER TABLE lake.db.t {remedy}" in str(refused.value)
    assert head(*notes, kept=text(entry(3)), keep="3").number == 3
    forgotten = head(*notes)
    assert forgotten is None if number is None else (forgotten.number, forgotten.writers) == (number, {})


def test_a_note_is_short_and_nobody_takes_it_for_an_entry():
    long = entry(7)
    assert len(note(long)) < 150
    with pytest.raises(SinkRefused, match="version 'note'"):
        ledger.decode(note(long).encode(), "")


def test_a_damaged_entry_is_told():
    with pytest.raises(SinkRefused, match=r"the ledger in lake\.db\.t is damaged"):
        head(note(entry(1)), kept="{}")


def test_parents_that_form_a_ring_are_walked_once():
    with pytest.raises(SinkRefused, match="rolled back"):
        head(None, None, note(entry(2)), kept=text(entry(3)), root=3)
    assert head(None, None, None, kept=text(entry(3)), root=3).number == 3, "as if the snapshot with the note expired"
    assert head(None, root=1) is None


@pytest.mark.parametrize(
    "file",
    ["file:/home/me/.ssh/id", "s3://b/t/2.json", "s3://b/t/metadata/../2.json", "s3://b/t/metadata/x/2.json", ""],
)
def test_a_commit_that_may_delete_a_file_elsewhere_is_refused(file):
    previous = ("s3://b/t/metadata/1.json", file)
    for deletes in ("true", "TRUE"):
        with pytest.raises(SinkRefused, match=r"ALTER TABLE .*delete-after-commit\.enabled' = 'false'"):
            head(deletes=deletes, previous=previous)
    for deletes in ("false", None):
        assert head(deletes=deletes, previous=previous) is None
    assert head(deletes="true", previous=("s3://b/t/metadata/1.json", "s3://b/t/metadata/2.json")) is None
