"""The HTML report of one run, or of two runs before and after."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from pydantic import BaseModel, ConfigDict

from hvscale.core.documents import from_json
from hvscale.core.errors import RequestError
from hvscale.core.files import read_bytes
from hvscale.core.run_folder import RunFolder, write_text
from hvscale.core.units import human_bytes, human_range, human_seconds, human_share
from hvscale.profiling.analyze.breakdown import Breakdown, tabulate
from hvscale.profiling.analyze.explanation import ExplainedBreakdown, explain, join
from hvscale.profiling.analyze.exposed import ExposedCommunication
from hvscale.profiling.analyze.grouping import Bins, parse_bins
from hvscale.profiling.compare import Comparison, Gain, ProfiledRun, compare_profiled_runs, read_profiled_run
from hvscale.report.page import render_page
from hvscale.studies.run_report.compare_tables import human_calls, human_gain, human_interval, human_verdict
from hvscale.studies.run_report.explanation_tables import (
    clock_sentence,
    exposed_words,
    fusion_sentence,
    human_between,
    matched_words,
    phase_seconds,
    tensors_sentence,
    waiting_name,
)
from hvscale.studies.run_report.figures import (
    breakdown_figures,
    comparison_figures,
    exposed_figure,
    phases_figure,
    timeline_caption,
    timeline_figures,
)
from hvscale.studies.run_report.predictions import PredictionLink, prediction_links

FILTERS: dict[str, Callable[..., Any]] = {
    "seconds": human_seconds,
    "bytes": human_bytes,
    "calls": human_calls,
    "gain": human_gain,
    "interval": human_interval,
    "share": human_share,
    "exposed": exposed_words,
    "fusion": fusion_sentence,
    "tensors": tensors_sentence,
    "matched": matched_words,
    "clocks": clock_sentence,
    "phase_seconds": phase_seconds,
    "waiting_name": waiting_name,
    "sentence": lambda text: f"{text[:1].upper()}{text[1:]}.",
}


@dataclass
class View:
    """A run with everything that its part of the page shows."""

    title: str
    recorded: ProfiledRun
    breakdown: ExplainedBreakdown
    result: dict[str, Any]
    picture: str | None  # a data URL
    predictions: Sequence[PredictionLink] = ()


def report(runs: list[RunFolder], bins: str = "study", path: Path | None = None) -> str:
    """The HTML page of one or two runs. `path`: where it will be written; its links need it.

    Raises RequestError for more runs, an unreadable run, or two runs that did different work.
    """
    if len(runs) not in (1, 2):
        raise RequestError(f"give one run, or two runs to compare, not {len(runs)}")
    ranges = parse_bins(bins)
    folder = (path or report_path(runs)).parent
    return render([_view(run, ranges, folder) for run in runs], ranges)


def render(views: list[View], ranges: Bins) -> str:
    """The page of one or two views. Raises RequestError if two runs did different work."""
    comparison = None
    if len(views) == 2:
        comparison = compare_profiled_runs(views[0].recorded, views[1].recorded, ranges)
        for view, title in zip(views, ("before", "after"), strict=True):
            view.title = title
    return render_page(
        "report.html.j2",
        _figures(views, comparison),
        filters=FILTERS,
        views=views,
        comparison=comparison,
        headlines=_headlines(views, comparison),
        sentence=_sentence(views[-1].breakdown, comparison),
        timelines=[timeline_caption(view.recorded) for view in views],
        settings=_settings(views),
        warnings=_warnings(views, comparison),
        human_range=human_range,
        verdict=human_verdict,
    )


def write_report(runs: list[RunFolder], path: Path, bins: str = "study") -> None:
    """Write the report. Raises as `report`, and RequestError if `path` cannot be written."""
    page = report(runs, bins, path)
    try:
        write_text(path, page)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def report_path(runs: list[RunFolder]) -> Path:
    """The default path of a report, in the folder of the last run."""
    return runs[-1].path / ("report.html" if len(runs) == 1 else "comparison.html")


def _view(run: RunFolder, bins: Bins, folder: Path) -> View:
    recorded = read_profiled_run(run, detail=True)
    breakdown = join(tabulate(recorded.recording, bins, str(run.path)), explain(run, recorded.recording))
    try:
        result = _result(run)
    except ValueError:
        result = {}
        breakdown.warnings.append(f"{run.path / 'result.json'} is not a result of hvscale train, so it is ignored")
    predictions = prediction_links(run, folder)
    return View(run.path.resolve().name, recorded, breakdown, result, _picture(run), predictions)


class _Result(BaseModel):
    """The fields shown from result.json, which any program may have written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=())

    images_per_second: float | None = None
    psnr_db: float | None = None
    bicubic_psnr_db: float | None = None
    holdout: str | None = None
    model: str | None = None
    precision: str | None = None
    memory_format: str | None = None
    threads_per_rank: int | None = None


