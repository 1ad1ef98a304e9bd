"""What a prediction says about the runs that it was made from."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Host, Library, RunFolder, RunRecord
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.horovod_loop import simulate
from hvscale.prediction.model.measured_costs import fit_costs
from hvscale.prediction.model.samples import Samples
from hvscale.prediction.predict import (
    PredictionRequest,
    SelectedMeasurements,
    larger_than_measured,
    warnings,
    without_messages,
)
from hvscale.prediction.settings import PredictedSettings, apply, recorded_settings
from tests.prediction.model.jobs import regular_job
from tests.prediction.model.test_measured_costs import RING, samples


def test_a_knob_with_two_values_is_refused() -> None:
    settings = PredictedSettings(recorded_settings({}))
    assert apply(settings, ["cycle-time=7", "cycle_time=7"]).horovod.cycle_seconds == 0.007
    with pytest.raises(RequestError, match="--set cycle_time=7: cycle_time is also set to 1; set it once"):
        apply(settings, ["cycle_time=1", "cycle_time=7"])


@pytest.mark.parametrize(("np_", "count"), [(2, 1), (1, 0)])
def test_a_run_of_which_nothing_is_used_is_warned_of(tmp_path: Path, np_: int, count: int) -> None:
    """One rank alone shows its computing, and `why_unused` says if it does not."""
    runs = [RunFolder.create(tmp_path / name) for name in ("profiled", "counted")]
    for run in runs:
        run.write(
            RunRecord(
                command=["true"],
                np=np_,
                library=Library(flavour="openmpi", version="5"),
                host=Host(name="here", kernel="k", cpu="c", cores=2, memory_bytes=1),
                working_directory="/",
                started_at=datetime.now(UTC),
            )
        )
    found = without_messages(runs, SelectedMeasurements(runs[:1], [], [], [], []))
    assert [one.partition(",")[0] for one in found] == ["counted: not used"] * count


@pytest.mark.parametrize(("np_", "round_robin", "warns"), [(16, False, True), (16, True, False), (4, False, False)])
def test_more_ranks_than_cores_should_take_turns(np_: int, round_robin: bool, warns: bool) -> None:
    run: Samples = replace(samples(RING, 4, per_core=2.0), round_robin=round_robin)
    settings, request = PredictedSettings(recorded_settings({})), PredictionRequest(np=[np_], cores=2)
    found = warnings(regular_job([1000]), settings, request, SelectedMeasurements([], [], [run], [], []))
    assert any("chrt --rr 1" in one for one in found) == warns


@pytest.mark.parametrize(
    ("np_", "changes", "unlimited", "warns"),
    [
        (16, {}, False, True),
        (16, {}, True, False),
        (2, {}, False, False),
        (16, {"one_machine": False}, False, False),
        (16, {"bytes_per_second": None}, False, False),
    ],
)
def test_what_copies_cost_should_be_measured(np_: int, changes: dict[str, Any], unlimited: bool, warns: bool) -> None:
    """Limited links of one machine hide it; ranks with cores of their own hardly wait for it."""
    run: Samples = replace(samples(RING, 4), one_machine=True)
    without: list[Samples] = [replace(run, bytes_per_second=None)] * unlimited
    settings, request = PredictedSettings(recorded_settings({})), PredictionRequest(np=[np_], cores=2)
    measured = SelectedMeasurements([], [], [replace(run, **changes)], without, [])
    found = warnings(regular_job([1000]), settings, request, measured)
    assert any("measure it without --link" in one for one in found) == warns


@pytest.mark.parametrize(("sizes", "expected"), [([8_000_000] * 2, None), ([8_000_000] * 3, 24e6), ([1000] * 3, None)])
def test_messages_that_are_larger_than_any_measured_are_found(sizes: list[int], expected: float | None) -> None:
    """Horovod fuses all tensors into one message; messages of up to 10 MB were measured."""
    job, settings = regular_job(sizes, interval=1e-6), HorovodSettings(fusion_bytes=64 << 20)
    costs = fit_costs([samples(RING, 4)], cores=None)
    found = larger_than_measured(costs, simulate(job, settings, costs, 4, chains=4, steps=4))
    assert found == ([] if expected is None else [(expected, costs.largest_bytes)])
