"""The points of a scaling study beside a prediction."""

import json
from pathlib import Path

import pytest

from hvscale.core.documents import to_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.launch.options import LaunchOptions
from hvscale.prediction.measured_points import add_measured_rows, read_study, rows_of
from hvscale.studies.scaling.document import ScalingDocument, ScalingRun
from hvscale.studies.scaling.work import Scaling
from tests.prediction.model.test_slowed_computing_runs import make_run
from tests.prediction.predictions import COMPUTE, IMAGES, prediction

TRAINING = ["python", "train.py"]
REPLAY = ["/opt/bin/hvscale", "replay", "/data/runs/edsr"]


def recorded_job(folder: Path) -> RunFolder:
    """The run that a prediction starts from, whose folder is named as in REPLAY."""
    return make_run(folder / "edsr", 2, command=TRAINING)


def write_study(
    folder: Path,
    seconds: dict[int, list[float]],
    command: list[str],
    *,
    logs: bool = True,
    scaling: Scaling = "weak",
    images: int = IMAGES,
    exposed: float | None = None,
    unit: str | None = "images/s",
) -> Path:
    """A study as `hvscale scale` leaves it: `seconds` of a step by np and repeat."""
    folder.mkdir()
    runs = []
    for np, steps in seconds.items():
        for repeat, step in enumerate(steps, 1):
            name = f"np-{np}-repeat-{repeat}"
            (folder / name).mkdir()
            line = {"seconds": step, "images": np * images, "communication_seconds": exposed}
            warm_up = {**line, "seconds": 100 * step}
            if logs:
                lines = [warm_up] * 3 + [line] * 5
                (folder / name / "steps.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
            runs.append(ScalingRun(np=np, repeat=repeat, folder=name, throughput=np * images / step))
    document = ScalingDocument(
        folder=str(folder),
        command=command,
        scaling=scaling,
        launch=LaunchOptions().recorded(),
        metric=None,
        np=list(seconds),
        repeats=max(map(len, seconds.values()), default=1),
        base_np=min(seconds, default=1),
        unit=unit,
        runs=runs,
    )
    document.tabulate()
    (folder / "scale.json").write_text(to_json(document))
    return folder


def test_points_have_the_steps_of_the_logs_and_intervals_over_starts(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "curve", {2: [0.1, 0.102, 0.098], 4: [0.125]}, ["python", "train.py"], exposed=0.01)
    two, four = rows_of(read_study(folder), folder, COMPUTE)
    assert (two.np, two.source, two.extrapolation) == (2, "measured", 1)
    assert two.step_seconds == pytest.approx(0.1, rel=1e-3)
    assert two.step_seconds_low is not None
    assert two.step_seconds_high is not None
    assert two.step_seconds_low < 0.098
    assert two.step_seconds_high > 0.102
    assert two.scaling_efficiency_low == pytest.approx(COMPUTE / two.step_seconds_high)
    assert two.images_per_second == pytest.approx(2 * IMAGES / two.step_seconds)
    assert two.exposed_seconds == pytest.approx(0.01)
    assert four.scaling_efficiency == pytest.approx(COMPUTE / 0.125)
    assert four.speed_up == pytest.approx(4 * COMPUTE / 0.125)
    assert (four.step_seconds_low, four.images_per_second_high) == (None, None)


def test_without_logs_the_throughput_of_one_rank_is_the_base(tmp_path: Path) -> None:
    """A rank that takes 0.2 s alone and 0.25 s on four has an efficiency of 80 %."""
    folder = write_study(tmp_path / "curve", {1: [0.2], 4: [0.25]}, ["python", "train.py"], logs=False)
    one, four = rows_of(read_study(folder), folder, COMPUTE)
    assert one.step_seconds == pytest.approx(COMPUTE)
    assert one.scaling_efficiency == pytest.approx(1)
    assert four.scaling_efficiency == pytest.approx(0.8)
    assert four.exposed_seconds == pytest.approx(COMPUTE / 0.8 - COMPUTE)
    later = write_study(tmp_path / "later", {2: [0.2], 4: [0.25]}, ["python", "train.py"], logs=False)
    with pytest.raises(RequestError, match="np 1 was not measured"):
        rows_of(read_study(later), later, COMPUTE)


def test_a_study_of_a_replay_gives_replayed_points_in_order(tmp_path: Path) -> None:
    document = prediction()
    document.rows = [row for row in document.rows if row.source == "predicted"]
    known, before = len(document.warnings), {row.np for row in document.rows}
    recorded = recorded_job(tmp_path)
    add_measured_rows(document, write_study(tmp_path / "replays", {16: [0.1], 8: [0.1]}, REPLAY), recorded)
    add_measured_rows(document, write_study(tmp_path / "curve", {2: [0.1]}, TRAINING), recorded)
    sources = {row.np: row.source for row in document.rows}
    assert len(sources) == len(document.rows)
    assert (sources[1], sources[2], sources[8], sources[16]) == ("predicted", "measured", "replayed", "replayed")
    assert list(sources) == sorted(sources)
    assert {row.np for row in document.predicted_beside} == {2, 8, 16} & before
    assert {row.source for row in document.predicted_beside} == {"predicted"}
    assert len(document.warnings) == known


def test_a_study_of_another_job_gives_a_warning(tmp_path: Path) -> None:
    document, recorded = prediction(), recorded_job(tmp_path)
    known = len(document.warnings)
    add_measured_rows(document, write_study(tmp_path / "a", {2: [0.1]}, [*REPLAY[:2], "runs/vgg"]), recorded)
    add_measured_rows(document, write_study(tmp_path / "b", {2: [0.1]}, TRAINING, images=2 * IMAGES), recorded)
    replays, images = document.warnings[known:]
    assert "replays another recording, " in replays
    assert f"runs/vgg, than {recorded.path}" in replays
    assert f"{2 * IMAGES} images a rank and step" in images


def test_recordings_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    """A run of the study knows from which folder its command names the recording."""
    document, recorded = prediction(), recorded_job(tmp_path / "mine")
    recorded_job(tmp_path / "theirs")
    known = len(document.warnings)
    for owner in ("mine", "theirs"):
        command = [*REPLAY[:2], "edsr", "--steps", "20"]
        folder = write_study(tmp_path / owner / "curve", {2: [0.1]}, command)
        run = make_run(tmp_path / owner / "run", 2, command=command)
        record = run.read().model_copy(update={"working_directory": str(tmp_path / owner)})
        (folder / "np-2-repeat-1/run.json").write_text(to_json(record))
        add_measured_rows(document, folder, recorded)
    [warning] = document.warnings[known:]
    assert f"replays another recording, {tmp_path / 'theirs/edsr'}, than {recorded.path}" in warning


def test_a_study_of_another_command_without_images_gives_a_warning(tmp_path: Path) -> None:
    document, recorded, other = prediction(), recorded_job(tmp_path), ["python", "speed.py"]
    known = len(document.warnings)
    for number, (studied, unit) in enumerate([(TRAINING, None), (other, "images/s"), (REPLAY, None)]):
        add_measured_rows(document, write_study(tmp_path / str(number), {2: [0.1]}, studied, unit=unit), recorded)
    assert document.warnings[known:] == []
    add_measured_rows(document, write_study(tmp_path / "other", {2: [0.1]}, other, unit=None), recorded)
    [warning] = document.warnings[known:]
    assert "other measured another command than the recorded job's" in warning


def test_folders_that_cannot_be_used_are_one_line_errors(tmp_path: Path) -> None:
    damaged = write_study(tmp_path / "damaged", {2: [0.1]}, ["true"])
    (damaged / "scale.json").write_text("{ cut short")
    older = write_study(tmp_path / "older", {2: [0.1]}, ["true"])
    (older / "scale.json").write_text('{"schema": "hvscale/scale/1"}')
    (tmp_path / "empty").mkdir()
    for folder, message in (
        (tmp_path / "nowhere", "holds no scale.json: give the folder of a study"),
        (tmp_path / "empty", "holds no scale.json"),
        (damaged, "is damaged"),
        (older, "was written by an older hvscale"),
        (write_study(tmp_path / "strong", {2: [0.1]}, ["true"], scaling="strong"), "measure with --weak"),
        (write_study(tmp_path / "none", {}, ["true"]), "holds no finished run"),
    ):
        with pytest.raises(RequestError, match=message) as error:
            rows_of(read_study(folder), folder, COMPUTE)
        assert len(str(error.value).splitlines()) == 1
