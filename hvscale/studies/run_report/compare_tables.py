"""A comparison of two runs, as a table for the terminal and as a CSV file."""

from pathlib import Path

from pydantic import BaseModel
from rich.table import Table

from hvscale.core.units import human_range, human_seconds
from hvscale.profiling.compare import Comparison, ComparisonRow, Gain
from hvscale.report.csv_file import write_csv
from hvscale.report.tables import plain_table


def human_gain(gain: Gain) -> str:
    return "-" if gain.gain_percent is None else _percent(gain.gain_percent)


def human_interval(gain: Gain) -> str:
    if gain.gain_percent_low is None or gain.gain_percent_high is None:
        return "-"
    return f"{_percent(gain.gain_percent_low)} to {_percent(gain.gain_percent_high)}"


def _percent(percent: float) -> str:
    return f"{percent:+.1f}" if abs(percent) < 100 else f"{percent:+.0f}"


def human_verdict(gain: Gain) -> str:
    return {"no difference": "none", "unknown": "-"}.get(gain.verdict, gain.verdict)


def comparison_table(comparison: Comparison) -> Table:
    """The rows grouped by operation, and the total. About 80 columns wide."""
    result = plain_table(
        f"communication per {comparison.per}, np {comparison.np}\n"
        f"before: {_run(comparison.run_before, comparison.library_before)}\n"
        f"after:  {_run(comparison.run_after, comparison.library_after)}",
        "calls and times: summed over ranks; gain: time saved, with its 95 % interval over "
        + ("steps" if comparison.per == "step" else "blocks of calls")
        + "\nchange: less or more time, or none if the interval includes 0",
        *("size", "calls", "after", "before", "after", "gain %", "interval", "change"),
    )
    operation = ""
    for row in comparison.rows:
        if row.operation != operation:
            operation = row.operation
            result.add_row(operation, style="bold")
        result.add_row(f"  {human_range(row.bytes_min, row.bytes_max)}", *_cells(row))
    result.add_section()
    result.add_row("total", *_cells(comparison.total), style="bold")
    if comparison.step is not None:
        result.add_row("whole step", "", "", *_time_cells(comparison.step))
    return result


def _run(path: str, library: str) -> str:
    return f"{Path(path).name}, under {library}" if library else Path(path).name


def _cells(row: ComparisonRow) -> list[str]:
    return [human_calls(row.calls_before), human_calls(row.calls_after), *_time_cells(row)]


def _time_cells(gain: Gain) -> list[str]:
    seconds = [human_seconds(gain.seconds_before), human_seconds(gain.seconds_after)]
    return [*seconds, human_gain(gain), human_interval(gain), human_verdict(gain)]


def human_calls(calls: float) -> str:
    return f"{calls:.0f}" if calls >= 100 or calls == int(calls) else f"{calls:.3g}"


class WholeStep(Gain):
    """The row of the CSV file for the whole duration of a step, which has no sizes and calls."""

    operation: str = "whole step"


def write_comparison_csv(comparison: Comparison, path: Path) -> None:
    """Write the rows of the JSON document, the total and, if there are steps, the whole step.

    Raises RequestError if `path` cannot be written.
    """
    columns = ["operation", *(name for name in ComparisonRow.model_fields if name != "operation")]
    rows: list[BaseModel] = [*comparison.rows, comparison.total]
    if comparison.step is not None:
        rows.append(WholeStep(**dict(comparison.step)))
    write_csv(path, rows, columns)
