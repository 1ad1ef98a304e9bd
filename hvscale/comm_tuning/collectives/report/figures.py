"""Figures of a tuning study of collectives: latency, bandwidth and gain by size, for each case."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, inf, log10, sqrt
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hvscale.comm_tuning.collectives.decide.cost_model import Fit, level_of
from hvscale.comm_tuning.collectives.decide.decide import SizeRow
from hvscale.comm_tuning.collectives.decide.measurements import (
    LIBRARY,
    LIBRARY_AUTO,
    AlgorithmChoice,
    CollectiveCase,
    Point,
    Time,
)
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument
from hvscale.comm_tuning.collectives.report.tables import (
    by_case,
    case_of,
    choice_of_rule,
    describe_choice,
    describe_limit,
    wire_bound,
)
from hvscale.comm_tuning.collectives.tables.table import Rule
from hvscale.core.units import human_bytes, human_seconds
from hvscale.report.figures import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, YELLOW, style

CHOSEN = (ORANGE, GREEN, PINK, YELLOW, SKY)
TABLE, LIBRARY_BAND = BLUE, GREY
MAX_TICKS, MAX_TICKS_HALF_WIDTH = 12, 6
CURVE_POINTS = 60
WIDTH, LETTER = 1000, 6.4  # pixels, approximate: of the widest figure, and of a letter in a band's name
NAME_LINES = 4
GAIN_TICKS = (0.1, 0.2, 0.5, 0.8, 1.25, 1.5, 2, 3, 4, 6, 10, 20, 50, 100)
# Times by eager limit (None: the library's own) and choice, then by size.
ChoiceTimes = Mapping[tuple[int | None, AlgorithmChoice], Mapping[int, Time]]


def cases(document: TuneCollectivesDocument) -> list[CollectiveCase]:
    """The measured cases."""
    return sorted({point.case for point in valid_points(document)})


def valid_points(document: TuneCollectivesDocument) -> list[Point]:
    return [point for point in document.measurements.points if not point.wrong]


def case_figures(document: TuneCollectivesDocument, case: CollectiveCase) -> dict[str, go.Figure]:
    """The figures by name; a case without a decision has only the latency."""
    series = series_of(point for point in valid_points(document) if point.case == case)
    rules = [rule for rule in document.decision.table.rule if case_of(rule) == case] if document.decision else []
    rows = by_case(document).get(case, [])
    sizes = sorted({size for times in series.values() for size in times})
    colours = colours_of(rules)
    found = {"latency": latency(document, case, series, rules, rows, colours)}
    if rows:
        found |= {"bandwidth": bandwidth(document, case, rows), "gain": gain(rows)}
    for name, figure in found.items():
        full_width = name == "latency"
        ticks = size_ticks(sizes, MAX_TICKS if full_width else MAX_TICKS_HALF_WIDTH)
        figure.update_xaxes(type="log", range=axis_range(sizes), title_standoff=8, **ticks)
        entries = sum(trace.showlegend is not False for trace in figure.data)
        figure.update_layout(height=460 + 9 * entries if full_width else 330, hovermode="closest")
        add_bands(figure, rules, colours, sizes, named=full_width)
    return found


def series_of(points: Iterable[Point]) -> ChoiceTimes:
    """The times of each choice by size; samples of the same choice and size are pooled."""
    samples: dict[tuple[int | None, AlgorithmChoice], dict[int, list[float]]] = {}
    for point in points:
        of_choice = samples.setdefault((point.eager_limit_bytes, point.choice), {})
        of_choice.setdefault(point.bytes, []).extend(point.seconds)
    return {key: {size: Time.of(found[size]) for size in sorted(found)} for key, found in samples.items()}


def colours_of(rules: Iterable[Rule]) -> dict[AlgorithmChoice, str]:
    """Colours of the choices in the table, without the library's own choice."""
    chosen = dict.fromkeys(choice_of_rule(rule) for rule in rules)
    named = [choice for choice in chosen if choice not in (LIBRARY, LIBRARY_AUTO)]
    return {choice: CHOSEN[number % len(CHOSEN)] for number, choice in enumerate(named)}


