"""The commands that print files for operators to install: policy, table, alerts, dashboard, systemd unit.

Their texts are in `templates` (`mld.operating.filling`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from mld.check.refusals import refusals
from mld.core.terminal import EXIT_CONFIGURATION, EXIT_OK, complain, say
from mld.operating.alert_rules import RUNBOOKS, cloudformation_alarms, grafana_dashboard, prometheus_rules, unseen
from mld.operating.command_ends import finish
from mld.operating.iam_policy import policy
from mld.operating.options import Invocation, with_file
from mld.operating.service_facts import (
    Surroundings,
    UnitRefused,
    loaded_for_unit,
    service_of,
)
from mld.operating.service_unit import unit
from mld.operating.table_template import lease_table
from mld.properties.remarks import ConfigurationError


def _print(text: str) -> NoReturn:
    """Print a generated file, and end the process."""

    def printing() -> int:
        """Print the text. Errors of the output, such as a closed pipe, are handled by `finish`."""
        click.echo(text)
        return EXIT_OK

    finish(printing)


@click.command("iam-policy")
@with_file()
@click.option("--no-create", is_flag=True, help="Without the rights to create tables and index.")
def iam_policy(invocation: Invocation, no_create: bool) -> None:
    """Print the policy of IAM that the application needs, with no more rights than it uses, in JSON."""
    _print(json.dumps(policy(invocation.settings(), create=not no_create), indent=2))


@click.command("table")
@with_file()
@click.option("--cloudformation", "is_json", flag_value=True, help="As a template of CloudFormation.")
@click.option("--terraform", "is_json", flag_value=False, default=False, help="As a resource of Terraform.")
def table(invocation: Invocation, is_json: bool) -> None:
    """Print the lease table as mld creates it, as code for Terraform (the default) or CloudFormation."""
    _print(lease_table(invocation.settings(), "lease-table.json" if is_json else "lease-table.tf"))


@click.command("alerts")
@with_file()
@click.option("--cloudwatch", "by_cloudwatch", flag_value=True, help="As alarms, in a template of CloudFormation.")
@click.option("--prometheus", "by_cloudwatch", flag_value=False, default=False, help="As rules of Prometheus.")
@click.option(
    "--retention-hours", type=click.IntRange(24, 8760), default=24, show_default=True, help="Retention of the stream."
)
@click.option(
    "--runbooks",
    default=RUNBOOKS,
    show_default=True,
    metavar="URL",
    help="Address where your people find the pages of mld; {page} stands for the name of a page.",
)
def alerts(invocation: Invocation, by_cloudwatch: bool, retention_hours: int, runbooks: str) -> None:
    """Print alerts, each with what to do first: rules for Prometheus (the default), or alarms for CloudWatch."""
    settings = invocation.settings()
    if why := unseen(settings, by_cloudwatch=by_cloudwatch):
        say(why)
    make = cloudformation_alarms if by_cloudwatch else prometheus_rules
    _print(make(settings, retention_hours * 3600, runbooks))


@click.command("dashboard")
@with_file()
def dashboard(invocation: Invocation) -> None:
    """Print a dashboard for Grafana over the metrics of Prometheus."""
    _print(grafana_dashboard(invocation.settings()))


@click.command("systemd-unit")
@with_file()
@click.option("--user", metavar="NAME", help="An existing account; by default systemd makes one up (DynamicUser).")
@click.option("--group", metavar="NAME", help="Group of that account; by default the group of the same name.")
def systemd_unit(invocation: Invocation, user: str | None, group: str | None) -> None:
    """Print a hardened systemd unit that runs this installation of the daemon, from the current directory.

    Further steps are printed on stderr. Set the variables that the properties file refers to; secret files and
    $CREDENTIALS_DIRECTORY need not exist yet.
    """
    if group and not user:
        raise click.UsageError("--group needs --user")
    around = Surroundings(sys.argv[0], sys.executable, Path.cwd(), os.environ)
    try:
        loaded = loaded_for_unit(invocation.file, invocation.overrides, around.env)
        service, remarks = service_of(loaded, invocation.file, invocation.overrides, around, user=user, group=group)
        text = unit(service)
    except ConfigurationError as error:
        complain(error)
    except UnitRefused as error:
        say(str(error))
        sys.exit(EXIT_CONFIGURATION)
    for remark in (*refusals(loaded.settings, invocation.file), *remarks):
        say(str(remark))
    _print(text.removesuffix("\n"))
