"""`hvscale data`: make and check images before training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hvscale.cli.app import Csv, Json, new_app
from hvscale.cli.console import messages, print_json, print_message, print_table, results
from hvscale.cli.model_options import check_csv
from hvscale.core.errors import EXIT_WRONG_REQUEST, RequestError
from hvscale.core.numbers import SmallCount, limits
from hvscale.report.csv_file import write_csv

app = new_app("Make and check images before training.")


@app.command("make-lr")
def make_lr(
    hr: Annotated[Path, typer.Argument(metavar="HR", help="Folder of high-resolution images.")],
    scale: Annotated[
        str,
        typer.Option(
            metavar="SCALES", help="Make images for these scale factors, separated by commas: any of 2, 3, 4."
        ),
    ] = "2,3,4",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write X2, X3 and X4 to this folder. [default: DIV2K_train_LR_bicubic for DIV2K_train_HR]",
        ),
    ] = None,
) -> None:
    """Make low-resolution images like MATLAB's imresize (bicubic, antialiased), named as in DIV2K.

    Example: `hvscale data make-lr DIV2K/DIV2K_train_HR --scale 2`
    """
    from hvscale.trainer.data.make_lr import default_output
    from hvscale.trainer.data.make_lr import make_lr as make

    scales = scale.split(",")
    if not set(scales) <= {"2", "3", "4"}:
        raise RequestError(f"--scale {scale}: expected any of 2, 3, 4, separated by commas")
    folder = output or default_output(hr)
    with image_counter("making") as count_image:
        made, kept = make(hr, folder, sorted({int(each) for each in scales}), count_image)
    print_message(
        f"made {made} image{'' if made == 1 else 's'} in {folder}" + (f", {kept} already existed" if kept else "")
    )


@app.command()
def check(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="DIV2K, a benchmark set, a folder of images, or a folder of classes.")
    ],
    patch_size: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            help="Set the width and height of the low-resolution patches that training cuts, in pixels. [default: 48]",
            **limits(SmallCount),
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """Find truncated, missing, mismatched, grey, 16-bit or too small images; exit status 2 if any.

    Example: `hvscale data check DIV2K`
    """
    from hvscale.trainer.data.check import Problem
    from hvscale.trainer.data.check import check as check_images

    if csv is not None:
        check_csv(csv, None)
    with image_counter("checking") as count_image:
        report = check_images(str(data), patch_size, count_image)
    if json:
        print_json(report)
    elif report.problems:
        print_table(
            ["problem", "file", "detail"], [[found.kind, str(found.file), found.detail] for found in report.problems]
        )
    else:
        results().print(f"{report.images} images, all good")
    if report.problems:
        print_message(f"{len(report.problems)} problems in {report.images} images")
    if csv is not None:
        write_csv(csv, report.problems, list(Problem.model_fields))
    if report.problems:
        raise typer.Exit(EXIT_WRONG_REQUEST)


@contextmanager
def image_counter(what: str) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each image; on a terminal the count is shown."""
    if not messages().is_terminal:
        yield lambda: None
        return
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn

    from hvscale.core.plain_rich import PlainColumn

    columns = SpinnerColumn(), PlainColumn("{task.description}"), MofNCompleteColumn(), PlainColumn("images")
    with Progress(*columns, console=messages(), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda: progress.advance(task)
