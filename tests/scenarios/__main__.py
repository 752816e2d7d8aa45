"""`python -m tests.scenarios [--record] [FILE…]`: show what differs from the recorded stories, or record them anew."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from tests.scenarios.commands import Commands
from tests.scenarios.conditions import CONDITIONS
from tests.scenarios.runner import FailedStoryError, play, story_files


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.scenarios",
        description=__doc__,
        epilog=manual(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--record", action="store_true", help="write the new output into the files")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all stories")
    arguments = parser.parse_args()
    outcomes = [_play_file(path, arguments.record) for path in arguments.files or story_files()]
    return 0 if all(outcomes) else 1


def manual() -> str:
    """One line for each command, and the conditions of `expect` and `until`."""
    methods = [getattr(Commands, name) for name in dir(Commands) if name.startswith("do_")]
    lines = sorted({method.__doc__.splitlines()[0] for method in methods})
    return "\n".join(["commands:", *(f"  {line}" for line in lines), "", "conditions:", CONDITIONS])


def _play_file(path: Path, record: bool) -> bool:
    """Whether the file holds what the story prints, afterwards."""
    recorded = path.read_text(encoding="utf-8")
    try:
        played = play(recorded)
    except FailedStoryError as error:
        print(f"{path.name}: failed\n{error}\n")
        return False
    if played == recorded:
        return True
    if record:
        path.write_text(played, encoding="utf-8")
        print(f"{path.name}: recorded")
        return True
    sys.stdout.writelines(
        difflib.unified_diff(recorded.splitlines(True), played.splitlines(True), f"{path.name}, recorded", "now")
    )
    return False


if __name__ == "__main__":
    sys.exit(main())
