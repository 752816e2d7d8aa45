"""Positions, pacing, prefetch buffer, polling."""
