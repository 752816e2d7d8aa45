"""The commands that print what operators install beside the daemon: policy, table, alerts, dashboard, unit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mld.core.terminal import EXIT_CONFIGURATION, chosen_file, complain, properties_file, say, settings_of

if TYPE_CHECKING:
    pass


@click.command("iam-policy")
@properties_file
@click.option("--terraform", is_flag=True, help="As a data source of Terraform.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON document (the default).")
@click.option("--no-create", is_flag=True, help="Without the rights to create tables and index.")
@click.option("--operate", is_flag=True, help="With the rights that `mld teardown` needs.")
def iam_policy(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    terraform: bool,
    as_json: bool,
    no_create: bool,
    operate: bool,
) -> None:
    """Print the least that the application has to be allowed, as a policy of IAM."""
    from mld.operating.generated import iam_policy as made
    from mld.operating.generated.lease_table import resource_name

    if terraform and as_json:
        raise click.UsageError("give --terraform or --json, not both")
    settings = settings_of(chosen_file(option_file, argument_file), overrides)
    document = made.policy(settings, create=not no_create, operate=operate)
    name = resource_name(settings.application_name)
    click.echo(made.as_terraform(name, document) if terraform else made.as_json(document))


@click.command("table")
@properties_file
@click.option("--cloudformation", is_flag=True, help="As a template of CloudFormation instead of Terraform.")
@click.option("--terraform", is_flag=True, help="As a resource of Terraform (the default).")
def table(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    cloudformation: bool,
    terraform: bool,
) -> None:
    """Print the lease table as mld creates it, for who makes tables with Terraform or CloudFormation."""
    from mld.operating.generated import lease_table

    if terraform and cloudformation:
        raise click.UsageError("give --terraform or --cloudformation, not both")
    settings = settings_of(chosen_file(option_file, argument_file), overrides)
    click.echo(lease_table.cloudformation(settings) if cloudformation else lease_table.terraform(settings))


@click.command("alerts")
@properties_file
@click.option("--cloudwatch", is_flag=True, help="As alarms of CloudWatch, in a template of CloudFormation.")
@click.option("--prometheus", is_flag=True, help="As rules of Prometheus (the default).")
@click.option(
    "--retention-hours", type=click.IntRange(24, 8760), default=24, show_default=True, help="How long the stream keeps."
)
def alerts(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    cloudwatch: bool,
    prometheus: bool,
    retention_hours: int,
) -> None:
    """Print what should wake somebody, with what to do first."""
    from mld.operating.generated import alerts as made

    if cloudwatch and prometheus:
        raise click.UsageError("give --cloudwatch or --prometheus, not both")
    settings = settings_of(chosen_file(option_file, argument_file), overrides)
    unseen = made.unseen(settings, by_cloudwatch=cloudwatch)
    if unseen:
        say(unseen)
    make = made.cloudformation_alarms if cloudwatch else made.prometheus_rules
    click.echo(make(settings, retention_hours * 3600))


@click.command("dashboard")
@properties_file
def dashboard(argument_file: str | None, option_file: str | None, overrides: Sequence[str]) -> None:
    """Print a dashboard for Grafana over the metrics of Prometheus."""
    from mld.operating.generated.dashboard import dashboard as made

    click.echo(made(settings_of(chosen_file(option_file, argument_file), overrides)))


@click.command("systemd-unit")
@properties_file
@click.option("--user", metavar="NAME", help="An account that exists; by default systemd makes one up (DynamicUser).")
@click.option("--group", metavar="NAME", help="Its group; by default of the same name.")
def systemd_unit(
    argument_file: str | None, option_file: str | None, overrides: Sequence[str], user: str | None, group: str | None
) -> None:
    """Print a hardened unit of systemd that runs the daemon as it is installed here, from the directory you are in.

    What has to be done beside it is said on stderr. Variables that the file refers to must be set; secret files and
    $CREDENTIALS_DIRECTORY need not be there.
    """
    from mld.operating.generated.service_unit import UnitRefused, unit
    from mld.operating.installation import Surroundings, loaded_for_unit, service_of
    from mld.properties.remarks import ConfigurationError

    if group and not user:
        raise click.UsageError("--group needs --user")
    file = chosen_file(option_file, argument_file)
    around = Surroundings.here()
    try:
        service, remarks = service_of(
            loaded_for_unit(file, overrides, around.env), file, overrides, around, user=user, group=group
        )
        text = unit(service)
    except ConfigurationError as error:
        complain(error)
    except UnitRefused as error:
        say(str(error))
        sys.exit(EXIT_CONFIGURATION)
    click.echo(text, nl=False)
    for remark in remarks:
        say(remark)
