"""The Plotly figures of a report."""

import html
from statistics import fmean
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hvscale.core.units import human_bytes, human_range, human_seconds
from hvscale.profiling.analyze.breakdown import Breakdown
from hvscale.profiling.analyze.exposed import ExposedCommunication
from hvscale.profiling.analyze.horovod_phases import HorovodPhases
from hvscale.profiling.compare import Comparison, ProfiledRun, median_step
from hvscale.profiling.read.events import BLOCK, PHASES
from hvscale.profiling.read.passes import between
from hvscale.report.figures import BLUE, COLOURS, GREEN, GREY, INK, PINK, SKY, YELLOW, style, style_bars
from hvscale.report.figures import colour as colour_of
from hvscale.studies.run_report.compare_tables import human_calls
from hvscale.studies.run_report.explanation_tables import phase_seconds

TIMELINE_BARS = 4000  # more slow a browser down; the shortest are left out
TIMELINE_CALLS = 400  # shown if the steps of a run are unknown
MAX_MARKERS = 100  # steps; up to this number each one gets a dot
STEP_POINTS = 1000  # of a line over steps; more steps are averaged
TIME_UNITS = (("seconds", 1.0), ("milliseconds", 1e3), ("microseconds", 1e6))
CHART_ROWS = 14  # bars; the table shows all rows
PHASE_COLOURS = dict(zip(PHASES, (PINK, YELLOW, SKY, BLUE, GREEN, GREY), strict=True))


def breakdown_figures(breakdown: Breakdown) -> dict[str, go.Figure]:
    """Time and calls by message size, by the id of the page's element."""
    rows = sorted(breakdown.rows, key=lambda row: -row.seconds)[:CHART_ROWS]
    labels = [_label(row) for row in rows]
    coordination = [row.bitwise_seconds for row in rows]
    data = [row.seconds - row.bitwise_seconds for row in rows]
    seconds = {"data": (data, BLUE), "coordination": (coordination, GREY)}
    calls = {
        "data": ([float(row.calls - row.bitwise_calls) for row in rows], BLUE),
        "coordination": ([float(row.bitwise_calls) for row in rows], GREY),
    }
    if not any(coordination):
        seconds, calls = {"data": seconds["data"]}, {"data": calls["data"]}
    return {
        "seconds": _time_bars(labels, seconds, ", all ranks", stacked=True),
        "calls": _bars(labels, calls, "calls, all ranks", human_calls, stacked=True),
    }


def comparison_figures(comparison: Comparison) -> dict[str, go.Figure]:
    """Time and calls by message size, before and after, by the id of the page's element."""
    rows = sorted(comparison.rows, key=lambda row: -max(row.seconds_before, row.seconds_after))[:CHART_ROWS]
    labels = [_label(row) for row in rows]
    seconds = {
        "before": ([row.seconds_before for row in rows], GREY),
        "after": ([row.seconds_after for row in rows], BLUE),
    }
    calls = {
        "before": ([row.calls_before for row in rows], GREY),
        "after": ([row.calls_after for row in rows], BLUE),
    }
    per = f"per {comparison.per}, all ranks"
    return {
        "seconds": _time_bars(labels, seconds, f" {per}", stacked=False),
        "calls": _bars(labels, calls, f"calls {per}", human_calls, stacked=False),
    }


def timeline_figures(runs: list[ProfiledRun], ranks: list[dict[int, str]]) -> dict[str, go.Figure]:
    """The timeline of a step of each run with single calls, on axes of the same length. `ranks`:
    for each run, those that are shown, with their labels.
    """
    windows = {
        number: _timeline_window(run, list(shown))
        for number, (run, shown) in enumerate(zip(runs, ranks, strict=True))
        if run.recording.has_calls
    }
    widest = max((end - start for start, end in windows.values()), default=0) / 1e6
    return {
        f"timeline-{number}": _timeline(runs[number], ranks[number], *window, widest)
        for number, window in windows.items()
    }


def phases_figure(phases: HorovodPhases) -> go.Figure:
    """A bar for each of Horovod's operations, split into its phases."""
    spent = {row.operation: dict(zip(PHASES, phase_seconds(row), strict=True)) for row in phases.operations}
    series = {
        phase.replace("_", " "): ([seconds[phase] for seconds in spent.values()], colour)
        for phase, colour in PHASE_COLOURS.items()
        if any(seconds[phase] for seconds in spent.values())
    }
    return _time_bars([html.escape(name) for name in spent], series, ", rank 0", stacked=True)


