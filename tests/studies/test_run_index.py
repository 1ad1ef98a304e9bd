"""`hvscale runs`: listing, filters and removal, on folders of every kind."""

import errno
import io
import json
import math
import os
import pty
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.folder_lock import FolderLock
from hvscale.core.plain_rich import PlainConsole
from hvscale.core.run_folder import Host, Library, RankEnd, RunFolder, RunRecord
from hvscale.profiling.read.counters import COUNTER, COUNTERS
from hvscale.profiling.read.profile_file import COUNTERS_START, NO_COMMUNICATOR, STEP
from hvscale.studies.run_index import communication
from hvscale.studies.run_index.entry import RUN, RunEntry
from hvscale.studies.run_index.index import Filter, parse_age, read_index, select
from hvscale.studies.run_index.page import HEIGHT, POINTS, WIDTH, draw_sparkline
from hvscale.studies.run_index.prune import plan_removal
from hvscale.studies.run_index.table import COLUMNS, LEFT_OUT_FIRST, cells, print_entries
from tests.conftest import HANG_SECONDS, PROGRAMS, Run
from tests.profiling.synthetic import head, records, signed

MakeRun = Callable[..., Path]
SECONDS = 100.0  # from start to end of a run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run into `runs/`, as a launch leaves it."""

    def make(name: str, days: float = 0, folder: str = "runs", speed: float | None = None, **fields: Any) -> Path:
        ended = datetime.now(UTC) - timedelta(days=days, seconds=1)
        run = RunFolder.create(tmp_path / folder / name)
        values: dict[str, Any] = {
            "command": ["python", "/home/me/train.py"],
            "np": 2,
            "state": "finished",
            "library": Library(flavour="Open MPI", version="5"),
            "host": Host(name="here", kernel="k", cpu="c", cores=2, memory_bytes=1),
            "working_directory": "/",
            "started_at": ended - timedelta(seconds=SECONDS),
            "ended_at": ended,
        }
        run.write(RunRecord(**{**values, **fields}))
        run.unlock()
        if speed is not None:
            (run.path / "result.json").write_text(json.dumps({"images_per_second": speed, "np": fields.get("np", 2)}))
        return run.path

    return make


def make_study(parent: Path, name: str, age_days: float = 0, **fields: Any) -> Path:
    path = parent / name
    path.mkdir(parents=True)
    file = path / "scale.json"
    file.write_text(json.dumps({"schema": "hvscale/scale/2", "state": "finished", "folder": str(path), **fields}))
    changed = datetime.now().timestamp() - 86400 * age_days
    os.utime(file, (changed, changed))
    return path


