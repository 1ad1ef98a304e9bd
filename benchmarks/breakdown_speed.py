"""Measure the time and memory of reading profiles: `breakdown`, `breakdown --explain` and others.

Run it with the environment's Python: `python benchmarks/breakdown_speed.py 2x5000000 64x1000000`.
It writes profiles of so many ranks x calls (generate_profiles.py), which take 64 bytes of disk for
each call, reads each profile once to load it into the page cache, and checks the figures.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hvscale.core.run_folder import RunFolder

GENERATOR = Path(__file__).with_name("generate_profiles.py")
HVSCALE = Path(sys.executable).with_name("hvscale")
COMMANDS = {
    "breakdown": ("breakdown", "RUN", "--json", "--no-explain"),
    "breakdown --explain": ("breakdown", "RUN", "--json", "--explain"),
    "compare": ("compare", "RUN", "RUN", "--json"),
    "report": ("report", "RUN"),
}


def measure(words: tuple[str, ...], run: RunFolder) -> tuple[float, float, float, bytes]:
    """Seconds, seconds of the processors, peak memory in GiB, and output of a command."""
    command = [str(HVSCALE), *(str(run.path) if word == "RUN" else word for word in words)]
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        started = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(started.pid, 0)
        seconds = time.perf_counter() - began
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed with exit status {started.returncode}")
        output.seek(0)
        return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 20), output.read()


def check(document: dict[str, Any], run: RunFolder) -> None:
    """Stop if the breakdown is not the known one."""
    known = json.loads((run.path / "expected.json").read_text())
    if sum(row["calls"] for row in document["rows"]) != known["calls"]:
        raise SystemExit("the number of calls is wrong")
    if document["waiting"] and document["waiting"]["matched"] != known["matched"]:
        raise SystemExit("the number of matched collectives is wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sizes", nargs="*", default=["2x5000000"], help="ranks x calls of each rank")
    parser.add_argument("--commands", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--folder", type=Path, help="where to write the profiles. [default: a temporary folder]")
    asked = parser.parse_args()
    print(f"{'ranks x calls':>15} {'command':>20} {'s':>8} {'ns/call':>8} {'CPU ns/call':>12} {'peak GiB':>9}")
    for size in asked.sizes:
        ranks, calls = map(int, size.split("x"))
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            run = RunFolder(Path(folder, "run"))
            # In a process of its own: the peak memory of a command includes that of its parent.
            generate = [sys.executable, str(GENERATOR), "--ranks", str(ranks), "--calls", str(calls), str(run.path)]
            subprocess.run(generate, check=True)
            measure(COMMANDS["breakdown"], run)
            for name in asked.commands:
                seconds, processor_seconds, peak_gib, output = measure(COMMANDS[name], run)
                if name.startswith("breakdown"):
                    check(json.loads(output), run)
                per_call = 1e9 / (ranks * calls)
                print(
                    f"{size:>15} {name:>20} {seconds:8.1f} {seconds * per_call:8.0f} {processor_seconds * per_call:12.0f} "
                    f"{peak_gib:9.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
