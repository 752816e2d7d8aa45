"""Which endpoints are AWS's own, and not a stand-in on somebody's machine. Pure."""

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
"""Domains of the endpoints of all partitions, endpoints in a VPC included."""


def is_of_aws(url: str) -> bool:
    """Return whether the endpoint is one of AWS. A name of the operator's own that leads there is not recognized."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    return any(host.endswith(f".{domain}") for domain in AWS_DOMAINS)
