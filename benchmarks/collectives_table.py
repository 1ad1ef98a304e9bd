"""A decision table against the MPI library with nothing set, and against the wire.

`python benchmarks/collectives_table.py TABLE --operation allreduce --placement netns --nodes 4
--link 1gbit`, which takes root, or `--placement host --ranks 4` within this machine; TABLE is what
`hvscale tune-collectives` writes. A library reads its rules as it starts, so each measurement is a
fresh job of `hvscale bench`, with the table and without it in turns; the ratio of a pair of jobs is
one sample.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats

from hvscale.bench.collectives.sizes import parse_size
from hvscale.comm_tuning.collectives.decide.cost_model import wire_seconds
from hvscale.comm_tuning.collectives.tables.files import OPERATIONS
from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, nearest, read_table
from hvscale.launch.placements._link_shaping import bits_per_second

HVSCALE = Path(sys.executable).with_name("hvscale")
SIZES = "4K,16K,64K,256K,1M,4M,16M,64M"
ITERATIONS = "16K:1000,256K:200,1M:40,16M:10,5"  # samples of some ms where a link has 1 Gbit/s
WARM_UP = "1M:20,2"
SMALL = 8 << 10
LIBRARY, TABLE = "library", "table"


def seconds_of(options: argparse.Namespace, folder: Path, more: list[str]) -> dict[int, float]:
    """By bytes, the median over a job's samples of what the slowest rank takes. Ends the benchmark
    where the job fails, or a result is wrong.
    """
    sizes = [parse_size("--sizes", word) for word in options.sizes.split(",")]
    # Of a small message the root may run ahead: each rank is the root in turn.
    by_root = {"-1": [size for size in sizes if size <= SMALL], "0": [size for size in sizes if size > SMALL]}
    found = {}
    for root, of_root in by_root.items():
        if of_root:
            found |= job(options, folder.with_name(f"{folder.name}-root{root}"), of_root, ["--root", root, *more])
    return found


def job(options: argparse.Namespace, folder: Path, sizes: list[int], more: list[str]) -> dict[int, float]:
    asked = [
        "--sizes",
        ",".join(map(str, sizes)),
        "-n",
        options.iterations,
        "-w",
        WARM_UP,
        "--in-place",
        "in",
        "--json",
    ]
    ranks = ["-np", str(options.ranks), "--mpi", options.mpi, *where(options), *more, "--run", str(folder)]
    done = subprocess.run(
        [HVSCALE, "bench", options.operation, *ranks, *asked], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return {row["bytes"]: row["seconds_p50"] for row in json.loads(done.stdout)["rows"]}


def where(options: argparse.Namespace) -> list[str]:
    words = ["--placement", options.placement]
    if options.placement == "netns":
        words += ["--nodes", str(options.nodes), "--link", options.link]
    return [*words, *(word for setting in options.set for word in ("--set", setting))]


def in_turns(options: argparse.Namespace, tables: Mapping[str, Path | None]) -> dict[str, list[dict[int, float]]]:
    """By the name of each table (None: nothing set) what its jobs take in each round; a round
    begins with another one than that before.
    """
    jobs = {name: ["--collectives", str(path.absolute())] if path is not None else [] for name, path in tables.items()}
    found: dict[str, list[dict[int, float]]] = {name: [] for name in jobs}
    with tempfile.TemporaryDirectory() as folder:
        for number in track(range(options.rounds), "rounds", console=Console(stderr=True)):
            for name in np.roll(list(jobs), number).tolist():
                found[name].append(seconds_of(options, Path(folder) / f"{name}-{number}", jobs[name]))
    return found


def taken(table: CollectivesTable, operation: str, np_: int, ranks_per_node: int, size: int) -> str:
    rules = [rule for rule in table.rule if rule.operation == operation]
    if rules:
        rules = [rule for rule in rules if rule.np == nearest({rule.np for rule in rules}, np_)]
        on_a_node = nearest({rule.ranks_per_node for rule in rules}, ranks_per_node)
        rules = [rule for rule in rules if rule.ranks_per_node == on_a_node and rule.bytes_min <= size <= rule.last]
    if not rules:
        return LIBRARY
    values = (getattr(rules[0], name) for name in ("algorithm", *rules[0].valid_fields))
    return " ".join(str(value) for value in values if value is not None)


def show(
    found: dict[str, list[dict[int, float]]], options: argparse.Namespace, tables: Mapping[str, Path | None]
) -> None:
    """How many times faster the second is than the first."""
    first, second = found
    nodes = options.nodes if options.placement == "netns" else 1
    place = f"{nodes} nodes of {options.link}" if nodes > 1 else "one node"
    shown = Table(title=f"{options.operation}, {options.ranks} ranks of {options.mpi} on {place}")
    decided = {name: read_table(path) for name, path in tables.items() if path is not None}
    takes = [f"{name} takes" for name in decided]
    columns = ["bytes", *takes, f"{first}, ms", f"{second}, ms", "times faster", "95 % interval", "times the wire"]
    for name in columns if nodes > 1 else columns[:-1]:
        shown.add_column(name, justify="left" if name in takes else "right")
    gains = []
    for size in found[first][0]:
        seconds = {name: np.array([job[size] for job in jobs]) for name, jobs in found.items()}
        ratio = seconds[first] / seconds[second]
        low, high = stats.bootstrap((ratio,), np.median, random_state=0).confidence_interval
        gains.append(float(np.median(ratio)))
        row = [str(size)]
        row += [
            taken(table, options.operation, options.ranks, -(-options.ranks // nodes), size)
            for table in decided.values()
        ]
        row += [f"{1e3 * np.median(seconds[name]):.3f}" for name in found]
        row += [f"{gains[-1]:.2f}", f"{low:.2f} to {high:.2f}"]
        if nodes > 1:
            wire = wire_seconds(options.operation, nodes, size, bits_per_second(options.link) / 8)
            row.append(f"{np.median(seconds[second]) / wire:.2f}")
        shown.add_row(*row)
    Console(width=170).print(shown)
    print(f"geometric mean: {np.exp(np.mean(np.log(gains))):.2f} times faster; least {min(gains):.2f}")


def place_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operation", choices=OPERATIONS, default="broadcast")
    parser.add_argument("--placement", choices=("host", "netns"), default="host")
    parser.add_argument("--mpi", default="openmpi")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, help="as many as nodes where there are nodes, else 4")
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--iterations", default=ITERATIONS, help="as -n of `hvscale bench`")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of jobs")
    parser.add_argument("--set", action="append", default=[], help="for both, as for `hvscale launch`")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    options.ranks = options.ranks or (options.nodes if options.placement == "netns" else 4)
    return options


def main() -> None:
    parser = place_parser(__doc__)
    parser.add_argument("collectives", type=Path, metavar="TABLE")
    options = parsed(parser)
    tables = {LIBRARY: None, TABLE: options.collectives}
    show(in_turns(options, tables), options, tables)


if __name__ == "__main__":
    main()
