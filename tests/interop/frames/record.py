"""Frames that the serializers of the Glue Schema Registry 1.1.27 write, recorded for tests that have no Java.

    python -m tests.interop.frames.record

They go to `frames.json`, beside it, with what Amazon's parser says of data that may be framed. The serializers get
the id of a schema version, so that no registry is asked.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tests.interop.recording import output_of

HERE = Path(__file__).parent
FRAMES = HERE / "frames.json"


def recorded() -> dict[str, list[dict[str, str]]]:
    written, parsed = [], []
    for line in output_of(HERE, "Frames").splitlines():
        what, how, definition, data = line.split(" ")
        if what == "PARSED":
            parsed.append({"verdict": how, "payload": definition, "data": data})
        else:
            text = base64.b64decode(definition).decode()
            written.append({"format": what, "compression": how, "definition": text, "data": data})
    return {"written": written, "parsed": parsed}


if __name__ == "__main__":
    FRAMES.write_text(json.dumps(recorded(), indent=1) + "\n")
    print(FRAMES)
