"""The sinks: files, Delta, Iceberg, and any other format that Spark can write."""
