"""Dead letters in a directory: durable, whole, for their owner only; and which box the settings name."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from mld.aws.client_factory import client_factory
from mld.aws.directory_box import DirectoryBox
from mld.aws.letter_boxes import letter_box_of
from mld.aws.letters import Letter
from mld.aws.service_boxes import BucketBox, QueueBox, StreamBox
from mld.core.errors import DeadLetterError
from tests.support.fleet import settings_of

BODY = json.dumps({"data": "cG9pc29u"}).encode()
LETTER = Letter(("app", "clicks", "shardId-000000000000"), "4957-3", BODY)


def put(directory: Path, letter: Letter = LETTER) -> str:
    async def main() -> str:
        box = DirectoryBox(str(directory))
        await box.open()
        try:
            return await box.put(letter)
        finally:
            await box.close()

    return asyncio.run(main())


def test_a_letter_is_a_file_of_one_line_that_only_its_owner_may_read(tmp_path: Path) -> None:
    place = Path(put(tmp_path / "new" / "letters"))
    assert place == tmp_path / "new/letters/app/clicks/shardId-000000000000/4957-3.json"
    assert place.read_bytes() == BODY + b"\n"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    made = [tmp_path / "new", *list(place.parents)[:4]]
    assert {stat.S_IMODE(directory.stat().st_mode) for directory in made} == {0o700}


def test_the_same_record_again_replaces_its_letter(tmp_path: Path) -> None:
    put(tmp_path)
    again = Letter(LETTER.path, LETTER.name, b"{}")
    assert Path(put(tmp_path, again)).read_bytes() == b"{}\n"
    assert sum(1 for path in tmp_path.rglob("*") if path.is_file()) == 1


@pytest.mark.parametrize("name", ["../../etc", ".", "..", "a/b", "ключ", "x" * 60])
def test_no_name_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    place = Path(put(tmp_path / "letters", Letter((name, name, "shard"), "1-0", BODY)))
    assert place.resolve() == place
    assert place.relative_to(tmp_path / "letters").parts[2:] == ("shard", "1-0.json")


def test_the_content_is_durable_before_it_has_its_name_and_the_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    final = tmp_path / "app/clicks/shardId-000000000000/4957-3.json"
    real = os.fsync

    def spy(handle: int) -> None:
        seen.append((Path(f"/proc/self/fd/{handle}").readlink().name, final.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", spy)
    put(tmp_path)
    draft = f".4957-3.{os.getpid()}.tmp"
    assert seen[-2:] == [(draft, False), ("shardId-000000000000", True)]
    assert [name for name, _ in seen[:-2]] == [tmp_path.name, "app", "clicks"], "each new directory in its parent"


def test_what_cannot_be_made_durable_is_no_letter_and_the_next_try_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, Letter(LETTER.path, "1-0", BODY))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DeadLetterError, match=r"No space left on device \(key mld.deadLetter\)"):
            put(tmp_path)
    assert not list(tmp_path.rglob("4957-3.json"))
    assert Path(put(tmp_path)).exists()


def test_a_directory_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeadLetterError, match=r"mld\.deadLetter"):
        put(tmp_path / "file" / "letters")


def test_after_its_end_a_box_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        box = DirectoryBox(str(tmp_path))
        await box.close()
        with pytest.raises(DeadLetterError):
            await box.put(LETTER)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("letters", DirectoryBox),
        ("s3://my-bucket/x", BucketBox),
        ("arn:aws:kinesis:eu-west-1:123456789012:stream/letters", StreamBox),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/letters", QueueBox),
    ],
)
def test_the_settings_name_the_box(place: str, kind: type[Any]) -> None:
    settings = settings_of(mld__deadLetter=place, mld__poisonAttempts="3")
    assert type(letter_box_of(settings, client_factory(settings))) is kind


def test_without_attempts_there_is_no_box() -> None:
    settings = settings_of(mld__deadLetter="letters")
    assert letter_box_of(settings, client_factory(settings)) is None
