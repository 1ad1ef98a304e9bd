"""How close a replay comes to the training that it was recorded from, at the same number of ranks.

Run it on an idle machine, as root for network namespaces: `python benchmarks/replay_accuracy.py`.
Each round records the training anew, and replays that recording right after it, with each --compute
in alternating order. The table shows the replay's errors against the steps that it repeated, as
`hvscale replay --json` reports them.

The number of messages depends on when Horovod's thread gets the core that it shares with the
rank's computation, which differs between trainings of one job. `--horovod-first` gives it a
real-time priority there, in training and replay, so that it runs as soon as it wakes. Where ranks
have several cores, `--threads` leaves it one.
"""

import argparse
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

HVSCALE = Path(sys.executable).with_name("hvscale")
# EDSR-baseline has 1.5 M parameters and steps of about 0.4 s; `small` has 0.05 M and 10 to 20 ms.
MODELS = {
    "edsr-baseline": ["edsr-baseline", "--batch-size", "8"],
    "small": ["edsr", "--n-resblocks", "4", "--n-feats", "24", "--batch-size", "2", "--patch-size", "24"],
}
STEPS = {"edsr-baseline": 40, "small": 400}
# Python imports it in every rank. Once Horovod has started its thread, the rank's own thread and
# those that it starts lose the priority of `chrt`.
SITE = """
import importlib.util, os, sys

class Demote:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "horovod.common.basics":
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_wrap(module):
            execute(module)
            init = module.HorovodBasics.init

            def init_and_demote(*arguments, **options):
                init(*arguments, **options)
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

            module.HorovodBasics.init = init_and_demote

        spec.loader.exec_module = execute_and_wrap
        return spec

if os.sched_getscheduler(0) == os.SCHED_RR:
    sys.meta_path.insert(0, Demote)
"""
FIRST_VARIABLE = "HOROVOD_FIRST_SITE"  # the folder of SITE
REAL_TIME = ("chrt", "--rr", "1")


def hvscale(*arguments: str) -> str:
    prefix = REAL_TIME if FIRST_VARIABLE in os.environ else ()
    done = subprocess.run([*prefix, str(HVSCALE), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"hvscale {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def placement(network: str, ranks: int) -> list[str]:
    nodes = ["--placement", "netns", "--nodes", str(ranks), "--link", network]
    return ["-np", str(ranks), *([] if network == "memory" else nodes)]


def error(document: dict[str, Any], name: str) -> float:
    """The percentage by which the replayed figure differs from the recorded one."""
    recorded, replayed = document["recorded"][name], document["replayed"][name]
    return float(100 * (replayed / recorded - 1)) if recorded and replayed is not None else float("nan")


def measure(options: argparse.Namespace, model: str, network: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    documents = defaultdict(list)
    for number in range(options.rounds):
        start = placement(network, options.np)
        run = folder / f"{model}-{network}-{number}"
        threads = [] if options.threads is None else ["--threads", str(options.threads)]
        training = ["hvscale", "train", *MODELS[model], "--steps", str(STEPS[model]), *threads]
        hvscale("profile", "--gradients", *start, "--run", str(run), "--json", "--", *training)
        for compute in options.compute[:: 1 if number % 2 == 0 else -1]:
            replayed = ("--run", f"{run}-{compute}", "--json", "--compute", compute)
            document = json.loads(hvscale("replay", str(run), *start[2:], *replayed))
            documents[compute].append(document)
            errors = {name: round(error(document, name), 1) for name in ("mean_seconds", "median_seconds", "messages")}
            print(f"{model}, {network}, {compute}: {errors} %, {document['recorded']}", file=sys.stderr, flush=True)
    return documents


def cell(values: list[float], sign: str = "+") -> str:
    return f"{np.median(values):{sign}.1f} ({min(values):{sign}.1f} to {max(values):{sign}.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--networks", nargs="+", default=["memory", "100mbit", "1gbit"], help="memory, or a link's rate"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--compute", nargs="+", choices=("auto", "sleep", "spin"), default=["auto"])
    parser.add_argument(
        "--threads", type=int, help="in which a rank computes; fewer than its cores leave one to Horovod"
    )
    parser.add_argument("--horovod-first", action="store_true")
    options = parser.parse_args()
    if options.horovod_first:
        site = Path(tempfile.mkdtemp(prefix="horovod-first-"))
        atexit.register(shutil.rmtree, site)
        (site / "sitecustomize.py").write_text(SITE)
        os.environ[FIRST_VARIABLE] = str(site)
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), *([others] if others else [])])
    table = Table(
        title=f"error of a replay at np {options.np}, %: median of {options.rounds} recordings (smallest to largest)",
        caption="messages: fused messages per rank and step; exposed: waiting in synchronize()",
    )
    figures = (
        "recorded step, ms",
        "mean step",
        "median step",
        "messages recorded",
        "messages",
        "exposed, ms",
        "replayed",
    )
    for name in ("model", "network", "compute", *figures):
        table.add_column(name, justify="left" if name in ("model", "network", "compute") else "right")
    for model in options.models:
        for network in options.networks:
            with tempfile.TemporaryDirectory() as folder:
                documents = measure(options, model, network, Path(folder))
            for compute, of_compute in documents.items():
                sides = {side: [one[side] for one in of_compute] for side in ("recorded", "replayed")}
                medians = {
                    (side, name): np.median([one[name] or np.nan for one in of_side])
                    for side, of_side in sides.items()
                    for name in ("mean_seconds", "messages", "exposed_seconds")
                }
                errors = [
                    cell([error(one, name) for one in of_compute])
                    for name in ("mean_seconds", "median_seconds", "messages")
                ]
                table.add_row(
                    *(model, network, compute, f"{1e3 * medians['recorded', 'mean_seconds']:.1f}", *errors[:2]),
                    # Two trainings differ too: messages depend on when ranks get their cores.
                    *(cell([one["messages"] or np.nan for one in sides["recorded"]], sign=""), errors[2]),
                    *(f"{1e3 * medians[side, 'exposed_seconds']:.1f}" for side in ("recorded", "replayed")),
                )
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
