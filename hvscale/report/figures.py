"""The look of all figures: colours, axes and legends, and how figures are put into a page."""

import json

import plotly.graph_objects as go

# Okabe and Ito's colours, which people with any colour vision can tell apart; what is not data is grey.
BLUE, ORANGE, GREEN, PINK, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
GREY, INK, RULE = "#a3acb5", "#1c2733", "#e3e7eb"
OPERATION_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)


def script_safe(figures: dict[str, go.Figure]) -> str:
    """JSON that cannot end the script element that holds it."""
    text = "{" + ",".join(f"{json.dumps(name)}:{figure.to_json()}" for name, figure in figures.items()) + "}"
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def style_bars(figure: go.Figure, axis: str, height: int) -> None:
    """The look of all figures; `axis` is the horizontal one's title."""
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


def style(figure: go.Figure, x_axis: str, y_axis: str) -> None:
    figure.update_layout(
        template="none",
        height=340,
        margin={"l": 8, "r": 16, "t": 40, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"},
        hoverlabel={"bgcolor": "white", "font_color": INK},
    )
    figure.update_xaxes(title={"text": x_axis, "font_size": 13}, gridcolor=RULE, automargin=True)
    figure.update_yaxes(title={"text": y_axis, "font_size": 13}, gridcolor=RULE, automargin=True)
