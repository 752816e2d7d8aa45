"""For `mld doctor`: finds the endpoint to which a client of AWS sends its calls, and tries to reach it (or the proxy
before it).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from mld.operating.findings import Diagnosis, fail, ok

CONNECT_TIMEOUT_S = 5.0
PORTS = {"http": 80, "https": 443}


def endpoints_of(client: Any, stream_arn: str | None = None) -> list[str]:
    """Return the addresses to which a client sends its calls.

    botocore may choose a host by the account. With `stream_arn` that is the account of the stream; calls that describe
    it and calls that read it may go to different hosts, and both are returned. For tables it is the account of the
    credentials.
    """
    calls: dict[str, dict[str, str]] = {}
    if stream_arn is not None:
        reading = {"StreamARN": stream_arn, "ShardIterator": "none"}
        calls = {"describe_stream_summary": {"StreamARN": stream_arn}, "get_records": reading}
    elif client.meta.service_model.service_name == "dynamodb":
        calls = {"describe_table": {"TableName": "none"}}
    # Presigning sends nothing, and chooses the host as the real call would. So the parameters need not exist.
    addresses = [client.generate_presigned_url(name, params).partition("?")[0] for name, params in calls.items()]
    return list(dict.fromkeys(addresses)) or [client.meta.endpoint_url]


async def endpoint_finding(about: str, url: str, proxy: str | None, ca_bundle: str | None, source: str) -> Diagnosis:
    """Try to connect to `url`, or to the proxy (``host:port``) before it, and return the finding. `source` names the
    setting that decides about the address.
    """
    address = urlsplit(url)
    host, port = str(address.hostname), address.port or PORTS.get(address.scheme, 443)
    shown = f"{host}:{port}"
    if proxy is not None:
        host, _, number = proxy.rpartition(":")
        host, port = host.strip("[]"), int(number)
    through = "" if proxy is None else f" through the proxy {proxy}"
    name = "the proxy" if proxy is not None else "the endpoint"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().getaddrinfo(host, port)
    except (OSError, TimeoutError, UnicodeError) as error:
        remedy = f"check {source}, and the name server of this machine"
        return fail(about, f"{host}, the name of {name}, is not found: {_why(error)}", remedy)
    context = ssl.create_default_context(cafile=ca_bundle) if address.scheme == "https" and proxy is None else None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        remedy = "check the clock; if a proxy intercepts TLS, name its certificate in AWS_CA_BUNDLE"
        return fail(about, f"no trusted TLS with {shown}: {_why(error)}", remedy)
    except (OSError, TimeoutError) as error:
        remedy = f"check {source}; then firewall, security group and VPC endpoint, or set a proxy"
        return fail(about, f"no connection to {host}:{port}: {_why(error)}", remedy)
    version = None if context is None else writer.get_extra_info("ssl_object").version()
    writer.close()
    return ok(about, f"{shown} answers{through}{'' if version is None else f', {version}'}")


def _why(error: BaseException) -> str:
    """Return why a connection failed, in words without an error number."""
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    # The number of a gaierror is not one of the system's error numbers.
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno is not None:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)
