"""The plot: what a gigabyte costs each of those in the table, one panel for each size of records, as SVG.

Bars, labels and nothing else, without a library: it would be the largest dependency of the project.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from tests.benchmarks.path import table
from tests.benchmarks.path.figures import Row
from tests.benchmarks.path.yardsticks import BOTO3

WIDTH, LABEL, VALUE = 760, 100, 150
BAR, GAP, TITLE = 22, 6, 30
OURS_COLOUR, OTHERS_COLOUR = "#2a7ab0", "#b8b8b8"


def svg(rows: Sequence[Row]) -> str:
    """Without TLS; of the steady part, the median of the turns."""
    names = [BOTO3, *(name for name in table.daemons(rows) if name.startswith("Java")), table.OURS]
    body = ['<text x="0" y="20" font-size="16">CPU seconds to deliver a gigabyte: shorter is better</text>']
    top = TITLE + GAP
    for load, shards in table.BACKLOGS:
        part = table.Part("backlog", load, shards[:1], "steady_cpu_s_per_gb", "cpu_s_per_gb")
        found = {name: table.values(rows, part, name, tls=False) for name in names}
        bars = {name: statistics.median(values.values()) for name, values in found.items() if values}
        if not bars:
            continue
        body.append(f'<text x="0" y="{top + 20}" font-weight="bold">records of {load}</text>')
        top += TITLE
        for name, value in bars.items():
            times = "" if name == table.OURS or table.OURS not in bars else f" ({value / bars[table.OURS]:.1f} x mld)"
            length = max(1.0, value / max(bars.values()) * (WIDTH - LABEL - VALUE))
            middle, weight = top + BAR - 6, ' font-weight="bold"' if name == table.OURS else ""
            label, colour = escape(name.partition(",")[0]), OURS_COLOUR if name == table.OURS else OTHERS_COLOUR
            body.append(f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end"{weight}>{label}</text>')
            body.append(f'<rect x="{LABEL}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
            body.append(f'<text x="{LABEL + length + 6:.1f}" y="{middle}"{weight}>{value:.1f}{times}</text>')
            top += BAR + GAP
        top += GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" '
        f'font-family="sans-serif" font-size="13">\n<rect width="{WIDTH}" height="{top}" fill="white"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )
