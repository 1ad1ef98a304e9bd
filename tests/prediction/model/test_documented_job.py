"""Jobs from documents: gradients of known models, and the steps that they predict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.documented_job import Variation, documented_job, model_job
from hvscale.prediction.model.horovod_loop import simulate
from hvscale.prediction.model.job import PredictedJob
from hvscale.prediction.model.networks import DocumentedCosts, load_network, parse_network
from tests.prediction.model.test_networks import SMALLEST

MIB = 2**20
VARIATIONS = st.just(0.0) | st.floats(1e-3, 0.1)


def test_resnet50_has_its_gradients_in_backward_order() -> None:
    job = model_job("resnet50", images_per_second=320, batch=64)
    assert len(job.names) == 161
    assert job.bytes.sum() / MIB == pytest.approx(97.5, abs=0.1)
    assert set(job.names[:2]) == {"fc.weight", "fc.bias"}
    assert job.names[-1] == "conv1.weight"
    assert job.ready.shape == (1, 1, 161)
    assert (np.diff(job.ready[0, 0]) >= 0).all()
    # A convolution's backward pass computes two products of the forward pass's size.
    assert job.ready[0, 0, 0] == pytest.approx(0.2 / 3, rel=0.05)
    assert job.ready[0, 0, -1] == pytest.approx(0.2)
    assert job.compute_seconds == pytest.approx(0.2)
    assert job.images == 64


def test_gradients_sent_as_float16_have_half_the_bytes() -> None:
    full, half = (
        model_job("edsr", images_per_second=10, batch=4, scale=2, dtype=one) for one in ("float32", "float16")
    )
    assert (full.bytes == 2 * half.bytes).all()
    assert full.bytes.sum() / MIB == pytest.approx(155.4, abs=0.1)
    assert set(half.dtypes) == {"float16"}


@given(
    st.lists(st.integers(1, 10**8), min_size=1, max_size=50),
    st.floats(1e-3, 10),
    st.floats(0, 0.9),
    VARIATIONS,
    VARIATIONS,
)
def test_the_average_step_is_the_documented_one(
    sizes: list[int], step: float, forward: float, of_ranks: float, of_steps: float
) -> None:
    job = job_of(sizes, step, forward, Variation(of_ranks, of_steps))
    assert job.bytes.tolist() == sizes
    assert job.compute_seconds == pytest.approx(step)
    assert job.recorded_seconds.mean() == pytest.approx(step)
    assert (job.ready > 0).all()
    assert (job.after >= -1e-12).all()
    assert (job.recorded_seconds.std() > 0) == (of_ranks > 0 or of_steps > 0)


def job_of(
    sizes: list[int], step_seconds: float, forward_share: float, variation: Variation | None = None
) -> PredictedJob:
    """A job whose gradients follow each other evenly after the forward pass."""
    return documented_job(
        "mine",
        names=[str(number) for number in range(len(sizes))],
        sizes=sizes,
        shares=np.linspace(1, forward_share, len(sizes), endpoint=False)[::-1].tolist(),
        step_seconds=step_seconds,
        dtype="float32",
        images=None,
        variation=variation,
    )


def test_wrong_models_and_speeds_are_refused() -> None:
    with pytest.raises(RequestError, match="images_per_second is -1"):
        model_job("vgg16", images_per_second=-1, batch=8)
    for batch, shown in ((0, "0"), (float("nan"), "nan")):
        with pytest.raises(RequestError, match=f"batch is {shown}; give a positive number"):
            model_job("vgg16", images_per_second=1, batch=batch)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="did you mean edsr"):
        model_job("edrs", images_per_second=1, batch=8)


def network(bytes_per_second: float, blocking: bool = True) -> DocumentedCosts:
    text = SMALLEST.replace("= 1e9", f"= {bytes_per_second}").replace("true", str(blocking).lower())
    return DocumentedCosts("test", parse_network(text, "test"), 1)


@pytest.mark.parametrize("blocking", [True, False])
def test_the_loop_s_step_lies_between_full_and_no_overlap(blocking: bool) -> None:
    """16 gradients of 4 MiB in a step of 1 s, on 8 ranks of 1 Gbit/s and of a fast network."""
    job = job_of([4 * MIB] * 16, 1.0, forward_share=1 / 3)
    settings = HorovodSettings(fusion_bytes=4 * MIB)
    for rate in (1.25e8, 1e12):
        costs = network(rate, blocking)
        wire = float(costs.message_seconds(np.full(16, 4.0 * MIB), 8).sum())
        step = simulate(job, settings, costs, 8, chains=4, steps=4).step.mean()
        assert max(1.0, 1 / 3 + wire) <= step <= 1.0 + wire + 16 * 3 * settings.cycle_seconds
    slow, fast = (simulate(job, settings, network(rate), 8, chains=4, steps=4).step.mean() for rate in (1.25e8, 1e12))
    assert slow > 1.3 * fast


def test_a_shipped_network_predicts_a_job() -> None:
    job = model_job("vgg16", images_per_second=130.9, batch=64, variation=Variation(0.01, 0.01))
    costs = load_network("ethernet-25gbit-roce-nccl").perturbed(16)
    steps = [simulate(job, HorovodSettings(), costs, ranks, chains=16, steps=4).step.mean() for ranks in (4, 64, 512)]
    assert job.compute_seconds < steps[0] < steps[1] < steps[2]
