"""Lease rows, conditional writes, and what this worker holds."""
