"""Proves settings that the model proposes: interleaved replays at the largest np at hand."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hvscale.core.errors import UntrustedError
from hvscale.core.run_folder import RunFolder
from hvscale.launch.options import LaunchOptions
from hvscale.prediction.tuning.document import PredictedTune
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.studies.comparison.study import ComparisonStudy, RepeatedRun
from hvscale.studies.interleaved import ProgressReporter
from hvscale.studies.throughput import WARMUP_STEPS

VERB = "predicted-tune"


class ReplayProof(ComparisonStudy[PredictedTune]):
    """Replays the recording under the recorded settings and each candidate, interleaved."""

    must_match = ("command", "np", "launch", "predict_np")

    def __init__(
        self,
        jobs: Mapping[str, LaunchOptions],
        command: list[str],
        *,
        repeats: int,
        write_settings: Callable[[PredictedTune], None],
        **fields: Any,
    ) -> None:
        """Check the request; write nothing.

        `jobs`: the launch options by the candidates' names, the recorded settings first.
        `write_settings`: called with the document once it has a choice. `fields`: of the document.
        """
        super().__init__(
            VERB,
            partial(PredictedTune, **fields),
            jobs,
            command,
            repeats=repeats,
            metric=None,
            bins="study",
            folder_name=str,
        )
        self.write_settings = write_settings

    def run_rounds(self, progress: ProgressReporter) -> None:
        super().run_rounds(progress)
        self.tabulate()
        if self.document.choice is not None:
            self.write_settings(self.document)

    def tabulate(self) -> None:
        self.document.tabulate()
        self.document.decide(self.whole_rounds())

    def html(self) -> str:
        from hvscale.prediction.tuning.page import page

        return page(self.document)

    def whole_rounds(self) -> int:
        """The rounds in which all variants but the failed ones were measured; 0 if the recorded
        settings failed.
        """
        if self.document.baseline in self.failed:
            return 0
        needed = [self.document.measured(name, "seconds").keys() for name in self.variants if name not in self.failed]
        return sum(all(repeat in own for own in needed) for repeat in range(1, self.document.repeats + 1))

    def read(self, variant: str, run: RunFolder, record: RepeatedRun) -> None:
        record.seconds = mean_step(run)


def mean_step(run: RunFolder) -> float:
    """The mean step of a replay without the first ones. Raises UntrustedError without a step."""
    log = read_step_log(run)
    if log is None or not len(log.seconds):
        raise UntrustedError(f"{run.path}: the replay wrote no step")
    counted = log.seconds[WARMUP_STEPS:] if len(log.seconds) > WARMUP_STEPS else log.seconds
    return float(counted.mean())
