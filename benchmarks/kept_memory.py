"""How much faster large messages are when malloc keeps freed memory.

The ranks all-reduce a model's gradients without computing, by Open MPI in shared memory, with
malloc's defaults and with the variables that docs/how-to/set-knobs.md recommends, interleaved. Run
it on an idle machine: `python benchmarks/kept_memory.py [--model vgg16] [-np 2] [--rounds 5]`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import print_speeds, run_interleaved

HVSCALE = Path(sys.executable).with_name("hvscale")
PROGRAM = Path(__file__).with_name("gradients.py")
KEEP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
WARM_UP_STEPS = 3


def images_per_second(options: argparse.Namespace, variables: dict[str, str]) -> float:
    """Start the ranks and return the median over steps."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        asked = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        program = [sys.executable, str(PROGRAM), options.model, "--steps", str(options.steps), "--compute-seconds", "0"]
        launch = [str(HVSCALE), "launch", "-np", str(options.np), "--run", str(run), *asked, "--", *program]
        subprocess.run(launch, check=True, capture_output=True)
        steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()][WARM_UP_STEPS:]
        return float(np.median([step["images"] / step["seconds"] for step in steps]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("-np", "--np", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    variants = {
        "malloc's defaults": partial(images_per_second, options, {}),
        "freed memory kept": partial(images_per_second, options, KEEP),
    }
    speeds = run_interleaved(variants, options.rounds)
    print_speeds(f"{options.model}, np {options.np}, no computation", speeds, next(iter(variants)))


if __name__ == "__main__":
    main()
