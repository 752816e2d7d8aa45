"""`tls_context`: the wire client trusts exactly the servers that botocore trusts."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any

from mld.aws.wire.unusual import UnusualError

if TYPE_CHECKING:
    from botocore.client import BaseClient


def tls_context(client: BaseClient, ca_bundle: str | None) -> ssl.SSLContext:
    """Trust the servers that botocore trusts, by a context that botocore makes.

    The defaults of the ssl module, stricter since Python 3.13, have no effect on it. `ca_bundle` is the one of the
    session. Raises UnusualError for what only botocore can do.
    """
    from botocore.httpsession import create_urllib3_context, get_cert_path

    config: Any = client.meta.config
    if config.client_cert:
        raise UnusualError("a client certificate")
    bundle: Any = ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or True
    verify = str(get_cert_path(bundle))
    context: ssl.SSLContext = create_urllib3_context()
    context.check_hostname = True  # urllib3 checks the name itself, after the handshake
    context.set_alpn_protocols(["http/1.1"])  # as urllib3 does
    try:
        context.load_verify_locations(cafile=verify)
    except OSError as error:
        raise UnusualError(f"the CA bundle {verify}: {error}") from error
    return context
