"""The server of these tests: it starts, answers, crashes and comes back at the same address."""

from __future__ import annotations

import os
import socket

import pytest

from tests.support.databases import Postgres

pytestmark = pytest.mark.skipif("MLD_JDBC" not in os.environ, reason="make test-jdbc")


def test_a_database_that_is_killed_comes_back_at_its_address():
    with Postgres() as database:
        address = (database.host, database.port)
        socket.create_connection(address, 5).close()
        database.kill()
        with pytest.raises(ConnectionError):
            socket.create_connection(address, 5)
        database.start()
        socket.create_connection(address, 5).close()
        directory = database.directory
    assert not directory.exists()
