"""What a prediction says about the runs that it was made from."""

from dataclasses import replace

import pytest

from hvscale.prediction.model.samples import Samples
from hvscale.prediction.predict import Measurements, PredictionRequest, warnings
from hvscale.prediction.settings import PredictedSettings, recorded_settings
from tests.prediction.model.jobs import regular_job
from tests.prediction.model.test_measured_costs import RING, samples


@pytest.mark.parametrize(("np_", "round_robin", "warns"), [(16, False, True), (16, True, False), (4, False, False)])
def test_more_ranks_than_cores_should_take_turns(np_: int, round_robin: bool, warns: bool) -> None:
    run: Samples = replace(samples(RING, 4, per_core=2.0), round_robin=round_robin)
    settings, request = PredictedSettings(recorded_settings({})), PredictionRequest(np=[np_], cores=2)
    found = warnings(regular_job([1000]), settings, request, Measurements([], [run], []))
    assert any("chrt --rr 1" in one for one in found) == warns
