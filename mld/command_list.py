"""The list of commands that `mld --help` shows, grouped by purpose, and the module that defines each command.

A module that defines commands is imported only when one of its commands is called. `mld --help` imports none of them,
so the descriptions of the commands are here.
"""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Run": {
        "run": "Run the daemon; `mld APP.properties` means the same.",
        "quickstart": "Try mld on this machine, without an account.",
        "local": "Run the embedded AWS in the foreground.",
    },
    "Look": {
        "check": "Show what a properties file means, and what is wrong in it.",
        "doctor": "Examine everything that a daemon needs, and say what helps.",
        "status": "Show the daemon that runs on this machine, and its shards.",
        "lag": "Show how far behind each shard is, and why.",
        "leases": "Show every shard of the application, the worst first.",
        "workers": "Show every worker of the application.",
        "events": "Show what happened: starts, ends, moves, losses.",
        "apps": "Show the applications of an account and region.",
        "peek": "Show records of a shard.",
        "tap": "Show the messages between a daemon here and its children.",
    },
    "Act": {
        "move": "Move a shard to a worker.",
        "release": "Move a shard to the worker with the fewest leases.",
        "drain": "Move all leases of a worker to the others.",
        "pause": "Pause a shard.",
        "resume": "Resume a paused shard.",
        "restart-child": "Kill the record processor of a shard; a new one follows.",
        "skip": "Skip records that cannot be processed, and save them.",
        "replay": "Give records of a shard to a processor, without a lease.",
        "reset": "Make the application, or a shard, start at another place.",
        "export": "Save the lease table in a file.",
        "restore": "Put leases back into the table from such a file.",
        "leave-3x": "Remove from the table what KCL 2.x cannot read.",
    },
    "Write files": {
        "iam-policy": "Print the IAM policy that the application needs.",
        "table": "Print the lease table as CloudFormation or Terraform.",
        "systemd-unit": "Print a hardened systemd unit.",
        "alerts": "Print alert rules, each with what to do first.",
        "dashboard": "Print a dashboard for Grafana.",
    },
    "Develop": {
        "conformance": "Examine a record processor by scripted conversations.",
        "help": "Show this list, or the options of one command.",
    },
}

MODULE_OF: Mapping[str, str] = {
    command: f"mld.operating.{module}"
    for module, commands in {
        "act_commands": (
            *("drain", "export", "leave-3x", "move", "pause", "release", "reset", "restart-child", "restore"),
            *("resume", "skip"),
        ),
        "generate": ("alerts", "dashboard", "iam-policy", "systemd-unit", "table"),
        "here": ("status", "tap"),
        "doctor_command": ("doctor",),
        "fleet_commands": ("apps", "events", "lag", "leases", "workers"),
        "stream_commands": ("peek", "replay"),
    }.items()
    for command in commands
}
"""The module of each command that is not defined in `mld.cli`."""
