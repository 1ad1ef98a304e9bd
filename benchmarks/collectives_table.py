"""Compare a decision table with the MPI library's defaults and with the wire's bound.

`python benchmarks/collectives_table.py TABLE --operation allreduce --placement netns --nodes 4
--link 1gbit`, which needs root, or `--placement host --ranks 4` within this machine. `hvscale
tune-collectives` writes TABLE. A library reads its rules when it starts, so each measurement is a
fresh job of `hvscale bench`. Jobs with and without the table are interleaved; the ratio of a pair
of jobs is one sample.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from interleaved import median_interval, run_interleaved
from rich.console import Console
from rich.table import Table

from hvscale.bench.collectives.sizes import parse_size
from hvscale.comm_tuning.collectives.decide.cost_model import wire_seconds
from hvscale.comm_tuning.collectives.tables.files import OPERATIONS
from hvscale.comm_tuning.collectives.tables.table import CollectivesTable, nearest, read_table
from hvscale.launch.placements._link_shaping import bits_per_second

HVSCALE = Path(sys.executable).with_name("hvscale")
SIZES = "4K,16K,64K,256K,1M,4M,16M,64M"
ITERATIONS = "16K:1000,256K:200,1M:40,16M:10,5"  # samples of some ms on a link of 1 Gbit/s
WARM_UP = "1M:20,2"
ROTATING_ROOT_MAX_BYTES = 8 << 10
LIBRARY, TABLE = "library", "table"


def measure_job(options: argparse.Namespace, table: Path | None) -> dict[int, float]:
    """Return the median seconds of the slowest rank by bytes.

    `table`: None measures the library's defaults. Raises SystemExit if the job fails or a result is
    wrong.
    """
    sizes = [parse_size("--sizes", word) for word in options.sizes.split(",")]
    # With small messages a fixed root may run ahead: each rank is the root in turn.
    sizes_by_root = {
        "-1": [size for size in sizes if size <= ROTATING_ROOT_MAX_BYTES],
        "0": [size for size in sizes if size > ROTATING_ROOT_MAX_BYTES],
    }
    seconds: dict[int, float] = {}
    for root, root_sizes in sizes_by_root.items():
        if root_sizes:
            seconds |= run_bench(options, root_sizes, root, table)
    return seconds


def run_bench(options: argparse.Namespace, sizes: list[int], root: str, table: Path | None) -> dict[int, float]:
    command = [HVSCALE, "bench", options.operation, "-np", str(options.ranks), "--mpi", options.mpi]
    command += [*placement_arguments(options), "--root", root, "--sizes", ",".join(map(str, sizes))]
    command += ["-n", options.iterations, "-w", WARM_UP, "--in-place", "in", "--json"]
    if table is not None:
        command += ["--collectives", str(table.absolute())]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--run", f"{folder}/run"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return {row["bytes"]: row["seconds_p50"] for row in json.loads(done.stdout)["rows"]}


def placement_arguments(options: argparse.Namespace) -> list[str]:
    arguments = ["--placement", options.placement]
    if options.placement == "netns":
        arguments += ["--nodes", str(options.nodes), "--link", options.link]
    return [*arguments, *(word for setting in options.set for word in ("--set", setting))]


def measure_tables(options: argparse.Namespace, tables: Mapping[str, Path | None]) -> dict[str, list[dict[int, float]]]:
    """Measure every table interleaved: by its name, the seconds by bytes of each round."""
    return run_interleaved({name: partial(measure_job, options, path) for name, path in tables.items()}, options.rounds)


def describe_choice(table: CollectivesTable, operation: str, np_: int, ranks_per_node: int, size: int) -> str:
    """Name the algorithm that a table chooses for one message size, with its parameters."""
    rules = [rule for rule in table.rule if rule.operation == operation]
    if rules:
        rules = [rule for rule in rules if rule.np == nearest({rule.np for rule in rules}, np_)]
        on_a_node = nearest({rule.ranks_per_node for rule in rules}, ranks_per_node)
        rules = [rule for rule in rules if rule.ranks_per_node == on_a_node and rule.bytes_min <= size <= rule.last]
    if not rules:
        return LIBRARY
    values = (getattr(rules[0], name) for name in ("algorithm", *rules[0].valid_fields))
    return " ".join(str(value) for value in values if value is not None)


def print_comparison(
    results: dict[str, list[dict[int, float]]], options: argparse.Namespace, tables: Mapping[str, Path | None]
) -> None:
    """Print how many times faster the second table is than the first."""
    first, second = results
    nodes = options.nodes if options.placement == "netns" else 1
    place = f"{nodes} nodes of {options.link}" if nodes > 1 else "one node"
    shown = Table(title=f"{options.operation}, {options.ranks} ranks of {options.mpi} on {place}")
    decisions = {name: read_table(path) for name, path in tables.items() if path is not None}
    choices = [f"{name}'s choice" for name in decisions]
    columns = ["bytes", *choices, f"{first}, ms", f"{second}, ms", "times faster", "95 % interval", "times the wire"]
    for name in columns if nodes > 1 else columns[:-1]:
        shown.add_column(name, justify="left" if name in choices else "right")
    gains = []
    for size in results[first][0]:
        seconds = {name: np.array([job[size] for job in jobs]) for name, jobs in results.items()}
        ratio = seconds[first] / seconds[second]
        gains.append(float(np.median(ratio)))
        row = [str(size)]
        row += [
            describe_choice(table, options.operation, options.ranks, -(-options.ranks // nodes), size)
            for table in decisions.values()
        ]
        row += [f"{1e3 * np.median(seconds[name]):.3f}" for name in results]
        row += [f"{gains[-1]:.2f}", median_interval(ratio, ".2f")]
        if nodes > 1:
            wire = wire_seconds(options.operation, nodes, size, bits_per_second(options.link) / 8)
            row.append(f"{np.median(seconds[second]) / wire:.2f}")
        shown.add_row(*row)
    Console(width=170).print(shown)
    print(f"geometric mean: {np.exp(np.mean(np.log(gains))):.2f} times faster; minimum {min(gains):.2f}")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operation", choices=OPERATIONS, default="broadcast")
    parser.add_argument("--placement", choices=("host", "netns"), default="host")
    parser.add_argument("--mpi", default="openmpi")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, help="number of ranks; default: --nodes with netns, else 4")
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--iterations", default=ITERATIONS, help="iterations by size, as -n of `hvscale bench`")
    parser.add_argument("--rounds", type=int, default=7, help="number of pairs of jobs")
    parser.add_argument("--set", action="append", default=[], help="set a knob in both, as for `hvscale launch`")
    return parser


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    options = parser.parse_args()
    options.ranks = options.ranks or (options.nodes if options.placement == "netns" else 4)
    return options


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("collectives", type=Path, metavar="TABLE")
    options = parse_options(parser)
    tables = {LIBRARY: None, TABLE: options.collectives}
    print_comparison(measure_tables(options, tables), options, tables)


if __name__ == "__main__":
    main()
