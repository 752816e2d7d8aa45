"""`mld.spark.mode = streaming`: an inbox that all workers fill, and queries over it that one host at a time runs."""
