"""How much faster large messages are when malloc keeps freed memory, and when it uses huge pages.

The ranks all-reduce a model's gradients without computing, by Open MPI in shared memory, with
malloc's defaults and with the variables that docs/how-to/set-knobs.md recommends, interleaved. Run
it on an idle machine: `python benchmarks/kept_memory.py [--model vgg16] [-np 2] [--rounds 5]`. With
`--train`, ranks of `hvscale train`, which keeps freed memory, compute as well.
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
# Options of `hvscale launch`.
KEEP = [
    *("--env", "MALLOC_ARENA_MAX=1", "--env", f"MALLOC_MMAP_THRESHOLD_={1 << 30}"),
    *("--env", f"MALLOC_TRIM_THRESHOLD_={1 << 32}"),
]
HUGE_PAGES = ["--set", "huge_pages=on"]
# Small steps, so that messages take much of them.
TRAIN = ["--data", "synthetic", "--image-size", "64", "--batch-size", "1", "--threads", "1", "--learning-rate", "1e-4"]
WARM_UP_STEPS = 3


def images_per_second(options: argparse.Namespace, asked: list[str]) -> float:
    """Start the ranks and return the median over steps."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        steps = ["--steps", str(options.steps)]
        program = [sys.executable, str(PROGRAM), options.model, *steps, "--compute-seconds", "0"]
        if options.train:
            program = [str(HVSCALE), "train", options.model, *steps, *TRAIN]
        launch = [str(HVSCALE), "launch", "-np", str(options.np), "--run", str(run), *asked, "--", *program]
        subprocess.run(launch, check=True, capture_output=True)
        rows = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()][WARM_UP_STEPS:]
        return float(np.median([row["images"] / row["seconds"] for row in rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("-np", "--np", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", action="store_true", help="train by `hvscale train` instead of sending alone")
    options = parser.parse_args()
    asked: dict[str, list[str]] = {
        "malloc's defaults": [],
        "freed memory kept": KEEP,
        "huge pages": HUGE_PAGES,
        "freed memory kept, huge pages": KEEP + HUGE_PAGES,
    }
    if options.train:
        asked = {"hvscale train": [], "huge pages": HUGE_PAGES}
    variants = {name: partial(images_per_second, options, words) for name, words in asked.items()}
    speeds = run_interleaved(variants, options.rounds)
    what = "training" if options.train else "no computation"
    print_speeds(f"{options.model}, np {options.np}, {what}", speeds, next(iter(variants)))


if __name__ == "__main__":
    main()
