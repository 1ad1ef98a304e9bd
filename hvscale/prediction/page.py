"""The HTML page of `hvscale predict`."""

import shlex

from hvscale.core.units import human_bytes, human_number, human_seconds
from hvscale.prediction.document import PredictedRow, PredictionDocument
from hvscale.prediction.figures import prediction_figures, timeline_caption
from hvscale.prediction.tables import (
    LOSS_NAMES,
    checks_table,
    describe_source,
    job_name,
    messages_table,
    prediction_table,
    seconds_interval,
    why_table,
)
from hvscale.report.page import render_page
from hvscale.report.tables import TableModel

LOSS_WORDS = {
    "agreement_seconds": "agreeing on which gradients are ready",
    "slowest_rank_seconds": "waiting for the slowest rank",
    "wire_seconds": "moving messages that no computation hides",
    "copies_seconds": "copying into and out of the fusion buffer",
    "slowed_computing_seconds": "computing more slowly while messages move",
}
CHARTS = {
    "throughput": (
        "Throughput",
        "Of all ranks together. Both axes are logarithmic: perfect scaling is a straight line.",
    ),
    "efficiency": (
        "Scaling efficiency",
        "Over a rank that never waits. The line is dashed beyond the largest measured np.",
    ),
    "loss": ("Loss of efficiency", "Shares of the predicted step that a single rank would not need, stacked."),
    "timeline": (
        "A step's timeline",
        "From the last result of the step before. A recorded step is the one of median length, a predicted one the "
        "simulated step nearest to the predicted mean. Gradients are those of the slowest rank. Drag to zoom.",
    ),
}


def page(document: PredictionDocument) -> str:
    """The page as HTML. `document` has at least one row."""
    figures = prediction_figures(document)
    return render_page(
        "prediction.html.j2",
        figures,
        title=f"{job_name(document)}: predicted scaling",
        command=shlex.join(document.command),
        facts=_facts(document),
        answer=answer(document),
        explained=document.explained,
        warnings=document.warnings,
        charts={name: CHARTS[name] for name in figures},
        table=_without_name(prediction_table(document)),
        why=why_table(document),
        checks=checks_table(document) if document.checks else None,
        messages=messages_table(document),
        settings=document.settings,
        steps=timeline_caption(document.timelines),
    )


def _without_name(table: TableModel) -> TableModel:
    """The page's title names the job already."""
    return table.model_copy(update={"title": "Step time, throughput and efficiency"})


def _facts(document: PredictionDocument) -> list[str]:
    measured = [f"runs on np {', '.join(map(str, document.measured_np))}"] if document.measured_np else []
    return [
        *measured,
        f"{human_bytes(document.gradient_bytes)} of gradients a step",
        f"computation {human_seconds(document.compute_seconds)} a step",
        f"network: {document.network}",
    ]


def answer(document: PredictionDocument) -> str:
    """Sentences about the largest predicted np, or the largest np if nothing is predicted."""
    predicted = [row for row in document.rows if row.source in ("predicted", "documented")]
    row = max(predicted or document.rows, key=lambda row: row.np)
    interval = seconds_interval(row.step_seconds_low, row.step_seconds_high)
    text = f"On {row.np} ranks a step takes {human_seconds(row.step_seconds)}"
    text += f" ({interval})" if interval != "-" else ""
    text += f", and the scaling efficiency is {human_number(100 * row.scaling_efficiency)} %"
    if row.scaling_efficiency_low is not None and row.scaling_efficiency_high is not None:
        low, high = (human_number(100 * limit) for limit in (row.scaling_efficiency_low, row.scaling_efficiency_high))
        text += f" ({low} to {high} %)"
    basis = "documented, not measured" if row.source == "documented" else describe_source(row)
    return f"{text}: {basis}.{_largest_loss(row)}"


def _largest_loss(row: PredictedRow) -> str:
    if row.loss is None:
        return ""
    name = max(LOSS_NAMES, key=lambda name: float(getattr(row.loss, name)))
    share = getattr(row.loss, name) / row.step_seconds
    return f" Most time is lost in {LOSS_WORDS[name]}: {100 * share:.1f} % of the step."
