"""What an operator sees of a fleet in virtual time, and does to it, by the code of `mld`'s commands."""

from __future__ import annotations

from collections.abc import Callable

from mld.leases.dynamodb import DynamoLeaseTable
from mld.operating.fleet_reader import FleetReader, view_rules
from mld.operating.fleet_status import FleetStatus
from mld.operating.plan import ActPlan, Fate
from mld.operating.table_access import carry_out
from tests.support.fleet import TABLE, Fleet, settings_of


def reader_at(world: Fleet, sender: str = "operator") -> FleetReader:
    """A reader of the fleet's table whose requests are those of `sender`."""
    settings, service = settings_of(**world.keys), world.dynamo.client(sender)
    table = DynamoLeaseTable(service, world.clock, table_name=TABLE)
    return FleetReader(settings, service, table, world.clock, view_rules(settings))


async def look(world: Fleet) -> FleetStatus:
    return await reader_at(world).look()


async def act(world: Fleet, plan: Callable[[FleetStatus], ActPlan]) -> list[Fate]:
    """Look, and carry out what `plan` makes of it; the fate of each write."""
    table = DynamoLeaseTable(world.dynamo.client("operator"), world.clock, table_name=TABLE)
    outcomes = await carry_out(plan(await look(world)), lambda _: table, world.clock)
    return [outcome.fate for outcome in outcomes]
