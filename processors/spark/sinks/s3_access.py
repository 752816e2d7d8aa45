"""Makes the client of a bucket, with the daemon's own ways to credentials, region and clock."""

from __future__ import annotations

from mld.aws.client_factory import bucket_client
from mld.aws.objects import S3Bucket
from mld.core.errors import StartupError
from mld.processors.spark.commit.s3_journal import AT_ONCE
from mld.processors.spark.sink_port import S3Access, SinkError


class _Late:
    """Makes the client when it is first used: a sink that is only made touches nothing."""

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._client: object | None = None

    def __getattr__(self, name: str) -> object:
        if self._client is None:
            access = self._access
            try:
                self._client = bucket_client(
                    access.credentials,
                    region=access.region,
                    endpoint_url=access.endpoint,
                    path_style=access.path_style,
                    timeout_s=access.timeout_s,
                    connections_max=AT_ONCE,
                )
            except StartupError as error:
                raise SinkError(str(error)) from error
        return getattr(self._client, name)


def bucket_of(access: S3Access, name: str) -> S3Bucket:
    return S3Bucket(_Late(access), name, owner=access.bucket_owner, kms_key=access.kms_key)
