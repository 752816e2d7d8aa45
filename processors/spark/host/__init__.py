"""The session host: one process per daemon, which takes what all shards offer and starts a micro-batch per trigger."""
