"""Puts a dead letter back through the pipeline: `mld-spark --replay-dead-letter`."""
