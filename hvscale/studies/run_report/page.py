"""The HTML report of one run, or of two runs before and after."""

import base64
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hvscale.core.documents import from_json
from hvscale.core.errors import RequestError
from hvscale.core.files import read_bytes
from hvscale.core.run_folder import RunFolder, write_text
from hvscale.core.units import human_bytes, human_number, human_range, human_seconds, human_share
from hvscale.launch.effective_settings import READERS, LaunchedJob
from hvscale.launch.flavours import FLAVOURS
from hvscale.profiling.analyze.breakdown import Breakdown, RankRow, RankTables, Row
from hvscale.profiling.analyze.explanation import ExplainedBreakdown, explain_breakdown, rank_count
from hvscale.profiling.analyze.grouping import Bins, parse_bins
from hvscale.profiling.analyze.rank_comparison import LOOK_AT, timeline_ranks
from hvscale.profiling.analyze.ranks_and_nodes import TimeMap, TimeMapSums
from hvscale.profiling.analyze.steps import edges_by_rank
from hvscale.profiling.compare import Comparison, Gain, ProfiledRun, compare_profiled_runs, read_profiled_run
from hvscale.profiling.read.events import Events, Part, Reducer
from hvscale.profiling.read.passes import reduce_messages
from hvscale.report.page import render_page
from hvscale.report.tables import TableModel
from hvscale.studies.run_report.autotune import AutotuneView, autotune_view
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
from hvscale.studies.run_report.rank_figures import (
    DRAWN,
    distribution_caption,
    distribution_figures,
    heat_map,
    heat_map_caption,
)
from hvscale.studies.run_report.rank_tables import distribution_table, local_ranks_table, nodes_table, where

MAX_WARNINGS = 12  # shown; a large job may have one for each rank
MAX_ROWS = 20  # of the table by size; --bins pow2 makes many
LATE_RANKS = 8
# How the variables begin that hvscale sets for its recorders.
RECORDER_VARIABLES = ("LD_PRELOAD", "HVSCALE_", "HVPROF_", "ASAN_OPTIONS", "HOROVOD_TIMELINE", "NCCL_PROFILER_PLUGIN")
PAGE_ROWS = 8  # of the tables by node and by local rank

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
    "capital": lambda text: f"{text[:1].upper()}{text[1:]}",
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
    autotune: AutotuneView | None = None
    times: TimeMap | None = None  # when ranks waited and moved data

    @property
    def has_many_ranks(self) -> bool:
        """Whether the page shows chosen ranks instead of all."""
        return len(self.breakdown.by_rank) > LOOK_AT

    @property
    def largest_rows(self) -> list[Row]:
        """The rows by size that take most time, in the order of the breakdown."""
        largest = sorted(self.breakdown.rows, key=lambda row: -row.seconds)[:MAX_ROWS]
        return [row for row in self.breakdown.rows if row in largest]

    @property
    def smaller_rows(self) -> list[Row]:
        """The other rows by size."""
        largest = self.largest_rows
        return [row for row in self.breakdown.rows if row not in largest]

    @property
    def shown_rows(self) -> list[RankRow]:
        """The rows by size of the ranks of the timeline."""
        shown = self.shown_ranks
        return [row for row in self.breakdown.rank_rows if row.rank in shown]

    @property
    def shown_ranks(self) -> dict[int, str]:
        """The ranks of the timeline, with their labels."""
        return timeline_ranks(self.breakdown)


def render(views: list[View], ranges: Bins) -> str:
    """The page of one or two views. Raises RequestError if two runs did different work."""
    comparison = None
    if len(views) == 2:
        comparison = compare_profiled_runs(views[0].recorded, views[1].recorded, ranges)
        for view, title in zip(views, ("before", "after"), strict=True):
            view.title = title
    figures = _figures(views, comparison)
    return render_page(
        "report.html.j2",
        figures,
        filters=FILTERS,
        views=views,
        comparison=comparison,
        headlines=_headlines(views, comparison),
        sentence=_sentence(views[-1].breakdown, comparison),
        timelines=[timeline_caption(view.recorded) for view in views],
        captions=[_captions(view) for view in views],
        tables=[_rank_tables(view) for view in views],
        distributions=[[name for name in DRAWN if f"{name}-{number}" in figures] for number in range(len(views))],
        settings=_settings(views),
        warnings=_shortened(_warnings(views, comparison)),
        human_range=human_range,
        command=shlex.join,
        legend=len(figures["seconds"].data) > 1,
        late_ranks=LATE_RANKS,
        verdict=human_verdict,
    )


def write_report(runs: list[RunFolder], path: Path, bins: str = "study") -> list[str]:
    """Write the page of one or two runs; return why profiles are incomplete, one text for a run.

    Raises RequestError for more runs, an unreadable run, two runs that did different work, and if
    `path` cannot be written.
    """
    if len(runs) not in (1, 2):
        raise RequestError(f"give one run, or two runs to compare, not {len(runs)}")
    ranges = parse_bins(bins)
    views = [_view(run, ranges, path.parent) for run in runs]
    page = render(views, ranges)
    try:
        write_text(path, page)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from error
    found = [(view.recorded.path, view.breakdown.incomplete) for view in views]
    return [f"{run}: {incomplete}" for run, incomplete in found if incomplete is not None]


