"""Which small files become one, by tables, and what a day of commits leaves behind."""

from __future__ import annotations

import pytest

from mld.processors.spark.commit.small_files import (
    ALONE_BYTES,
    FILES_MAX,
    FILES_MIN,
    MEBIBYTE,
    QUIET_FILES,
    QUIET_S,
    SIZES,
    TARGET_BYTES,
    ListedFile,
    Watched,
    due,
    looked,
    missing,
    next_quiet_s,
    to_compact,
    with_added,
)

KB = 1024


def listed(*sizes: int, age_s: float = 1.0) -> list[ListedFile]:
    return [ListedFile(f"c{number:012d}-00000.parquet", size, age_s) for number, size in enumerate(sizes, 1)]


def numbers(names: tuple[str, ...]) -> list[int]:
    return [int(name[1:13]) for name in names]


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        pytest.param([], 0, id="nothing there"),
        pytest.param(listed(*[KB] * 31), 0, id="one too few"),
        pytest.param(listed(*[KB] * 32), 32, id="enough"),
        pytest.param(listed(*[KB] * 31, 2 * MEBIBYTE), 0, id="one of another size"),
        pytest.param(listed(*[5 * MEBIBYTE] * 13), 12, id="fewer that are a large one together"),
        pytest.param(listed(*[2 * MEBIBYTE] * 33), 32, id="no more than fit"),
        pytest.param(listed(*[20 * MEBIBYTE] * 3), 0, id="not yet a large one"),
        pytest.param(listed(*[20 * MEBIBYTE] * 4), 3, id="the largest that are small"),
        pytest.param(listed(*[SIZES[-1]] * 100), 0, id="large ones stay"),
        pytest.param(listed(*[KB] * 1000), FILES_MAX, id="no more than an entry should name"),
        pytest.param(listed(*[KB] * (QUIET_FILES - 1), age_s=QUIET_S), 0, id="quiet, and few"),
        pytest.param(listed(*[KB] * 3, 2 * MEBIBYTE, age_s=QUIET_S), 4, id="quiet, of any size"),
        pytest.param([*listed(*[KB] * 9, age_s=QUIET_S), ListedFile("c9", KB, 3.0)], 0, id="something came just now"),
    ],
)
def test_what_is_put_together(files, chosen):
    found = to_compact(files)
    assert numbers(found) == list(range(1, chosen + 1))


def test_by_hand_two_are_enough_and_one_is_left_alone():
    assert len(to_compact(listed(KB, 9 * MEBIBYTE), all_small=True)) == 2
    assert to_compact(listed(KB, 40 * MEBIBYTE), all_small=True) == ()


def test_where_a_batch_would_wait_a_compaction_is_short():
    files = listed(*[MEBIBYTE] * 40)
    assert len(to_compact(files, 32, ALONE_BYTES)) == 8
    assert to_compact(listed(*[ALONE_BYTES // 2] * 40), 32, ALONE_BYTES) == ()


@pytest.mark.parametrize("size", [4 * KB, 100 * KB, 900 * KB, 3 * MEBIBYTE])
def test_a_day_of_commits_leaves_few_files_and_each_record_is_written_again_a_few_times(size):
    """2,880 commits; a compaction makes one file as large as those it replaces."""
    files: list[ListedFile] = []
    written = most = 0
    for number in range(1, 2881):
        files.append(ListedFile(f"c{number:012d}-", size, 1.0))
        while chosen := set(to_compact(files)):
            merged = sum(one.size for one in files if one.name in chosen)
            files = [one for one in files if one.name not in chosen]
            files.append(ListedFile(f"c{number:012d}-{len(chosen)}-{written}", merged, 1.0))
            written += merged
        most = max(most, len([one for one in files if one.size < SIZES[-1]]))
    assert sum(one.size for one in files) == 2880 * size
    assert most <= len(SIZES) * FILES_MIN
    assert len(files) <= most + 2880 * size / (TARGET_BYTES / 2)
    assert written <= 6 * 2880 * size


def test_how_many_more_are_waited_for():
    assert missing(listed(*[KB] * 30), 32) == 2
    assert missing(listed(*[KB] * 30, *[2 * MEBIBYTE] * 31), 32) == 1
    assert missing(listed(*[KB] * 99), 32) == 1
    assert missing([], 32) == 32


def test_a_directory_is_looked_at_at_once_and_then_when_enough_has_come():
    known = with_added({}, {"hour=1": 3}, 10.0)
    assert due(known, 10.0) == "hour=1"
    known = looked(known, "hour=1", 29, 11.0)
    assert due(known, 11.0) is None
    known = with_added(known, {"hour=1": 28, "hour=2": 1}, 12.0)
    assert due(known, 12.0) == "hour=2", "the other lacks one"
    known = looked(known, "hour=2", 31, 12.0)
    known = with_added(known, {"hour=1": 1}, 13.0)
    assert due(known, 13.0) == "hour=1"


def test_a_directory_that_is_quiet_is_looked_at_once_more_and_forgotten():
    known = {"hour=1": Watched(0, 100.0, 32)}
    assert next_quiet_s(known, 101.0) == QUIET_S - 1
    assert due(known, 100.0 + QUIET_S - 1) is None
    assert due(known, 100.0 + QUIET_S) == "hour=1"
    assert looked(known, "hour=1", 32, 100.0 + QUIET_S) == {}
    assert next_quiet_s({}, 0.0) is None
