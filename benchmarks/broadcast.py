"""Our broadcast, by a decision table, against the MPI library's own, and against the wire.

`python benchmarks/broadcast.py --placement netns --nodes 4 --link 1gbit`, which takes root, or `--placement host --ranks 4` within this machine.
Without --collectives TABLE the table is made first: for each size the choice that was fastest, or the library where none is clearly faster.
Then the library's broadcast and the table's are timed in turns in one job, so that what the machine does meanwhile meets both. --set is as for
`hvscale launch`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from hvscale.bench.sizes import parse_size
from hvscale.comm_tuning.collectives_table import CollectivesTable, Rule, read_table
from hvscale.launch.link import bits_per_second

HVSCALE = Path(sys.executable).with_name("hvscale")
RANK = Path(__file__).with_name("broadcast_rank.py")
SIZES = "4K,16K,64K,256K,1M,4M,16M,64M"
WHOLE = 1 << 30  # one chunk, however large the message
# A rule is only made where it is so much faster than the library when the table is made: it should never be slower afterwards.
CLEARLY = 0.9


def choices(ranks_per_node: int) -> list[dict[str, Any]]:
    """What is tried: the library first."""
    found: list[dict[str, Any]] = [{"algorithm": "library"}]
    for chunk in (4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10):
        found += [{"algorithm": "chain", "chunk": chunk, "depth": depth} for depth in (4, 16)]
    found += [{"algorithm": "flat", "chunk": chunk, "depth": 4} for chunk in (32 << 10, WHOLE)]
    found += [
        {"algorithm": "k-nomial", "chunk": chunk, "depth": 4, "radix": radix}
        for chunk in (32 << 10, WHOLE)
        for radix in (2, 4)
    ]
    if ranks_per_node > 1:
        found += [
            {"algorithm": "two-level", "chunk": chunk, "depth": 8}
            for chunk in (8 << 10, 32 << 10, 128 << 10, 512 << 10)
        ]
    return found


def rules(found: list[dict[str, Any]], sizes: list[int], np_: int, ranks_per_node: int) -> list[Rule]:
    """For each size the fastest choice; a size's range ends halfway, as a ratio, to the next."""
    made = []
    for number, size in enumerate(sizes):
        of_size = [one for one in found if one["bytes"] == size]
        library = of_size[0]["seconds"]
        best = min(of_size, key=lambda one: one["seconds"])
        choice = best["choice"] if best["seconds"] < CLEARLY * library else of_size[0]["choice"]
        first = round((sizes[number - 1] * size) ** 0.5) if number else size
        last = round((sizes[number + 1] * size) ** 0.5) - 1 if number + 1 < len(sizes) else None
        fields = {"chunk_bytes": choice.get("chunk"), "depth": choice.get("depth"), "radix": choice.get("radix")}
        made.append(
            Rule(
                np=np_,
                ranks_per_node=ranks_per_node,
                bytes_min=first,
                bytes_max=last,
                algorithm=choice["algorithm"],
                **{name: value for name, value in fields.items() if value is not None},
            )
        )
    return made


class Jobs:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder, self.count = options, folder, 0

    def answer(self, request: dict[str, Any], *more: str) -> list[dict[str, Any]]:
        """What the ranks of a job say to a request. Ends the benchmark where they fail."""
        self.count += 1
        asked, answered = (self.folder / f"{name}-{self.count}.json" for name in ("request", "answer"))
        asked.write_text(json.dumps(request))
        options = self.options
        where = ["--placement", options.placement]
        if options.placement == "netns":
            where += ["--nodes", str(options.nodes), "--link", options.link]
        where += [word for setting in options.set for word in ("--set", setting)]
        words = [str(HVSCALE), "launch", "-np", str(options.ranks), "--mpi", options.mpi, *where, *more]
        run = [
            "--run",
            str(self.folder / f"run-{self.count}"),
            "--",
            sys.executable,
            str(RANK),
            str(asked),
            str(answered),
        ]
        done = subprocess.run([*words, *run], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        for line in done.stderr.splitlines():
            if "hvbcast: " in line:
                print(line, file=sys.stderr)
        found: list[dict[str, Any]] = json.loads(answered.read_text())
        return found


def show(found: list[dict[str, Any]], table: CollectivesTable, link: str | None, title: str) -> None:
    shown = Table(title=title)
    for name in (
        "bytes",
        "takes",
        "library, ms",
        "table, ms",
        "times faster",
        "95 % interval",
        *(["times the wire"] if link else []),
    ):
        shown.add_column(name, justify="left" if name == "takes" else "right")
    gains = []
    for one in found:
        size, seconds = one["bytes"], {name: np.array(values) for name, values in one["seconds"].items()}
        ratio = seconds["library"] / seconds["table"]
        low, high = stats.bootstrap((ratio,), np.median, random_state=0).confidence_interval
        gains.append(float(np.median(ratio)))
        rule = next((rule for rule in table.rule if rule.bytes_min <= size <= rule.last), None)
        takes = (
            "library"
            if rule is None
            else " ".join(str(getattr(rule, name)) for name in ("algorithm", *rule.own_fields))
        )
        row = [str(size), takes, *(f"{1e3 * np.median(seconds[name]):.3f}" for name in ("library", "table"))]
        row += [f"{np.median(ratio):.2f}", f"{low:.2f} to {high:.2f}"]
        if link:
            row.append(f"{np.median(seconds['table']) / (size * 8 / bits_per_second(link)):.2f}")
        shown.add_row(*row)
    Console(width=140).print(shown)
    print(f"geometric mean: {np.exp(np.mean(np.log(gains))):.2f} times faster; least {min(gains):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--placement", choices=("host", "netns"), default="host")
    parser.add_argument("--mpi", default="openmpi")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, help="as many as nodes where there are nodes, else 4")
    parser.add_argument("--link", default="1gbit")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--collectives", type=Path, help="the table, in place of one made here")
    parser.add_argument("--write", type=Path, help="where the table that is made here goes")
    options = parser.parse_args()
    on_nodes = options.placement == "netns"
    options.ranks = options.ranks or (options.nodes if on_nodes else 4)
    ranks_per_node = -(-options.ranks // options.nodes) if on_nodes else options.ranks
    sizes = sorted(parse_size("--sizes", word) for word in options.sizes.split(","))
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(options, Path(folder))
        if options.collectives is None:
            found = jobs.answer({"find": {"sizes": sizes, "choices": choices(ranks_per_node)}})
            table = CollectivesTable(mpi=options.mpi, rule=rules(found, sizes, options.ranks, ranks_per_node))
            path = options.write or Path(folder) / "table.toml"
            path.write_text(table.toml())
        else:
            path, table = options.collectives, read_table(options.collectives)
        compared = jobs.answer(
            {"compare": {"sizes": sizes, "rounds": options.rounds}}, "--collectives", str(path.absolute())
        )
    place = f"{options.nodes} nodes of {options.link}" if on_nodes else "one node"
    show(
        compared,
        table,
        options.link if on_nodes else None,
        f"broadcast, {options.ranks} ranks of {options.mpi} on {place}",
    )


if __name__ == "__main__":
    main()
