"""The consumer of a shard: its life cycle, its child process or processes, and their checkpoints."""
