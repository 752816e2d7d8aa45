"""Records written with the Glue Schema Registry: their frames, their schemas, and their values as JSON."""
