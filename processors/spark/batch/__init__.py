"""Micro-batches: keeps their records on disk, drops records that the sinks hold already, and runs the rest on Spark."""
