"""`hvscale predict` on a recorded and replayed job."""

import json
import math
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from hvscale.core.host import available_cores
from hvscale.core.run_folder import RunFolder
from hvscale.prediction.document import PredictionDocument
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.job import read_job
from hvscale.prediction.model.samples import run_samples
from hvscale.prediction.predict import MeasuredRun, measured_by_np
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.profiling.compare import read_profiled_run
from tests.conftest import Run, run_hvscale, write_program

PROGRAM = """
import horovod.torch as hvd, time, torch
hvd.init()
model = torch.nn.Sequential(*[torch.nn.Linear(100, 100, bias=False) for _ in range(4)])
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
for step in range(16):
    optimizer.zero_grad()
    model(torch.ones(5, 100)).sum().backward()
    time.sleep(0.02)
    optimizer.step()
"""
GRADIENT_BYTES = 4 * 100 * 100 * 4
ALL_REDUCES = "from mpi4py import MPI\nfor step in range(16): MPI.COMM_WORLD.allreduce(step)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A recorded job, and its replay on three ranks."""
    folder = tmp_path_factory.mktemp("runs")
    write_program(folder, PROGRAM)
    for words in (
        ("--gradients", "-np", "2", "--run", "job", "--", "python", "program.py"),
        ("-np", "3", "--run", "replay", "--", "hvscale", "replay", "job"),
    ):
        done = run_hvscale(folder, "profile", *words)
        assert done.returncode == 0, done.stderr
    return [folder / "job", folder / "replay"]


def has_known_steps(job: Path) -> bool:
    """Whether the job's messages show its steps, which it does not mark.

    They do if most steps have several messages, which depends on how fast its ranks were.
    """
    return read_profiled_run(RunFolder.open(job)).edges_ns is not None


def test_it_predicts_other_numbers_of_ranks(hvscale: Run, runs: list[Path], tmp_path: Path) -> None:
    done = hvscale("predict", *runs, "--np", "8,512", "--run", "prediction", "--json")
    assert done.returncode == 0, done.stderr
    document = PredictionDocument.model_validate_json(done.stdout)
    assert document == PredictionDocument.model_validate_json((tmp_path / "prediction/prediction.json").read_text())
    assert (document.gradient_bytes, document.measured_np) == (GRADIENT_BYTES, [3])
    rows = {row.np: row for row in document.rows}
    sources = {np: row.source for np, row in rows.items()}
    assert sources == {2: "measured", 3: "replayed", 8: "predicted", 512: "predicted"}
    # The program wrote no steps.jsonl: its recorded gradients tell its steps.
    assert rows[2].step_seconds == pytest.approx(float(read_job(RunFolder.open(runs[0])).recorded_seconds.mean()))
    assert rows[512].extrapolation == pytest.approx(512 / 3)
    for row in rows.values():
        assert row.step_seconds_low is not None
        assert row.step_seconds_high is not None
        assert row.step_seconds_low <= row.step_seconds <= row.step_seconds_high
        assert row.scaling_efficiency == pytest.approx(document.compute_seconds / row.step_seconds)
        assert sum(size.bytes for size in row.messages) == pytest.approx(GRADIENT_BYTES)
    assert rows[8].step_seconds > document.compute_seconds > 0.02
    recorded = "measured" if has_known_steps(runs[0]) else "replayed"
    assert [timeline.source for timeline in document.timelines] == [recorded, "predicted"]


def test_its_page_shows_the_command_that_repeats_it(hvscale: Run, runs: list[Path], tmp_path: Path) -> None:
    options = ["--set", "cycle_time=2", "--set", "fusion_threshold=16M", "--cores", "1"]
    done = hvscale("predict", *options, *runs, "-np", "8", "--run", "prediction", "--why", "--json")
    assert done.returncode == 0, done.stderr
    document = PredictionDocument.model_validate_json(done.stdout)
    assert document.command == ["hvscale", "predict", *map(str, runs), "--np", "8", *options]
    assert f">{shlex.join(document.command)}<" in (tmp_path / "prediction/prediction.html").read_text()
    again = hvscale(*document.command[1:], "--json")
    assert PredictionDocument.model_validate_json(again.stdout) == document


