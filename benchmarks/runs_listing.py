"""Measure the time of `hvscale runs` for a folder of many runs, and of its page.

Run it with the environment's Python: `python benchmarks/runs_listing.py [--runs 1000] [-np 4]`. It
profiles one small job and copies its folder. It needs mpicc.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hvscale.launch.options import LaunchOptions
from hvscale.studies.profiled_launch import profiled_launch

CALLS = 1000
STEPS = 1000
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("-np", type=int, default=4)
    asked = parser.parse_args()
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "runs")
        program = Path(name, "many_events")
        source = Path(__file__).with_name("many_events.c")
        subprocess.run([programs / "mpicc", "-O2", "-o", program, source], check=True)
        run = profiled_launch([str(program), str(CALLS)], LaunchOptions(np=asked.np, run=folder / "run-0"))
        step = json.dumps({"step": 1, "seconds": 0.5, "images": 16, "loss": 0.1}) + "\n"
        run.steps.write_text(step * STEPS)
        for number in range(1, asked.runs):
            shutil.copytree(run.path, folder / f"run-{number}")
        command = [str(programs / "hvscale"), "runs", str(folder)]
        page = [*command, "--html", str(Path(name, "index.html"))]
        print(f"{asked.runs} runs of {asked.np} ranks with {STEPS} steps")
        print_times("listing, throughput from steps.jsonl", command)
        result = json.dumps({"images_per_second": 32.0, "np": asked.np})
        for path in folder.iterdir():
            (path / "result.json").write_text(result)
        print_times("listing, throughput from result.json", command)
        print_times("listing and page", page)


def print_times(what: str, command: list[str]) -> None:
    times = [seconds(command) for _ in range(REPEATS)]
    elapsed, processor = (sorted(column) for column in zip(*times, strict=True))
    print(
        f"{what}: median {elapsed[REPEATS // 2]:.2f} s, {elapsed[0]:.2f} to {elapsed[-1]:.2f} s; "
        f"processor time {processor[REPEATS // 2]:.2f} s"
    )


def seconds(command: list[str]) -> tuple[float, float]:
    """The elapsed seconds of a command, and its processor time."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - start, processor


if __name__ == "__main__":
    main()
