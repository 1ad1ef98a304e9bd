"""`hvscale trace`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Ranks, RunArgument, new_app
from hvscale.cli.console import print_message, print_warnings, progress_bar

app = new_app()


@app.command()
def trace(
    run: RunArgument,
    chakra: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Write a Chakra execution trace: FILE.0.et for rank 0, FILE.1.et for rank 1, and so on.",
        ),
    ],
    steps: Annotated[
        str | None,
        typer.Option(metavar="N|N-M", help="Write only this step, or range of steps. [default: all recorded steps]"),
    ] = None,
    ranks: Ranks = None,
) -> None:
    """Export a recorded job's computation and all-reduces for simulators such as ASTRA-sim.

    For a trace of the messages for ui.perfetto.dev, use `hvscale report RUN --trace FILE`, which
    takes `--ranks` too.

    Example: `hvscale trace runs/edsr --chakra edsr --steps 1-10`
    """
    from hvscale.core.numbers import choose_ranks, parse_rank_list
    from hvscale.core.run_folder import RunFolder
    from hvscale.prediction.chakra import parse_steps, write_chakra
    from hvscale.profiling.analyze.messages import other_data_warnings, read_job_schedule

    wanted = None if ranks is None else parse_rank_list(ranks)
    folder = RunFolder.open(run)
    with progress_bar():
        gradients = read_job_schedule(folder, wanted)
    chosen = parse_steps(steps, gradients.numbers)
    recorded = gradients.recorded
    chosen_ranks = choose_ranks(ranks, recorded)
    print_warnings([*gradients.warnings, *other_data_warnings(folder, gradients)])
    paths = write_chakra(gradients, chosen, chakra, str(run), chosen_ranks)
    missing = gradients.size - len(recorded)
    if missing:
        print_warnings([f"{missing} of {gradients.size} ranks were not recorded, so they have no file"])
    kind = "messages" if gradients.basis else "gradients"
    print_message(f"trace: {paths[0]} to {paths[-1]}, {len(chosen)} steps of {len(gradients.tensors)} {kind}")