def test_rows_of_runs_are_of_the_same_job_and_place(hvscale: Run, runs: list[Path], tmp_path: Path) -> None:
    """A replay of another recording only says what messages cost."""
    other = shutil.copytree(runs[1], tmp_path / "other")
    record = json.loads((other / "run.json").read_text())
    record["command"] = ["hvscale", "replay", "another-job"]
    (other / "run.json").write_text(json.dumps(record))
    done = hvscale("predict", runs[0], other, "--np", "8", "--json")
    assert done.returncode == 0, done.stderr
    document = PredictionDocument.model_validate_json(done.stdout)
    assert [(row.np, row.source) for row in document.rows] == [(2, "measured"), (8, "predicted")]
    recorded = ["measured"] if has_known_steps(runs[0]) else []
    assert [timeline.source for timeline in document.timelines] == [*recorded, "predicted"]
    assert (document.measured_np, document.checks) == ([3], [])
    assert "other: another job than job; only what its messages cost is used" in document.warnings
    done = hvscale("predict", *runs, "--np", "8", "--ranks-per-node", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["np"] for row in json.loads(done.stdout)["rows"]] == [2, 8]


def test_replays_are_of_one_job_if_they_name_the_same_folder(hvscale: Run, runs: list[Path], tmp_path: Path) -> None:
    elsewhere = shutil.copytree(runs[0], tmp_path / "elsewhere" / runs[0].name)

    def replay_of(recording: Path, name: str) -> Path:
        replay = shutil.copytree(runs[1], tmp_path / name)
        record = json.loads((replay / "run.json").read_text())
        record["command"] = ["hvscale", "replay", "--steps", "10", str(recording)]
        (replay / "run.json").write_text(json.dumps(record))
        return Path(replay)

    other, first, second = replay_of(elsewhere, "other"), replay_of(runs[0], "first"), replay_of(runs[0], "second")
    for given, is_other in (([runs[0], other], True), ([runs[0], first], False), ([first, second], False)):
        done = hvscale("predict", *given, "--np", "8", "--json")
        assert done.returncode == 0, done.stderr
        warnings = PredictionDocument.model_validate_json(done.stdout).warnings
        assert any("another job" in warning for warning in warnings) == is_other, warnings


def test_steps_of_several_runs_count_together_and_trainings_before_replays() -> None:
    def run(np_: int, *seconds: float, is_replay: bool = False) -> MeasuredRun:
        return MeasuredRun(np_, 1, 2, np.array(seconds), is_replay, HorovodSettings(), None)

    replays = [run(2, 9.0, is_replay=True), run(4, 5.0, is_replay=True), run(4, 6.0, 7.0, is_replay=True)]
    found = measured_by_np([replays[0], run(2, 1.0), *replays[1:], run(2, 2.0)])
    assert {np_: one.seconds.tolist() for np_, one in found.items()} == {2: [1.0, 2.0], 4: [5.0, 6.0, 7.0]}


def test_messages_of_the_first_step_do_not_count(runs: list[Path]) -> None:
    replay = RunFolder.open(runs[1])
    samples, steps = run_samples(replay), read_step_log(replay)
    assert samples is not None
    assert steps is not None
    assert samples.bytes.sum() == (len(steps.seconds) - 1) * GRADIENT_BYTES
    assert samples.total_steps == len(steps.seconds) - 1
    # A message of one tensor is not copied.
    assert samples.fused is not None
    assert (samples.fused == (samples.bytes > GRADIENT_BYTES / 4)).all()


