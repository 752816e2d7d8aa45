"""Makes the client of Glue, with the daemon's own ways to credentials, region and clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from mld.aws.client_factory import Access, ClientFactory, ServiceName
from mld.properties.credentials import CredentialsChain

TIMEOUT_S = 10.0
"""Of a request and of a connection; whoever waits for the catalog waits less, and it is asked again."""


@dataclass(frozen=True, slots=True)
class GlueAccess:
    """How Glue is reached: `mld.spark.glue.*`, with the daemon's credentials and region."""

    credentials: CredentialsChain
    region: str | None = None
    endpoint: str | None = None


def glue_client(how: GlueAccess) -> Any:
    """Do I/O: credentials are looked for. Raises StartupError."""
    access = Access(how.credentials, how.region, None, False, False, None)
    factory = ClientFactory(dict.fromkeys(get_args(ServiceName), access), region_name=how.region)
    return factory.create_beside("glue", region=how.region, endpoint_url=how.endpoint, timeout_s=TIMEOUT_S)
