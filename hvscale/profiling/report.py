"""One run, or two before and after, as one HTML file that needs no network."""

import base64
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hvscale import __version__
from hvscale.errors import RequestError
from hvscale.profiling.bins import Bins, parse_bins
from hvscale.profiling.breakdown import Breakdown, tabulate
from hvscale.profiling.buffer_reuse import HitRate, hit_rates
from hvscale.profiling.compare import Comparison, Gain, Recorded, compare_recorded, median_step, read_recorded
from hvscale.profiling.compare_output import human_calls, human_gain, human_interval, human_verdict
from hvscale.profiling.output import human_bytes, human_range, human_seconds
from hvscale.profiling.waiting import Calls, Waiting, waiting
from hvscale.run_folder import RunFolder, write_atomically

TEMPLATES = Path(__file__).parent / "templates"
# Okabe and Ito's colours, which people with any colour vision can tell apart; what is not data is grey.
BLUE, ORANGE, GREEN, PINK, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
GREY, INK, RULE = "#a3acb5", "#1c2733", "#e3e7eb"
OPERATION_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)
TIMELINE_BARS = 4000  # more make a browser slow; the shortest are left out
TIMELINE_CALLS = 400  # shown of a run whose steps are not known
REPLAYED_MESSAGES = 500_000  # against each size of cache, about a second
CHART_ROWS = 14  # bars for people to compare; the table holds all


@dataclass
class View:
    """A run as the page shows it."""

    title: str
    recorded: Recorded
    breakdown: Breakdown
    result: dict[str, Any]
    picture: str | None  # a data URL
    waiting: Waiting | None
    buffer_reuse: list[HitRate]


def report(runs: list[RunFolder], bins: str = "study") -> str:
    """The page. Raises RequestError for another number of runs than one or two, for what cannot be read, and for runs of different work."""
    if len(runs) not in (1, 2):
        raise RequestError(f"a report shows one run, or two to compare: {len(runs)} were given")
    ranges = parse_bins(bins)
    return render([_view(run, ranges) for run in runs], ranges)


def render(views: list[View], ranges: Bins) -> str:
    """The page of one or two runs that were read before. Raises RequestError when two did different work."""
    comparison = None
    if len(views) == 2:
        comparison = compare_recorded(views[0].recorded, views[1].recorded, ranges)
        for view, title in zip(views, ("before", "after"), strict=True):
            view.title = title
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters.update(
        seconds=human_seconds, bytes=human_bytes, calls=human_calls, gain=human_gain, interval=human_interval
    )
    return environment.get_template("report.html.j2").render(
        views=views,
        comparison=comparison,
        headlines=_headlines(views, comparison),
        sentence=_sentence(views[-1].breakdown, comparison),
        figures=Markup(_script_safe(_figures(views, comparison))),  # noqa: S704 - made safe there
        timelines=[_timeline_caption(view.recorded) for view in views],
        settings=_settings(views),
        warnings=comparison.warnings if comparison else views[0].breakdown.warnings,
        plotly=Markup(get_plotlyjs()),  # noqa: S704 - Plotly's own file
        human_range=human_range,
        verdict=human_verdict,
        version=__version__,
    )


def write_report(runs: list[RunFolder], path: Path, bins: str = "study") -> None:
    """Raises what `report` raises, and RequestError when `path` cannot be written."""
    page = report(runs, bins)
    try:
        write_atomically(path, lambda stream: stream.write(page.encode()))
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error


def report_path(runs: list[RunFolder]) -> Path:
    """Where a report is written unless another place is asked for: into the last run."""
    return runs[-1].path / ("report.html" if len(runs) == 1 else "comparison.html")


def _view(run: RunFolder, bins: Bins) -> View:
    recorded = read_recorded(run, detail=True)
    breakdown = tabulate(recorded.recording, bins, str(run.path))
    reuse = _buffer_reuse(recorded)
    return View(run.path.resolve().name, recorded, breakdown, _result(run), _picture(run), _waiting(recorded), reuse)


