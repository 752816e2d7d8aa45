"""`letter_box_of`: makes the box into which dead letters are written, as the settings say."""

from __future__ import annotations

from urllib.parse import urlsplit

from mld.aws.client_factory import ClientFactory
from mld.aws.directory_box import DirectoryBox
from mld.aws.letters import LetterBox
from mld.aws.service_boxes import BucketBox, QueueBox, StreamBox
from mld.aws.service_factory import AwsService, service_of
from mld.properties.settings import Settings
from mld.properties.values import DeadLetterKind

CALL_TIMEOUT_S = 30.0
"""How long a client waits for the answer to one call."""


def letter_box_of(settings: Settings, factory: ClientFactory) -> LetterBox | None:
    """Return the box for dead letters, not open yet; None if the settings say that no record is ever set aside. Does no
    I/O.
    """
    place = settings.child.dead_letter
    if place is None or settings.child.poison_attempts is None:
        return None
    match place.kind:
        case DeadLetterKind.DIRECTORY:
            return DirectoryBox(place.name)
        case DeadLetterKind.S3:
            return BucketBox(_service(factory, "s3", None, None), place.name, place.prefix)
        case DeadLetterKind.KINESIS:
            is_same_region = place.region == settings.kinesis.region
            # An endpoint that is configured for Kinesis serves only the region of Kinesis.
            endpoint = settings.kinesis.endpoint if is_same_region else None
            return StreamBox(_service(factory, "kinesis", place.region, endpoint), place.name)
        case DeadLetterKind.SQS:
            parts = urlsplit(place.name)
            return QueueBox(_service(factory, "sqs", place.region, f"{parts.scheme}://{parts.netloc}"), place.name)


def _service(factory: ClientFactory, name: str, region: str | None, endpoint: str | None) -> AwsService:
    """Return the service for a box, not open yet, with the credentials of Kinesis."""
    access = factory.access_as_kinesis(region, endpoint)
    return service_of(factory, name, label="dead letters", threads_max=1, read_timeout_s=CALL_TIMEOUT_S, access=access)
