"""The plot: CPU seconds per GB as bars, one panel for each size of records, as SVG without a library.

Bars, labels and nothing else: a library for that would be the largest dependency of the project.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tests.benchmarks.path.figures import LOADS, Row, find
from tests.benchmarks.path.yardsticks import BOTO3, COPY, MEMCPY

WIDTH, LABEL, VALUE = 860, 250, 70
BAR, GAP, TITLE = 18, 6, 34
SHARDS = (4, 16, 64, 1)
"""The backlog shown is that of the first of these there is."""
OURS, OTHERS, FLOOR = "#2a7ab0", "#b8b8b8", "#d9c27e"


def svg(rows: Sequence[Row]) -> str:
    body: list[str] = []
    top = 0
    for load in LOADS:
        bars = _bars(rows, load)
        if not bars:
            continue
        body.append(f'<text x="0" y="{top + 22}" font-weight="bold">records of {load}, CPU seconds per GB</text>')
        top += TITLE
        most = max(value for _, value, _ in bars)
        for label, value, colour in bars:
            length = max(1.0, value / most * (WIDTH - LABEL - VALUE))
            middle = top + BAR - 5
            body.append(f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(label)}</text>')
            body.append(f'<rect x="{LABEL}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
            body.append(f'<text x="{LABEL + length + 6:.1f}" y="{middle}">{value:.2f}</text>')
            top += BAR + GAP
        top += GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
        f'font-family="sans-serif" font-size="13">\n<rect width="{WIDTH}" height="{top}" fill="white"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _bars(rows: Sequence[Row], load: str) -> list[tuple[str, float, str]]:
    bars = []
    for tls, wire in ((False, "plain"), (True, "TLS")):
        for name, colour in ((MEMCPY, FLOOR), (COPY, FLOOR)):
            row = find(rows, scenario="yardstick", subject=name, load=load, tls=tls)
            if row is not None and not (tls and name == MEMCPY):
                bars.append((name if name == MEMCPY else f"{name}, {wire}", row["cpu_s_per_gb"], colour))
        bars += [_bar(row, wire) for row in _backlogs(rows, load, tls=tls)]
        boto3 = find(rows, scenario="yardstick", subject=BOTO3, load=load, tls=tls)
        if boto3 is not None:
            bars.append((f"{BOTO3.partition(',')[0]} and json, {wire}", boto3["cpu_s_per_gb"], OTHERS))
    return bars


def _bar(row: Row, wire: str) -> tuple[str, float, str]:
    mode = "fan-out" if row.mode == "FANOUT" else "polling"
    return f"{row.subject}, {mode}, {wire}", row["cpu_s_per_gb"], OURS if row.subject == "mld" else OTHERS


def _backlogs(rows: Sequence[Row], load: str, *, tls: bool) -> list[Row]:
    found = [row for row in rows if row.scenario == "backlog" and row.load == load and row.tls == tls]
    shown: list[Row] = []
    for shards in SHARDS:
        for row in found:
            if row.shards == shards and not any((s.mode, s.subject) == (row.mode, row.subject) for s in shown):
                shown.append(row)
    return shown
