"""`hvscale scale` with real ranks: measurements, errors, interruption and resuming."""

import csv
import json
import math
import signal
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from hvscale.core.host import available_cores
from hvscale.launch.options import LaunchOptions
from hvscale.studies.scaling.document import ScalingDocument, ScalingRun
from hvscale.studies.scaling.page import page as scaling_page
from tests.conftest import HANG_SECONDS, PROGRAMS, Run, processes_below, run_json, wait_until

# Prints results as Horovod's synthetic benchmarks do; two ranks reduce a rank's speed from 100 to
# 80.
HOROVOD_LINES = """
speed = {1: 100, 2: 80}[size]
if rank == 0:
    print("Iter #0: %.1f img/sec per CPU" % 7)
    print("Img/sec per CPU: %.1f +-%.1f" % (speed, 1.5))
    print("Total img/sec on %d CPU(s): %.1f +-%.1f" % (size, size * speed, size * 1.5))
"""
BY_MPI = """
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allreduce(1)
"""
# What Horovod's launcher tells each rank.
BY_LAUNCHER = """
import os
rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
"""

# Prints the speed that speeds.json has for its np and repeat.
SPEEDS = """
import json, os, re, sys
from pathlib import Path
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
np, repeat = re.search(r"np-(\\d+)-repeat-(\\d+)", os.environ["HVSCALE_RUN"]).groups()
speeds = json.loads(Path("speeds.json").read_text())[np]
print(f"rank {rank} saw {speeds[int(repeat) - 1] + rank:g} samples/s")
"""
FIRST = r"rank 0 saw ([0-9.]+) samples/s"

# Rank 1 fails if the file `mood` contains "bad", and hangs if it contains "slow".
UNRELIABLE = """
import os, sys, time
from pathlib import Path
print("reached 10 samples/s", flush=True)
mood = Path("mood").read_text()
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    if mood == "bad":
        sys.exit("this rank is unwell")
    if mood == "slow":
        time.sleep(1200)
"""
REACHED = "reached ([0-9.]+)"

TRAIN = (
    *("hvscale", "train", "edsr-baseline", "--n-resblocks", "1", "--n-feats", "8", "--patch-size", "16"),
    *("--steps", "5", "--precision", "fp32", "--memory-format", "contiguous"),
)


def scale_json(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "scale.json").read_text())
    return document


def column(document: dict[str, Any], name: str) -> list[Any]:
    return [row[name] for row in document["rows"]]


