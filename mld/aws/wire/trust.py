"""`tls_context`: makes the TLS context of the wire client, which trusts exactly the servers that botocore trusts."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any

from mld.aws.wire.unusual import UnusualError

if TYPE_CHECKING:
    from botocore.client import BaseClient


def tls_context(client: BaseClient, ca_bundle: str | None) -> ssl.SSLContext:
    """Return a context that trusts the servers that botocore trusts. botocore's own function makes it.

    So the defaults of the ssl module, which are stricter since Python 3.13, do not apply. `ca_bundle` is the path of
    the CA bundle of the botocore session. Raises UnusualError for a client certificate, and for a CA bundle that cannot
    be read.
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
