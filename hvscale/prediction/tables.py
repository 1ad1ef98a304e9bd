"""The tables of a prediction: the rows, the loss of efficiency, and the expected messages."""

from collections.abc import Sequence
from typing import NamedTuple, get_args

from hvscale.core.units import human_bytes, human_interval, human_number, human_range, human_seconds
from hvscale.prediction.document import PredictedRow, PredictionDocument
from hvscale.report.tables import TableModel
from hvscale.studies.document import ResultSource
from hvscale.studies.run_report.compare_tables import human_calls

LOSS_NAMES: dict[str, str] = {
    "agreement_seconds": "agreement",
    "slowest_rank_seconds": "slowest rank",
    "wire_seconds": "wire",
    "copies_seconds": "copies",
    "slowed_computing_seconds": "slowed",
}
EXTRAPOLATED = "extrapolated"
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def prediction_table(document: PredictionDocument) -> TableModel:
    """A row for each np, grouped by source. The throughput is images/s if all rows have it."""
    rows = document.rows
    with_images = has_images(rows)
    caption = [
        f"intervals: {document.confidence:.0%}; exposed: time that a step waits for communication",
        f"efficiency: over a rank that never waits, {human_seconds(document.compute_seconds)} a step",
    ]
    extrapolated = next((row for row in rows if row.extrapolation > 1), None)
    if extrapolated is not None:
        largest = round(extrapolated.np / extrapolated.extrapolation)
        caption.append(f"x 2: at twice the largest np whose messages were measured, {largest}")
    groups: dict[str, list[list[str]]] = {}
    for heading in dict.fromkeys((*get_args(ResultSource), EXTRAPOLATED)):
        own = [_cells(row, with_images) for row in rows if heading_of(row) == heading]
        if own:
            groups[heading] = own
    return TableModel(
        title=f"{job_name(document)}: predicted scaling",
        columns=[
            *("np", "step", "interval", "images/s" if with_images else "speed-up"),
            *("effic. %", "interval", "exposed"),
        ],
        groups=groups,
        caption=caption,
    )


def heading_of(row: PredictedRow) -> str:
    return EXTRAPOLATED if is_extrapolated(row) else row.source


def _cells(row: PredictedRow, with_images: bool) -> list[str]:
    factor = f" (x {human_factor(row.extrapolation)})" if row.extrapolation > 1 else ""
    return [
        f"{row.np}{factor}",
        human_seconds(row.step_seconds),
        seconds_interval(row.step_seconds_low, row.step_seconds_high),
        human_number(row.images_per_second if with_images else row.speed_up, 4),
        human_number(100 * row.scaling_efficiency),
        human_interval(_percent(row.scaling_efficiency_low), _percent(row.scaling_efficiency_high)),
        human_seconds(row.exposed_seconds),
    ]


class StepShares(NamedTuple):
    """How the predicted step of a row is spent.

    `seconds`: the whole step, without what a measured row adds to it. `parts`: by the names of
    `known_losses`, each as a share of the step; computing takes the rest.
    """

    np: int
    seconds: float
    parts: dict[str, float]


def known_losses(document: PredictionDocument) -> dict[str, str]:
    """The names of `Loss`, without slowed computing if it was not measured."""
    unknown = "slowed_computing_seconds" if document.lost_speed is None else None
    return {field: name for field, name in LOSS_NAMES.items() if field != unknown}


def step_shares(document: PredictionDocument) -> list[StepShares]:
    """One for each np whose loss is known, in order."""
    found, fields = {}, known_losses(document)
    for row in document.rows:
        if row.loss is not None:
            parts: dict[str, float] = {name: getattr(row.loss, name) for name in fields}
            seconds = document.compute_seconds + sum(parts.values())
            found[row.np] = StepShares(row.np, seconds, {name: part / seconds for name, part in parts.items()})
    return [found[np] for np in sorted(found)]


