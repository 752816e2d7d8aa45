"""`UnusualError`: raised for a client, a URL or a request that the wire client cannot handle, so that the call is left
to botocore.
"""


class UnusualError(Exception):
    """Only botocore can do this call; the text says what is unusual about it."""
