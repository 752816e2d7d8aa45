"""Explains what to set instead of a system property of Java (`-Dhttps.proxyHost=…`), which is not a key of the file.

Users copy such properties from command lines and JAVA_OPTS of Amazon's daemon. Rules:
configuration#system-properties-of-java. Pure.
"""

from __future__ import annotations

_PROXY = (
    "set HTTPS_PROXY=http://host:port in the environment, HTTP_PROXY for endpoints of http, and NO_PROXY for hosts "
    "without a proxy"
)
_LOG = "give the logback file with -l FILE, or set mld.logLevel"
_FAMILIES = (
    ("aws.region", "set regionName in the file, or AWS_REGION in the environment"),
    ("aws.", "set its variable in the environment: AWS_PROFILE for aws.profile, AWS_ACCESS_KEY_ID for aws.accessKeyId"),
    ("com.amazonaws.", "remove it; endpoints are kinesisEndpoint and dynamoDBEndpoint, or AWS_ENDPOINT_URL"),
    ("software.amazon.", "remove it; endpoints are kinesisEndpoint and dynamoDBEndpoint, or AWS_ENDPOINT_URL"),
    ("https.", _PROXY),
    ("http.", _PROXY),
    ("socksProxy", f"a SOCKS proxy cannot be used: {_PROXY}"),
    ("javax.net.ssl.", "name a file of trusted certificates (PEM) by AWS_CA_BUNDLE in the environment"),
    ("java.io.tmpdir", "set TMPDIR in the environment"),
    ("java.util.logging.", _LOG),
    ("log4j", _LOG),
    ("logback", _LOG),
    ("org.slf4j.", _LOG),
    ("org.apache.commons.logging.", _LOG),
    *((prefix, "remove it") for prefix in ("java.", "javax.", "jdk.", "sun.", "com.sun.", "user.", "file.")),
)
"""Pairs of the beginning of a name and the remedy. The first pair that matches is used."""


def remedy_for(name: str) -> str | None:
    """Return what to do instead of setting this system property; None if it is not a system property of Java."""
    return next((remedy for prefix, remedy in _FAMILIES if name.startswith(prefix)), None)