def why_table(document: PredictionDocument) -> TableModel:
    """Where the time of a step goes, in percent of the predicted step, for each np."""
    return TableModel(
        title="why efficiency is lost: shares of a predicted step",
        columns=["np", "step", "computing %", *(f"{name} %" for name in known_losses(document).values())],
        groups={"": [_shares(shares) for shares in step_shares(document)]},
        caption=[
            "agreement: on which gradients are ready; slowest rank: waiting for it",
            "wire: moving messages; copies: to and from the fusion buffer",
            _slowed(document.lost_speed),
        ],
    )


def _slowed(lost_speed: float | None) -> str:
    if lost_speed is None:
        return "slowed: computing while messages move; not measured"
    return f"slowed: computing while messages move loses {lost_speed:.0%} of its speed"


def _shares(shares: StepShares) -> list[str]:
    return [
        str(shares.np),
        human_seconds(shares.seconds),
        f"{100 * (1 - sum(shares.parts.values())):.1f}",
        *(f"{100 * part:.1f}" for part in shares.parts.values()),
    ]


def checks_table(document: PredictionDocument) -> TableModel:
    """Each measured np beside what the runs on other numbers of ranks predict for it."""
    return TableModel(
        title="measured, and predicted from the other runs",
        columns=["np", "measured step", "predicted step", "error %"],
        groups={
            "": [
                [
                    str(check.np),
                    human_seconds(check.step_seconds),
                    human_seconds(check.predicted_seconds),
                    f"{check.error_percent:+.1f}",
                ]
                for check in document.checks
            ]
        },
        caption=["the largest error widens all intervals"],
    )


def messages_table(document: PredictionDocument) -> TableModel:
    """Fused messages of a step by size; rows with the same messages share a group."""
    groups: list[tuple[list[str], list[list[str]]]] = []
    for row in document.rows:
        sizes = _sizes(row)
        if sizes and groups and groups[-1][1] == sizes:
            groups[-1][0].append(str(row.np))
        elif sizes:
            groups.append(([str(row.np)], sizes))
    return TableModel(
        title="fused messages of a step",
        columns=["size", "messages", "bytes", "bytes %"],
        groups={f"np {', '.join(nps)}": sizes for nps, sizes in groups},
        caption=["of one rank: what Horovod sends after it has fused the gradients"],
    )


def _sizes(row: PredictedRow) -> list[list[str]]:
    total = sum(size.bytes for size in row.messages) or 1.0
    return [
        [
            human_range(size.bytes_min, size.bytes_max),
            human_calls(size.calls),
            human_bytes(size.bytes),
            f"{100 * size.bytes / total:.1f}",
        ]
        for size in row.messages
    ]


def job_name(document: PredictionDocument) -> str:
    """The name of the first run, which recorded the job."""
    return next((run.rstrip("/").rpartition("/")[2] for run in document.runs), "a job")


def is_extrapolated(row: PredictedRow) -> bool:
    return row.source == "predicted" and row.extrapolation > 1


def describe_source(row: PredictedRow) -> str:
    """The source of a row, such as "measured" or "extrapolated x 16"."""
    return f"extrapolated x {human_factor(row.extrapolation)}" if is_extrapolated(row) else row.source


def human_factor(factor: float) -> str:
    return f"{factor:.0f}" if factor >= 10 or factor == int(factor) else f"{factor:.1f}"


def has_images(rows: Sequence[PredictedRow]) -> bool:
    """Whether the throughput of all rows is known in images."""
    return bool(rows) and all(row.images_per_second is not None for row in rows)


def seconds_interval(low: float | None, high: float | None) -> str:
    """Format an interval of times with one unit: 12.3 to 14.1 ms; "-" if unknown."""
    if low is None or high is None:
        return "-"
    unit, name = next((pair for pair in UNITS if low >= pair[0]), UNITS[-1])
    return f"{human_interval(low / unit, high / unit)} {name}"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
