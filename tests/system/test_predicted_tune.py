"""`hvscale tune --predict-np`: a recorded job, profiled replays, and the proof of candidates."""

import hashlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, geometric_mean

import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Run, run_hvscale, write_program
from tests.system.test_replay import PROGRAM

WARM_UP = 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without messages: only its gradients, with a cycle so long that others are faster."""
    folder = tmp_path_factory.mktemp("recording")
    write_program(folder, PROGRAM)
    options = ("--gradients", "-np", 2, "--mpi", "gloo", "--set", "cycle_time=25", "--run", "recorded")
    done = run_hvscale(folder, "profile", *options, "--", "python", "program.py")
    assert done.returncode == 0, done.stderr
    return folder / "recorded"


def test_candidates_are_proven_by_replay(
    hvscale: Run, recorded: Path, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    for name, settings in {"default": (), "ring": ("--set", "allreduce_algorithm=ring")}.items():
        done = hvscale("profile", "-np", 2, *settings, "--run", name, "--", "hvscale", "replay", recorded)
        assert done.returncode == 0, done.stderr
    # One threshold leaves fewer candidates, each of which is replayed twice.
    search = ("--predict-np", 64, "--fix", "fusion_threshold=64M")
    tune = ("tune", *search, "--pairs", 2, "--steps", 8, "--run", "tuned", "--json")
    done = hvscale(*tune, recorded, "default", "ring")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "tuned/predicted-tune.json").read_text())
    assert (document["schema"], document["np"], document["predict_np"]) == ("hvscale/predicted-tune/1", 2, 64)
    assert document["files"] == {"recording": hashlib.sha256((recorded / "run.json").read_bytes()).hexdigest()}
    assert {point["settings"].get("allreduce_algorithm") for point in document["points"]} == {None, "ring"}
    assert document["rows"][0]["name"] == "recorded"
    assert len(document["rows"]) > 1
    for row in document["rows"]:
        means = []
        for repeat in (1, 2):
            run = tmp_path / "tuned" / f"{row['name']}-repeat-{repeat}"
            steps = [json.loads(line)["seconds"] for line in (run / "steps.jsonl").read_text().splitlines()]
            means.append(fmean(steps[WARM_UP:]))
            asked = json.loads((run / "run.json").read_text())["launch"]["set"]
            assert asked == [f"{knob}={text}" for knob, text in row["settings"].items()]
        assert row["replayed_step_seconds"] == pytest.approx(geometric_mean(means))
        assert row["predicted_step_seconds_low"] < row["predicted_step_seconds"] < row["predicted_step_seconds_high"]
    assert f"plot: {tmp_path}/tuned/predicted-tune.html" in done.stderr
    page = open_page(tmp_path / "tuned/predicted-tune.html")
    for trace in range(2):
        points = page.locator("#gains .scatterlayer .trace").nth(trace).locator(".points path")
        expect(points).to_have_count(len(document["rows"]) - 1)
    expect(page.locator("#search .points path")).to_have_count(len(document["points"]))
    assert document["verdict"] in page.inner_text("header")
    file = tmp_path / "tuned/settings.toml"
    (chosen,) = [row for row in document["rows"] if row["name"] == document["choice"]]
    assert tomllib.loads(file.read_text())["set"] == chosen["settings"]
    started = hvscale("launch", "-np", 1, "--settings", file, "--", "env")
    assert f"HOROVOD_CYCLE_TIME={chosen['settings']['cycle_time']}" in started.stdout

    resumed = hvscale(*tune[:-1], recorded, "default", "ring")
    assert resumed.returncode == 0, resumed.stderr
    assert document["verdict"] in " ".join(resumed.stdout.split())
    assert len(list((tmp_path / "tuned").glob("*-repeat-*"))) == 2 * len(document["rows"])


def test_without_measured_runs_the_command_that_measures_is_printed(hvscale: Run, recorded: Path) -> None:
    done = hvscale("tune", "--predict-np", 512, "-np", 4, recorded)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "hvscale profile -np 4 -- hvscale replay " in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--predict-np", "0"), "--predict-np 0: give a number from 1"),
        (("--predict-np", "many"), "it is not a whole number"),
        (("--predict-np", "8", "--trials", "9"), "--trials: only without --predict-np"),
        (("--predict-np", "8", "--fix", "cycle_tim=5"), "did you mean cycle_time?"),
        (("--cores", "8"), "--cores: only with --predict-np"),
        (("--predict-np", "8"), "missing is not a folder"),
    ],
)
def test_invalid_options_are_refused_in_one_line(hvscale: Run, arguments: tuple[str, ...], words: str) -> None:
    refused(hvscale, *arguments, "missing", words=words)


def test_numbers_that_allow_no_proof_are_refused(hvscale: Run, recorded: Path) -> None:
    refused(hvscale, "--predict-np", "1", recorded, words="a single rank sends no messages")
    refused(hvscale, "--predict-np", "8", "-np", "1", recorded, words="replay on -np 2 or more")
    refused(hvscale, "--predict-np", "8", "--pairs", "1", recorded, words="at least 2 replays")


def refused(hvscale: Run, *arguments: object, words: str) -> None:
    done = hvscale("tune", *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert words in line


def test_a_run_without_gradients_is_refused(hvscale: Run, tmp_path: Path) -> None:
    assert hvscale("launch", "-np", 2, "--run", "plain", "--", "true").returncode == 0
    done = hvscale("tune", "--predict-np", 8, "plain")
    assert done.returncode == 2
    assert "hvscale profile --gradients" in done.stderr
    assert not list(tmp_path.glob("runs/*"))
