"""The life cycle of one shard's consumer and its child process."""
