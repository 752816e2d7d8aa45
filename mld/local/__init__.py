"""The embedded AWS: a pure model of Kinesis with an HTTP shell; moto for the other services."""