def report_path(runs: list[RunFolder]) -> Path:
    """The default path of a report, in the folder of the last run."""
    return runs[-1].path / ("report.html" if len(runs) == 1 else "comparison.html")


def _view(run: RunFolder, bins: Bins, folder: Path) -> View:
    tables = RankTables(bins)
    recorded = read_profiled_run(run, tables, counters_suffice=True)
    table = tables.breakdown(recorded.recording, str(run.path))
    times = TimeMapSums(rank_count(recorded.recording))
    breakdown = explain_breakdown(run, recorded.recording, table, [times])
    try:
        result = _result(run)
    except ValueError:
        result = {}
        breakdown.warnings.append(f"{run.path / 'result.json'} is not a result of hvscale train, so it is ignored")
    predictions = prediction_links(run, folder)
    try:
        autotune = autotune_view(run)
    except ValueError as error:
        autotune = None
        breakdown.warnings.append(str(error))
    return View(
        run.path.resolve().name, recorded, breakdown, result, _picture(run), predictions, autotune, times.result()
    )


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
        found += _communication_headlines(views[0])
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
    return figure, what, f"{times}; 95 % interval{_headline_interval(gain)}"


def _headline_interval(gain: Gain) -> str:
    """What follows "interval": in the direction of the figure above it."""
    low, high = gain.gain_percent_low, gain.gain_percent_high
    if low is None or high is None or gain.gain_percent is None:
        return ": unknown"
    if gain.verdict == "no difference":
        return f" of the gain: {human_interval(gain)} %"
    if gain.gain_percent < 0:
        low, high = -high, -low
    return f": {human_number(low)} to {human_number(high)} % {'less' if gain.gain_percent > 0 else 'more'}"


def _communication_headlines(view: View) -> list[tuple[str, str, str]]:
    exposed = view.breakdown.exposed_communication
    per_step = _time_per_step(view.recorded)
    if per_step is None:
        seconds = sum(row.seconds for row in view.breakdown.rank_rows) / len(view.recorded.recording.ranks)
        return [(human_seconds(seconds), "in collectives, per rank", "over the whole run, mean over ranks")]
    steps, step, seconds = per_step
    inferred = ", inferred from the messages" if view.recorded.inferred_steps else ""
    found = [
        (human_seconds(step), "a step", f"mean of {steps} steps{inferred}"),
        (
            human_seconds(seconds),
            "in collectives, per step and rank",
            f"{seconds / step:.0%} of the step, mean over ranks, overlapped with computation or not",
        ),
    ]
    if exposed is not None:
        share = human_between(exposed.mean_share_at_least, exposed.mean_share_at_most)
        basis = (
            "measured by rank 0: it also waits for slower ranks and for Horovod's next cycle"
            if exposed.basis == "measured"
            else "bounds from when the calls began and ended"
        )
        found.append((f"{share} %", "of a step is exposed communication", basis))
    return found


def _time_per_step(run: ProfiledRun) -> tuple[int, float, float] | None:
    """The number of steps, and the seconds of one and of its collectives (mean over ranks)."""
    recording, edges = run.recording, run.edges_ns
    if edges is not None:
        time, steps = TimeInSteps(edges_by_rank(recording, edges)), len(edges) - 1
        reduce_messages(recording.events, time)
        seconds = time.duration_ns / 1e9 / len(recording.ranks) / steps
        return steps, float(np.diff(edges).mean()) / 1e9, seconds
    if not recording.step_sums:
        return None
    sums = recording.step_sums.values()
    steps = sum(one.steps for one in sums)
    seconds = sum(one.collectives_ns for one in sums) / 1e9 / steps
    return (
        recording.step_sums[min(recording.step_sums)].steps,
        sum(one.duration_ns for one in sums) / 1e9 / steps,
        seconds,
    )


class TimeInSteps(Reducer[int]):
    """The time of the calls that start within the steps of their rank, in nanoseconds."""

    def __init__(self, edges_ns: Mapping[int, NDArray[np.int64]]) -> None:
        """`edges_ns`: by rank, the edges of its steps."""
        self.edges_ns = edges_ns
        self.duration_ns = 0

    def reduce(self, part: Part, events: Events) -> int:
        edges = self.edges_ns[part.rank]
        inside = (events.start_ns >= edges[0]) & (events.start_ns < edges[-1])
        return int(events.duration_ns[inside].sum())

    def add(self, part: Part, found: int) -> None:
        self.duration_ns += found


