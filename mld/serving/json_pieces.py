"""`in_pieces`: encodes a document with long lists as JSON, in steps between which other tasks of the loop can run."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from mld.core.steps import Steps

SHARDS_PER_STEP = 20  # shards that are encoded, 10 µs each, before other tasks get their turn
COMPRESSION_LEVEL = 3  # makes the text twenty times smaller; higher levels save little more
Document = dict[str, Any]


def in_pieces(
    head: Document, lists: Mapping[str, Iterator[Document]], *, zipped: bool = False
) -> Steps[tuple[bytes, ...]]:
    """Return a document with long lists as compact JSON in pieces, compressed by gzip if `zipped`.

    `lists` has the long lists by their names in the document. The text is never in memory as a whole.
    """
    packer = zlib.compressobj(COMPRESSION_LEVEL, wbits=16 + zlib.MAX_WBITS) if zipped else None
    pieces: list[bytes] = []
    for text in _texts(head, lists):
        piece = text.encode()
        if made := piece if packer is None else packer.compress(piece):
            pieces.append(made)
        yield
    return tuple(pieces) if packer is None else (*pieces, packer.flush())


def _texts(head: Document, lists: Mapping[str, Iterator[Document]]) -> Iterator[str]:
    """Yield the JSON of a document in pieces: the fields of `head`, then the `lists` by their names."""
    compact = json.JSONEncoder(separators=(",", ":")).encode
    yield compact(head)[:-1]  # without the closing brace
    for name, ones in lists.items():
        before = f',"{name}":['
        while some := list(islice(ones, SHARDS_PER_STEP)):
            yield before + compact(some)[1:-1]  # without the brackets of the piece
            before = ","
        yield "]" if before == "," else f"{before}]"  # the beginning of an empty list is not written yet
    yield "}\n"
