"""The search of `hvscale tune-collectives` against an exhaustive sweep: how long each takes, and what the search's choices lose.

`python benchmarks/collectives_search.py --ops broadcast -- -np 4 --placement netns --nodes 4 --link 1gbit`: what is behind -- both get. At each
size that both have, the search's choice is judged by the sweep's own median for it, against that of the sweep's choice.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from hvscale.comm_tuning.collectives_study.document import TuneCollectives
from hvscale.comm_tuning.decisions.decide import SizeRow
from hvscale.comm_tuning.decisions.measurements import Choice

HVSCALE = Path(sys.executable).with_name("hvscale")


def studied(folder: Path, words: list[str]) -> TuneCollectives:
    """Ends the benchmark where the study fails."""
    done = subprocess.run(
        [HVSCALE, "tune-collectives", "--run", str(folder), *words], stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return TuneCollectives.model_validate_json((folder / "tune-collectives.json").read_text())


def rows(document: TuneCollectives) -> dict[tuple[str, int, int], SizeRow]:
    return {(row.operation, row.np, row.bytes): row for row in (document.decision.rows if document.decision else [])}


def medians(document: TuneCollectives) -> dict[tuple[str, int, int, Choice], float]:
    """Of the library's own eager limit."""
    return {
        (point.operation, point.np, point.bytes, point.choice): float(np.median(point.seconds))
        for point in document.measurements.points
        if point.eager_limit_bytes is None
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", default="broadcast,allreduce")
    parser.add_argument("--max-bytes", default="16M")
    parser.add_argument("--folder", type=Path, help="where both studies are kept, else they go")
    parser.add_argument("launch", nargs="+", help="-np and where the ranks run")
    options = parser.parse_args()
    words = [*options.launch, "--ops", options.ops, "--max-bytes", options.max_bytes, "--eager-limits", "own"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        search = studied(folder / "search", words)
        sweep = studied(folder / "sweep", [*words, "--exhaustive"])
    shown = Table(title="what the search's choices lose against an exhaustive sweep's, by the sweep's medians")
    for name in ("collective", "np", "bytes", "search", "sweep", "time, ratio"):
        shown.add_column(name, justify="right" if name in ("np", "bytes", "time, ratio") else "left")
    losses, found, took = [], rows(search), medians(sweep)
    for place, row in rows(sweep).items():
        if place in found:
            losses.append(took[(*place, found[place].choice)] / took[(*place, row.choice)])
            shown.add_row(*map(str, place), str(found[place].choice), str(row.choice), f"{losses[-1]:.3f}")
    Console(width=160).print(shown)
    seconds = {name: sum(job.seconds for job in one.jobs) for name, one in (("search", search), ("sweep", sweep))}
    print(
        f"search {seconds['search']:.0f} s, sweep {seconds['sweep']:.0f} s: {seconds['search'] / seconds['sweep']:.2f} of its time"
    )
    print(f"time by the search's choices: geometric mean {np.exp(np.mean(np.log(losses))):.3f}, most {max(losses):.3f}")


if __name__ == "__main__":
    main()
