"""`StreamSetting`: what the configuration says about one of several streams."""

from __future__ import annotations

from dataclasses import dataclass

from properties.credentials import CredentialsChain
from properties.values import InitialPositionSetting, StreamArn


@dataclass(frozen=True, slots=True)
class StreamSetting:
    """One stream of the list; None is what the keys without a stream's name say.

    `name` is its name in the list: the stream's own, or a label if there is an `arn`. `epoch`, in seconds, is the part
    of its identifier in the lease table; None: what the table has, else the time of its creation. `initial_position` is
    that of the application if the stream has none of its own.
    """

    name: str
    arn: StreamArn | None
    epoch: int | None
    initial_position: InitialPositionSetting
    consumer_arn: str | None
    credentials: CredentialsChain | None
    executable_name: str | None

    @property
    def stream_name(self) -> str:
        """The name by which Kinesis knows the stream."""
        return self.name if self.arn is None else self.arn.name

    @property
    def account(self) -> str | None:
        """The account in the ARN; None: that of the credentials."""
        return None if self.arn is None else self.arn.account

    @property
    def region(self) -> str | None:
        """The region in the ARN; None: that of Kinesis."""
        return None if self.arn is None else self.arn.region
