"""A `processRecords` line cut into lines that each span little time, where shards are kept together.

A page of a quiet shard may hold hours. Only lines in the order of keys of our daemon and Amazon's are cut, for the
reason that `batch.record_lines` gives; others stay whole.

Pure: values in, values out. Not imported by a child unless it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mld.processors.spark.batch.record_lines import HEAD, RECORD_HEAD, RECORD_TAIL

_ARRIVAL = re.compile(rb',"approximateArrivalTimestamp":(\d+)')
_BETWEEN = re.compile(re.escape(RECORD_TAIL + b"," + RECORD_HEAD))
_END = re.compile(rb'\],"millisBehindLatest":(null|\d+)\}\s*\Z')
_NOT_THE_END = b'],"millisBehindLatest":null}\n'
"""Of a piece that is not the last: how far it is behind is not said anywhere."""

Span = tuple[int, int]


def pieces_of(line: bytes, span_ms: int) -> Iterator[tuple[bytes, Span | None]]:
    """Yield lines, each with the first and last arrival of its records (None where nothing says it), in their order."""
    arrivals = [int(found[1]) for found in _ARRIVAL.finditer(line)]
    if not arrivals:
        yield line, None
        return
    whole = min(arrivals), max(arrivals)
    if whole[1] - whole[0] <= span_ms:
        yield line, whole
        return
    end = _END.search(line, max(0, len(line) - 64))
    cuts = [found.start() + len(RECORD_TAIL) for found in _BETWEEN.finditer(line)]
    if end is None or not line.startswith(HEAD + RECORD_HEAD) or len(cuts) != len(arrivals) - 1:
        yield line, whole
        return
    starts = [len(HEAD), *(cut + 1 for cut in cuts)]
    ends = [*cuts, end.start()]
    tails = line[end.start() :]
    for begin, stop in groups(arrivals, span_ms):
        tail = tails if stop == len(arrivals) else _NOT_THE_END
        part = arrivals[begin:stop]
        yield HEAD + line[starts[begin] : ends[stop - 1]] + tail, (min(part), max(part))


def groups(arrivals: list[int], span_ms: int) -> Iterator[tuple[int, int]]:
    """Yield runs of records, as begin and end, none of which spans more time than allowed; each has at least one
    record.
    """
    begin, low, high = 0, arrivals[0], arrivals[0]
    for at, arrival in enumerate(arrivals):
        low, high = min(low, arrival), max(high, arrival)
        if high - low > span_ms:
            yield begin, at
            begin, low, high = at, arrival, arrival
    yield begin, len(arrivals)
