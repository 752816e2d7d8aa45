"""`UnusualError`: something about a client, a URL or a request is unusual, so that it is left to botocore."""


class UnusualError(Exception):
    """Only botocore can do this call; the text says what is unusual about it."""
