"""The embedded AWS: pure models of Kinesis and DynamoDB Streams with an HTTP shell; moto for the other services."""
