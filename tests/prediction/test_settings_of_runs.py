"""Which settings of Horovod a measured run of a job had."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.units import MIB
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.job import PredictedJob, read_job
from hvscale.prediction.predict import measured_run
from hvscale.prediction.settings import recorded_settings
from tests.prediction.model.test_measured_costs import RING, samples
from tests.prediction.model.test_slowed_computing_runs import TRAINING, make_recording, make_run

REPLAY = ["hvscale", "replay", "job"]
CYCLE, FUSION = "HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD"


def settings(run: RunFolder, recorded: RunFolder, job: PredictedJob) -> HorovodSettings:
    return measured_run(run, recorded, job, samples(RING, 4)).horovod


@pytest.mark.parametrize(
    ("command", "env", "cycle_ms"),
    [
        (REPLAY, [], 25),
        (REPLAY, [f"{CYCLE}=5"], 5),
        (TRAINING, [], 1),
        (TRAINING, [f"{CYCLE}=25"], 25),
        (TRAINING, [f"{CYCLE}=5"], 5),
    ],
)
def test_only_a_replay_takes_the_settings_that_a_recording_was_asked_for(
    tmp_path: Path, command: list[str], env: Sequence[str], cycle_ms: float
) -> None:
    recorded = make_recording(tmp_path / "job", settings={CYCLE: "25"}, env=[f"{CYCLE}=25"])
    job = read_job(recorded)
    assert settings(recorded, recorded, job).cycle_seconds == 0.025
    run = make_run(tmp_path / "other", 4, command=command, env=env)
    assert settings(run, recorded, job).cycle_seconds == pytest.approx(cycle_ms / 1000)


def test_what_a_program_sets_itself_is_the_same_in_all_its_runs(tmp_path: Path) -> None:
    recorded = make_recording(tmp_path / "job", settings={CYCLE: "5"}, env=[f"{FUSION}={MIB}"])
    other = make_run(tmp_path / "other", 4)
    assert settings(other, recorded, read_job(recorded)) == HorovodSettings(cycle_seconds=0.005)


def test_a_run_that_recorded_gradients_recorded_its_settings(tmp_path: Path) -> None:
    """Unless its recording is damaged."""
    recorded = make_recording(tmp_path / "job", settings={CYCLE: "25"}, env=[f"{CYCLE}=25"])
    other = make_recording(tmp_path / "other", settings={CYCLE: "5"})
    assert settings(other, recorded, read_job(recorded)).cycle_seconds == 0.005
    for path in other.hvprof.glob("gradients-*.hvg"):
        path.write_bytes(b"nothing")
    assert settings(other, recorded, read_job(recorded)).cycle_seconds == 0.001


@pytest.mark.parametrize(("command", "asked", "fusion"), [(REPLAY, 1, 0), (TRAINING, 16, 0), (TRAINING, 1, MIB)])
def test_recorded_messages_are_replayed_without_fusion_whatever_is_asked_for(
    tmp_path: Path, command: list[str], asked: int, fusion: int
) -> None:
    """A training with another threshold than the recorded one has other messages."""
    recorded = make_recording(tmp_path / "job", env=[f"{FUSION}={16 * MIB}"])
    job = replace(read_job(recorded), settings={FUSION: "0"}, basis="messages")
    run = make_run(tmp_path / "other", 4, command=command, env=[f"{FUSION}={asked * MIB}"])
    assert settings(recorded, recorded, job).fusion_bytes == 0
    assert settings(run, recorded, job).fusion_bytes == fusion


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e9", "fast"])
def test_a_recording_with_an_invalid_setting_is_refused(tmp_path: Path, value: str) -> None:
    job = read_job(make_recording(tmp_path / "job", settings={CYCLE: value}))
    with pytest.raises(RequestError, match=f"invalid variable of Horovod: {CYCLE}={value}"):
        recorded_settings(job.settings)


def test_a_recording_sets_no_other_variables(tmp_path: Path) -> None:
    """A replay sets them in its ranks, and the file may be another user's."""
    others = {"HOROVOD_TIMELINE": "mine.txt", "LD_PRELOAD": "mine.so"}
    recorded = make_recording(tmp_path / "job", settings={CYCLE: "5", **others})
    assert read_job(recorded).settings == {CYCLE: "5"}
