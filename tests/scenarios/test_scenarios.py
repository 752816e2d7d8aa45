"""Every story prints what its file holds. Record anew on purpose only: `make scenarios`."""

import pytest

from mld.leases import rows
from tests.scenarios.commands import Commands
from tests.scenarios.runner import FailedStoryError, play, story_files
from tests.scenarios.world import StoryError
from tests.twins.dynamo import Applied
from tests.virtual_time import virtual

DEAR = (
    *("fleet_rollback", "fleet_from_2x_to_3x", "fleet_java_legacy", "fleet_java_2x", "fleet_java_leader", "java_3x"),
    *("java_34", "leases_cold_start", "shards_clean_up_off", "fleet_found_dead"),
)
"""Stories of many minutes or workers, which `make test-all` plays."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=pytest.mark.full if path.stem in DEAR else ()) for path in story_files()],
)
def test_the_story_goes_as_it_is_told(path):
    recorded = path.read_text(encoding="utf-8")
    assert play(recorded) == recorded


def test_there_are_as_many_stories_as_promised():
    assert len(story_files()) >= 60


@pytest.mark.parametrize(
    ("story", "complaint"),
    [
        ("> fly", "no such command"),
        ("> stream shards=1\n> expect held", "it is not so"),
        ("> stream shards=1\n> until held within 1s", "not within 1 s"),
        ("> start w1\n> start w1", "w1 is running"),
    ],
)
def test_a_story_that_is_not_so_fails_with_the_reason(story, complaint):
    with pytest.raises(FailedStoryError, match=complaint):
        play(story)


@virtual
async def test_a_checkpoint_beyond_what_was_delivered_fails_the_story():
    commands = Commands()
    await commands.run("stream shards=1")
    await commands.run("put 2")
    world = commands.world
    before = {"leaseKey": {"S": world.records[0].shard_id}, "leaseCounter": {"N": "1"}, "checkpoint": {"S": "1"}}
    before |= {"ownerSwitchesSinceCheckpoint": {"N": "0"}}
    after = before | {rows.CHECKPOINT: {"S": str(world.records[1].sequence)}}
    world.dynamo.history.append(Applied(1.0, "w1", "UpdateItem", "app", before, after))
    with pytest.raises(StoryError, match="before #0 was delivered"):
        world.check()
