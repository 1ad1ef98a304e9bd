"""How often the steps of recorded runs are found from their messages alone.

Each run needs hvprof's recording, and steps.jsonl, whose number of steps is compared with what is
found. Example: `python benchmarks/bytes_per_step.py FOLDER`, with all runs below FOLDER.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import track

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.profiling.analyze.breakdown import read_recording
from hvscale.profiling.analyze.bytes_per_step import find_bytes_per_step
from hvscale.profiling.analyze.steps import gradient_messages, read_step_log

TOLERANCE = 0.02  # a job sends other messages before its first step


def ratio(run: RunFolder) -> float | None:
    """The bytes found over a step's by steps.jsonl; 0 if none are found, None without steps."""
    try:
        recording, log = read_recording(run), read_step_log(run)
    except RequestError:
        return None
    sent = int(gradient_messages(recording)[1].sum())
    if log is None or not sent:
        return None
    return (find_bytes_per_step(recording)[0] or 0) * len(log.seconds) / sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    found: Counter[str] = Counter()
    start = time.process_time()
    for recording in track(sorted(options.folder.rglob("hvprof")), "runs"):
        value = ratio(RunFolder(recording.parent))
        if value is None:
            continue
        if value == 0:
            kind = "nothing found"
        elif abs(value - 1) < TOLERANCE:
            kind = "right"
        elif abs(value - round(value)) < TOLERANCE:
            kind = "several steps taken for one"
        else:
            kind = "wrong"
        found[kind] += 1
    for kind, runs in found.most_common():
        Console().print(f"{kind}: {runs} of {found.total()} runs")
    Console().print(
        f"{(time.process_time() - start) / max(found.total(), 1):.2f} s of a core for each run, reading included"
    )


if __name__ == "__main__":
    main()
