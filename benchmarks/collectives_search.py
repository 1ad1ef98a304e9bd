"""The search of `hvscale tune-collectives` against an exhaustive sweep: how long each takes, and
what the search's table loses.

`python benchmarks/collectives_search.py --placement netns --nodes 4 --link 1gbit`, which takes
root, or `--placement host --ranks 4` within this machine. What a study has measured flatters what
it has chosen, so both tables are measured again: fresh jobs of `hvscale bench` in turns.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from collectives_table import HVSCALE, in_turns, parsed, place_parser, show, where

from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument

MIN_BYTES, MAX_BYTES = "4K", "64M"
SWEEP, SEARCH = "sweep", "search"


def studied(folder: Path, options: argparse.Namespace, more: list[str]) -> float:
    """Seconds of all its jobs. Ends the benchmark where the study fails."""
    ranks = str(options.ranks)
    asked = ["-np", ranks, "--nps", ranks, "--ops", options.operation, "--mpi", options.mpi, "--eager-limits", "own"]
    asked += ["--min-bytes", MIN_BYTES, "--max-bytes", MAX_BYTES, "--run", str(folder), *where(options), *more]
    done = subprocess.run([HVSCALE, "tune-collectives", *asked], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    document = TuneCollectivesDocument.model_validate_json((folder / "tune-collectives.json").read_text())
    return sum(job.seconds for job in document.jobs)


def main() -> None:
    parser = place_parser(__doc__)
    parser.add_argument("--folder", type=Path, help="where both studies are kept, else they go")
    options = parsed(parser)
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        search = studied(folder / SEARCH, options, [])
        sweep = studied(folder / SWEEP, options, ["--exhaustive"])
        print(f"search {search:.0f} s, sweep {sweep:.0f} s: {search / sweep:.2f} of its time", flush=True)
        tables = {name: folder / name / "collectives.toml" for name in (SWEEP, SEARCH)}
        show(in_turns(options, tables), options, tables)


if __name__ == "__main__":
    main()
