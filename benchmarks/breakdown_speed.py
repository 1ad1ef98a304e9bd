"""Measure the time and memory of `hvscale breakdown` for ten million events.

Run it with the environment's Python: `python benchmarks/breakdown_speed.py [--events 10000000]`. It
needs mpicc, and 64 bytes of disk per event.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hvscale.launch.options import LaunchOptions
from hvscale.profiling.read.profile_file import RECORD
from hvscale.studies.profiled_launch import profiled_launch

RANKS = 2
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    events = parser.parse_args().events
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "many_events")
        subprocess.run(
            [programs / "mpicc", "-O2", "-o", program, Path(__file__).with_name("many_events.c")], check=True
        )
        calls = events // RANKS
        profile_mib = calls * RECORD.itemsize // MIB + 1
        options = LaunchOptions(np=RANKS, run=Path(folder, "run"), env=(f"HVPROF_MIB={profile_mib}",))
        run = profiled_launch([str(program), str(calls)], options)
        command = [str(programs / "hvscale"), "breakdown", str(run.path), "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # warm-up: load the files into the page cache
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / MIB
    print(f"{events} events of {RANKS} ranks: {seconds:.1f} s for the whole command, peak memory {peak_gib:.2f} GiB")


if __name__ == "__main__":
    main()
