"""`mld doctor`: examines everything that a daemon needs, in the order in which it needs it, and says what is wrong.

It changes nothing. Reads are real and small. Writes have a condition that no row can meet, so DynamoDB refuses them,
but only after it has checked the permission. A call that cannot be tried without an effect is reported as not tried.
After a failed step, the steps that depend on it are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from mld.core.disks import DiskPlace
from mld.core.terminal import scrubber
from mld.operating import findings
from mld.operating.examination import Examination, ProbeEnded
from mld.operating.findings import Diagnosis, Health
from mld.operating.machine_probe import MachineProbe
from mld.operating.stream_probe import StreamProbe
from mld.operating.table_probe import TableProbe
from mld.properties.settings import Settings
from mld.properties.values import MetricsLevel, MetricsOutput


class Doctor:
    """Runs the probes of one examination, one after the other."""

    def __init__(self, settings: Settings, properties_file: str, places: Sequence[DiskPlace] = ()) -> None:
        self._exam = Examination(settings, properties_file)
        self._machine = MachineProbe(self._exam, places)

    async def examine(self) -> list[Diagnosis]:
        """Return everything that was found, in the order of the examination."""
        exam, machine = self._exam, self._machine
        await exam.run(StreamProbe(exam).examine(), TableProbe(exam).examine(), self._cloudwatch())
        exam.found.append(self._clock())
        await exam.run(machine.programs())
        exam.found += [*machine.dead_letter(), *await asyncio.to_thread(machine.disks), machine.files()]
        exam.found += await asyncio.to_thread(lambda: list(machine.daemons_here()))
        scrub = scrubber()
        found = findings.with_one_remedy(exam.found)
        return [replace(one, words=scrub(one.words), remedy=scrub(one.remedy)) for one in found]

    async def _cloudwatch(self) -> None:
        """Examine CloudWatch. A failure becomes a warning only, because a daemon works without metrics."""
        metrics = self._exam.settings.metrics
        if metrics.level is MetricsLevel.NONE or MetricsOutput.CLOUDWATCH not in metrics.outputs:
            return
        try:
            async with self._exam.reached("cloudwatch"):
                pass  # entering the context examines credentials and endpoint; no metric is sent
        except ProbeEnded as ended:
            found: tuple[Diagnosis, ...] = ended.args
            raise ProbeEnded(*(_warned(one) for one in found)) from ended

    def _clock(self) -> Diagnosis:
        """Return the finding about this machine's clock, by the dates in AWS's answers to the calls so far."""
        known = self._exam.factory.service_time
        return findings.clock_finding(known.offset_s if known.is_measured else None)


def _warned(one: Diagnosis) -> Diagnosis:
    """Return the finding as a warning if it is a failure, else unchanged."""
    return replace(one, health=Health.WARN) if one.health is Health.FAIL else one
