"""The Spark processor: writes the records of many shards through one Spark session, exactly once into each sink.

Importing this package does not import pyspark.
"""
