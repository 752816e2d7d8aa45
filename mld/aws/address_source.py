"""`address_source`: finds the key or variable that decides to which address a client connects. If a client cannot
connect, its error names this key or variable.

The rule is botocore's. If there is a proxy, the client connects to that. Otherwise an endpoint in the properties file
wins over the environment variables, and these over the profile; if none of them names an endpoint, the region decides.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mld.properties.aws_domains import is_of_aws
from mld.properties.settings import ClientSettings

if TYPE_CHECKING:
    from botocore.client import BaseClient

_KEYS = {
    "kinesis": ("kinesisEndpoint", "kinesisClient.proxyUrl"),
    "dynamodbstreams": ("kinesisEndpoint", "kinesisClient.proxyUrl"),
    "dynamodb": ("dynamoDBEndpoint", "dynamoDbClient.proxyUrl"),
    "cloudwatch": ("cloudWatchEndpoint", "cloudWatchClient.proxyUrl"),
}
"""The keys for the endpoint and for the proxy of each service."""
_OTHERS = ("its endpoint", "kinesisClient.proxyUrl")
"""Names of the endpoint and the proxy for the clients of all other services, which use the proxy of Kinesis."""


def address_source(service: str, client: BaseClient, access: ClientSettings) -> str:
    """Return the key, variable or other setting that the operator has to check if `client` cannot connect.

    `access` holds the settings from which the client was made.
    """
    endpoint_key, proxy_key = _KEYS.get(service, _OTHERS)
    url = client.meta.endpoint_url
    if access.proxy_url is not None:
        return proxy_key
    if proxied := _proxy_variable(url):
        return proxied
    if access.endpoint is not None:
        return endpoint_key
    service_id = client.meta.service_model.service_id.hyphenize().replace("-", "_").upper()
    for name in (f"AWS_ENDPOINT_URL_{service_id}", "AWS_ENDPOINT_URL"):
        if os.environ.get(name, "").rstrip("/") == url.rstrip("/"):
            return name
    if not is_of_aws(url):
        return "endpoint_url of the AWS profile"
    return f"the region, {client.meta.region_name}, and the network"


def _proxy_variable(url: str) -> str | None:
    """Return the variable that names a proxy for this address; None if there is none."""
    from botocore.utils import get_environ_proxies

    scheme = urlsplit(url).scheme
    proxies = get_environ_proxies(url)
    return f"{scheme.upper()}_PROXY" if scheme in proxies else "ALL_PROXY" if "all" in proxies else None
