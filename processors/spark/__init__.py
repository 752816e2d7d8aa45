"""The Spark processor: many shards, one Spark session, exactly once into the sink. Importing it imports no pyspark."""
