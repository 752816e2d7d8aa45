"""What a JVM or a pipeline prints without a line feed takes no memory of its host, and does not fill the log."""

from __future__ import annotations

import io

from mld.processors.spark.host.process_watch import LINE_BYTES_MAX, bounded_lines


def test_of_a_line_that_never_ends_the_beginning_is_kept() -> None:
    long = b"x" * (3 * LINE_BYTES_MAX + 7)
    assert list(bounded_lines(io.BytesIO(b"one\n" + long + b"\ntwo\n" + long))) == [
        b"one\n",
        b"x" * LINE_BYTES_MAX,
        b"two\n",
        b"x" * LINE_BYTES_MAX,
    ]
