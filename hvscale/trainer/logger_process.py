"""A process beside rank 0 that follows the run folder for one watcher: whatever the watcher's client does, training neither waits nor ends.

    python -m hvscale.trainer.logger_process NAME

Its first line of stdin is a `Watched` as JSON, the second, when training has ended, `finished` or `failed`; without one rank 0 was killed.
Each line on stdout is a warning for the user.
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
from hvscale.trainer.loggers import FINISH_SECONDS, WATCHERS, Figures, Outcome, Watched, Watcher
from hvscale.trainer.result import TrainResult
from hvscale.trainer.steps import Step, parse_step

LOOK_SECONDS = 1.0
NICENESS = 10
SUMMARY = ("images_per_second", "psnr_db", "ssim", "bicubic_psnr_db", "top1", "top5")


def main() -> int:
    warnings = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what clients print is not for the user
    os.nice(NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides, and says so on stdin

    def warn(text: str) -> None:
        print(" ".join(text.split()), file=warnings)

    try:
        watched = from_json(Watched, sys.stdin.readline())
        ended = Ended()
        follow(WATCHERS[sys.argv[1]](watched, warn), watched, ended, warn)
    except Exception as error:
        traceback.print_exc()
        warn(f"{type(error).__name__}: {next(iter(str(error).splitlines()), 'no reason given')}")
        return 1
    return 0


class Ended:
    """Whether training has ended. From then on this process has FINISH_SECONDS and a little, wherever its client hangs."""

    def __init__(self) -> None:
        self.finished = False
        self.event = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        self.finished = sys.stdin.readline().strip() == "finished"
        signal.alarm(int(FINISH_SECONDS) + 10)  # for where rank 0, which would end this process before, is no more
        self.event.set()


def follow(watcher: Watcher, watched: Watched, ended: Ended, warn: Callable[[str], None]) -> None:
    """Hand each step of the run to the watcher, then the outcome. Raises what the watcher raises."""
    last, looking = 0, True
    with NewSteps(watched.run.steps) as new_steps:
        while looking:
            looking = not ended.event.wait(LOOK_SECONDS)
            for step in new_steps():
                watcher.step(step.step, figures(step, watched))
                last = step.step
    watcher.end(outcome(watched, last, warn) if ended.finished else Outcome(False, last, {}, None, None))


class NewSteps:
    """The steps that have been added to a steps.jsonl since it was called last."""

    def __init__(self, path: Path) -> None:
        self.stream = path.open("rb")
        self.rest = b""

    def __call__(self) -> Iterator[Step]:
        *lines, self.rest = (self.rest + self.stream.read()).split(b"\n")
        for line in lines:
            with suppress(ValueError):  # a damaged line: training does not end for it
                yield parse_step(line)

    def __enter__(self) -> "NewSteps":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()


def figures(step: Step, watched: Watched) -> Figures:
    """What is watched of a step, by the names of steps.jsonl; only what is known of it."""
    images_per_second = step.images / step.seconds
    values = {
        "loss": step.loss,
        "epoch_loss": step.epoch_loss,
        "learning_rate": step.learning_rate,
        "images_per_second": images_per_second,
        "scaling_efficiency": scaling_efficiency(images_per_second, watched),
        "seconds": step.seconds,
        "data_wait_seconds": step.data_wait_seconds,
        "communication_seconds": step.communication_seconds,
        "skipped": float(step.skipped),
    }
    return {name: value for name, value in values.items() if value is not None}


def scaling_efficiency(images_per_second: float, watched: Watched) -> float | None:
    alone = watched.one_rank_images_per_second
    return images_per_second / (watched.np * alone) if alone else None


def outcome(watched: Watched, last: int, warn: Callable[[str], None]) -> Outcome:
    result = TrainResult.read(watched.path)
    found = {f"result/{name}": getattr(result, name) for name in SUMMARY}
    found["result/scaling_efficiency"] = scaling_efficiency(result.images_per_second, watched)
    try:
        table = recorded(watched.run)
    except RequestError as error:
        table = None
        warn(f"no message sizes: {error}")
    if table is not None and table.exposed_communication is not None:
        exposed = table.exposed_communication
        found["result/exposed_communication_share_at_least"] = exposed.mean_share_at_least
        found["result/exposed_communication_share_at_most"] = exposed.mean_share_at_most
    known = {name: float(value) for name, value in found.items() if value is not None}
    return Outcome(True, last, known, result.picture, table)


def recorded(run: RunFolder) -> ExplainedBreakdown | None:
    """None where nothing records the run's communication."""
    if not run.hvprof.is_dir() or not any(run.hvprof.iterdir()):
        return None
    table = explained_breakdown(run)
    return table if table.rows else None


if __name__ == "__main__":
    sys.exit(main())