def test_settings_change_the_prediction(hvscale: Run, runs: list[Path]) -> None:
    calls = {}
    for threshold in ("0", "64M"):
        done = hvscale("predict", *runs, "--np", "4", "--set", f"fusion_threshold={threshold}", "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        (row,) = document["rows"]
        assert row["source"] == "predicted"
        assert [timeline["source"] for timeline in document["timelines"]] == ["predicted"]
        calls[threshold] = sum(size["calls"] for size in row["messages"])
    assert calls["0"] == 4
    assert calls["64M"] < 4


def test_why_and_a_csv_file(hvscale: Run, runs: list[Path], tmp_path: Path) -> None:
    done = hvscale("predict", *runs, "--np", "16", "--why", "--csv", "rows.csv")
    assert done.returncode == 0, done.stderr
    assert "slowest rank" in done.stdout
    # One recording does not show how much messages slow computing down.
    assert "slowed: computing while messages move; not measured" in done.stdout
    header, *rows = (tmp_path / "rows.csv").read_text().splitlines()
    assert header.startswith("np,source,extrapolation,step_seconds")
    assert [row.split(",")[:2] for row in rows] == [["2", "measured"], ["3", "replayed"], ["16", "predicted"]]


def test_a_scaling_study_shares_its_page_with_the_prediction(hvscale: Run, runs: list[Path], tmp_path: Path) -> None:
    # The program counts no images, and the page needs only steps.
    scale = ("scale", "--np", "1,2", "--repeat", 1, "--run", "study", "--metric", r"median ([0-9.]+) ms")
    done = hvscale(*scale, "--", "hvscale", "replay", runs[0])
    assert done.returncode == 0, done.stderr
    own = (tmp_path / "study/scale.html").read_text()
    done = hvscale("predict", *runs, "--np", "8", "--measured", "study", "--run", "prediction", "--json")
    assert done.returncode == 0, done.stderr
    document = PredictionDocument.model_validate_json(done.stdout)
    assert {row.np: row.source for row in document.rows} == {
        **{1: "replayed", 2: "measured", 3: "replayed", 8: "predicted"}
    }
    shared = (tmp_path / "study/scale.html").read_text()
    assert shared == (tmp_path / "prediction/prediction.html").read_text()
    assert shared != own


def test_a_rank_alone_shows_how_much_messages_slow_computing_down(hvscale: Run, tmp_path: Path) -> None:
    train = (
        *("hvscale", "train", "edsr-baseline", "--n-resblocks", 2, "--n-feats", 32, "--batch-size", 2),
        *("--threads", 1, "--patch-size", 24, "--steps", 12, "--precision", "fp32", "--memory-format", "contiguous"),
    )
    for words in (
        ("profile", "--gradients", "-np", 2, "--run", "job", "--", *train),
        ("profile", "-np", 2, "--run", "replay", "--", "hvscale", "replay", "job"),
        ("launch", "-np", 1, "--run", "alone", "--", *train),
    ):
        assert hvscale(*words).returncode == 0
    other = shutil.copytree(tmp_path / "alone", tmp_path / "other") / "run.json"
    record = json.loads(other.read_text())
    other.write_text(json.dumps({**record, "command": [*record["command"], "--seed", "7"]}))
    done = hvscale("predict", "job", "alone", "other", "replay", "--np", 8, "--json")
    assert done.returncode == 0, done.stderr
    document = PredictionDocument.model_validate_json(done.stdout)
    assert document.warnings[-1] == "other: one rank with another command than the recorded job: not used"
    assert not any(warning.startswith("alone") for warning in document.warnings)
    row = next(row for row in document.rows if row.np == 8)
    assert row.loss is not None
    # So small a job may hide too few messages to show it.
    if document.lost_speed is None:
        assert row.loss.slowed_computing_seconds == 0
    else:
        assert (row.loss.slowed_computing_seconds > 0) == (document.lost_speed > 0)
        assert document.compute_seconds == pytest.approx(
            row.step_seconds - sum(row.loss.model_dump().values()), rel=0.05
        )


@pytest.mark.usefixtures("namespaces")
def test_copies_are_measured_without_a_limited_link(hvscale: Run, runs: list[Path]) -> None:
    cores = available_cores()
    np_ = cores * math.ceil(4 / cores)  # as many ranks on each core
    place = ("-np", np_, "--placement", "netns", "--nodes", np_)
    for name, link in {"limited": ("--link", "1gbit"), "unlimited": ()}.items():
        done = hvscale("profile", *place, *link, "--run", name, "--", "hvscale", "replay", runs[0], "--steps", 8)
        assert done.returncode == 0, done.stderr

    def predicted(*words: object) -> PredictionDocument:
        done = hvscale("predict", *words, "--np", 8 * np_, "--cores", cores, "--json")
        assert done.returncode == 0, done.stderr
        return PredictionDocument.model_validate_json(done.stdout)

    alone, beside = predicted(runs[0], "limited"), predicted(runs[0], "limited", "unlimited")
    assert beside.network == f"{alone.network}, copies on np {np_} without a limited link"
    advice = [any("measure it without --link" in one for one in found.warnings) for found in (alone, beside)]
    assert advice == [True, False]
    # Neither its steps nor its messages are those of the limited link.
    assert (beside.measured_np, len(beside.rows)) == ([np_], len(alone.rows))
    only = predicted(runs[0], "unlimited")
    assert only.network == f"measured on np {np_}"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--np", "0"], "--np 0: '0' is not a number of ranks"),
        (["--np", "eight"], "--np eight: 'eight' is not a number of ranks"),
        (["--np", "8", "--set", "fusion_treshold=1M"], "did you mean fusion_threshold?"),
        (["--np", "8", "--set", "cycle_time=soon"], "give milliseconds"),
        (["--np", "8", "--set", "fusion_threshold=big"], "give bytes"),
        (["--np", "8", "--set", "allreduce_algorithm=ring"], "no run was measured with it, but with"),
        (["--np", "8", "--link", "1gbit"], "no run was measured on a limited link; measure one with"),
        (["--np", "8", "--link", "fast"], "--link fast: not a rate"),
        (["--np", "8", "--network", "infiniband-edr-mpi", "--cores", "2"], "--cores changes measured costs"),
        (["--np", "8", "--network", "infiniband-edr-mpi", "--from-table", "x"], "--from-table changes measured costs"),
        (
            ["--np", "8", "--network", "infiniband-edr-mpi", "--set", "allreduce_algorithm=ring"],
            "--set allreduce_algorithm chooses among measured messages",
        ),
        (["--np", "8", "--run", "."], "it exists; name a new folder"),
    ],
)
def test_a_wrong_request_is_one_line(hvscale: Run, runs: list[Path], words: list[str], problem: str) -> None:
    done = hvscale("predict", *runs, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert problem in line


def test_a_job_without_gradients_or_messages_is_refused(hvscale: Run, runs: list[Path], tmp_path: Path) -> None:
    assert hvscale("profile", "-np", 2, "--run", "plain", "--", "python", "-c", ALL_REDUCES).returncode == 0
    done = hvscale("predict", "plain", "--np", "8")
    assert done.returncode == 2
    assert "hvscale profile --gradients" in done.stderr
    shutil.copytree(runs[0], tmp_path / "silent")
    for profile in (tmp_path / "silent/hvprof").glob("rank-*.hvp"):
        profile.unlink()
    done = hvscale("predict", "silent", "--np", "8")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no run contains measured all-reduces" in line
    assert "hvscale profile -np 4 -- hvscale replay RUN" in line


def test_messages_stand_for_gradients_that_were_not_recorded(hvscale: Run, runs: list[Path]) -> None:
    done = hvscale("predict", runs[1], "--np", "8", "--json")
    assert done.returncode == 0, done.stderr
    document = PredictionDocument.model_validate_json(done.stdout)
    assert "fused messages only, fixed pattern" in document.warnings[0]
    assert document.settings["fusion_threshold"] == "0"
    assert document.gradient_bytes == pytest.approx(GRADIENT_BYTES, rel=0.01)
    done = hvscale("predict", runs[1], "--np", "8", "--set", "fusion_threshold=1M")
    assert done.returncode == 2
    assert "hvscale profile --gradients" in done.stderr


def test_a_documented_network_needs_no_measurement(hvscale: Run, runs: list[Path]) -> None:
    done = hvscale("predict", runs[0], "--np", "4,4096", "--network", "infiniband-edr-nccl", "--json")
    assert done.returncode == 0, done.stderr
    document = PredictionDocument.model_validate_json(done.stdout)
    assert [(row.np, row.source) for row in document.rows] == [(4, "documented"), (4096, "documented")]
    assert "documented, not measured" in document.warnings[0]
    assert document.measured_np == []
