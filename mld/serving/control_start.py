"""Starts the control socket of a daemon at the place of `mld.controlSocket`, and starts it again if it is removed."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from mld.core import control_place
from mld.core.clock import Clock
from mld.core.control_place import ControlPlace, ControlPlaceError
from mld.serving.control import ControlServer

log = logging.getLogger(__name__)


LOOK_PERIOD_S = 10.0  # shorter than the half minute of failed probes after which a daemon is restarted


async def serve_control(
    server: ControlServer, application: str, setting: str | None, environ: Mapping[str, str]
) -> str | None:
    """Start the server at the path of `setting`, or if that is None at the first default place that works.

    Return the path. If no place works, log a warning and return None.
    """
    try:
        if setting is None:
            path = await _serve_somewhere(server, application, environ)
        else:
            path = await server.start(ControlPlace(Path(setting).parent, Path(setting).name), is_named=True)
    except (ControlPlaceError, OSError) as error:
        log.warning(
            "no control socket, so `mld status` and `mld tap` do not reach this daemon: %s",
            error,
            extra={"action": "control_off"},
        )
        return None
    log.debug("control socket at %s", path, extra={"action": "control_serving", "path": path})
    return path


async def _serve_somewhere(server: ControlServer, application: str, environ: Mapping[str, str]) -> str:
    """Start the server in the first default directory that works. Return the path. Raises ControlPlaceError."""
    uid = os.geteuid()
    name = control_place.new_name(application)
    reasons = []
    for directory in (*control_place.directories(environ, uid), control_place.spare_directory(uid)):
        try:
            return await server.start(ControlPlace(directory, name), is_named=False)
        except (ControlPlaceError, OSError) as error:
            reasons.append(str(error))
    raise ControlPlaceError("; ".join(reasons) + ". Name a place: mld.controlSocket")


async def keep_control(
    server: ControlServer, application: str, setting: str | None, environ: Mapping[str, str], clock: Clock
) -> None:
    """Make the socket again whenever it was removed: by a cleaner of /tmp, or by systemd together with its directory.

    Without the socket probes fail, and a healthy daemon would be restarted. Runs until cancelled, or until the socket
    cannot be made.
    """
    while True:
        await clock.sleep(LOOK_PERIOD_S)
        if server.is_there:
            continue
        server.stop_listening()
        path = await serve_control(server, application, setting, environ)
        if path is None:
            return
        log.warning(
            "the control socket was removed, and is made again", extra={"action": "control_again", "path": path}
        )
