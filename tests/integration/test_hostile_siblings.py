"""One of several children of a shard misbehaves, as real processes: its siblings lose nothing, other shards go on."""

from __future__ import annotations

import pytest

from tests.integration.test_hostile_children import HARMLESS, HOSTILE, RESTARTED, end, others_go_on, start
from tests.integration.world import MakeWorld
from tests.support.patience import PATIENCE_S
from tests.support.tiers import sliced

CHILDREN = 4


@pytest.mark.parametrize("mode", sliced(RESTARTED, "exit_at_checkpoint"))
def test_a_failing_child_ends_its_siblings_and_their_records_come_again(make_world: MakeWorld, mode: str) -> None:
    world = make_world(shards=2)
    world.put(300)
    daemon = start(world, mode, mld__childrenPerShard=CHILDREN, callProcessRecordsEvenForEmptyRecordList="true")
    daemon.wait_for_event("child_failed", shard=HOSTILE)
    others_go_on(world)
    end(world, daemon)
    failed = daemon.with_action("child_failed")
    assert failed == daemon.with_action("child_failed", shard=HOSTILE) != []


@pytest.mark.parametrize("mode", sliced(HARMLESS, "checkpoint_ahead"))
def test_strange_children_that_answer_are_kept(make_world: MakeWorld, mode: str) -> None:
    """Among them one that asks for checkpoints beyond its own records, where those of its siblings are."""
    world = make_world(shards=2)
    world.put(300)
    daemon = start(world, mode, timeout_s=int(PATIENCE_S), mld__childrenPerShard=CHILDREN)
    others_go_on(world)
    end(world, daemon)
    assert daemon.with_action("child_failed") == []
    assert len(world.history.lives()) == 2 * CHILDREN