@pytest.fixture
def speeds(program: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a program with given speeds by np and repeat.

    For example `speeds({1: [10, 11], 2: [20, 21]})`; rank 1 prints 1 more.
    """

    def write(by_np: dict[int, list[float]]) -> Path:
        (tmp_path / "speeds.json").write_text(json.dumps(by_np))
        return program(SPEEDS)

    return write


@pytest.fixture
def unreliable_program(program: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    def write(behaviour: str) -> Path:
        (tmp_path / "mood").write_text(behaviour)
        return program(UNRELIABLE)

    return write


@pytest.mark.parametrize(("mpi", "initialise"), [("openmpi", BY_MPI), ("gloo", BY_LAUNCHER)], ids=["openmpi", "gloo"])
def test_horovod_benchmark_output_is_read(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, mpi: str, initialise: str
) -> None:
    script = program(initialise + HOROVOD_LINES)
    done = hvscale(
        *("scale", "--np", "1,2", "--mpi", mpi, "--repeat", "1", "--run", "curve", "--csv", "table.csv"),
        *("--json", "--", "python", script),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == scale_json(tmp_path / "curve")
    assert (document["schema"], document["state"], document["scaling"]) == ("hvscale/scale/2", "finished", "weak")
    assert (document["unit"], document["base_np"], document["library"]["flavour"]) == ("images/s", 1, mpi)
    assert column(document, "np") == [1, 2]
    assert column(document, "throughput") == [100, 160]
    assert column(document, "speed_up") == [1, pytest.approx(1.6)]
    assert column(document, "scaling_efficiency") == [1, pytest.approx(0.8)]
    assert column(document, "throughput_low") == [None, None]
    assert {run["source"] for run in document["runs"]} == {"horovod"}
    for run, np in zip(document["runs"], (1, 2), strict=True):
        assert (run_json(tmp_path / "curve" / run["folder"])["np"], run["np"]) == (np, np)
    assert "np 2, repeat 1 of 1: 160" in done.stderr
    with (tmp_path / "table.csv").open() as table:
        assert [row["throughput"] for row in csv.DictReader(table)] == ["100.0", "160.0"]


def test_repeats_are_interleaved_and_give_a_confidence_interval(
    hvscale: Run, speeds: Callable[..., Path], tmp_path: Path
) -> None:
    by_np = {1: [10.0, 11.0, 9.0], 2: [19.0, 20.0, 18.0]}
    done = hvscale(
        "scale", "--np", "2,1", "--repeat", "3", "--metric", FIRST, "--run", "curve", "--", "python", speeds(by_np)
    )
    assert done.returncode == 0, done.stderr
    document = scale_json(tmp_path / "curve")
    starts = sorted((tmp_path / "curve").glob("np-*"), key=lambda run: str(run_json(run)["started_at"]))
    assert [run.name for run in starts] == [f"np-{np}-repeat-{repeat}" for repeat in (1, 2, 3) for np in (2, 1)]
    assert column(document, "runs") == [3, 3]

    # Student's t, two degrees of freedom, 95 % two-sided: 4.3027.
    logs = [math.log(two / one) for one, two in zip(by_np[1], by_np[2], strict=True)]
    mean = sum(logs) / 3
    half_width = 4.302652729911275 * math.sqrt(sum((value - mean) ** 2 for value in logs) / 2 / 3)
    row = document["rows"][1]
    assert row["speed_up"] == pytest.approx(math.exp(mean))
    assert row["speed_up_low"] == pytest.approx(math.exp(mean - half_width))
    assert row["speed_up_high"] == pytest.approx(math.exp(mean + half_width))
    assert row["scaling_efficiency_low"] == pytest.approx(row["speed_up_low"] / 2)
    assert row["throughput"] == pytest.approx((19 * 20 * 18) ** (1 / 3))
    assert "what --metric matches" in done.stdout
    assert "weak scaling" in done.stdout


@pytest.mark.parametrize(
    ("metric", "throughput", "warned"),
    [
        (r"saw ([0-9.]+) samples", 20, True),
        (r"saw (?P<total>[0-9.]+) samples", 20, False),
        (r"saw (?P<per_rank>[0-9.]+) samples", 2 * 20.5, False),
    ],
)
def test_a_metric_is_total_or_per_rank_throughput(
    hvscale: Run, speeds: Callable[..., Path], metric: str, throughput: float, warned: bool
) -> None:
    done = hvscale(
        "scale",
        "--np",
        "1,2",
        "--repeat",
        "1",
        "--metric",
        metric,
        "--json",
        "--",
        "python",
        speeds({1: [10], 2: [20]}),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert column(document, "throughput") == [10, throughput]
    assert any("(?P<per_rank>...)" in text for text in document["warnings"]) == warned
    assert document["unit"] is None


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_trainer_throughput_is_read_and_strong_scaling_divides_the_batch(
    hvscale: Run, tmp_path: Path, scaling: str
) -> None:
    done = hvscale(
        "scale", "--np", 2, "--repeat", "1", f"--{scaling}", "--run", "curve", "--", *TRAIN, "--batch-size", "4"
    )
    assert done.returncode == 0, done.stderr
    document = scale_json(tmp_path / "curve")
    (throughput,) = column(document, "throughput")
    run = tmp_path / "curve/np-2-repeat-1"
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert {step["images"] for step in steps} == {4 * 2 if scaling == "weak" else 4}
    result = json.loads((run / "result.json").read_text())
    assert throughput == pytest.approx(result["images_per_second"])
    assert {run["source"] for run in document["runs"]} == {"result.json"}
    warning = "--batch-size 4 is divided among the ranks"
    assert (warning in done.stderr) == (scaling == "strong")
    assert ("threads per rank" in done.stderr) == (len({run["threads_per_rank"] for run in document["runs"]}) > 1)


def test_strong_scaling_replaces_np_in_the_command(hvscale: Run, program: Callable[[str], Path]) -> None:
    script = program("import sys; print(sys.argv[1:], 'speed', 5)")
    words = ("--global={np}x", "--batch={12/np}", "{other}")
    done = hvscale(
        *("scale", "--np", "1,3", "--repeat", "1", "--strong", "--metric", "speed ([0-9]+)", "--run", "curve"),
        *("--json", "--", "python", script, *words),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["command"][-3:] == list(words)
    for np, batch in ((1, 12), (3, 4)):
        log = Path(document["folder"]) / f"np-{np}-repeat-1/logs/rank-00000.log"
        assert f"['--global={np}x', '--batch={batch}', '{{other}}']" in log.read_text()


def test_without_np_1_the_smallest_np_is_the_baseline_and_each_warning_appears_once(
    hvscale: Run, speeds: Callable[..., Path]
) -> None:
    many = available_cores() + 1
    script = speeds({2: [20, 20], many: [15, 15]})
    done = hvscale("scale", "--np", f"{many},2", "--repeat", "2", "--metric", FIRST, "--json", "--", "python", script)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["base_np"] == 2
    assert column(document, "speed_up") == [1, pytest.approx(0.75)]
    assert column(document, "scaling_efficiency") == [1, pytest.approx(0.75 * 2 / many)]
    assert done.stderr.count("np 1 is not measured: speed-up and efficiency are relative to np 2") == 1
    assert done.stderr.count(f"{many} ranks on {many - 1} cores") == 1
    assert len(document["warnings"]) == 2


def test_a_failed_run_excludes_its_np_and_is_retried_on_resume(
    hvscale: Run, unreliable_program: Callable[[str], Path], tmp_path: Path
) -> None:
    command = ("scale", "--np", "2,1", "--repeat", "2", "--metric", REACHED, "--run", "curve", "--", "python")
    done = hvscale(*command, unreliable_program("bad"))
    assert done.returncode == 3
    assert "np 2: rank 1 on" in done.stderr
    assert done.stderr.splitlines()[-1].strip() == "this rank is unwell"
    assert "\n1     2" in done.stdout
    document = scale_json(tmp_path / "curve")
    assert document["state"] == "failed"
    assert [(run["np"], run["repeat"], run["problem"] is None) for run in document["runs"]] == [
        (2, 1, False),
        (1, 1, True),
        (1, 2, True),
    ]
    assert [(row["np"], row["runs"], row["speed_up"]) for row in document["rows"]] == [(1, 2, 1)]
    kept = {run: (run / "run.json").read_bytes() for run in (tmp_path / "curve").glob("np-*")}

    again = hvscale(*command, unreliable_program("good"))
    assert again.returncode == 0, again.stderr
    assert column(scale_json(tmp_path / "curve"), "runs") == [2, 2]
    assert {run: (run / "run.json").read_bytes() for run in kept} == kept
    new = {run.name for run in (tmp_path / "curve").glob("np-*") if run not in kept}
    assert new == {"np-2-repeat-1-attempt-2", "np-2-repeat-2"}


def test_throughput_is_reported_without_a_baseline(hvscale: Run, speeds: Callable[..., Path], tmp_path: Path) -> None:
    script = speeds({2: [20]})  # no speed is given for one rank, so the program fails
    done = hvscale(
        *("scale", "--np", "1,2", "--repeat", "1", "--metric", FIRST, "--run", "curve", "--json"),
        "--",
        "python",
        script,
    )
    assert done.returncode == 3
    assert "KeyError: '1'" in done.stderr.splitlines()[-1]
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["np"], row["throughput"], row["speed_up"], row["scaling_efficiency"]) == (2, 20, None, None)
    assert (tmp_path / "curve/scale.html").stat().st_size > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_study_keeps_its_measurements_and_is_resumed(
    hvscale: Run, unreliable_program: Callable[[str], Path], tmp_path: Path, number: signal.Signals
) -> None:
    command = ("scale", "--np", "1,2", "--repeat", "1", "--metric", REACHED, "--run", "curve", "--", "python")
    folder = tmp_path / "curve"
    scaling = subprocess.Popen(
        [str(PROGRAMS / "hvscale"), *command, str(unreliable_program("slow"))],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests started in a shell's background ignore Ctrl-C, and their child processes inherit
        # that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        log = folder / "np-2-repeat-1/logs/rank-00001.log"
        wait_until(lambda: log.exists() and "reached" in log.read_text())
        assert scale_json(folder)["state"] == "running"
        other = hvscale(*command, "program.py")
        assert other.returncode == 2
        assert f"{folder} is in use by process {scaling.pid} on " in other.stderr
        scaling.send_signal(number)
        stdout, stderr = scaling.communicate(timeout=HANG_SECONDS)
    finally:
        scaling.kill()
    wait_until(lambda: processes_below(folder) == [])
    document = scale_json(folder)
    assert [(run["np"], run["throughput"]) for run in document["runs"] if run["throughput"]] == [(1, 10)]
    assert column(document, "np") == [1]
    if number == signal.SIGINT:
        assert scaling.returncode == 130
        assert document["state"] == "interrupted"
        assert "\n1     1" in stdout
        assert "interrupted by SIGINT" in stderr.splitlines()[-1]

    first = (folder / "np-1-repeat-1/run.json").read_bytes()
    again = hvscale(*command, unreliable_program("good"))
    assert again.returncode == 0, again.stderr
    assert column(scale_json(folder), "np") == [1, 2]
    assert (folder / "np-1-repeat-1/run.json").read_bytes() == first


def test_an_interrupt_of_a_repeated_run_drops_no_result(
    hvscale: Run, unreliable_program: Callable[[str], Path], tmp_path: Path
) -> None:
    """np 2 runs first in each round, so its repeated run comes before all finished runs."""
    command = ("scale", "--np", "2,1", "--repeat", "2", "--metric", REACHED, "--run", "curve", "--", "python")
    folder = tmp_path / "curve"
    assert hvscale(*command, unreliable_program("bad")).returncode == 3
    resumed = subprocess.Popen(
        [str(PROGRAMS / "hvscale"), *command, str(unreliable_program("slow"))],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        log = folder / "np-2-repeat-1-attempt-2/logs/rank-00001.log"
        wait_until(lambda: log.exists() and "reached" in log.read_text())
        assert [(row["np"], row["runs"]) for row in scale_json(folder)["rows"]] == [(1, 2)]
        resumed.send_signal(signal.SIGINT)
        assert resumed.wait(HANG_SECONDS) == 130
    finally:
        resumed.kill()
    wait_until(lambda: processes_below(folder) == [])
    document = scale_json(folder)
    assert [(run["np"], run["repeat"], run["problem"]) for run in document["runs"]] == [
        (2, 1, "interrupted"),
        (1, 1, None),
        (1, 2, None),
    ]
    assert [(row["np"], row["runs"]) for row in document["rows"]] == [(1, 2)]
    assert (folder / "scale.html").exists()


def test_a_wrong_metric_changes_no_file_of_a_finished_study(
    hvscale: Run, speeds: Callable[..., Path], tmp_path: Path
) -> None:
    script = speeds({1: [10], 2: [20]})

    def scale(metric: str) -> subprocess.CompletedProcess[str]:
        options = ("--np", "1,2", "--repeat", "1", "--metric", metric, "--run", "curve")
        return hvscale("scale", *options, "--", "python", script)

    assert scale(FIRST).returncode == 0
    files = {path: path.read_bytes() for path in (tmp_path / "curve").rglob("*") if path.is_file()}
    assert tmp_path / "curve/scale.html" in files
    done = scale("images: ([0-9.]+)")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--metric 'images: ([0-9.]+)' matches no line" in done.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "curve").rglob("*") if path.is_file()} == files


def test_a_finished_study_can_be_extended(hvscale: Run, speeds: Callable[..., Path], tmp_path: Path) -> None:
    script = speeds({1: [10, 10], 2: [20, 20]})
    assert hvscale(
        "scale", "--np", "1", "--repeat", "1", "--metric", FIRST, "--run", "curve", "--", "python", script
    ).returncode == 0  # fmt: skip
    first = (tmp_path / "curve/np-1-repeat-1/run.json").read_bytes()
    done = hvscale(
        "scale", "--np", "1,2", "--repeat", "2", "--metric", "saw ([0-9]+)", "--run", "curve", "--", "python", script
    )
    assert done.returncode == 0, done.stderr
    assert column(scale_json(tmp_path / "curve"), "runs") == [2, 2]
    assert (tmp_path / "curve/np-1-repeat-1/run.json").read_bytes() == first


def test_a_job_of_unconnected_ranks_is_an_error(hvscale: Run, program: Callable[[str], Path]) -> None:
    script = program("print('Total img/sec on 1 GPU(s): 100.0 +-1.0')")
    done = hvscale("scale", "--np", "1,2", "--repeat", "1", "--", "python", script)
    assert done.returncode == 4
    assert "np 2: the command says that it ran on 1" in done.stderr
    assert "\n1     1" in done.stdout


@pytest.mark.parametrize("metric", [("--metric", "images: ([0-9]+)"), ()])
def test_output_without_a_throughput_is_a_one_line_error(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path, metric: tuple[str, ...]
) -> None:
    done = hvscale("scale", "--np", "1,2", *metric, "--run", "curve", "--", "python", program("print('hello')"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(tmp_path / "curve/np-1-repeat-1/logs/rank-00000.log") in line
    assert "--metric" in line
    assert not (tmp_path / "curve/np-2-repeat-1").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--np", "1,1", "--", "true"], "--np 1,1: 1 is given twice; give it once"),
        (["--np", "0,1", "--", "true"], "--np 0,1: '0' is not a number of ranks"),
        (["--np", "1,two", "--", "true"], "--np 1,two: 'two' is not a number of ranks"),
        (["--np", "1,", "--", "true"], "--np 1,: 'nothing' is not a number of ranks"),
        (["--", "true"], "--np"),
        (["--np", "1", "--repeat", "0", "--", "true"], "--repeat 0: give a number from 1 to 10000"),
        (["--np", "1", "--metric", "(", "--", "true"], "--metric '(' is not a regular expression"),
        (["--np", "1", "--metric", "speed", "--", "true"], "put the number into a group"),
        (["--np", "1", "--mpi", "lam", "--", "true"], "--mpi lam: unknown flavour"),
        (["--np", "1", "--env", "NOT_SET", "--", "true"], "--env NOT_SET: not set in this shell"),
        (["--np", "1", "--submit", "--", "true"], "--submit"),
        (["--np", "1", "--", "no-such-command"], "no-such-command: command not found"),
        (["--np", "1", "--", "true", "{8/np}"], "add --strong"),
        (["--np", "1,3", "--strong", "--", "true", "{8/np}"], "{8/np} cannot be divided by np 3"),
        (["--np", "1,3", "--strong", "--", *TRAIN], "--batch-size 16 cannot be divided by np 3"),
        (["--np", "1,3", "--strong", "--", *TRAIN, "--batch-size=x"], "--batch-size x: not a number"),
        (["--np", "1,2", "--", *TRAIN, "--run", "there"], "remove --run from hvscale train"),
        (["--np", "1,2,64", "--hosts", "a:4,b:4", "--", "true"], "-np 64, but the hosts have 8 slots"),
    ],
)
def test_an_invalid_request_is_one_line_and_status_2(
    hvscale: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = hvscale("scale", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert not list(tmp_path.glob("runs/*"))


def test_a_folder_of_other_files_or_another_study_is_not_changed(
    hvscale: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    script = program("print('speed 5')")
    command = ("scale", "--np", "1", "--repeat", "1", "--metric", "speed ([0-9])", "--run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("all of it")
    done = hvscale(*command, "mine", "--", "python", script)
    assert done.returncode == 2
    assert "mine is not empty" in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]

    assert hvscale(*command, "curve", "--", "python", script).returncode == 0
    before = (tmp_path / "curve/scale.json").read_bytes()
    for change, what in (
        (("--", "python", script, "more"), "command"),
        (("--strong", "--", "python", script), "scaling"),
    ):
        done = hvscale(*command, "curve", *change)
        assert done.returncode == 2
        assert f"its {what} differs" in done.stderr.splitlines()[-1]
    assert (tmp_path / "curve/scale.json").read_bytes() == before
    assert hvscale(*command, "/proc/curve", "--", "python", script).returncode == 2


def test_the_page_shows_both_curves_offline_and_escapes_the_command(
    open_page: Callable[..., Page], hvscale: Run, speeds: Callable[..., Path], tmp_path: Path
) -> None:
    hostile = "<script>throw new Error('command')</script>"
    script = speeds({1: [10, 11], 2: [20, 19]})
    done = hvscale(
        "scale", "--np", "1,2", "--repeat", "2", "--metric", FIRST, "--run", "curve", "--", "python", script, hostile
    )
    assert done.returncode == 0, done.stderr
    page = open_page(tmp_path / "curve/scale.html", width=1000)
    for chart in ("#throughput", "#efficiency"):
        expect(page.locator(f"{chart} .points path")).to_have_count(2)
        expect(page.locator(f"{chart} path.yerror")).not_to_have_count(0)
    expect(page.locator("tbody tr")).to_have_count(2)
    assert hostile in page.inner_text("header")


def test_labels_of_many_ranks_do_not_overlap_on_a_narrow_screen(open_page: Callable[..., Page], tmp_path: Path) -> None:
    ranks = [1, 2, 4, 8, 16, 32, 64]
    document = ScalingDocument(
        folder=str(tmp_path),
        command=["a"],
        scaling="weak",
        launch=LaunchOptions(),
        metric=None,
        np=ranks,
        base_np=1,
        repeats=1,
    )
    document.runs = [ScalingRun(np=np, repeat=1, folder="", throughput=10 * np) for np in ranks]
    document.tabulate()
    (tmp_path / "scale.html").write_text(scaling_page(document))
    labels = open_page(tmp_path / "scale.html", width=390).locator("#throughput .xtick text")
    expect(labels.last).to_have_text("64")
    boxes = [box for label in labels.all() if label.text_content() and (box := label.bounding_box())]
    assert len(boxes) > 3
    assert all(one["x"] + one["width"] < other["x"] for one, other in pairwise(boxes))
