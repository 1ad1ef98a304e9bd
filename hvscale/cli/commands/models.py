"""`hvscale models`: the models and their cost."""

from typing import TYPE_CHECKING, Annotated

import typer

from hvscale.cli.app import Csv, Json, new_app
from hvscale.cli.console import print_document, print_table, results, spinner
from hvscale.report.csv_file import write_csv

if TYPE_CHECKING:
    from hvscale.models.cost import ModelTable

app = new_app()


@app.command()
def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Models to show: also torchvision's classifiers, or your package.module:function.",
        ),
    ] = None,
    json: Json = False,
    csv: Csv = None,
) -> None:
    """List models with their parameters, FLOPs and gradients per step.

    Example: `hvscale models edsr-baseline densenet121`
    """
    from hvscale import models as known
    from hvscale.models.cost import ModelTable, model_rows

    with spinner("building the models"):
        found = ModelTable(models=[row for name in names or known.names() for row in model_rows(name)])
    print_document(
        found, json, csv, write_csv=lambda document, path: write_csv(path, document.models), show=print_models
    )
    if not json and not names:
        results().print(
            "also: torchvision's other classification models, and your own as package.module:function", style="dim"
        )


def print_models(table: "ModelTable") -> None:
    from hvscale.core.units import human_bytes

    print_table(
        ["model", "scale", "input", "parameters", "GFLOPs", "gradients", "tensors"],
        [
            [
                row.name,
                f"x{row.scale}" if row.scale else "",
                f"{row.input_width}x{row.input_width}",
                f"{row.parameters:,}",
                f"{row.forward_flops / 1e9:.2f}",
                human_bytes(row.gradient_bytes),
                str(row.gradient_tensors),
            ]
            for row in table.models
        ],
    )
    results().print("GFLOPs: one forward pass of one image; a multiply-add counts as two", style="dim")
