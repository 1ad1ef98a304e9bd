"""The process of one logger beside rank 0, so that its client can neither delay nor fail training.

    python -m hvscale.trainer.loggers.logger_process NAME

The first line on stdin is a `LoggedRun` as JSON. The second, sent when training has ended, is
`finished` or `failed`; if it is missing, rank 0 was killed. Each line on stdout is a warning.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from hvscale.core.documents import from_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.explanation import ExplainedBreakdown, explained_breakdown
from hvscale.trainer.loggers.logger import FINISH_SECONDS, LOGGERS, FinalResult, LoggedRun, Logger, Metrics
from hvscale.trainer.result import TrainResult
from hvscale.trainer.steps_file import StepRecord, parse_step_record

POLL_SECONDS = 1.0
NICENESS = 10
SUMMARY = ("images_per_second", "psnr_db", "ssim", "bicubic_psnr_db", "top1", "top5")


def main() -> int:
    warnings = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # clients' output goes to the log file
    os.nice(NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # rank 0 handles signals and reports the end on stdin

    def warn(text: str) -> None:
        print(" ".join(text.split()), file=warnings)

    try:
        logged = from_json(LoggedRun, sys.stdin.readline())
        end = EndOfTraining()
        follow(LOGGERS.get(sys.argv[1])(logged, warn), logged, end, warn)
    except Exception as error:
        traceback.print_exc()
        warn(f"{type(error).__name__}: {next(iter(str(error).splitlines()), 'no reason given')}")
        return 1
    return 0


class EndOfTraining:
    """Waits for the end of training.

    From then on this process ends soon after FINISH_SECONDS, even if its client hangs.
    """

    def __init__(self) -> None:
        self.finished = False
        self.event = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        self.finished = sys.stdin.readline().strip() == "finished"
        signal.alarm(int(FINISH_SECONDS) + 10)  # in case rank 0, which would end this process earlier, is gone
        self.event.set()


def follow(logger: Logger, logged: LoggedRun, end: EndOfTraining, warn: Callable[[str], None]) -> None:
    """Pass each step of the run to the logger, then the result. Raises what the logger raises."""
    last, running = 0, True
    with NewSteps(logged.run.steps) as new_steps:
        while running:
            running = not end.event.wait(POLL_SECONDS)
            for step in new_steps():
                logger.step(step.step, step_metrics(step, logged))
                last = step.step
    logger.end(final_result(logged, last, warn) if end.finished else FinalResult(False, last, {}, None, None))


class NewSteps:
    """Reads the steps that were added to steps.jsonl since the last call."""

    def __init__(self, path: Path) -> None:
        self.stream = path.open("rb")
        self.rest = b""

    def __call__(self) -> Iterator[StepRecord]:
        *lines, self.rest = (self.rest + self.stream.read()).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # skips a damaged line
                yield parse_step_record(line)

    def __enter__(self) -> "NewSteps":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()


def step_metrics(step: StepRecord, logged: LoggedRun) -> Metrics:
    """The known metrics of a step, named as in steps.jsonl."""
    images_per_second = step.images / step.seconds
    values = {
        "loss": step.loss,
        "epoch_loss": step.epoch_loss,
        "learning_rate": step.learning_rate,
        "images_per_second": images_per_second,
        "scaling_efficiency": scaling_efficiency(images_per_second, logged),
        "seconds": step.seconds,
        "data_wait_seconds": step.data_wait_seconds,
        "communication_seconds": step.communication_seconds,
        "skipped": float(step.skipped),
    }
    return {name: value for name, value in values.items() if value is not None}


def scaling_efficiency(images_per_second: float, logged: LoggedRun) -> float | None:
    one_rank = logged.one_rank_images_per_second
    return images_per_second / (logged.np * one_rank) if one_rank else None


def final_result(logged: LoggedRun, last: int, warn: Callable[[str], None]) -> FinalResult:
    result = TrainResult.read(logged.path)
    found = {f"result/{name}": getattr(result, name) for name in SUMMARY}
    found["result/scaling_efficiency"] = scaling_efficiency(result.images_per_second, logged)
    try:
        table = recorded_breakdown(logged.run)
    except RequestError as error:
        table = None
        warn(f"no table of message sizes: {error}")
    if table is not None and table.exposed_communication is not None:
        exposed = table.exposed_communication
        found["result/exposed_communication_share_at_least"] = exposed.mean_share_at_least
        found["result/exposed_communication_share_at_most"] = exposed.mean_share_at_most
    known = {name: float(value) for name, value in found.items() if value is not None}
    return FinalResult(True, last, known, result.picture, table)


def recorded_breakdown(run: RunFolder) -> ExplainedBreakdown | None:
    """The run's breakdown; None if its communication was not recorded."""
    if not run.hvprof.is_dir() or not any(run.hvprof.iterdir()):
        return None
    table = explained_breakdown(run)
    return table if table.rows else None


if __name__ == "__main__":
    sys.exit(main())