def listed(hvscale: Run, *arguments: object) -> list[dict[str, Any]]:
    done = hvscale("runs", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "hvscale/runs/1"
    entries: list[dict[str, Any]] = document["entries"]
    return entries


def names(hvscale: Run, *arguments: object) -> list[str]:
    return [entry["name"] for entry in listed(hvscale, *arguments)]


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_runs_and_studies_are_listed_with_their_figures(hvscale: Run, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("fast", days=2, speed=123.4)
    steps = [{"seconds": 0.5, "images": 8}] * 3 + [{"seconds": 0.25, "images": 8}] * 4
    (make_run("steps", placement="slurm", state="failed") / "steps.jsonl").write_text(
        "".join(json.dumps(step) + "\n" for step in steps)
    )
    study = make_study(
        tmp_path / "runs",
        "study",
        age_days=4,
        command=["python", "a.py"],
        np=[1, 2, 8],
        launch={"mpi": "gloo", "placement": "ssh"},
        unit="images/s",
        runs=[{"throughput": 10.0}, {"throughput": 80.5}, {"throughput": None}],
    )
    make_run("np-1-repeat-1", folder="runs/study")
    (study / "scale.html").write_text("page")
    (run / "report.html").write_text("page")
    (tmp_path / "runs/notes").mkdir()
    (tmp_path / "runs/link").symlink_to(run)
    steps_entry, fast, scale = listed(hvscale)
    assert (steps_entry["name"], steps_entry["state"], steps_entry["placement"]) == ("steps", "failed", "slurm")
    assert steps_entry["images_per_second"] == pytest.approx(32)  # without the first three
    assert (fast["images_per_second"], fast["page"], fast["np"], fast["runs"]) == (123.4, "report.html", 2, 1)
    assert fast["age_seconds"] == pytest.approx(2 * 86400, abs=600)
    assert fast["bytes"] >= sum(file.stat().st_size for file in run.iterdir() if file.is_file())
    assert (scale["kind"], scale["np_min"], scale["np"], scale["placement"]) == ("scale", 1, 8, "ssh")
    assert (scale["images_per_second"], scale["runs"], scale["page"]) == (80.5, 1, "scale.html")
    assert names(hvscale, "runs/study") == ["np-1-repeat-1"]
    done = hvscale("runs", "--csv", "runs.csv")
    assert re.search(r"fast +train.py +2 +host +finished +123 +- +2 d ", done.stdout), done.stdout
    assert re.search(r"study +scale: a.py +1-8 +ssh +finished +80.5 ", done.stdout), done.stdout
    assert "3 runs and studies in runs; other folders: 1" in done.stderr
    assert "python /home/me/train.py" in (tmp_path / "runs.csv").read_text()


@pytest.mark.parametrize(("width", "left_out"), [(60, 5), (80, 3), (100, 1), (200, 0)])
def test_a_narrow_terminal_leaves_out_columns_and_cuts_no_value(width: int, left_out: int) -> None:
    entry = RunEntry(
        name="20261127T004345Z-bench-allreduce",
        kind=RUN,
        state="interrupted",
        command=["python", "train.py", "--a-long-option", "value"],
        np=512,
        np_min=256,
        placement="docker:rank",
        ended_at=datetime.now(UTC),
        age_seconds=2000,
        images_per_second=1234.5,
        communication_share=0.87,
        bytes=5 << 20,
        runs=1,
    )
    console, shown = PlainConsole(), io.StringIO()
    console.file, console.width, console._force_terminal = shown, width, True
    print_entries(console, [entry])
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())
    values = dict(zip(COLUMNS, cells(entry), strict=True))
    gone = LEFT_OUT_FIRST[:left_out]
    for name in {*COLUMNS}.difference({"name", "command"}):
        assert (values[name] in text.split("a wider")[0]) == (name not in gone), name
    remark = f"a wider terminal also shows: {', '.join(gone)}"
    assert (remark in " ".join(text.split())) == bool(gone)
    assert max(map(len, text.splitlines())) <= width


def test_a_report_is_offered_only_for_runs_with_a_profile(hvscale: Run, make_run: MakeRun, tmp_path: Path) -> None:
    make_run("plain")
    RunFolder(make_run("gloo")).timeline.write_text("[]")
    made = records(40)
    (make_run("mpi") / "hvprof/rank-00000.hvp").write_bytes(head(40, 2, 0, made) + made[-2:].tobytes())
    assert hvscale("runs", "--html", "runs.html").returncode == 0
    offered = re.findall(r"<code>hvscale report runs/([a-z]+)</code>", (tmp_path / "runs.html").read_text())
    assert sorted(offered) == ["gloo", "mpi"]


def test_filters_and_sorting(hvscale: Run, make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", days=1, speed=5.0, np=4)
    make_run("b", days=10, speed=50.0, placement="docker:rank")
    make_run("c", days=40, state="failed", command=["./stencil"])
    entries = read_index(tmp_path / "runs").entries

    def found(by: str = "age", reverse: bool = False, **wanted: Any) -> list[str]:
        return [entry.name for entry in select(entries, Filter(**wanted), by, reverse)]

    assert found() == ["a", "b", "c"]
    assert found(reverse=True) == ["c", "b", "a"]
    assert found("throughput") == ["b", "a", "c"]
    assert found("throughput", reverse=True) == ["a", "b", "c"]
    assert found("name") == ["a", "b", "c"]
    assert found("command") == ["c", "a", "b"]
    assert found(states=("failed",)) == ["c"]
    assert found(states=("failed", "finished")) == ["a", "b", "c"]
    assert found(command="STENCIL") == ["c"]
    assert found(placement="docker") == ["b"]
    assert found(np=4) == ["a"]
    assert found(newer_than=parse_age("2w", "--newer-than"), older_than=parse_age("36h", "--older-than")) == ["b"]
    options = ("--state", "finished", "--state", "failed", "--placement", "host", "--sort", "age", "--reverse")
    assert names(hvscale, *options, "--older-than", "30m", "--newer-than", "9w", "--np", "2") == ["c"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nowhere",), "nowhere cannot be read (No such file or directory)"),
        (("runs/a",), "runs/a is a run"),
        (("--older-than", "soon"), "--older-than soon: not an age"),
        (("--newer-than", "1d", "--older-than", "2d"), "no run is newer than --newer-than and older than --older-than"),
        (("--sort", "colour"), "--sort colour: not a column; give one of name, command"),
        (("--state", "done"), "--state done: not a state; give one of starting, running"),
        (("--placement", "dokcer"), "--placement dokcer: unknown placement. Known: docker:node, "),
        (("--yes",), "--yes belongs to --prune"),
        (("--prune", "--yes"), "give at least one, such as --older-than 30d"),
        (("--prune", "--older-than", "30d"), "there is no terminal to ask on: give --yes"),
    ],
)
def test_wrong_requests_are_one_line(hvscale: Run, make_run: MakeRun, arguments: tuple[str, ...], error: str) -> None:
    make_run("a")
    done = hvscale("runs", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert error in done.stderr


def test_damaged_runs_are_listed_with_the_reason_and_never_removed(
    hvscale: Run, make_run: MakeRun, tmp_path: Path
) -> None:
    good = (make_run("good", days=50) / "run.json").read_text()
    bad = {
        "cut": good[:200],
        "empty": "",
        "deep": "[" * 100_000,
        "list": "[]",
        "older": good.replace("hvscale/run/2", "hvscale/run/1"),
        "newer": good.replace("hvscale/run/2", "hvscale/run/99"),
        "types": good.replace('"np": 2', '"np": "many"'),
    }
    for name, text in bad.items():
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(text)
    for name in ("fifo", "begun"):
        make_run(name)
        (tmp_path / "runs" / name / "run.json").unlink()
    os.mkfifo(tmp_path / "runs/fifo/run.json")
    (make_study(tmp_path / "runs", "damaged") / "scale.json").write_text('{"schema": "hvscale/scale/2", "folder": "')
    old = datetime.now().timestamp() - 90 * 86400
    for path in (tmp_path / "runs").rglob("*"):
        os.utime(path, (old, old))
    entries = {entry["name"]: entry for entry in listed(hvscale)}
    unreadable = {*bad, "fifo", "begun", "damaged"}
    assert entries.keys() == {*unreadable, "good"}
    assert {name for name, entry in entries.items() if entry["state"] == "unreadable"} == unreadable
    assert all(entries[name]["problem"] for name in unreadable)
    assert "an older hvscale (schema hvscale/run/1)" in entries["older"]["problem"]
    assert "a newer hvscale" in entries["newer"]["problem"]
    assert "not a regular file" in entries["fifo"]["problem"]
    assert "holds no run.json" in entries["begun"]["problem"]
    done = hvscale("runs", "--prune", "--older-than", "30d", "--yes")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert set(left(tmp_path / "runs")) == unreadable


def test_unreadable_runs_are_removed_on_request(hvscale: Run, make_run: MakeRun, tmp_path: Path) -> None:
    """Those that have a run's folders, are quiet, and that nobody has locked."""
    for name in ("cut", "begun", "locked", "recent", "foreign", "good"):
        make_run(name, days=50)
        if name != "good":
            (tmp_path / "runs" / name / "run.json").write_text("{")
    (tmp_path / "runs/begun/run.json").unlink()
    (tmp_path / "runs/foreign/logs").rmdir()
    (make_study(tmp_path / "runs", "study") / "scale.json").write_text('{"schema": "hvscale/scale/2", "folder": "')
    old = datetime.now().timestamp() - 90 * 86400
    for path in (tmp_path / "runs").rglob("*"):
        os.utime(path, (old, old))
    (tmp_path / "runs/recent/logs/rank-00000.log").write_text("at work\n")
    lock = FolderLock(tmp_path / "runs/locked")
    os.utime(tmp_path / "runs/locked/.lock", (old, old))
    done = hvscale("runs", "--prune", "--state", "unreadable", "--state", "failed", "--yes")
    lock.close()
    assert done.returncode == 0, done.stderr
    assert set(left(tmp_path / "runs")) == {"locked", "recent", "foreign", "study", "good"}
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["begun", "cut", "locked"]
    for line in ("recent is kept: it may be running, because its files changed", "locked is kept: it is in use"):
        assert line in done.stderr
    for name in ("foreign", "study"):
        assert f"{name} is kept: it may not be hvscale's" in done.stderr


def test_a_private_run_of_another_user_is_unreadable_and_kept(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("private", "readable"):
        make_run(name, days=50)
    stat = Path.stat

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path.parent.name == "private":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    index = read_index(tmp_path / "runs")
    assert [(entry.name, entry.state) for entry in index.entries] == [
        ("private", "unreadable"),
        ("readable", "finished"),
    ]
    assert index.entries[0].problem == f"{tmp_path}/runs/private cannot be read: Permission denied"
    plan = plan_removal(index, index.entries, keep_best=False, unreadable=True)
    assert [entry.name for entry in plan.remove] == ["readable"]


def test_damaged_figures_leave_the_run_listed(hvscale: Run, make_run: MakeRun) -> None:
    run = make_run("a")
    (run / "result.json").write_text('{"images_per_second": "fast"')
    (run / "steps.jsonl").write_text('{"seconds": 1, "images": 4}\nnot a step\n')
    (run / "hvprof/rank-00000.hvp").write_bytes(b"hvprof\r\n" + bytes(100))
    other = make_run("b")
    (other / "result.json").write_text(json.dumps({"images_per_second": 1.0, "np": 7}))
    speeds: list[dict[str, Any]] = [{"throughput": speed} for speed in (10**400, math.nan, math.inf, -1, 5)]
    speeds.append({"throughput": 9, "problem": "the clocks differ"})
    make_study(run.parent, "foreign", command=["\ud800"], unit="images/s", runs=speeds)
    make_run("c", placement="\ud800\udcff", ended_at=datetime(1, 1, 1, tzinfo=UTC))
    entries = {entry["name"]: entry for entry in listed(hvscale, "--csv", "runs.csv")}
    assert entries["c"]["state"] == "finished"
    assert (entries["foreign"]["images_per_second"], entries["foreign"]["command"]) == (
        5,
        ["\N{REPLACEMENT CHARACTER}"],
    )
    assert (entries["a"]["images_per_second"], entries["a"]["communication_share"]) == (4, None)
    assert "line 2 is damaged" in entries["a"]["problem"]
    assert entries["b"]["images_per_second"] is None
    assert "ran on 7" in entries["b"]["problem"]


def test_a_long_log_gives_the_throughput_of_its_newest_steps(hvscale: Run, make_run: MakeRun) -> None:
    step = {"step": 1, "loss": 0.5, "images": 8}
    slow, fast = (json.dumps({**step, "seconds": seconds}) + "\n" for seconds in (8.0, 0.5))
    (make_run("a") / "steps.jsonl").write_text(slow * 2000 + fast * 1000 + "damaged\n" + fast[:20])
    (make_run("b") / "steps.jsonl").write_text("damaged\n" * 5000)
    entries = {entry["name"]: entry["images_per_second"] for entry in listed(hvscale)}
    assert entries == {"a": pytest.approx(16), "b": None}


def test_the_share_of_communication_counts_overwritten_calls(hvscale: Run, make_run: MakeRun) -> None:
    """The rings keep 2 records of 40; the counters of each file count all, 5 step marks too."""
    ends = [RankEnd(rank=rank, host="h", pid=1, started_at=1000.0, ended_at=1000.0 + SECONDS / 2) for rank in (0, 1)]
    run = make_run("a", ranks=ends)
    in_collectives = 0.0
    for rank in (0, 1):
        made = records(40, seed=rank)
        made["operation"][:5], made["communicator"][:5], made["bytes"][:5] = STEP, NO_COMMUNICATOR, 0
        (run / f"hvprof/rank-{rank:05d}.hvp").write_bytes(head(40, 2, rank, made) + made[-2:].tobytes())
        in_collectives += made["duration_ns"][5:].sum() / 1e9
    (entry,) = listed(hvscale)
    assert entry["communication_share"] == pytest.approx(in_collectives / SECONDS)


def test_the_share_reads_every_counter(hvscale: Run, make_run: MakeRun) -> None:
    """More kinds of calls than counters that are used in order."""
    run = make_run("a", np=1)
    made = records(COUNTERS)
    made["duration_ns"] = 1_000_000
    made["buffer_and_thread"] = np.arange(COUNTERS).astype("<u8") << np.uint64(48)  # a counter for each
    (run / "hvprof/rank-00000.hvp").write_bytes(head(COUNTERS, 2, 0, signed(made)) + made[-2:].tobytes())
    (entry,) = listed(hvscale)
    assert entry["communication_share"] == pytest.approx(COUNTERS * 1e-3 / SECONDS)


def test_the_share_counts_what_was_counted_on_a_full_disk(make_run: MakeRun) -> None:
    """A process then counts in the last counters, one per operation."""
    run = make_run("a", np=1)
    made = records(40)
    content = bytearray(head(40, 2, 0, made) + made[-2:].tobytes())
    folder, profile = RunFolder.open(run), run / "hvprof/rank-00000.hvp"
    profile.write_bytes(content)
    expected = communication.communication_share(folder, folder.read(), 0.0)
    counters = np.frombuffer(content, COUNTER, COUNTERS, COUNTERS_START)
    last = np.flatnonzero(counters["key"])[-1]
    counters[COUNTERS - 50] = counters[last]
    counters[last] = np.zeros(1, COUNTER)
    profile.write_bytes(content)
    assert expected
    assert communication.communication_share(folder, folder.read(), 0.0) == pytest.approx(expected)


def test_a_counter_that_was_torn_while_it_was_read_is_read_again(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run("a", np=1)
    made = records(40)
    (run / "hvprof/rank-00000.hvp").write_bytes(head(40, 2, 0, made) + made[-2:].tobytes())
    whole = communication._used_counters

    def torn(stream: IO[bytes]) -> Any:
        found = whole(stream)
        found["calls"][found["key"] != 0] += 1
        return found

    folder = RunFolder.open(run)
    expected = communication.communication_share(folder, folder.read(), 0.0)
    monkeypatch.setattr(communication, "_used_counters", torn)
    assert expected
    assert communication.communication_share(folder, folder.read(), 0.0) == expected


@pytest.mark.parametrize("ranks", [-3, 0, 10**9])
def test_an_impossible_number_of_ranks_is_a_damaged_record(make_run: MakeRun, ranks: int) -> None:
    record = make_run("a") / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "np": ranks}))
    with pytest.raises(RequestError, match=r"run\.json"):
        RunFolder.open(record.parent).read()


def test_old_runs_are_removed_but_the_best(hvscale: Run, make_run: MakeRun, tmp_path: Path) -> None:
    make_run("new", days=1, speed=3.0)
    make_run("best", days=60, speed=9.0)
    make_run("slow", days=50, speed=2.0)
    make_run("failed-fast", days=50, speed=99.0, state="failed")
    make_run("alone", days=50, command=["other"])
    make_run("alone-older", days=51, command=["other"])
    make_run("running", days=50, state="running", ended_at=None)
    for path in (tmp_path / "runs/running", *(tmp_path / "runs/running").rglob("*")):
        os.utime(path, (0, 0))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tmp_path / "runs/slow/link").symlink_to(outside)
    (tmp_path / "runs/linked").symlink_to(make_run("elsewhere", days=90, folder="others"))
    (tmp_path / "runs/notes").mkdir()
    done = hvscale("runs", "--prune", "--older-than", "30d", "--keep-best", "--yes")
    assert done.returncode == 0, done.stderr
    assert left(tmp_path / "runs") == ["alone", "best", "linked", "new", "notes", "running"]
    assert "running is kept: it is running" in done.stderr
    assert "best is kept: it is the best" in done.stderr
    assert re.search(r"removed 3 of 3 runs and studies, \d+ KiB", done.stderr)
    assert "failed-fast" in done.stdout
    assert (tmp_path / "others/elsewhere/run.json").exists()
    assert (outside / "kept").exists()


