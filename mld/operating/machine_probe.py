"""The part of `mld doctor` that examines this machine: programs, disks, open files, and daemons that run here."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from mld.check.refusals import faults_of
from mld.core.disks import DiskPlace, room_of
from mld.core.errors import MldError
from mld.core.installed import find_executable, runnable
from mld.operating import findings
from mld.operating.daemon_link import WantedDaemon, find_daemons
from mld.operating.examination import TIMEOUT_S, Examination
from mld.operating.findings import Diagnosis, fail, ok, warn
from mld.properties.spark_names import PROGRAM
from mld.properties.values import DeadLetterKind
from mld.protocol.child_command import split_command

SPARK_CHECK_TIMEOUT_S = 120.0


class MachineProbe:
    """Examines this machine for an `Examination`. `places` are the directories that the daemon or its processor writes
    to.
    """

    def __init__(self, exam: Examination, places: Sequence[DiskPlace]) -> None:
        self._exam = exam
        self._places = places

    async def programs(self) -> None:
        """Examine the record processor, and the processors of single streams."""
        commands = {"executableName": self._exam.settings.child.command}
        for one in self._exam.settings.streams:
            if one.executable_name is not None:
                commands[f"{one.name}: executableName"] = one.executable_name
        await self._exam.run(*(self._program(about, split_command(text)) for about, text in commands.items()))

    async def _program(self, about: str, processor: list[str]) -> None:
        """Examine whether a record processor, given as the words of its command, can be run. A Spark processor is also
        asked to check itself (`mld-spark --check`).
        """
        faults = [fail(about, message, remedy) for _, message, remedy in faults_of(processor)]
        self._exam.require(*faults)
        program = find_executable(processor)
        self._exam.found.append(ok(about, f"{program} can be run; `mld conformance -- COMMAND` tries the protocol"))
        if any(PurePath(word).name == PROGRAM for word in processor):
            self._exam.found.append(await self._spark(runnable(processor)))

    async def _spark(self, processor: list[str]) -> Diagnosis:
        """Run the `mld-spark` of the processor's command with --check, and return its last line as a finding."""
        # The command up to the program, without the program's own arguments.
        command = [
            *processor[: [PurePath(word).name for word in processor].index(PROGRAM) + 1],
            "--check",
            self._exam.file,
        ]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(SPARK_CHECK_TIMEOUT_S):
                out, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return fail("Spark", f"no answer of mld-spark --check within {SPARK_CHECK_TIMEOUT_S:g} s", "run it by hand")
        lines = (out if process.returncode == 0 else errors).decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit code {process.returncode}"
        if process.returncode == 0:
            return ok("Spark", last)
        return fail("Spark", last, "see docs/use/spark.md")

    def dead_letter(self) -> list[Diagnosis]:
        """Return the finding for dead letters that go to a service. A directory for them is examined with the disks."""
        place = self._exam.settings.child.dead_letter
        if place is None or place.kind is DeadLetterKind.DIRECTORY:
            return []
        return [ok("dead letter", f"{place.text} (a {place.kind.value}; writing there was not tried)")]

    def disks(self) -> list[Diagnosis]:
        """Return a finding for each directory: whether it can be written to, and has room. Blocks the caller."""
        return [findings.disk_finding(place, room_of(place)) for place in self._places]

    def daemons_here(self) -> Iterator[Diagnosis]:
        """Ask the daemons of this application that this user runs on this machine, and yield what is wrong with their
        files. Warn of a daemon that does not answer.
        """
        serving = self._exam.settings.serving
        wanted = WantedDaemon(self._exam.settings.application_name, serving.control_socket, None, None, TIMEOUT_S)
        try:
            links = find_daemons(wanted, os.environ)
        except MldError:
            return  # this user runs no daemon here
        for link in links:
            try:
                yield from findings.daemon_findings(link.ask("status"))
            except MldError as error:
                yield warn("daemon", str(error), "check with `mld status --live` whether it makes progress")

    def files(self) -> Diagnosis:
        """Return a finding: whether the process may open enough files for its shards and children."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files_max = None if soft == resource.RLIM_INFINITY else soft
        children = self._exam.settings.child.children_per_shard
        return findings.files_finding(self._exam.open_shards() or 0, children, files_max)