def _result(run: RunFolder) -> dict[str, Any]:
    """result.json of a run of our trainer, or nothing."""
    try:
        found = json.loads((run.path / "result.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _waiting(run: Recorded) -> Waiting | None:
    """Late ranks, where the source tells which calls belong together."""
    events = run.recording.events
    if len(events.ordinal) != len(events):
        return None
    columns = (events.rank, events.operation, events.communicator, events.ordinal, events.communicator_size)
    times = (events.start_ns, events.duration_ns)
    found = waiting(Calls(*(column.astype(np.int64) for column in (*columns, *times))), events.operations)
    return found if found.late_ranks else None


def _buffer_reuse(run: Recorded) -> list[HitRate]:
    """Hit rates of caches of buffers, where the source tells the buffers; of the last messages, in order of time."""
    events = run.recording.events
    if len(events.buffer) != len(events):
        return []
    order = np.argsort(events.start_ns, kind="stable")[-REPLAYED_MESSAGES:]
    rates = hit_rates(events.rank[order].astype(np.int64), events.buffer[order], events.bytes[order])
    return [rate for rate in rates if rate.messages]


def _picture(run: RunFolder) -> str | None:
    try:
        return "data:image/png;base64," + base64.b64encode((run.path / "picture.png").read_bytes()).decode()
    except OSError:
        return None


def _headlines(views: list[View], comparison: Comparison | None) -> list[tuple[str, str, str]]:
    """Figure, what it is, and a remark, each as text."""
    found = []
    if comparison is not None:
        found.append(_gain_headline(comparison.total, f"communication time per {comparison.per}"))
        if comparison.step is not None:
            found.append(_gain_headline(comparison.step, "time of a step"))
    else:
        found += _communication_headlines(views[0].recorded)
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


def _communication_headlines(run: Recorded) -> list[tuple[str, str, str]]:
    events, ranks = run.recording.events, len(run.recording.ranks)
    edges = run.edges_ns
    if edges is None:
        seconds = float(events.duration_ns.sum()) / 1e9 / ranks
        return [(human_seconds(seconds), "in collectives, per rank", "over the whole run, a mean of the ranks")]
    inside = (events.start_ns >= edges[0]) & (events.start_ns < edges[-1])
    seconds = float(events.duration_ns[inside].sum()) / 1e9 / ranks / (len(edges) - 1)
    step = float(np.diff(edges).mean()) / 1e9
    found = [
        (human_seconds(step), "a step", f"mean of {len(edges) - 1} steps"),
        (
            human_seconds(seconds),
            "in collectives, per step and rank",
            f"{seconds / step:.0%} of the step, beside computing or not",
        ),
    ]
    exposed = run.log.exposed_seconds if run.log is not None else np.full(1, np.nan)
    if not np.isnan(exposed).all():
        waited = float(np.nanmean(exposed))
        found.append(
            (
                human_seconds(waited),
                "exposed communication per step",
                f"{waited / step:.0%} of the step waits for gradients",
            )
        )
    return found


def _sentence(breakdown: Breakdown, comparison: Comparison | None) -> str:
    """The largest consumers, for somebody who reads no further."""
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
    agreement = sum(row.bitwise_seconds for row in breakdown.rows) / (sum(row.seconds for row in breakdown.rows) or 1)
    if agreement >= 0.005:
        text += f". {agreement:.0%} of all time is agreement: by bitwise reductions Horovod's ranks agree on what to send next, and wait"
    return text + "."


def _figures(views: list[View], comparison: Comparison | None) -> dict[str, go.Figure]:
    """By the id of the page's element."""
    figures = {}
    if comparison is None:
        rows = sorted(views[0].breakdown.rows, key=lambda row: -row.seconds)[:CHART_ROWS]
        labels = [_label(row) for row in rows]
        agreement = [row.bitwise_seconds for row in rows]
        data = [row.seconds - row.bitwise_seconds for row in rows]
        seconds = {"data": (data, BLUE), "agreement": (agreement, GREY)}
        calls = {
            "data": ([float(row.calls - row.bitwise_calls) for row in rows], BLUE),
            "agreement": ([float(row.bitwise_calls) for row in rows], GREY),
        }
        if not any(agreement):
            seconds, calls = {"data": seconds["data"]}, {"data": calls["data"]}
        figures["seconds"] = _bars(labels, seconds, "seconds, all ranks", human_seconds, stacked=True)
        figures["calls"] = _bars(labels, calls, "calls, all ranks", human_calls, stacked=True)
    else:
        compared = sorted(comparison.rows, key=lambda row: -max(row.seconds_before, row.seconds_after))[:CHART_ROWS]
        labels = [_label(row) for row in compared]
        seconds = {
            "before": ([row.seconds_before for row in compared], GREY),
            "after": ([row.seconds_after for row in compared], BLUE),
        }
        calls = {
            "before": ([row.calls_before for row in compared], GREY),
            "after": ([row.calls_after for row in compared], BLUE),
        }
        per = f"per {comparison.per}, all ranks"
        figures["seconds"] = _bars(labels, seconds, f"seconds {per}", human_seconds, stacked=False)
        figures["calls"] = _bars(labels, calls, f"calls {per}", human_calls, stacked=False)
    windows = [_timeline_window(view.recorded) for view in views]
    widest = max(end - start for start, end in windows) / 1e6
    for number, (view, window) in enumerate(zip(views, windows, strict=True)):
        figures[f"timeline-{number}"] = _timeline(view.recorded, *window, widest)
    return figures


def _label(row: Any) -> str:
    return html.escape(f"{row.operation} {human_range(row.bytes_min, row.bytes_max)}")


def _bars(
    labels: list[str], series: dict[str, tuple[list[float], str]], axis: str, human: Any, stacked: bool
) -> go.Figure:
    figure = go.Figure()
    for name, (values, colour) in series.items():
        figure.add_bar(
            name=name,
            y=labels,
            x=values,
            orientation="h",
            marker_color=colour,
            customdata=[human(value) for value in values],
            hovertemplate=f"%{{y}}<br>{name}: %{{customdata}}<extra></extra>",
        )
    height = 110 + len(labels) * (30 if stacked else 42)
    _style(figure, axis, height)
    figure.update_layout(barmode="stack" if stacked else "group", showlegend=len(series) > 1)
    return figure


def _timeline_window(run: Recorded) -> tuple[int, int]:
    """Begin and end, in nanoseconds since 1970: of the median step, or of some calls in the middle of the run."""
    if run.edges_ns is not None:
        step = median_step(run.edges_ns)
        return int(run.edges_ns[step]), int(run.edges_ns[step + 1])
    events = run.recording.events
    order = np.argsort(events.start_ns, kind="stable")
    middle = order[max(0, (len(order) - TIMELINE_CALLS) // 2) :][:TIMELINE_CALLS]
    begin, ends = events.start_ns[middle[0]], events.start_ns[middle] + events.duration_ns[middle]
    return int(begin), max(int(ends.max()), int(begin) + 1)


def _timeline_caption(run: Recorded) -> str:
    if run.edges_ns is not None:
        step = median_step(run.edges_ns)
        seconds = float(run.edges_ns[step + 1] - run.edges_ns[step]) / 1e9
        return f"step {step + 1} of {len(run.edges_ns) - 1}, the one of median time: {human_seconds(seconds)}"
    return f"the run's steps are not known: {min(TIMELINE_CALLS, len(run.recording.events))} calls from its middle"


def _timeline(run: Recorded, begin_ns: int, end_ns: int, widest_milliseconds: float) -> go.Figure:
    events = run.recording.events
    shown = np.flatnonzero((events.start_ns < end_ns) & (events.start_ns + events.duration_ns > begin_ns))
    if len(shown) > TIMELINE_BARS:
        shown = shown[np.argsort(-events.duration_ns[shown], kind="stable")[:TIMELINE_BARS]]
    figure = go.Figure()
    groups = [("agreement", GREY, events.bitwise[shown])]
    used = np.unique(events.operation[shown])
    seconds = np.bincount(events.operation[shown], weights=events.duration_ns[shown], minlength=len(events.operations))
    for place, code in enumerate(sorted(used, key=lambda code: -seconds[code])):
        chosen = (events.operation[shown] == code) & ~events.bitwise[shown]
        groups.append((events.operations[code], OPERATION_COLOURS[place % len(OPERATION_COLOURS)], chosen))
    for name, colour, chosen in groups:
        own = shown[chosen]
        if not len(own):
            continue
        figure.add_bar(
            name=html.escape(name),
            orientation="h",
            y=[f"rank {rank}" for rank in events.rank[own]],
            base=((events.start_ns[own] - begin_ns) / 1e6).tolist(),
            x=(events.duration_ns[own] / 1e6).tolist(),
            marker={"color": colour, "line": {"color": colour, "width": 1}},  # the line keeps short calls visible
            customdata=[
                (human_bytes(size), human_seconds(duration / 1e9))
                for size, duration in zip(events.bytes[own].tolist(), events.duration_ns[own].tolist(), strict=True)
            ],
            hovertemplate=f"%{{y}}: {html.escape(name)} of %{{customdata[0]}}<br>%{{customdata[1]}} from %{{base:.3f}} ms<extra></extra>",
        )
    ranks = run.recording.ranks
    _style(figure, "ms since the step began" if run.edges_ns is not None else "ms", 120 + 46 * len(ranks))
    figure.update_layout(barmode="overlay", bargap=0.35, showlegend=True)
    figure.update_xaxes(range=[0, widest_milliseconds])
    figure.update_yaxes(categoryorder="array", categoryarray=[f"rank {rank}" for rank in ranks])
    return figure


def _style(figure: go.Figure, axis: str, height: int) -> None:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 16, "t": 40, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "traceorder": "normal"},
        hoverlabel={"bgcolor": "white", "font_color": INK},
        bargap=0.25,
    )
    figure.update_xaxes(
        title={"text": axis, "font_size": 13},
        gridcolor=RULE,
        zerolinecolor=RULE,
        automargin=True,
        exponentformat="none",
    )
    figure.update_yaxes(autorange="reversed", automargin=True, ticksuffix="  ", fixedrange=True)


def _script_safe(figures: dict[str, go.Figure]) -> str:
    """JSON that cannot end the script element that holds it."""
    text = "{" + ",".join(f"{json.dumps(name)}:{figure.to_json()}" for name, figure in figures.items()) + "}"
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _settings(views: list[View]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Headings, and under each the names with a value for each run; where two runs differ, the page marks it."""
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
            "library": f"{record.library.flavour} {record.library.version}",
            "placement": record.placement,
            "recorded by": view.recorded.recording.source,
            "state": record.state,
            "started": f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC",
            **ended,
            **{name.replace("_", " "): str(view.result[name]) for name in trained if name in view.result},
        },
        "Settings": {**record.settings_asked, **_shown(record.rank_environment)},
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


def _shown(environment: dict[str, str]) -> dict[str, str]:
    """Without what the profiler itself put there."""
    ours = ("LD_PRELOAD", "HVPROF_DIRECTORY", "HOROVOD_TIMELINE")
    return {name: value for name, value in environment.items() if name not in ours}