def _result(run: RunFolder) -> dict[str, Any]:
    """The fields of the trainer's result.json, or {}. Raises ValueError if it is damaged."""
    try:
        content = read_bytes(run.path / "result.json")
    except OSError:
        return {}
    return from_json(_Result, content).model_dump(exclude_none=True)


def _picture(run: RunFolder) -> str | None:
    try:
        return "data:image/png;base64," + base64.b64encode(read_bytes(run.path / "picture.png")).decode()
    except OSError:
        return None


def _headlines(views: list[View], comparison: Comparison | None) -> list[tuple[str, str, str]]:
    """Value, name and remark of each headline figure."""
    found = []
    if comparison is not None:
        found.append(_gain_headline(comparison.total, f"communication time per {comparison.per}"))
        if comparison.step is not None:
            found.append(_gain_headline(comparison.step, "time of a step"))
    else:
        found += _communication_headlines(views[0].recorded, views[0].breakdown.exposed_communication)
    speeds = [view.result.get("images_per_second") for view in views]
    if all(isinstance(speed, int | float) for speed in speeds):
        before = f"before: {speeds[0]:.1f}" if comparison else "all ranks together"
        found.append((f"{speeds[-1]:.1f}", "images per second", before))
    last = views[-1].result
    if all(isinstance(last.get(name), int | float) for name in ("psnr_db", "bicubic_psnr_db")):
        over = f"{last['psnr_db'] - last['bicubic_psnr_db']:+.2f} dB over bicubic, on {last.get('holdout', 'the held-out photo')}"
        found.append((f"{last['psnr_db']:.2f} dB", "PSNR", over))
    return found


def _gain_headline(gain: Gain, what: str) -> tuple[str, str, str]:
    times = f"{human_seconds(gain.seconds_before)} before, {human_seconds(gain.seconds_after)} after"
    if gain.gain_percent is None:
        return "-", what, times
    percent = abs(gain.gain_percent)
    figure = (
        "no difference"
        if gain.verdict == "no difference"
        else f"{percent:.0f} % {'less' if gain.gain_percent > 0 else 'more'}"
    )
    return figure, what, f"{times}; 95 % interval of the gain: {human_interval(gain)} %"


def _communication_headlines(run: ProfiledRun, exposed: ExposedCommunication | None) -> list[tuple[str, str, str]]:
    events, ranks = run.recording.events, len(run.recording.ranks)
    edges = run.edges_ns
    if edges is None:
        seconds = float(events.duration_ns.sum()) / 1e9 / ranks
        return [(human_seconds(seconds), "in collectives, per rank", "over the whole run, mean over ranks")]
    inside = (events.start_ns >= edges[0]) & (events.start_ns < edges[-1])
    seconds = float(events.duration_ns[inside].sum()) / 1e9 / ranks / (len(edges) - 1)
    step = float(np.diff(edges).mean()) / 1e9
    found = [
        (human_seconds(step), "a step", f"mean of {len(edges) - 1} steps"),
        (
            human_seconds(seconds),
            "in collectives, per step and rank",
            f"{seconds / step:.0%} of the step, overlapped with computation or not",
        ),
    ]
    if exposed is not None:
        share = human_between(exposed.mean_share_at_least, exposed.mean_share_at_most)
        basis = "measured by the program" if exposed.basis == "measured" else "bounds from the calls"
        found.append((f"{share} %", "of a step is exposed communication", basis))
    return found