def latency(
    document: TuneCollectivesDocument,
    case: CollectiveCase,
    series: ChoiceTimes,
    rules: Sequence[Rule],
    rows: Sequence[SizeRow],
    colours: Mapping[AlgorithmChoice, str],
) -> go.Figure:
    """The latency by size. The table's choices are coloured, all others thin and grey.

    Choices under another eager limit are hidden until their legend entry is clicked.
    """
    limit = document.decision.table.eager_limit_bytes if document.decision else None
    figure = go.Figure()
    style(figure, "size", "time of a call on the slowest rank")
    library = series.get((None, LIBRARY), {})
    others = {key: times for key, times in series.items() if key != (None, LIBRARY) and key[1] not in colours}
    for group, same in (("other choices", True), ("under another eager limit", False)):
        shown = {key: times for key, times in others.items() if (key[0] == limit) is same}
        if not same:
            shown |= {key: times for key, times in series.items() if key[0] != limit and key[1] in colours}
        for number, ((eager, choice), times) in enumerate(shown.items()):
            name = describe_choice(choice) + ("" if same else f", eager limit {describe_limit(eager)}")
            line = {"color": GREY, "width": 1, "dash": "solid" if same else "dot"}
            trace = measured(name, times, line, 3) | grouped(group, number)
            figure.add_scatter(**trace, visible=same or "legendonly")
    for choice, colour in colours.items():
        if (limit, choice) in series:
            figure.add_scatter(
                **measured(describe_choice(choice), series[limit, choice], {"color": colour, "width": 1.5}, 6)
            )
    figure.add_scatter(
        **measured("library, nothing set", library, {"color": INK, "width": 2}, 7), error_y=error_bars(library)
    )
    if rows:
        taken = {row.bytes: series[limit, row.choice][row.bytes] for row in rows}
        figure.add_scatter(
            **measured("the table", taken, {"color": TABLE, "width": 3.5}, 9, "diamond"), error_y=error_bars(taken)
        )
    sizes = sorted({size for times in series.values() for size in times})
    add_model_curves(figure, document, case, limit, colours, sizes)
    bound = [wire_bound(document, case, size) for size in sizes]
    if all(bound):
        figure.add_scatter(**curve("wire (lower bound)", sizes, bound, {"color": INK, "width": 1.5, "dash": "dashdot"}))
    time_ticks(
        figure, [time for times in series.values() for time in times.values()], [second for second in bound if second]
    )
    return figure


def measured(
    name: str, times: Mapping[int, Time], line: Mapping[str, Any], marker: float, symbol: str = "circle"
) -> dict[str, Any]:
    return {
        "name": name,
        "x": list(times),
        "y": [time.median for time in times.values()],
        "mode": "lines+markers",
        "line": line,
        "marker": {"size": marker, "symbol": symbol},
        "customdata": [[human_bytes(size), human_seconds(time.median), interval(time)] for size, time in times.items()],
        "hovertemplate": f"{name}<br>%{{customdata[0]}}: %{{customdata[1]}}%{{customdata[2]}}<extra></extra>",
    }


def interval(time: Time) -> str:
    return "" if time.high == inf else f" ({human_seconds(time.low)} to {human_seconds(time.high)})"


def error_bars(times: Mapping[int, Time]) -> dict[str, Any]:
    """The intervals as error bars; none for a single sample."""
    known = [(time.median, time.low, time.high) if time.high < inf else (0.0, 0.0, 0.0) for time in times.values()]
    return {
        "type": "data",
        "symmetric": False,
        "array": [max(high - median, 0) for median, _, high in known],
        "arrayminus": [max(median - low, 0) for median, low, _ in known],
        "thickness": 1,
        "width": 3,
    }


def grouped(group: str, number: int) -> dict[str, Any]:
    """One legend entry for the whole group."""
    return {"legendgroup": group, "showlegend": number == 0} | ({"name": group} if number == 0 else {})


def add_model_curves(
    figure: go.Figure,
    document: TuneCollectivesDocument,
    case: CollectiveCase,
    eager_limit: int | None,
    colours: Mapping[AlgorithmChoice, str],
    sizes: Sequence[int],
) -> None:
    """A dotted curve for each choice of the table that has a cost formula.

    For broadcast, also for a chain with its best chunk.
    """
    level = level_of(case.np, case.ranks_per_node)
    fit = next((one for one in document.fits if (one.level, one.eager_limit_bytes) == (level, eager_limit)), None)
    if fit is None:
        return
    at = [int(size) for size in np.unique(np.geomspace(sizes[0], sizes[-1], CURVE_POINTS).round())]
    lines: list[tuple[str, list[float | None], str, list[str]]] = []
    for choice, colour in colours.items():
        seconds = [fit.seconds(case.operation, case.np, size, choice) for size in at]
        lines.append((f"model: {describe_choice(choice)}", seconds, colour, [""] * len(at)))
    if case.operation == "broadcast":
        lines.append(best_chain(fit, case.np, at))
    for name, seconds, colour, more in lines:
        if None not in seconds:
            line = {"color": colour, "width": 1.5, "dash": "dot"}
            figure.add_scatter(**curve(name, at, seconds, line, more))


