"""The page of `hvscale check-gpu`: the lines by step, and the throughputs of each model."""

import plotly.graph_objects as go

from hvscale.bench.gpu_check.document import CheckLine, GpuCheckDocument
from hvscale.bench.gpu_check.output import machine_facts
from hvscale.report.figures import BLUE, style_bars
from hvscale.report.page import render_page, study_facts, title

SPEED = "images_per_second"
BAR_PIXELS, MARGIN_PIXELS = 34, 110


def page(document: GpuCheckDocument) -> str:
    """The HTML page of a check, also of one that was interrupted."""
    what = "dry run on the CPU: no GPU was checked" if document.dry_run else "what needs a GPU"
    # Throughputs of a dry run are a CPU's, of small models: nobody should compare them.
    figures = {} if document.dry_run else throughput_figures(document)
    return render_page(
        "check-gpu.html.j2",
        {name: figure for name, (_, figure) in figures.items()},
        title=title(document),
        what=f"hvscale check-gpu: {what}",
        facts=[*machine_facts(document), *study_facts(document)],
        warnings=document.warnings,
        document=document,
        steps=[(step, [line for line in document.lines if line.step == step.name]) for step in document.steps],
        headings={name: heading for name, (heading, _) in figures.items()},
    )


def throughput_figures(document: GpuCheckDocument) -> dict[str, tuple[str, go.Figure]]:
    """Bars of images per second, by step: (heading, figure) by element id."""
    found = {}
    for step in document.steps:
        lines = [line for line in document.lines if line.step == step.name and SPEED in line.figures]
        if lines:
            found[step.name] = (f"{step.name}: images per second", bars(lines))
    return found


def bars(lines: list[CheckLine]) -> go.Figure:
    names = [line.claim.partition(", ")[2].partition(":")[0] for line in lines]
    figure = go.Figure(
        go.Bar(
            x=[line.figures[SPEED] for line in lines],
            y=names,
            orientation="h",
            marker_color=BLUE,
            hovertext=[line.found for line in lines],
            hoverinfo="text",
        )
    )
    style_bars(figure, "images per second", MARGIN_PIXELS + BAR_PIXELS * len(lines))
    return figure