def _sentence(breakdown: Breakdown, comparison: Comparison | None) -> str:
    """One sentence with the largest consumers, or the largest change."""
    if comparison is not None:
        saved = max(comparison.rows, key=lambda row: abs(row.seconds_before - row.seconds_after))
        change = saved.seconds_after - saved.seconds_before
        return (
            f"The largest change is in {saved.operation} of {human_range(saved.bytes_min, saved.bytes_max)}: "
            f"{human_seconds(abs(change))} {'more' if change > 0 else 'less'} per {comparison.per}, summed over ranks."
        )
    first, *rest = sorted(breakdown.rows, key=lambda row: -row.seconds)[:2]
    text = (
        f"Most time goes into {first.operation} of {human_range(first.bytes_min, first.bytes_max)}: {first.share:.0%}"
    )
    for row in rest:
        text += f", then {row.operation} of {human_range(row.bytes_min, row.bytes_max)}: {row.share:.0%}"
    coordination = sum(row.bitwise_seconds for row in breakdown.rows) / (
        sum(row.seconds for row in breakdown.rows) or 1
    )
    if coordination >= 0.005:
        text += f". {coordination:.0%} of all time is coordination: Horovod's ranks agree by bitwise reductions on what to send next, and wait"
    return text + "."


def _figures(views: list[View], comparison: Comparison | None) -> dict[str, go.Figure]:
    """All figures, by the id of the page's element."""
    figures = breakdown_figures(views[0].breakdown) if comparison is None else comparison_figures(comparison)
    figures |= timeline_figures([view.recorded for view in views])
    for number, view in enumerate(views):
        if view.breakdown.horovod_phases is not None:
            figures[f"phases-{number}"] = phases_figure(view.breakdown.horovod_phases)
        if view.breakdown.exposed_communication is not None:
            figures[f"exposed-{number}"] = exposed_figure(view.breakdown.exposed_communication)
    return figures


def _warnings(views: list[View], comparison: Comparison | None) -> list[str]:
    """The warnings, each once. A comparison repeats some warnings of its runs."""
    if comparison is None:
        return views[0].breakdown.warnings
    of_runs = [f"{view.recorded.path}: {text}" for view in views for text in view.breakdown.warnings]
    return list(dict.fromkeys([*comparison.warnings, *of_runs]))


def _settings(views: list[View]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """For each heading the names, each with its value in every run."""
    columns = [_settings_of(view) for view in views]
    found = []
    for heading in columns[0]:
        names = list(dict.fromkeys(name for column in columns for name in column[heading]))
        found.append((heading, [(name, [column[heading].get(name, "-") for column in columns]) for name in names]))
    return [(heading, rows) for heading, rows in found if rows]


def _settings_of(view: View) -> dict[str, dict[str, str]]:
    record, host = view.recorded.record, view.recorded.record.host
    ended = {"ended": f"{record.ended_at:%Y-%m-%d %H:%M:%S} UTC"} if record.ended_at else {}
    trained = ("model", "precision", "memory_format", "threads_per_rank")
    return {
        "Run": {
            "folder": view.recorded.path,
            "command": " ".join(record.command),
            "np": str(record.np),
            "library": record.measured_library.name,
            "placement": record.placement,
            "recorded by": view.recorded.recording.source,
            "state": record.state,
            "started": f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC",
            **ended,
            **{name.replace("_", " "): str(view.result[name]) for name in trained if name in view.result},
        },
        "Settings": {**record.env_asked, **_without_own_variables(record.rank_environment)},
        "Versions": record.versions,
        "Host": {
            "name": host.name,
            "processor": host.cpu,
            "cores": str(host.cores),
            "memory": human_bytes(host.memory_bytes),
            "kernel": host.kernel,
            **({"GPUs": ", ".join(host.gpus)} if host.gpus else {}),
        },
    }


def _without_own_variables(environment: dict[str, str]) -> dict[str, str]:
    """The environment without the variables that hvscale sets."""
    ours = (
        "LD_PRELOAD",
        "HVSCALE_INIT_MARKER",
        "ASAN_OPTIONS",
        "HVPROF_DIRECTORY",
        "HOROVOD_TIMELINE",
        "NCCL_PROFILER_PLUGIN",
    )
    return {name: value for name, value in environment.items() if name not in ours}
