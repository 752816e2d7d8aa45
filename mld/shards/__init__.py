"""Shard graph and sync, ListShards, shard end, lease cleanup."""
