"""The world of the integration tests, for the commands as a user types them."""

from tests.integration.conftest import aws, aws_server, make_world

__all__ = ["aws", "aws_server", "make_world"]