def best_chain(fit: Fit, np_: int, at: Sequence[int]) -> tuple[str, list[float | None], str, list[str]]:
    chunks = [fit.best_chunk(np_, size) for size in at]
    chains = [AlgorithmChoice(algorithm="chain", chunk_bytes=chunk) for chunk in chunks]
    seconds = [fit.seconds("broadcast", np_, size, chain) for size, chain in zip(at, chains, strict=True)]
    return (
        "model: chain with its best chunk",
        seconds,
        INK,
        [f", chunk {human_bytes(chunk)}" for chunk in chunks],
    )


def curve(
    name: str,
    sizes: Sequence[int],
    seconds: Sequence[float | None],
    line: Mapping[str, Any],
    more: Sequence[str] | None = None,
) -> dict[str, Any]:
    known = [(size, second) for size, second in zip(sizes, seconds, strict=True) if second is not None]
    return {
        "name": name,
        "x": [size for size, _ in known],
        "y": [second for _, second in known],
        "mode": "lines",
        "line": line,
        "customdata": [
            [human_bytes(size), human_seconds(second), text]
            for (size, second), text in zip(known, more or [""] * len(known), strict=True)
        ],
        "hovertemplate": f"{name}<br>%{{customdata[0]}}: %{{customdata[1]}}%{{customdata[2]}}<extra></extra>",
    }


def bandwidth(document: TuneCollectivesDocument, case: CollectiveCase, rows: Sequence[SizeRow]) -> go.Figure:
    """The algorithm bandwidth of the library, the table and the wire."""
    figure = go.Figure()
    style(figure, "size", "algbw, GB/s")
    sizes = [row.bytes for row in rows]
    lines = {
        "library, nothing set": ([row.library_seconds for row in rows], {"color": INK, "width": 2}, 6),
        "the table": ([row.table_seconds for row in rows], {"color": TABLE, "width": 3}, 8),
    }
    bound = [second for size in sizes if (second := wire_bound(document, case, size))]
    if bound:
        lines["wire (upper bound)"] = (bound, {"color": INK, "width": 1.5, "dash": "dashdot"}, 0)
    for name, (seconds, line, marker) in lines.items():
        figure.add_scatter(
            name=name,
            x=sizes,
            y=[size / second / 1e9 for size, second in zip(sizes, seconds, strict=True)],
            mode="lines+markers" if marker else "lines",
            line=line,
            marker={"size": marker},
            text=[human_bytes(size) for size in sizes],
            hovertemplate=f"{name}<br>%{{text}}: %{{y:.3g}} GB/s<extra></extra>",
        )
    figure.update_yaxes(rangemode="tozero")
    return figure


