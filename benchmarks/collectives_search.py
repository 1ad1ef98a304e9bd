"""Compare the search of `hvscale tune-collectives` with an exhaustive sweep: time and table.

`python benchmarks/collectives_search.py --placement netns --nodes 4 --link 1gbit`, which needs
root, or `--placement host --ranks 4` within this machine. A study's own measurements favour the
choices it made. So fresh interleaved jobs of `hvscale bench` measure both tables again.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from collectives_table import (
    HVSCALE,
    make_parser,
    measure_tables,
    parse_options,
    placement_arguments,
    print_comparison,
)

from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument

MIN_BYTES, MAX_BYTES = "4K", "64M"
SWEEP, SEARCH = "sweep", "search"


def run_study(folder: Path, options: argparse.Namespace, more: list[str]) -> float:
    """Run `hvscale tune-collectives` and return the total seconds of its jobs.

    Raises SystemExit if the study fails.
    """
    ranks = str(options.ranks)
    arguments = ["-np", ranks, "--nps", ranks, "--ops", options.operation, "--mpi", options.mpi]
    arguments += ["--eager-limits", "own", "--min-bytes", MIN_BYTES, "--max-bytes", MAX_BYTES]
    arguments += ["--run", str(folder), *placement_arguments(options), *more]
    done = subprocess.run([HVSCALE, "tune-collectives", *arguments], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    document = TuneCollectivesDocument.model_validate_json((folder / "tune-collectives.json").read_text())
    return sum(job.seconds for job in document.jobs)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--folder", type=Path, help="keep both studies here; default: delete them")
    options = parse_options(parser)
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        search = run_study(folder / SEARCH, options, [])
        sweep = run_study(folder / SWEEP, options, ["--exhaustive"])
        print(f"search {search:.0f} s, sweep {sweep:.0f} s, ratio {search / sweep:.2f}", flush=True)
        tables = {name: folder / name / "collectives.toml" for name in (SWEEP, SEARCH)}
        print_comparison(measure_tables(options, tables), options, tables)


if __name__ == "__main__":
    main()
