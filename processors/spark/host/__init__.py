"""The session host: one process per daemon. It takes the records of all shards, and runs a
micro-batch at each trigger.
"""
