"""The sinks: files, Delta, Iceberg, PostgreSQL by JDBC, and any other format that Spark can write."""
