"""The figures of a prediction: curves over np, the loss of efficiency, and the timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, floor, log2, log10
from typing import Any

import plotly.graph_objects as go

from hvscale.core.units import human_bytes, human_number, human_seconds, is_narrow
from hvscale.prediction.document import PredictedRow, PredictionDocument, StepTimeline, TimedMessage
from hvscale.prediction.tables import (
    LOSS_NAMES,
    describe_source,
    has_images,
    is_extrapolated,
    known_losses,
    step_shares,
)
from hvscale.report.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RULE,
    SKY,
    YELLOW,
    decade_ticks,
    error_bars,
    faint,
    linear,
    style,
    style_bars,
)
from hvscale.studies.document import ResultSource

POINTS: dict[ResultSource, tuple[str, str]] = {"measured": (BLUE, "circle"), "replayed": (GREEN, "diamond")}
CURVES: dict[ResultSource, str] = {"predicted": ORANGE, "documented": PINK}
LOSS_COLOURS = dict(zip(LOSS_NAMES, (GREY, YELLOW, BLUE, PINK, GREEN), strict=True))
RECORDED = "recorded"  # the name of a timeline that was measured
MOST_TICKS = 8  # more overlap on a narrow screen
MANY_DECADES = 3  # of a curve's axis, on which ticks at powers of ten are enough
CURVE_PIXELS, LANE_PIXELS = 400, 46


@dataclass(frozen=True)
class PlotPoint:
    """One row in one figure. `low`, `high`: None without a useful interval."""

    row: PredictedRow
    value: float
    low: float | None
    high: float | None
    text: str

    @property
    def np(self) -> int:
        return self.row.np


def prediction_figures(document: PredictionDocument) -> dict[str, go.Figure]:
    """All figures that the document has data for, by the id of the page's element."""
    figures = {"throughput": throughput(document), "efficiency": efficiency(document)}
    if any(row.loss is not None for row in document.rows):
        figures["loss"] = loss(document)
    if document.timelines:
        figures["timeline"] = timeline(document.timelines)
    return figures


def throughput(document: PredictionDocument) -> go.Figure:
    """Images per second of all ranks over np, or the speed-up where images are unknown."""
    rows = [*document.rows, *document.predicted_beside]
    with_images = has_images(rows)
    points = [_throughput_point(row, with_images) for row in rows]
    figure = go.Figure()
    ranks = sorted({point.np for point in points})
    # Perfect scaling of the predicted job, not of a measured point with its noise.
    base = next((point for point in points if point.row.source in CURVES), points[0])
    ideal = base.value / base.row.scaling_efficiency / base.np
    figure.add_trace(linear(ranks, [ideal * np for np in ranks], "perfect scaling"))
    _add_points(figure, points, document.confidence)
    style(figure, "np", "images/s" if with_images else "speed-up", CURVE_PIXELS)
    _rank_axis(figure, ranks)
    limits = [limit for point in points for limit in (point.low, point.high) if limit is not None]
    values = [*(point.value for point in points), *limits, *(ideal * np for np in ranks)]
    low, high = min(values) / 1.4, max(values) * 1.4
    ticks = decade_ticks(low, high, MANY_DECADES) if with_images else _power_ticks(ranks)
    figure.update_yaxes(type="log", range=[log10(low), log10(high)], **ticks)
    return figure


def _throughput_point(row: PredictedRow, with_images: bool) -> PlotPoint:
    if with_images and row.images_per_second is not None:
        return _point(row, row.images_per_second, row.images_per_second_low, row.images_per_second_high, " images/s")
    limits = (row.scaling_efficiency_low, row.scaling_efficiency_high)
    low, high = (None if limit is None else limit * row.np for limit in limits)
    return _point(row, row.speed_up, low, high, " times as fast as one rank")


def efficiency(document: PredictionDocument) -> go.Figure:
    """Scaling efficiency over np, in percent."""
    points = [_efficiency_point(row) for row in (*document.rows, *document.predicted_beside)]
    figure = go.Figure()
    ranks = sorted({point.np for point in points})
    figure.add_trace(linear(ranks, [100.0] * len(ranks), "perfect scaling"))
    _add_points(figure, points, document.confidence)
    style(figure, "np", "scaling efficiency, %", CURVE_PIXELS)
    _rank_axis(figure, ranks)
    top = max(100.0, *(min(point.high or 0.0, 2 * point.value) for point in points), *(p.value for p in points))
    figure.update_yaxes(range=[0, 1.05 * top])
    return figure


def _efficiency_point(row: PredictedRow) -> PlotPoint:
    limits = (row.scaling_efficiency_low, row.scaling_efficiency_high)
    low, high = (None if limit is None else 100 * limit for limit in limits)
    return _point(row, 100 * row.scaling_efficiency, low, high, " %")


