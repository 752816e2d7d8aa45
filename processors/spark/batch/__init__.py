"""Micro-batches: their records on disk, the records that sinks hold already, and the engine that runs them."""
