"""Campaigns go on where they were stopped."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.simulation.campaigns import PIECE_SEEDS, Campaign, Piece


def test_a_campaign_goes_on_after_the_pieces_that_were_finished_at_this_version(tmp_path: Path) -> None:
    done = Piece("this", "2x", 0, PIECE_SEEDS, 1.0, {})
    other = Piece("other", "3x", 0, PIECE_SEEDS, 1.0, {})
    cut_off = json.dumps(asdict(Piece("this", "3x", 0, PIECE_SEEDS, 1.0, {})))[:-5]
    (tmp_path / "pieces.jsonl").write_text("\n".join((json.dumps(asdict(done)), json.dumps(asdict(other)), cut_off)))

    left = Campaign(tmp_path, "this", ["2x", "3x"], 3 * PIECE_SEEDS, start=0).left()

    assert [(piece.program, piece.first, piece.count) for piece in left] == [
        ("3x", 0, PIECE_SEEDS),
        ("2x", PIECE_SEEDS, PIECE_SEEDS // 2),
        ("3x", PIECE_SEEDS, PIECE_SEEDS // 2),
    ]


def test_a_failed_seed_fails_the_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    campaign = Campaign(tmp_path, "this", ["2x"], PIECE_SEEDS, start=0)
    finished = Piece("this", "2x", 0, PIECE_SEEDS, 1.0, {"7": "checker 1: lost"})
    (tmp_path / "pieces.jsonl").write_text(json.dumps(asdict(finished)) + "\n")

    assert not campaign.left()
    assert not campaign.table()
    assert "FAILED 2x 7: checker 1: lost" in capsys.readouterr().out