def _point(row: PredictedRow, value: float, low: float | None, high: float | None, unit: str) -> PlotPoint:
    text, limits = human_number(value, 4), ""
    if low is not None and high is not None and is_narrow(low, high):
        limits = f"<br>{human_number(low, 4)} to {human_number(high, 4)}{unit if unit == ' %' else ''}"
    else:
        low = high = None
    return PlotPoint(row, value, low, high, f"np {row.np}, {describe_source(row)}<br>{text}{unit}{limits}")


def _add_points(figure: go.Figure, points: Sequence[PlotPoint], confidence: float) -> None:
    """The curves with their bands, and the measured and replayed points above them."""
    measured = [point for point in points if point.row.source in POINTS]
    for source, colour in CURVES.items():
        curve = sorted((point for point in points if point.row.source == source), key=lambda point: point.np)
        if curve:
            before = [point for point in measured if point.np < curve[0].np]
            start = max(before, key=lambda point: point.np) if before else None
            _add_curve(figure, curve, start, source, colour, confidence)
    for source, (colour, symbol) in POINTS.items():
        own = [point for point in points if point.row.source == source]
        if own:
            figure.add_scatter(
                **_hovering(own),
                name=source,
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 10, "line": {"color": "white", "width": 1}},
                error_y=_bars(own, colour),
            )


def _add_curve(
    figure: go.Figure,
    curve: Sequence[PlotPoint],
    start: PlotPoint | None,
    source: ResultSource,
    colour: str,
    confidence: float,
) -> None:
    """A line that is dashed beyond the measured np, and its interval as a band.

    `start`: the measured point before the curve, which it is joined to.
    """
    joined = [start, *curve] if start is not None else list(curve)
    banded = [(point.np, point.low, point.high) for point in joined if point.low is not None]
    if len(banded) > 1:
        nps, lows, highs = zip(*banded, strict=True)
        figure.add_scatter(
            name=f"{confidence:.0%} interval",
            x=[*nps, *reversed(nps)],
            y=[*highs, *reversed(lows)],
            mode="lines",
            line={"width": 0},
            fill="toself",
            fillcolor=faint(colour),
            legendgroup=source,
            hoverinfo="skip",
        )
    known = [point for point in joined if not is_extrapolated(point.row)]
    far = [point for point in joined if is_extrapolated(point.row)]
    marker = {"color": colour, "size": 5}
    bars = {} if len(banded) > 1 else {"error_y": _bars(curve, colour)}
    if known and known != [start]:
        line = {"color": colour, "width": 2}
        look = {"mode": "lines+markers", "line": line, "marker": marker, "legendgroup": source}
        figure.add_scatter(**_hovering(known), name=source, **look, **bars)
    if far:
        line = {"color": colour, "width": 2, "dash": "dash"}
        look = {"mode": "lines+markers", "line": line, "marker": marker, "legendgroup": source}
        figure.add_scatter(**_hovering([*known[-1:], *far]), name="extrapolated", **look, **(bars if not known else {}))


