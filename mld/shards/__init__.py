"""Shards and their lease rows: listing shards, creating missing rows (sync), the end of a shard, the leader's audit of
the rows, and their clean-up.
"""
