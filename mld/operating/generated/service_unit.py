"""A unit of systemd that runs the daemon with no more rights than it needs. Pure: what is known of a machine comes in.

What each line closes, and what it leaves open, is in docs/use/running.md. Stops are the daemon's own affair: only its
main process gets the signal, and the children are told over the protocol, so that they checkpoint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mld.properties.redaction import printable
from mld.properties.settings import Settings

STOP_MARGIN_S = 15.0
"""After the grace: giving leases back (5 s) and taking down what the last worker leaves (10 s)."""
WATCHDOG_S = 30
SERVICE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The search path that systemd gives to a service."""
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """What the unit is for. Paths are absolute; None where there is nothing to say."""

    name: str
    """As in ``systemctl status NAME``."""
    stream: str
    command: tuple[str, ...]
    """Starts the daemon, the properties file and overrides included."""
    grace_s: float
    child_stop_s: float
    """How long a child gets between the steps that end it."""
    user: str | None = None
    """An account that exists; None: one that systemd makes up as long as the service runs."""
    group: str | None = None
    working_directory: str | None = None
    """None: the state directory."""
    search_path: str | None = None
    python_path: str | None = None
    writable: tuple[str, ...] = ()
    is_in_home: bool = False
    """Something of the above is below /home, /root or /run/user."""
    makes_code: bool = False
    """The children compile while they run: a JVM, Node.js and the like, or nobody knows."""
    is_spark: bool = False
    variables: tuple[str, ...] = ()
    """Variables that the properties file refers to, and that nobody else sets."""
    credentials: tuple[str, ...] = ()
    """Names of the files that it takes from $CREDENTIALS_DIRECTORY."""


def service_name(settings: Settings) -> str:
    """What the service of an application is called."""
    return f"mld-{_ODD.sub('-', settings.application_name).strip('-.') or 'application'}"


class UnitRefused(Exception):
    """The unit cannot be written; one sentence with the remedy."""


def unit(service: ServiceFacts) -> str:
    """Return the text of ``NAME.service``. Raises UnitRefused for a name that would begin or join lines of it."""
    lines = list(_lines(service))
    for line in lines:
        if not line.isprintable() or line.endswith("\\"):
            raise UnitRefused(f"{printable(line)} has a sign that cannot stand in a unit; give it another name")
    return "\n".join(lines) + "\n"


def _lines(service: ServiceFacts) -> Iterator[str]:
    yield f"# mld systemd-unit wrote this. Put it into /etc/systemd/system/{service.name}.service, then:"
    yield f"# systemctl daemon-reload && systemctl enable --now {service.name}"
    yield ""
    yield "[Unit]"
    yield f"Description=mld: Kinesis stream {_literal(service.stream)}"
    yield "Wants=network-online.target"
    yield "After=network-online.target"
    yield ""
    yield "[Service]"
    yield "Type=notify"
    yield f"ExecStart={' '.join(_word(word).replace('$', '$$') for word in service.command)}"
    yield "# Log level and thresholds are read again; what needs a restart is named in the log."
    yield "ExecReload=/bin/kill -HUP $MAINPID"
    yield f"SyslogIdentifier={service.name}"
    yield from _account(service)
    yield ""
    yield from _environment(service)
    yield from _life(service)
    yield ""
    yield from _files(service)
    yield ""
    yield from _rights(service)
    yield ""
    yield "[Install]"
    yield "WantedBy=multi-user.target"


def _account(service: ServiceFacts) -> Iterator[str]:
    if service.user is None:
        yield "# An account that exists only while this runs. Files it writes elsewhere than below would be nobody's."
        yield "DynamicUser=yes"
    else:
        yield f"User={_literal(service.user)}"
        yield f"Group={_literal(service.group or service.user)}"
    directory = f"%S/{service.name}" if service.working_directory is None else _literal(service.working_directory)
    yield f"WorkingDirectory={directory}"