def _sentence(breakdown: Breakdown, comparison: Comparison | None) -> str:
    """One sentence with the largest consumers, or the largest change."""
    if comparison is not None:
        changed = [row for row in comparison.rows if row.verdict != "no difference"]
        if not changed:
            return "No message size shows a difference."
        saved = max(changed, key=lambda row: abs(row.seconds_before - row.seconds_after))
        change = saved.seconds_after - saved.seconds_before
        return (
            f"The largest change is in {saved.operation} of {human_range(saved.bytes_min, saved.bytes_max)}: "
            f"{human_seconds(abs(change))} {'more' if change > 0 else 'less'} per {comparison.per}, summed over ranks."
        )
    first, *rest = sorted(breakdown.rows, key=lambda row: -row.seconds)[:2]
    most = "Most time goes" if first.share > 0.5 else "The largest part of the time goes"
    text = f"{most} into {first.operation} of {human_range(first.bytes_min, first.bytes_max)}: {human_share(first.share)} %"
    for row in rest:
        text += f", then {row.operation} of {human_range(row.bytes_min, row.bytes_max)}: {human_share(row.share)} %"
    coordination = sum(row.bitwise_seconds for row in breakdown.rows) / (
        sum(row.seconds for row in breakdown.rows) or 1
    )
    if coordination >= 0.005:
        text += (
            f". {coordination:.0%} of all time is in bitwise reductions: in a Horovod job, ranks agree by them on what "
            "to send next, and wait"
        )
    return text + "."


def _figures(views: list[View], comparison: Comparison | None) -> dict[str, go.Figure]:
    """All figures, by the id of the page's element."""
    figures = breakdown_figures(views[0].breakdown) if comparison is None else comparison_figures(comparison)
    figures |= timeline_figures([view.recorded for view in views], [view.shown_ranks for view in views])
    for number, view in enumerate(views):
        if view.has_many_ranks and comparison is None:
            figures |= {f"{name}-{number}": figure for name, figure in distribution_figures(view.breakdown).items()}
        if view.has_many_ranks and view.times is not None:
            figures[f"map-{number}"] = heat_map(view.times, view.breakdown)
        if view.breakdown.horovod_phases is not None:
            figures[f"phases-{number}"] = phases_figure(view.breakdown.horovod_phases)
        if view.breakdown.exposed_communication is not None and view.breakdown.exposed_communication.steps:
            figures[f"exposed-{number}"] = exposed_figure(view.breakdown.exposed_communication)
    return figures


def _shortened(warnings: list[str]) -> list[str]:
    more = len(warnings) - MAX_WARNINGS
    return warnings if more <= 0 else [*warnings[:MAX_WARNINGS], f"{more} more: hvscale breakdown prints all warnings"]


def _captions(view: View) -> dict[str, str]:
    """What to conclude from the figures about many ranks."""
    if not view.has_many_ranks:
        return {"timeline": ""}
    found = view.breakdown
    if found.look_at_first:
        first = f"{where(found.look_at_first[0], found)} {found.look_at_first[0].reasons[0]}."
    else:
        first = "No rank stands out: look at the sizes and operations that take most time, not at single ranks."
    shown = "the ranks above, and a typical one to compare with" if found.look_at_first else "a sample of the ranks"
    unknown = found.unavailable.get("waiting", "")
    return {
        "first": first,
        "timeline": f"; {shown}",
        "map": heat_map_caption(view.times, found) if view.times is not None else f"Unknown: {unknown}.",
        "distribution": distribution_caption(found),
    }


def _rank_tables(view: View) -> list[TableModel]:
    """The distribution over ranks, and the figures by node and by local rank."""
    found = view.breakdown
    if not view.has_many_ranks:
        return []
    tables = [distribution_table(found)]
    if len(found.by_node) > 1:
        tables += [nodes_table(found, PAGE_ROWS), local_ranks_table(found, PAGE_ROWS)]
    return tables


def _warnings(views: list[View], comparison: Comparison | None) -> list[str]:
    """The warnings, each once. A comparison repeats some warnings of its runs."""
    texts = [[*filter(None, [view.recorded.record.early_end]), *view.breakdown.warnings] for view in views]
    if comparison is None:
        return texts[0]
    of_runs = [f"{view.recorded.path}: {text}" for view, found in zip(views, texts, strict=True) for text in found]
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
            "command": shlex.join(record.command),
            "np": str(record.np),
            "library": view.recorded.recording.library,
            "placement": record.placement,
            "recorded by": view.recorded.recording.source,
            "state": record.state,
            "started": f"{record.started_at:%Y-%m-%d %H:%M:%S} UTC",
            **ended,
            **{name.replace("_", " "): str(view.result[name]) for name in trained if name in view.result},
        },
        "Settings": {**record.env_asked, **_without_own_variables(view.recorded)},
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


def _without_own_variables(run: ProfiledRun) -> dict[str, str]:
    """The ranks' environment without what hvscale sets for recorders and for reports of settings,
    unless the user set it too.
    """
    record, asked = run.record, run.record.env_asked
    job = LaunchedJob(RunFolder(Path(run.path)), record.library, record.command, {})
    readers = [*(flavour.settings_reader for flavour in FLAVOURS.all().values()), *READERS.all().values()]
    reporting = {name for reader in readers if reader is not None for name in reader.reporting_variables(job)}
    return {
        name: value
        for name, value in record.rank_environment.items()
        if name in asked or not (name in reporting or name.startswith(RECORDER_VARIABLES))
    }
