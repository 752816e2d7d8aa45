"""`is_of_aws`: recognizes the endpoints of AWS itself, as opposed to a stand-in for AWS. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

AWS_DOMAINS = (
    "amazonaws.com",
    "amazonaws.com.cn",
    "amazonaws.eu",
    "amazonwebservices.com.cn",
    "api.aws",
    "c2s.ic.gov",
    "sc2s.sgov.gov",
    "csp.hci.ic.gov",
    "cloud.adc-e.uk",
)
"""The domains of all endpoints of AWS, in every partition, including endpoints in a VPC."""


def is_of_aws(url: str) -> bool:
    """Return whether an endpoint belongs to AWS, by its host name. A host name of the operator's own that leads to AWS
    is not recognized.
    """
    host = (urlsplit(url).hostname or "").rstrip(".")
    return any(host.endswith(f".{domain}") for domain in AWS_DOMAINS)