def test_a_run_that_a_study_refers_to_goes_with_it_or_not_at_all(
    hvscale: Run, make_run: MakeRun, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    for name in ("recorded", "measured", "unused"):
        make_run(name, days=50)
    make_study(runs, "young", runs=[str(runs / "recorded")])
    make_study(runs, "old", age_days=50, runs=["runs/measured/hvprof"], recording="unused-by-name")
    prune = ("runs", "--prune", "--older-than", "30d", "--yes", "--json")
    kept_at_first = json.loads(hvscale(*prune, "--command", "measured").stdout)
    assert kept_at_first["removed"] == []
    assert "the study old refers to it and stays" in kept_at_first["kept"]["measured"]
    document = json.loads(hvscale(*prune).stdout)
    assert document["removed"] in (["old", "unused", "measured"], ["unused", "old", "measured"])
    assert "the study young refers to it" in document["kept"]["recorded"]
    assert left(runs) == ["recorded", "young"]


def test_a_study_with_a_running_run_and_its_runs_are_kept(hvscale: Run, make_run: MakeRun, tmp_path: Path) -> None:
    make_study(tmp_path / "runs", "study", age_days=50)
    make_run("np-1-repeat-1", folder="runs/study", state="running", ended_at=None)
    make_run("np-2-repeat-1", folder="runs/study", days=50)
    make_study(tmp_path / "runs", "copied", age_days=50, folder="/elsewhere/original")
    prune = ("--prune", "--older-than", "30d", "--yes")
    done = hvscale("runs", *prune)
    assert done.returncode == 0, done.stderr
    assert "study is kept: its run np-1-repeat-1 is running" in done.stderr
    assert "copied is kept: its document was written for another folder" in done.stderr
    inside = hvscale("runs", "runs/study", *prune)
    assert inside.returncode == 2
    assert "belongs to the study" in inside.stderr
    assert left(tmp_path / "runs/study") == ["np-1-repeat-1", "np-2-repeat-1", "scale.json"]


def test_a_locked_run_is_kept_whatever_its_state_says(hvscale: Run, make_run: MakeRun) -> None:
    run = make_run("resumed", days=50)
    lock = FolderLock(run)
    try:
        done = hvscale("runs", "--prune", "--older-than", "30d", "--yes")
    finally:
        lock.close()
    assert (done.returncode, run.is_dir()) == (0, True)
    assert "resumed is kept: it is in use" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount takes root")
def test_an_interrupted_removal_leaves_no_half_run_and_is_finished_later(
    hvscale: Run, make_run: MakeRun, tmp_path: Path
) -> None:
    """A mount in the run's folder stops the removal in the middle."""
    run = make_run("a", days=50)
    make_run("b", days=50)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", run / "logs"], check=True)
    hidden: list[Path] = []
    try:
        done = hvscale("runs", "--prune", "--older-than", "30d", "--yes")
        hidden = list((tmp_path / "runs").iterdir())
    finally:
        subprocess.run(["umount", (hidden[0] if hidden else run) / "logs"], check=True)
    assert done.returncode == 2
    assert "cannot be removed: Device or resource busy" in done.stderr
    assert [path.name.startswith(".removed-") for path in hidden] == [True]
    assert "an interrupted removal left 1 hidden folders" in hvscale("runs").stderr
    assert hvscale("runs", "--prune", "--older-than", "30d", "--yes").returncode == 0
    assert left(tmp_path / "runs") == []


@pytest.mark.parametrize(("answer", "expected"), [("n", ["a"]), ("y", [])])
def test_prune_asks_on_a_terminal(make_run: MakeRun, tmp_path: Path, answer: str, expected: list[str]) -> None:
    make_run("a", days=50)
    main, terminal = pty.openpty()
    command = [str(PROGRAMS / "hvscale"), "runs", "--prune", "--older-than", "30d"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE, text=True
    )
    os.close(terminal)
    asked = b""
    while b"[y/N]" not in asked:
        asked += os.read(main, 4096)
    os.write(main, f"{answer}\n".encode())
    shown, _ = process.communicate(timeout=HANG_SECONDS)
    os.close(main)
    assert process.returncode == 0
    assert b"Remove 1 runs and studies" in asked
    assert "train.py" in shown
    assert left(tmp_path / "runs") == expected


@given(
    st.lists(
        st.tuples(st.floats(0, 1e9), st.floats(1e-6, 1e6)),
        min_size=2,
        max_size=200,
    )
)
def test_a_sparkline_stays_inside_its_picture(steps: list[tuple[float, float]]) -> None:
    images, seconds = np.array(steps).T
    line = draw_sparkline(images, seconds)
    points = [tuple(map(float, point.split(","))) for point in line.points.split()]
    assert len(points) == min(POINTS, len(steps))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert line.text.startswith(f"{len(steps)} steps")
