"""A comparison for people: a table for the terminal, and a CSV file."""

import csv
import io
from pathlib import Path

from rich import box
from rich.table import Table

from hvscale.errors import RequestError
from hvscale.profiling.compare import Comparison, ComparisonRow, Gain
from hvscale.profiling.output import human_range, human_seconds
from hvscale.run_folder import write_atomically


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
    result = Table(
        title=f"communication per {comparison.per}, np {comparison.np}\n"
        f"before: {Path(comparison.run_before).name}\nafter:  {Path(comparison.run_after).name}",
        caption="calls and times: summed over ranks; gain: time saved, with its 95 % interval over "
        + ("steps" if comparison.per == "step" else "blocks of calls")
        + "\nchange: less or more time, or none that the interval shows",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    result.add_column("size", no_wrap=True)
    for name in ("calls", "after", "before", "after", "gain %", "interval"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("change", no_wrap=True)
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


def _cells(row: ComparisonRow) -> list[str]:
    return [human_calls(row.calls_before), human_calls(row.calls_after), *_time_cells(row)]


def _time_cells(gain: Gain) -> list[str]:
    seconds = [human_seconds(gain.seconds_before), human_seconds(gain.seconds_after)]
    return [*seconds, human_gain(gain), human_interval(gain), human_verdict(gain)]


def human_calls(calls: float) -> str:
    return f"{calls:.0f}" if calls >= 100 or calls == int(calls) else f"{calls:.3g}"


def write_comparison_csv(comparison: Comparison, path: Path) -> None:
    """The columns of the JSON document's rows, and the total. Raises RequestError when `path` cannot be written."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["operation", *(name for name in ComparisonRow.model_fields if name != "operation")])
    writer.writeheader()
    writer.writerows(row.model_dump() for row in (*comparison.rows, comparison.total))
    try:
        write_atomically(path, lambda stream: stream.write(text.getvalue().encode()))
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