def gain(rows: Sequence[SizeRow]) -> go.Figure:
    """The gain by size; markers are filled if the intervals of library and table do not overlap."""
    figure = go.Figure()
    style(figure, "size", "gain over the library")
    figure.add_scatter(
        x=[row.bytes for row in rows],
        y=[row.gain for row in rows],
        mode="lines",
        line={"color": TABLE, "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )
    for name, significant in (("beyond the noise", True), ("no difference", False)):
        shown = [row for row in rows if row.significant is significant]
        if shown:
            figure.add_scatter(
                name=name,
                x=[row.bytes for row in shown],
                y=[row.gain for row in shown],
                mode="markers",
                marker={
                    "size": 9,
                    "color": TABLE if significant else "white",
                    "line": {"color": TABLE, "width": 1.5},
                },
                text=[f"{human_bytes(row.bytes)}, {describe_choice(row.choice)}" for row in shown],
                hovertemplate="%{text}<br>%{y:.3g} times as fast<extra></extra>",
            )
    undecided = [row for row in rows if row.undecided]
    if undecided:
        figure.add_scatter(
            name="undecided",
            x=[row.bytes for row in undecided],
            y=[row.gain for row in undecided],
            mode="markers",
            marker={"size": 16, "symbol": "circle-open", "color": ORANGE, "line": {"width": 2}},
            hoverinfo="skip",
        )
    figure.add_hline(y=1, line={"color": INK, "width": 1, "dash": "dot"})
    low = min(0.8, *(0.9 * row.gain for row in rows))
    high = max(1.25, *(1.1 * row.gain for row in rows))
    ticks = gain_ticks(low, high)
    figure.update_yaxes(
        type="log", range=[log10(low), log10(high)], tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks]
    )
    return figure


def gain_ticks(low: float, high: float) -> list[float]:
    """1, and the ticks that are far enough from it and from each other."""
    clearance = log10(high / low) / MAX_TICKS
    shown = [1.0]
    for tick in GAIN_TICKS:
        if low <= tick <= high and all(abs(log10(tick / other)) >= clearance for other in shown):
            shown.append(tick)
    return sorted(shown)


def add_bands(
    figure: go.Figure, rules: Sequence[Rule], colours: Mapping[AlgorithmChoice, str], sizes: Sequence[int], named: bool
) -> None:
    """A background band for each rule, with its name above the band.

    If the band is narrow, the name is inside and rotated.
    """
    left, right = axis_range(sizes)
    highest = 1
    for rule in rules:
        first = max(log10(rule.bytes_min), left)
        last = right if rule.bytes_max is None else min(log10(rule.bytes_max + 1), right)
        if first >= last:
            continue
        choice = choice_of_rule(rule)
        colour = colours.get(choice, LIBRARY_BAND)
        figure.add_vrect(x0=10**first, x1=10**last, fillcolor=colour, opacity=0.13, line_width=0, layer="below")
        if named:
            pixels = WIDTH * (last - first) / (right - left)
            lines = wrapped(describe_choice(choice), pixels)
            fits = max(map(len, lines)) * LETTER <= pixels and len(lines) <= NAME_LINES
            highest = max(highest, len(lines) if fits else 1)
            middle = (first + last) / 2
            # The curves run from the lower left to the upper right.
            below = not fits and middle > (left + right) / 2
            figure.add_annotation(
                x=middle,
                y=0 if below else 1,
                yref="paper",
                yanchor="bottom" if fits or below else "top",
                text="<br>".join(lines) if fits else describe_choice(choice),
                textangle=0 if fits else -90,
                showarrow=False,
                font={"size": 11, "color": INK},
            )
    if named:
        figure.update_layout(
            margin={"t": 16 + 15 * highest, "b": 120},
            legend={"y": -0.16, "yanchor": "top"},
        )


def wrapped(text: str, pixels: float) -> list[str]:
    """The text in the fewest lines that fit."""
    lines = [""]
    for word in text.replace("library's ", "library's\n").replace(", ", ",\n").split("\n"):
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) * LETTER <= pixels:
            lines[-1] = longer
        else:
            lines.append(word)
    return [line for line in lines if line]


def axis_range(sizes: Sequence[int]) -> list[float]:
    """The range of the axis as logarithms, half a step beyond the sizes.

    So the first and the last size lie inside a band.
    """
    step = sqrt(sizes[-1] / sizes[-2]) if len(sizes) > 1 else 2
    before = sqrt(sizes[1] / sizes[0]) if len(sizes) > 1 else 2
    return [log10(sizes[0] / before), log10(sizes[-1] * step)]


def size_ticks(sizes: Sequence[int], most: int) -> dict[str, list[Any]]:
    """At most about `most` ticks, evenly spread, because sizes are dense near crossovers."""
    min_distance = log10(sizes[-1] / sizes[0]) / most
    shown = list(sizes[:1])
    for size in sizes[1:]:
        if log10(size / shown[-1]) >= min_distance:
            shown.append(size)
    return {"tickvals": shown, "ticktext": [human_bytes(size) for size in shown]}


def time_ticks(figure: go.Figure, times: Sequence[Time], more: Sequence[float]) -> None:
    """A logarithmic axis over the measured times and the wire's.

    Curves of a model that is far off may leave the figure.
    """
    seconds = [*(time.median for time in times), *more]
    low, high = log10(min(seconds)) - 0.15, log10(max(seconds)) + 0.15
    ticks = [10.0**power for power in range(floor(low), ceil(high) + 1)]
    figure.update_yaxes(
        type="log",
        range=[low, high],
        tickvals=ticks,
        # A power of ten may be slightly too small for its unit.
        ticktext=[human_seconds(1.0001 * tick) for tick in ticks],
    )
