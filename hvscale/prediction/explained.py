"""Compares a measured scaling curve with a predicted one: does communication explain the loss?"""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel

from hvscale.core.errors import RequestError
from hvscale.core.units import human_share
from hvscale.prediction.document import PredictedRow

ExplanationVerdict = Literal["explained", "not-caused-by-communication", "faster-than-predicted", "no-loss"]
TOLERANCE = 0.02  # of efficiency: what repeated measurements differ by, and a loss worth a cause


class ExplainedPoint(BaseModel):
    """One number of ranks, its efficiency relative to the smallest measured number."""

    np: int
    measured_efficiency: float
    predicted_efficiency: float
    predicted_efficiency_low: float
    predicted_efficiency_high: float
    unexplained: float
    """Loss beyond the predicted band, as a share of the reference throughput; 0 within the band."""
    verdict: ExplanationVerdict


class ExplainedCurve(BaseModel):
    """A measured curve beside the predicted one. `sentence`: the verdict in words."""

    reference_np: int
    verdict: ExplanationVerdict
    sentence: str
    points: list[ExplainedPoint]


def explained_by_communication(
    measured: Mapping[int, float], predicted: Sequence[PredictedRow], tolerance: float = TOLERANCE
) -> ExplainedCurve:
    """Decide whether the predicted communication explains the loss of a measured curve.

    `measured`: images/s of all ranks together, by np. `predicted`: rows for at least the same np.
    Both curves are divided by their value at the smallest measured np, so that neither needs a
    measurement of one rank. The errors of a prediction at two np count as perfectly correlated. A
    point differs from the prediction if it is more than `tolerance` outside the band.

    Raises RequestError if fewer than two np were measured, or one of them was not predicted.
    """
    rows = {row.np: row for row in predicted}
    check_curve(measured, rows)
    reference = min(measured)
    points = [
        compare_point(np, measured[np] * reference / (measured[reference] * np), rows[np], rows[reference], tolerance)
        for np in sorted(measured)
        if np != reference
    ]
    verdict = verdict_of(points)
    return ExplainedCurve(
        reference_np=reference, verdict=verdict, sentence=sentence_of(verdict, points, reference), points=points
    )


def check_curve(measured: Mapping[int, float], rows: Mapping[int, PredictedRow]) -> None:
    if len(measured) < 2:
        raise RequestError("a measured curve needs images/s at two or more numbers of ranks")
    for np, throughput in measured.items():
        if not 0 < throughput < float("inf"):
            raise RequestError(f"{throughput} images/s at {np} ranks is not a valid throughput; give a positive number")
    missing = sorted(set(measured) - set(rows))
    if missing:
        listed = ",".join(map(str, sorted(set(measured) | set(rows))))
        raise RequestError(f"{missing[0]} ranks were measured but not predicted; predict --np {listed}")


def compare_point(
    np: int, efficiency: float, row: PredictedRow, reference: PredictedRow, tolerance: float
) -> ExplainedPoint:
    central = row.scaling_efficiency / reference.scaling_efficiency
    lowest, highest = (relative_bound(row, reference, bound) for bound in ("low", "high"))
    low, high = min(lowest, highest, central), max(lowest, highest, central)
    verdict: ExplanationVerdict = "explained"
    if efficiency < low - tolerance:
        verdict = "not-caused-by-communication"
    elif efficiency > high + tolerance:
        verdict = "faster-than-predicted"
    elif efficiency > 1 - tolerance:
        verdict = "no-loss"
    return ExplainedPoint(
        np=np,
        measured_efficiency=efficiency,
        predicted_efficiency=central,
        predicted_efficiency_low=low,
        predicted_efficiency_high=high,
        unexplained=max(low - efficiency, 0.0),
        verdict=verdict,
    )


def relative_bound(row: PredictedRow, reference: PredictedRow, bound: Literal["low", "high"]) -> float:
    """The bound of the efficiency over that of the reference; without bounds, the prediction."""
    values = [getattr(one, f"scaling_efficiency_{bound}") for one in (row, reference)]
    above, below = (
        one.scaling_efficiency if value is None else value for one, value in zip((row, reference), values, strict=True)
    )
    return float(above / below)


def verdict_of(points: Sequence[ExplainedPoint]) -> ExplanationVerdict:
    """The verdict of the curve: an unexplained loss first, else that of the largest np."""
    if any(point.verdict == "not-caused-by-communication" for point in points):
        return "not-caused-by-communication"
    return points[-1].verdict


def sentence_of(verdict: ExplanationVerdict, points: Sequence[ExplainedPoint], reference: int) -> str:
    point = max(points, key=lambda one: one.unexplained) if verdict == "not-caused-by-communication" else points[-1]
    low, high = human_share(point.predicted_efficiency_low), human_share(point.predicted_efficiency_high)
    band = f"{low} %" if low == high else f"{low} to {high} %"
    compared = (
        f"On {point.np} ranks, a rank runs at {human_share(point.measured_efficiency)} % of its speed on {reference}"
    )
    match verdict:
        case "not-caused-by-communication":
            return (
                f"{compared}, but communication explains only a fall to {band}. At least "
                f"{point.unexplained * 100:.0f} points are not caused by communication: check the input data, "
                "file systems, slower nodes and work that only some ranks do."
            )
        case "faster-than-predicted":
            return (
                f"{compared}, more than the predicted {band}: the prediction's network is slower than this one, "
                "or its computation overlaps less."
            )
        case "explained":
            return f"{compared}; communication explains {band}."
        case "no-loss":
            return f"{compared}: there is no loss to explain; {band} was predicted."
