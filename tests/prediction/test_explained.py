"""Whether communication explains a measured scaling curve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.prediction.document import PredictedRow
from hvscale.prediction.explained import explained_by_communication


def row(np: int, efficiency: float, low: float | None = None, high: float | None = None) -> PredictedRow:
    return PredictedRow(
        np=np,
        source="documented",
        step_seconds=1 / efficiency,
        speed_up=np * efficiency,
        scaling_efficiency=efficiency,
        scaling_efficiency_low=low,
        scaling_efficiency_high=high,
        exposed_seconds=1 / efficiency - 1,
    )


def totals(each: dict[int, float]) -> dict[int, float]:
    return {np: np * speed for np, speed in each.items()}


def test_a_loss_of_real_input_pipelines_is_not_caused_by_communication() -> None:
    """Horovod issue 871: communication explains 96 % where 78 % was measured."""
    predicted = [row(8, 1.0), row(16, 0.98, 0.96, 0.99), row(32, 0.96, 0.94, 0.98)]
    answer = explained_by_communication(totals({8: 750, 16: 693, 32: 584}), predicted)
    assert answer.verdict == "not-caused-by-communication"
    assert answer.reference_np == 8
    assert answer.points[-1].measured_efficiency == pytest.approx(0.779, abs=1e-3)
    assert answer.points[-1].unexplained == pytest.approx(0.94 - 0.779, abs=1e-3)
    assert answer.sentence.startswith(
        "On 32 ranks, a rank runs at 78 % of its speed on 8, but communication explains only a fall to 94 to 98 %. "
        "At least 16 points are not caused by communication"
    )


def test_a_loss_within_the_band_is_explained() -> None:
    predicted = [row(1, 1.0), row(64, 0.62, 0.55, 0.70), row(512, 0.58, 0.50, 0.66)]
    answer = explained_by_communication(totals({1: 10.3, 64: 6.6, 512: 6.2}), predicted)
    assert answer.verdict == "explained"
    assert answer.sentence == "On 512 ranks, a rank runs at 60 % of its speed on 1; communication explains 50 to 66 %."


def test_a_curve_better_than_predicted_and_one_without_loss() -> None:
    predicted = [row(1, 1.0), row(64, 0.62, 0.55, 0.70)]
    assert explained_by_communication({1: 1, 64: 60}, predicted).verdict == "faster-than-predicted"
    no_loss = explained_by_communication({1: 1, 64: 63.9}, [row(1, 1.0), row(64, 0.99, 0.97, 1.0)])
    assert no_loss.verdict == "no-loss"
    assert no_loss.points[0].unexplained == 0


def test_both_curves_are_relative_to_the_smallest_measured_np() -> None:
    """The prediction itself loses a half from 1 to 8 ranks, and nothing after."""
    predicted = [row(8, 0.5, 0.4, 0.6), row(32, 0.5, 0.4, 0.6)]
    answer = explained_by_communication(totals({8: 100, 32: 80}), predicted)
    assert answer.points[0].predicted_efficiency == 1
    assert answer.verdict == "not-caused-by-communication"
    assert "100 %" in answer.sentence


@given(
    st.dictionaries(st.integers(1, 4096), st.tuples(st.floats(0.05, 1), st.floats(0, 0.3)), min_size=2, max_size=6),
    st.floats(1, 1e4),
)
def test_a_curve_as_predicted_is_always_explained(curve: dict[int, tuple[float, float]], speed: float) -> None:
    predicted = [row(np, one, one * (1 - width), one * (1 + width)) for np, (one, width) in curve.items()]
    answer = explained_by_communication(totals({np: speed * one for np, (one, _) in curve.items()}), predicted)
    assert answer.verdict in ("explained", "no-loss")
    assert all(point.unexplained == pytest.approx(0, abs=1e-9) for point in answer.points)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({8: 100.0}, "two or more numbers of ranks"),
        ({8: 100.0, 16: 0.0}, "0.0 images/s at 16 ranks is not a valid throughput"),
        ({8: 100.0, 16: float("nan")}, "nan images/s"),
        ({8: 100.0, 64: 600.0}, "64 ranks were measured but not predicted; predict --np 8,16,64"),
    ],
)
def test_wrong_curves_are_refused(measured: dict[int, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        explained_by_communication(measured, [row(8, 1), row(16, 0.9)])
