"""The Plotly figures of a tuning guide."""

import html
from collections.abc import Sequence

import plotly.graph_objects as go

from hvscale.comm_tuning.tune.document import Proof, Trial, TuneDocument
from hvscale.report.figures import BLUE, GREEN, GREY, ORANGE, RULE, error_bars, style_bars
from hvscale.studies.run_report.figures import comparison_figures

# Colour and marker of each state. A trial without a throughput is drawn at 0.
STATES = {
    "measured": (BLUE, "circle"),
    "stopped early": (GREY, "circle"),
    "crashed": (ORANGE, "x"),
    "hung": (ORANGE, "square"),
    "wrong sums": (ORANGE, "diamond"),
}
HEIGHT = 360
MAX_TICKS = 20  # up to this number of trials, each one gets a tick


def guide_figures(document: TuneDocument) -> dict[str, go.Figure]:
    """The figures that have data, by the id of their element in the page."""
    figures = {}
    unit = document.unit or "throughput"
    if document.trials:
        figures["trials"] = trials_figure(document, unit)
    if document.proof is not None and document.proof.pairs:
        figures["proof"] = proof_figure(document.proof, unit)
    if document.profile is not None and document.profile.rows:
        figures |= comparison_figures(document.profile)
    return figures


def trials_figure(document: TuneDocument, unit: str) -> go.Figure:
    """The throughput of every trial, and that of the defaults as a line."""
    figure = go.Figure()
    for state, (colour, symbol) in STATES.items():
        trials = [trial for trial in document.trials if trial.state == state]
        if trials:
            figure.add_scatter(
                name=state,
                x=[trial.number for trial in trials],
                y=[trial.throughput.mean if trial.throughput else 0 for trial in trials],
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 9},
                error_y=trial_error_bars(trials, colour),
                customdata=[hover(trial) for trial in trials],
                hovertemplate="%{customdata}<br>%{y:.4g}<extra></extra>",
            )
    defaults = next((trial.throughput for trial in document.trials if not trial.settings), None)
    style_bars(figure, "trial", HEIGHT)
    figure.update_xaxes(tickformat="d", dtick=1 if len(document.trials) <= MAX_TICKS else None)
    if defaults is not None:
        figure.add_hline(defaults.mean, line={"color": GREY, "dash": "dash"}, annotation_text="defaults")
    start_y_at_zero(figure, unit)
    return figure


def trial_error_bars(trials: Sequence[Trial], colour: str) -> dict[str, object]:
    """Error bars of the trials' intervals; 0 if an interval is unknown."""
    known = [trial.throughput for trial in trials]
    above = [found.high - found.mean if found and found.high is not None else 0.0 for found in known]
    below = [found.mean - found.low if found and found.low is not None else 0.0 for found in known]
    # A very long error bar would flatten all others.
    longest = max((found.mean for found in known if found), default=0.0)
    return error_bars(colour, *([min(length, longest) for length in part] for part in (above, below)))


def hover(trial: Trial) -> str:
    settings = "<br>".join(f"{knob}={text}" for knob, text in map(escaped, trial.settings.items())) or "the defaults"
    problem = f"<br>{html.escape(trial.problem)}" if trial.problem else ""
    return f"trial {trial.number}: {trial.state}<br>{settings}{problem}"


def escaped(item: tuple[str, str]) -> tuple[str, str]:
    knob, text = item
    return html.escape(knob), html.escape(text)


def proof_figure(proof: Proof, unit: str) -> go.Figure:
    """The throughputs of each pair."""
    figure = go.Figure()
    numbers = list(range(1, len(proof.pairs) + 1))
    for name, colour, values in (
        ("defaults", GREY, [pair.default for pair in proof.pairs]),
        ("settings", GREEN, [pair.tuned for pair in proof.pairs]),
    ):
        line = {"color": colour, "width": 1.5}
        shown = f"pair %{{x}}, {name}: %{{y:.4g}}<extra></extra>"
        figure.add_scatter(name=name, x=numbers, y=values, mode="lines+markers", line=line, hovertemplate=shown)
    style_bars(figure, "pair", HEIGHT)
    start_y_at_zero(figure, unit)
    figure.update_xaxes(tickvals=numbers)
    return figure


def start_y_at_zero(figure: go.Figure, unit: str) -> None:
    figure.update_yaxes(
        autorange=True, rangemode="tozero", title={"text": html.escape(unit), "font_size": 13}, gridcolor=RULE
    )
