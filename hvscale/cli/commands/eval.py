"""`hvscale eval`."""

import functools
from typing import TYPE_CHECKING

import typer

from hvscale.cli.app import Csv, Json, new_app
from hvscale.cli.console import print_document, print_message, print_table, results
from hvscale.cli.model_options import config_command
from hvscale.report.csv_file import write_csv
from hvscale.trainer.config import checked
from hvscale.trainer.inference.config import EvalConfig

if TYPE_CHECKING:
    from hvscale.trainer.inference.evaluate import EvalResult

app = new_app()


@app.command(cls=config_command(EvalConfig, functools.partial(checked, EvalConfig), argument="weights"))
def evaluate(context: typer.Context, json: Json = False, csv: Csv = None) -> None:
    """Evaluate a trained model: PSNR and SSIM, or top-1 and top-5.

    Under `hvscale launch` the ranks share the images.

    Example: `hvscale eval runs/20261121T001530Z-edsr-baseline --data DIV2K --images 801-900`
    """
    from hvscale.trainer.inference.evaluate import evaluate_trained
    from hvscale.trainer.ranks import started_as_rank_zero

    result = evaluate_trained(context.obj)
    if started_as_rank_zero():
        print_document(
            result,
            json,
            csv,
            write_csv=lambda result, path: write_csv(path, result.rows()),
            show=print_evaluation,
        )


def print_evaluation(result: "EvalResult") -> None:
    if result.top1 is not None and result.top5 is not None:
        results().print(
            f"{result.model}: top-1 {result.top1:.2%}, top-5 {result.top5:.2%} of {result.image_count} images"
        )
        return
    rows = [
        [row.name, decibels(row.psnr_db), f"{row.ssim:.4f}", decibels(row.bicubic_psnr_db), f"{row.bicubic_ssim:.4f}"]
        for row in result.images
    ]
    equal = len(result.images) == 1
    mean = [
        "mean",
        decibels(result.psnr_db, equal),
        f"{result.ssim:.4f}",
        decibels(result.bicubic_psnr_db, equal),
        f"{result.bicubic_ssim:.4f}",
    ]
    print_table(["image", "PSNR dB", "SSIM", "bicubic dB", "bicubic SSIM"], [*rows, mean])
    channels = "luma" if result.measure == "luma" else "RGB"
    print_message(f"{result.model} x{result.scale} on {result.data}: {channels}, {result.shave_pixels} pixels shaved")


def decibels(value: float | None, equal: bool = True) -> str:
    """The value; None, an infinite one, is that of equal images or a mean that includes some."""
    if value is None:
        return "equal" if equal else "infinite"
    return f"{value:.2f}"
