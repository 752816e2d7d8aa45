"""What we believe of Kinesis and DynamoDB, as checks against an endpoint.

By default the embedded AWS is started and checked. Any other endpoint: ``MLD_CONFORMANCE_ENDPOINT=http://host:port``,
with ``MLD_CONFORMANCE_TARGET`` (kinesis-local, ministack, ...) naming it, so that its known faults (`exclusions.py`)
are left out by name. ``MLD_CONFORMANCE_ENDPOINT=aws`` means the real service with the credentials of the environment:
it makes and deletes streams, consumers and tables there, which costs money. ``MLD_CONFORMANCE_SLOW=1`` also waits for
real expiry.
"""
