"""A processor that only counts records, by their text: what it costs is no matter to whoever measures the daemon."""

from __future__ import annotations

import sys

from tests.benchmarks.children.marks import mark


def main() -> None:
    for line in sys.stdin.buffer:
        action = line[len(b'{"action":"') : line.index(b'"', len(b'{"action":"'))].decode()
        if action == "initialize":
            mark("initialized")
        elif action == "processRecords":
            mark("records", line.count(b'"action":"record"'))
        sys.stdout.write(f'{{"action":"status","responseFor":"{action}"}}\n')
        sys.stdout.flush()


if __name__ == "__main__":
    main()
