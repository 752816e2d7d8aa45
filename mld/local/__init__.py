"""The embedded AWS: models of Kinesis and DynamoDB Streams without I/O, moto for other services, and an HTTP server."""
