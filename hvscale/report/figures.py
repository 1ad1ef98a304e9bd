"""The house style of all figures: colours, axes, legends and error bars."""

import html
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

import plotly.graph_objects as go

from hvscale.core.statistics import Estimate

# Okabe and Ito's palette, which is safe for colour-blind readers. Grey is for what is not data.
BLUE, ORANGE, GREEN, PINK, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
GREY, INK, RULE = "#a3acb5", "#1c2733", "#e3e7eb"
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
AXIS_TITLE_SIZE = 13


def colour(number: int) -> str:
    """The colour of a figure's n-th series, counted from 0."""
    return COLOURS[number % len(COLOURS)]


def dash(number: int) -> str:
    """The line style of a figure's n-th group of series, counted from 0."""
    return DASHES[number % len(DASHES)]


def style(figure: go.Figure, x_axis: str, y_axis: str, height: int = 340) -> None:
    """Style lines, points or boxes: titles on both axes, and a legend. `height` in pixels."""
    _style(figure, height)
    figure.update_layout(showlegend=True)
    look = {"gridcolor": RULE, "automargin": True}
    figure.update_xaxes(title={"text": x_axis, "font_size": AXIS_TITLE_SIZE}, zerolinecolor=RULE, **look)
    figure.update_yaxes(title={"text": y_axis, "font_size": AXIS_TITLE_SIZE}, **look)


def style_bars(figure: go.Figure, axis: str, height: int) -> None:
    """Style horizontal bars, the first one at the top. `axis`: title of the horizontal axis."""
    _style(figure, height)
    figure.update_layout(bargap=0.25)
    figure.update_xaxes(
        title={"text": axis, "font_size": AXIS_TITLE_SIZE},
        gridcolor=RULE,
        zerolinecolor=RULE,
        automargin=True,
        exponentformat="none",
    )
    figure.update_yaxes(autorange="reversed", automargin=True, ticksuffix="  ", fixedrange=True)


def _style(figure: go.Figure, height: int) -> None:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 16, "t": 40, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "traceorder": "normal"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": INK},
        hoverlabel={"bgcolor": "white", "font_color": INK},
    )


def error_bars(colour: str, above: Sequence[float], below: Sequence[float] | None = None) -> dict[str, Any]:
    """Plotly's error bars. `above`, `below`: their lengths; `below` is by default the same."""
    bars = {"type": "data", "array": list(above), "color": colour, "thickness": 1.2}
    return bars if below is None else {**bars, "symmetric": False, "arrayminus": list(below)}


def interval_points(
    name: str,
    estimates: Mapping[str, Estimate],
    colour: str,
    is_shown: Callable[[float, float], bool],
    number_format: str,
) -> go.Scatter:
    """A point for each row of a figure, with its interval as error bars.

    `estimates`: by the row's label. `is_shown`: whether an interval, of a lower and an upper limit,
    is narrow enough for the axis. `number_format`: of the text under the mouse, such as .4g.
    """
    above, below = [], []
    for one in estimates.values():
        low, high = one.low, one.high
        if low is None or high is None or not is_shown(low, high):
            low = high = one.mean
        above.append(high - one.mean)
        below.append(one.mean - low)
    return go.Scatter(
        name=name,
        x=[one.mean for one in estimates.values()],
        y=[html.escape(label) for label in estimates],
        mode="markers",
        orientation="h",
        marker={"color": colour, "size": 10},
        error_x=error_bars(colour, above, below),
        hovertemplate=f"%{{y}}, {name}: %{{x:{number_format}}}<extra></extra>",
    )


def decade_ticks(low: float, high: float, many: float) -> dict[str, Any]:
    """The ticks of a logarithmic axis: powers of ten, and of at most `many` decades also twice and
    five times each.
    """
    factors = (1, 2, 5) if log10(high / low) <= many else (1,)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return {"tickvals": ticks, "ticktext": [f"{tick:.10g}" for tick in ticks]}


def faint(colour: str, opacity: float = 0.18) -> str:
    """A colour of the palette for filled areas behind other lines."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def linear(x: Sequence[float], y: Sequence[float], name: str = "linear") -> go.Scatter:
    """A dashed line for ideal scaling."""
    line = {"color": GREY, "width": 1.5, "dash": "dash"}
    return go.Scatter(name=name, x=list(x), y=list(y), mode="lines", line=line, hoverinfo="skip")
