"""Shards and the rows of their leases: the shard graph and sync, ListShards, the end of a shard, the audit, the
clean-up.
"""