def _environment(service: ServiceFacts) -> Iterator[str]:
    if service.search_path is not None:
        yield f"Environment={_word(f'PATH={service.search_path}')}"
    if service.python_path is not None:
        yield f"Environment={_word(f'PYTHONPATH={service.python_path}')}"
    if service.is_spark:
        yield "# Records on their way and what Spark spills need room that /tmp, often a part of the memory, may lack."
        yield f"Environment=TMPDIR=%S/{service.name}"
    if service.variables:
        yield f"# The properties file refers to {', '.join(service.variables)}. Root's file, mode 0600:"
        yield f"EnvironmentFile=/etc/mld/{service.name}.env"
    for name in service.credentials:
        yield f"LoadCredential={_word(f'{name}:/etc/mld/{name}')}"
    if not service.credentials:
        yield "# Secrets: ${file:${CREDENTIALS_DIRECTORY}/NAME} in the properties file, and"
        yield "#LoadCredential=NAME:/etc/mld/NAME"
    yield ""


def _life(service: ServiceFacts) -> Iterator[str]:
    yield "Restart=always"
    yield "RestartSec=5"
    yield "# 2: the properties file has to be repaired first. 143: stopped, but some children had to be killed."
    yield "RestartPreventExitStatus=2"
    yield "SuccessExitStatus=143"
    yield "# Ends and replaces a daemon whose loops make no progress."
    yield f"WatchdogSec={WATCHDOG_S}"
    yield f"# shutdownGraceMillis ({service.grace_s:g} s), and ending children and giving leases back."
    yield f"TimeoutStopSec={math.ceil(service.grace_s + 2 * service.child_stop_s + STOP_MARGIN_S)}"
    yield "KillMode=mixed"
    yield "# A child that the kernel kills for its memory is one failed child, and no reason to end the others."
    yield "OOMPolicy=continue"
    yield "# Three pipes for each child."
    yield "LimitNOFILE=65536"
    yield "LimitCORE=0"


def _files(service: ServiceFacts) -> Iterator[str]:
    yield "# Files: what it makes is for its user alone; it writes only here, and into /tmp and /var/tmp of its own."
    yield "UMask=0077"
    yield f"RuntimeDirectory={service.name}"
    yield "RuntimeDirectoryMode=0700"
    yield f"StateDirectory={service.name}"
    yield "StateDirectoryMode=0700"
    if service.writable:
        yield "# They must exist, and belong to the user."
        yield f"ReadWritePaths={' '.join(map(_word, service.writable))}"
    else:
        yield "# Sinks and archives elsewhere:"
        yield "#ReadWritePaths=/data/lake"
    yield "ProtectSystem=strict"
    if service.is_in_home:
        yield "# true would hide what it needs; move that to /opt, /etc and /var."
    yield f"ProtectHome={'read-only' if service.is_in_home else 'true'}"
    yield "PrivateTmp=true"
    yield "PrivateMounts=true"


def _rights(service: ServiceFacts) -> Iterator[str]:
    yield "# Rights: none beyond those of the user, nor ways to more."
    yield "NoNewPrivileges=true"
    yield "CapabilityBoundingSet="
    yield "AmbientCapabilities="
    yield "RestrictSUIDSGID=true"
    yield "RestrictNamespaces=true"
    yield "RestrictRealtime=true"
    yield "LockPersonality=true"
    if service.makes_code:
        yield "# false: the children may compile while they run, as a JVM does. true if they do not."
    yield f"MemoryDenyWriteExecute={'false' if service.makes_code else 'true'}"
    yield "RemoveIPC=true"
    yield "KeyringMode=private"
    yield ""
    yield "# The system: its processes, devices and settings are out of sight."
    yield "ProtectProc=invisible"
    yield "PrivateDevices=true"
    yield "DevicePolicy=closed"
    yield "PrivateUsers=true"
    for what in ("Clock", "ControlGroups", "Hostname", "KernelLogs", "KernelModules", "KernelTunables"):
        yield f"Protect{what}=true"
    yield "SystemCallArchitectures=native"
    yield "SystemCallFilter=@system-service"
    yield "SystemCallFilter=~@privileged @resources"
    yield "SystemCallErrorNumber=EPERM"
    yield "# AF_NETLINK is for the resolver's look at the addresses of this machine."
    yield "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK"


def _literal(text: str) -> str:
    """Without specifiers."""
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """One word of a list, without specifiers and quotes of systemd's."""
    plain = _literal(text)
    return plain if _PLAIN.fullmatch(text) else '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
