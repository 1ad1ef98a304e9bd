"""`hvscale report`."""

from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Bins, Ranks, new_app
from hvscale.cli.console import print_message, print_warning, progress_bar

app = new_app()


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folder, or two to compare: before, after.")],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write to this file. [default: report.html, or comparison.html for two runs, in the last RUN]",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a trace of the last RUN for ui.perfetto.dev too, with all ranks on one clock."
        ),
    ] = None,
    ranks: Ranks = None,
    bins: Bins = "study",
) -> None:
    """Write an HTML page about a run's communication, or about the difference of two runs.

    The page works offline. It links the predictions that `hvscale predict` made from the run and
    that lie beside it. For more than 8 ranks it shows how they differ, and the ranks to look at
    first instead of all.

    Example: `hvscale report runs/default runs/tuned`
    """
    from hvscale.core.documents import require_no_document
    from hvscale.core.errors import RequestError, UntrustedError
    from hvscale.core.run_folder import RunFolder
    from hvscale.studies.run_report.page import report_path, write_report
    from hvscale.studies.run_report.trace import write_trace

    if ranks is not None and trace is None:
        raise RequestError("--ranks chooses the ranks of a trace: give --trace FILE too")
    folders = [RunFolder.open(run) for run in runs]
    page = output or report_path(folders)
    for file in filter(None, (page, trace)):
        require_no_document(file)
    if trace is not None and trace.absolute() == page.absolute():
        raise RequestError(f"--trace {trace}: the page is written to this file: give another one")
    with progress_bar():
        incomplete = write_report(folders, page, bins)
        left_out = write_trace(folders[-1], trace, ranks) if trace is not None else None
    if left_out is not None:
        print_warning(left_out)
    print_message(f"report: {page}")
    if trace is not None:
        print_message(f"trace of {folders[-1].path}: {trace}")
    if incomplete:
        raise UntrustedError(f"the report cannot be trusted because a profile is incomplete: {'; '.join(incomplete)}")
