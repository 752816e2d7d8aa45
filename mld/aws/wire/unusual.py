"""`UnusualError`: the wire client leaves a client, an address or a request to botocore."""


class UnusualError(Exception):
    """Something that only botocore knows how to do; the text says what."""
