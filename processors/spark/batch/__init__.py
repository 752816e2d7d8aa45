"""Micro-batches: their records on disk, what the sinks hold of them already, and the engine that runs them."""
