"""What `hvscale breakdown` needs for ten million events: seconds and memory.

Run it with the environment's Python: `python benchmarks/reading.py [--events 10000000]`. It needs
mpicc and as many times 64 bytes of disk.
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
        ring = calls * RECORD.itemsize // MIB + 1
        options = LaunchOptions(np=RANKS, run=Path(folder, "run"), env=(f"HVPROF_MIB={ring}",))
        run = profiled_launch([str(program), str(calls)], options)
        command = [programs / "hvscale", "breakdown", run.path, "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # once before, so that the files are in memory
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / MIB
    print(f"{events} events of {RANKS} ranks: {seconds:.1f} s for the whole command, {peak_gib:.2f} GiB at most")


if __name__ == "__main__":
    main()
