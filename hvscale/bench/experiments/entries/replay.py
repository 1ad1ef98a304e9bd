"""Measurements of a recorded job's communication, replayed under several settings on several
numbers of ranks: `hvscale profile --gradients`, then `hvscale replay` in interleaved runs.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from hvscale.bench.experiments.entries import LaunchContext, register
from hvscale.bench.experiments.entries.settings import SettingsMeasurement, SettingsStudy, VariantsEntry
from hvscale.core.run_folder import RunFolder
from hvscale.launch.options import LaunchOptions
from hvscale.profiling.analyze.gradients import read_job_gradients
from hvscale.studies.base import finished_or_new_run
from hvscale.studies.document import ResultSource
from hvscale.studies.profiled_launch import profiled_launch


class ReplayStudy(SettingsStudy):
    """Records the job under each of the settings before the first round, and replays what was
    recorded under the same settings.

    `record`: the launch of each recording by settings. `replay_options`: of `hvscale replay`.
    """

    verb = "bench replay"
    must_match = (*SettingsStudy.must_match, "record", "replay_options")
    run_folders = "*-*/"  # an interrupted recording is resumed too

    def __init__(
        self, record: Mapping[str, LaunchOptions], replay_options: list[str], *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.record, self.replay_options = record, replay_options
        self.document.record = {settings: launch.recorded() for settings, launch in record.items()}
        self.document.replay_options = replay_options

    def prepare(self) -> None:
        """Make the recordings that the folder does not have."""
        for settings, options in self.record.items():
            name = f"recording-{settings}"
            run, is_finished = finished_or_new_run(self.path / name)
            if not is_finished:
                if run.path.name != name:  # keep the failed attempt under the next free name
                    (self.path / name).rename(run.path)
                    run = RunFolder(self.path / name)
                hooks = replace(self.hooks, warn=self.warn)
                profiled_launch(self.document.command, options.replace(run=run.path), hooks, gradients=True)
            for text in read_job_gradients(run).warnings:
                self.warn(f"{name}: {text}")
            self.document.recordings[settings] = name

    def launch(self, variant: str, run: RunFolder) -> None:
        settings = self.document.variants[variant].settings
        command = ["hvscale", "replay", str(self.path / self.document.recordings[settings]), *self.replay_options]
        options = self.variants[variant].replace(run=run.path)
        profiled_launch(command, options, replace(self.hooks, warn=self.warn))


@register
class ReplayEntry(VariantsEntry):
    """A job that is recorded under each of the settings and replayed.

    `command`: the job, recorded on `record_np` ranks in the first placement. `steps`: of each
    replay; None for as many as were recorded.
    """

    source: ClassVar[ResultSource] = "replayed"
    measure: Literal["replay"]
    record_np: PositiveInt = 2
    steps: PositiveInt | None = None

    def measurement(self, path: Path, launch: LaunchContext) -> "SettingsMeasurement":
        at_record_np = self.model_copy(update={"np": [self.record_np], "placement": self.placement[:1]})
        jobs = at_record_np.jobs(path, launch, self.command)
        record = {variant.settings: jobs.launch[name] for name, variant in jobs.variants.items()}
        count = [] if self.steps is None else ["--steps", str(self.steps)]
        study = partial(ReplayStudy, record, count)
        return self.measure_with(study, ReplayStudy.verb, path, launch, self.command)