def exposed_figure(exposed: ExposedCommunication) -> go.Figure:
    """Each step's time, and the bounds of its exposed communication."""
    size = -(-len(exposed.steps) // STEP_POINTS)
    points = [exposed.steps[first : first + size] for first in range(0, len(exposed.steps), size or 1)]
    steps = [point[0].step for point in points]
    most = [1e3 * fmean(row.exposed_seconds_at_most for row in point) for point in points]
    least = [1e3 * fmean(row.exposed_seconds_at_least for row in point) for point in points]
    lines = {"step": ([1e3 * fmean(row.seconds for row in point) for point in points], GREY), "exposed": (most, BLUE)}
    if most != least:
        lines = {"step": lines["step"], "exposed at most": (most, SKY), "exposed at least": (least, BLUE)}
    figure = go.Figure()
    for name, (values, colour) in lines.items():
        figure.add_scatter(
            name=name,
            x=steps,
            y=values,
            mode="lines+markers" if len(steps) <= MAX_MARKERS else "lines",
            line={"color": colour, "width": 1.5},
            hovertemplate=f"step %{{x}}<br>{name}: %{{y:.3f}} ms<extra></extra>",
        )
    style(figure, "step" if size < 2 else f"step, means of {size}", "ms", height=260)
    figure.update_yaxes(rangemode="tozero")
    return figure


def _label(row: Any) -> str:
    return html.escape(f"{row.operation} {human_range(row.bytes_min, row.bytes_max)}")


def _time_bars(labels: list[str], series: dict[str, tuple[list[float], str]], what: str, stacked: bool) -> go.Figure:
    """Bars of seconds. `what`: the axis title after the unit, in which numbers are short."""
    longest = max((value for values, _ in series.values() for value in values), default=0.0)
    unit, factor = next(((unit, factor) for unit, factor in TIME_UNITS if longest * factor >= 1), TIME_UNITS[-1])
    return _bars(labels, series, f"{unit}{what}", human_seconds, stacked, factor)


def _bars(
    labels: list[str],
    series: dict[str, tuple[list[float], str]],
    axis: str,
    human: Any,
    stacked: bool,
    factor: float = 1.0,
) -> go.Figure:
    """`factor`: from the values to the numbers of the axis."""
    figure = go.Figure()
    for name, (values, colour) in series.items():
        figure.add_bar(
            name=name,
            y=labels,
            x=[factor * value for value in values],
            orientation="h",
            marker_color=colour,
            customdata=[human(value) for value in values],
            hovertemplate=f"%{{y}}<br>{name}: %{{customdata}}<extra></extra>",
        )
    height = 110 + len(labels) * (30 if stacked else 42)
    style_bars(figure, axis, height)
    figure.update_layout(barmode="stack" if stacked else "group", showlegend=len(series) > 1)
    return figure


def _timeline_window(run: ProfiledRun, ranks: list[int]) -> tuple[int, int]:
    """Start and end in nanoseconds since 1970, of the median step. Without steps: of calls of
    `ranks` mid-run.
    """
    if run.edges_ns is not None:
        step = median_step(run.edges_ns)
        return int(run.edges_ns[step]), int(run.edges_ns[step + 1])
    part = next(part for part in run.recording.events.parts if part.rank in ranks and part.times()[:, 0].any())
    blocks = np.flatnonzero(part.times()[:, 0])
    events = part.read(int(blocks[len(blocks) // 2]) * BLOCK, BLOCK, detail=False)
    count = max(1, TIMELINE_CALLS // len(ranks))
    start = events.start_ns[max(0, (len(events) - count) // 2) :][:count]
    return int(start[0]), max(int(start[-1]), int(start[0]) + 1)


def timeline_caption(run: ProfiledRun) -> str:
    """The caption of a timeline, or why there is none."""
    if not run.recording.has_calls:
        return "there is none, because calls were only counted (--record counters): hvscale profile --record calls records them"
    if run.edges_ns is not None:
        step = median_step(run.edges_ns)
        seconds = float(run.edges_ns[step + 1] - run.edges_ns[step]) / 1e9
        return f"step {step + 1} of {len(run.edges_ns) - 1}, which has the median time: {human_seconds(seconds)}"
    return f"the steps are unknown: about {min(TIMELINE_CALLS, len(run.recording.events))} calls from the middle of the run"


def _timeline(
    run: ProfiledRun, labels: dict[int, str], begin_ns: int, end_ns: int, widest_milliseconds: float
) -> go.Figure:
    events = between(run.recording.events, begin_ns, end_ns, ranks=list(labels))
    shown = np.arange(len(events))
    if len(shown) > TIMELINE_BARS:
        shown = shown[np.argsort(-events.duration_ns[shown], kind="stable")[:TIMELINE_BARS]]
    figure = go.Figure()
    groups = [("coordination", GREY, events.bitwise[shown])]
    used = np.unique(events.operation[shown])
    seconds = np.bincount(events.operation[shown], weights=events.duration_ns[shown], minlength=len(events.operations))
    ordered = sorted(used, key=lambda code: -seconds[code])
    named = {code: events.operations[code] for code in ordered[: len(COLOURS)]}
    for place, (code, name) in enumerate(named.items()):
        groups.append((name, colour_of(place), (events.operation[shown] == code) & ~events.bitwise[shown]))
    if others := ordered[len(named) :]:
        groups.append(("other operations", INK, np.isin(events.operation[shown], others) & ~events.bitwise[shown]))
    for name, colour, chosen in groups:
        own = shown[chosen]
        if not len(own):
            continue
        figure.add_bar(
            name=html.escape(name),
            orientation="h",
            y=[labels[rank] for rank in events.rank[own].tolist()],
            base=((events.start_ns[own] - begin_ns) / 1e6).tolist(),
            x=(events.duration_ns[own] / 1e6).tolist(),
            marker={"color": colour, "line": {"color": colour, "width": 1}},  # the line keeps short calls visible
            customdata=[
                (html.escape(events.operations[code]), human_bytes(size), human_seconds(duration / 1e9))
                for code, size, duration in zip(
                    events.operation[own].tolist(),
                    events.bytes[own].tolist(),
                    events.duration_ns[own].tolist(),
                    strict=True,
                )
            ],
            hovertemplate="%{y}: %{customdata[0]} of %{customdata[1]}<br>%{customdata[2]} from %{base:.3f} ms<extra></extra>",
        )
    style_bars(figure, "ms since the step began" if run.edges_ns is not None else "ms", 120 + 46 * len(labels))
    figure.update_layout(barmode="overlay", bargap=0.35, showlegend=True)
    figure.update_xaxes(range=[0, widest_milliseconds])
    figure.update_yaxes(categoryorder="array", categoryarray=list(labels.values()))
    return figure
