"""A pure model of Kinesis Data Streams: values and `now` in, values out.

No clock, no I/O, no asyncio, no randomness: every operation is given the time (`now`, epoch seconds). The HTTP shell in
`mld.local.server` serves it; a simulation may call it directly. Python callers use `model.Kinesis`, and JSON goes
through `json_api.dispatch`. Rules: the Kinesis API reference; retrieval#service-limits, retrieval#valid-answers.
"""

from mld.local.kinesis.errors import KinesisError
from mld.local.kinesis.model import Kinesis, StateDelays
from mld.local.kinesis.records import PutEntry

__all__ = ["Kinesis", "KinesisError", "PutEntry", "StateDelays"]
