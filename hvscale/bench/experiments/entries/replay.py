"""Measurements of a recorded job's communication, replayed under several settings on several
numbers of ranks: `hvscale profile --gradients`, then `hvscale replay` in interleaved runs.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from hvscale.bench.experiments.entries import LaunchContext, register
from hvscale.bench.experiments.entries.settings import SettingsMeasurement, SettingsStudy, Source, VariantsEntry
from hvscale.core.run_folder import RunFolder
from hvscale.launch.options import LaunchOptions
from hvscale.profiling.analyze.gradients import read_job_gradients
from hvscale.studies.base import finished_or_new_run
from hvscale.studies.profiled_launch import profiled_launch

RECORDING = "recording"


class ReplayStudy(SettingsStudy):
    """Records the job before the first round.

    `record`: the job's command and launch options.
    """

    verb = "bench replay"

    def __init__(self, record: tuple[list[str], LaunchOptions], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.record = record

    def prepare(self) -> None:
        """Record the job, unless the folder has a finished recording."""
        run, is_finished = finished_or_new_run(self.path / RECORDING)
        if not is_finished:
            if run.path.name != RECORDING:  # keep the failed attempt under the next free name
                (self.path / RECORDING).rename(run.path)
                run = RunFolder(self.path / RECORDING)
            command, options = self.record
            hooks = replace(self.hooks, warn=self.warn)
            profiled_launch(command, options.replace(run=run.path), hooks, gradients=True)
        for text in read_job_gradients(run).warnings:
            self.warn(text)
        self.document.recording = run.path.name


@register
class ReplayEntry(VariantsEntry):
    """A recorded job under several settings.

    `command`: the job, recorded on `record_np` ranks with the libraries' defaults. `steps`: of each
    replay; None for as many as were recorded.
    """

    source: ClassVar[Source] = "replayed"
    measure: Literal["replay"]
    record_np: PositiveInt = 2
    steps: PositiveInt | None = None

    def measurement(self, path: Path, launch: LaunchContext) -> "SettingsMeasurement":
        count = [] if self.steps is None else ["--steps", str(self.steps)]
        placements, _ = self.placements(launch, self.record_np)
        options = launch.options.replace(np=self.record_np, placement=placements[self.placement[0]])
        record = (self.command, launch.resolve(self.command, options))
        study = partial(ReplayStudy, record)
        command = ["hvscale", "replay", str(path / RECORDING), *count]
        return self.measure_with(study, ReplayStudy.verb, path, launch, command)