def _hovering(points: Sequence[PlotPoint]) -> dict[str, Any]:
    return {
        "x": [point.np for point in points],
        "y": [point.value for point in points],
        "text": [point.text for point in points],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _bars(points: Sequence[PlotPoint], colour: str) -> dict[str, Any]:
    above = [0.0 if point.high is None else max(0.0, point.high - point.value) for point in points]
    below = [0.0 if point.low is None else max(0.0, point.value - point.low) for point in points]
    return error_bars(colour, above, below)


def _rank_axis(figure: go.Figure, ranks: Sequence[int]) -> None:
    """A logarithmic axis with powers of two."""
    edges = [log10(ranks[0] / 1.25), log10(ranks[-1] * 1.25)]
    figure.update_xaxes(type="log", range=edges, tickangle=0, **_power_ticks(ranks))


def _power_ticks(ranks: Sequence[int]) -> dict[str, Any]:
    first, last = floor(log2(ranks[0])), ceil(log2(ranks[-1]))
    every = ceil((last - first + 1) / MOST_TICKS)
    ticks = [2**power for power in range(first, last + 1, every)]
    return {"tickvals": ticks, "ticktext": [str(tick) for tick in ticks]}


def loss(document: PredictionDocument) -> go.Figure:
    """Shares of a step that are lost, stacked, over np: bands, or bars for a single np."""
    steps = step_shares(document)
    ranks = [step.np for step in steps]
    figure = go.Figure()
    for field, name in known_losses(document).items():
        series = {
            "name": name,
            "x": ranks,
            "y": [100 * step.parts[field] for step in steps],
            "customdata": [human_seconds(step.parts[field] * step.seconds) for step in steps],
            "hovertemplate": f"{name}: %{{y:.1f}} %, %{{customdata}}<extra></extra>",
        }
        colour = LOSS_COLOURS[field]
        if len(steps) > 1:
            line = {"color": colour, "width": 1.5}
            figure.add_scatter(**series, stackgroup="loss", mode="lines", line=line, fillcolor=faint(colour, 0.55))
        else:
            figure.add_bar(**{**series, "x": [f"np {ranks[0]}"]}, marker_color=colour)
    style(figure, "np", "% of a step")
    figure.update_layout(barmode="stack", bargap=0.7, hovermode="x unified")
    if len(steps) > 1:
        _rank_axis(figure, ranks)
        figure.update_xaxes(unifiedhovertitle_text="np %{x}")
    figure.update_yaxes(rangemode="tozero")
    return figure


def timeline_caption(timelines: Sequence[StepTimeline]) -> str:
    """The time of each step: "recorded step: 94.5 ms; predicted step: 96 ms"."""
    return "; ".join(f"{step_name(step)} step: {human_seconds(step.step_seconds)}" for step in timelines)


def step_name(step: StepTimeline) -> str:
    return RECORDED if step.source == "measured" else step.source


def timeline(timelines: Sequence[StepTimeline]) -> go.Figure:
    """Gradients, agreements and messages of each step, in lanes on one axis in milliseconds."""
    figure = go.Figure()
    lanes = list(chain.from_iterable(_add_step(figure, step) for step in timelines))
    named: set[str] = set()
    for trace in figure.data:  # one entry of the legend for each kind, which the first timeline may lack
        trace.showlegend = trace.name not in named
        named.add(trace.name)
    style_bars(figure, "ms", 120 + LANE_PIXELS * len(lanes))
    longest = max(max([step.step_seconds, *(message.end_seconds for message in step.messages)]) for step in timelines)
    figure.update_layout(barmode="overlay", bargap=0.35, showlegend=True, hovermode="closest")
    figure.update_layout(uniformtext={"mode": "hide", "minsize": 10})
    figure.update_xaxes(range=[0, 1020 * longest])
    figure.update_yaxes(categoryorder="array", categoryarray=lanes)
    return figure


def _add_step(figure: go.Figure, step: StepTimeline) -> list[str]:
    """Draw one step; return its lanes from top to bottom."""
    name = step_name(step)
    gradients, agreements, messages = (
        f"{name}, np {step.np}<br>{what}" for what in ("gradients", "agreement", "messages")
    )
    lanes = [*([gradients] if step.ready_seconds else []), *([agreements] if step.agreement_seconds else []), messages]
    figure.add_bar(
        name="step",
        y=lanes,
        x=[1000 * step.step_seconds] * len(lanes),
        hoverinfo="skip",  # it would hide the messages in front of it
        **_bar_look(RULE, RULE, width=0.9),
    )
    if step.ready_seconds:
        figure.add_scatter(
            name="gradient enqueued",
            x=[1000 * moment for moment in step.ready_seconds],
            y=[gradients] * len(step.ready_seconds),
            mode="markers",
            marker={"symbol": "line-ns", "size": 16, "line": {"color": ORANGE, "width": 1.2}},
            customdata=list(range(1, len(step.ready_seconds) + 1)),
            hovertemplate=f"gradient %{{customdata}} of {len(step.ready_seconds)}<br>ready at %{{x:.3f}} ms<extra></extra>",
            legendgroup="gradients",
        )
    if step.agreement_seconds:
        figure.add_bar(
            name="agreement",
            y=[agreements] * len(step.agreement_seconds),
            base=[1000 * start for start, _ in step.agreement_seconds],
            x=[1000 * (end - start) for start, end in step.agreement_seconds],
            customdata=[human_seconds(end - start) for start, end in step.agreement_seconds],
            hovertemplate="agreement: %{customdata} from %{base:.3f} ms<extra></extra>",
            **_bar_look(GREEN, GREEN),
        )
    figure.add_bar(
        name="message",
        y=[messages] * len(step.messages),
        base=[1000 * message.start_seconds for message in step.messages],
        x=[1000 * (message.end_seconds - message.start_seconds) for message in step.messages],
        text=[human_bytes(message.bytes) for message in step.messages],
        customdata=[
            (
                human_bytes(message.bytes),
                _tensors(message),
                human_seconds(message.end_seconds - message.start_seconds),
                place,
            )
            for place, message in enumerate(step.messages, 1)
        ],
        hovertemplate=f"message %{{customdata[3]}} of {len(step.messages)}: %{{customdata[0]}}"
        "%{customdata[1]}<br>%{customdata[2]} from %{base:.3f} ms<extra></extra>",
        **_bar_look(BLUE, SKY),
        textposition="inside",
        textangle=0,
        insidetextanchor="middle",
    )
    return lanes


def _tensors(message: TimedMessage) -> str:
    return f", tensors: {message.tensors}" if message.tensors else ""


def _bar_look(colour: str, edge: str, width: float = 0.6) -> dict[str, Any]:
    # The edge separates neighbouring messages, and keeps short ones visible.
    marker = {"color": colour, "line": {"color": edge, "width": 1}}
    return {"orientation": "h", "width": width, "marker": marker, "legendgroup": colour}
