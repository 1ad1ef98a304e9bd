"""`hvscale settings`, and what is kept after a tuned job."""

import errno
import json
import os
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from hvscale.comm_tuning.autotune import memory
from hvscale.comm_tuning.autotune.job import keep
from hvscale.comm_tuning.autotune.memory import RememberedSettings, recall_all
from hvscale.comm_tuning.autotune.moves import live_moves, mpi_words
from hvscale.comm_tuning.autotune.rank_side import agent
from hvscale.comm_tuning.autotune.rank_side.request import VARIABLE, RankRequest
from hvscale.comm_tuning.autotune.rank_side.result import Result
from hvscale.comm_tuning.autotune.train import TunedTraining
from hvscale.comm_tuning.knobs.settings import with_settings
from hvscale.core.autotune_result import FOLDER, Fingerprint
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Host, Library, RunFolder, RunRecord
from hvscale.core.statistics import Estimate
from hvscale.launch.options import LaunchOptions
from tests.comm_tuning.studies import LIBRARIES
from tests.conftest import run_hvscale

JOB = Fingerprint(
    gradients="0123456789abcdef", gradient_bytes=1 << 20, tensors=8, np=2, ranks_per_node=2, library="openmpi 5.0.11"
)
COMMAND = ["python", "train.py"]
OPENMPI = LaunchOptions(np=2, mpi="openmpi")
Settings = Callable[..., "CompletedProcess[str]"]


def entry(fingerprint: Fingerprint = JOB, **settings: str) -> RememberedSettings:
    return RememberedSettings(
        fingerprint=fingerprint,
        settings=settings or {"cycle_time": "5"},
        gain=Estimate(mean=1.2, low=1.1, high=1.3),
        command=COMMAND,
        launch=OPENMPI,
        library=LIBRARIES["openmpi"],
        saved_at=datetime.now(UTC),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of remembered settings."""
    monkeypatch.setenv("HVSCALE_SETTINGS_DIR", str(tmp_path / "memory"))
    return tmp_path / "memory"


def test_settings_are_listed_shown_exported_and_forgotten(folder: Path, tmp_path: Path) -> None:
    other = JOB.model_copy(update={"np": 4})
    names = [memory.remember(one).stem for one in (entry(), entry(other, allreduce_algorithm="ring"))]
    listed = json.loads(run_hvscale(tmp_path, "settings", "list", "--json").stdout)
    assert {row["fingerprint"]["np"]: row["settings"] for row in listed["rows"]} == {
        2: {"cycle_time": "5"},
        4: {"allreduce_algorithm": "ring"},
    }
    assert "1.20x (1.10 to 1.30)" in run_hvscale(tmp_path, "settings", "list").stdout
    assert "python train.py" in run_hvscale(tmp_path, "settings", "show", names[0][:5]).stdout
    of_user = ("measurements.csv", "guide.md", "commands.txt", "nccl.conf")
    (tmp_path / "out").mkdir()
    for name in of_user:
        (tmp_path / "out" / name).write_text("mine")
    exported = run_hvscale(tmp_path, "settings", "export", names[1], "--to", "out")
    assert exported.returncode == 0, exported.stderr
    assert [(tmp_path / "out" / name).read_text() for name in of_user] == ["mine"] * len(of_user)
    assert tomllib.loads((tmp_path / "out/settings.toml").read_text())["set"] == {"allreduce_algorithm": "ring"}
    assert "coll_tuned_allreduce_algorithm = 4" in (tmp_path / "out/openmpi-mca-params.conf").read_text()
    assert run_hvscale(tmp_path, "settings", "forget", names[0]).returncode == 0
    assert [path.stem for path in folder.iterdir()] == [names[1]]
    unknown = run_hvscale(tmp_path, "settings", "show", names[0])
    assert unknown.returncode == 2
    assert len(unknown.stderr.splitlines()) == 1
    with pytest.raises(RequestError, match=r'^"": unknown name of settings'):
        memory.recall("", pytest.fail)


def test_exported_files_have_what_settings_of_the_job_require(folder: Path, tmp_path: Path) -> None:
    """The options of a launch with --set already have the variables that the setting requires."""
    launch = with_settings(["allreduce_algorithm=ring"], COMMAND, OPENMPI)
    name = memory.remember(entry().model_copy(update={"launch": launch.recorded()})).stem
    exported = run_hvscale(tmp_path, "settings", "export", name, "--to", "out")
    assert exported.returncode == 0, exported.stderr
    parameters = (tmp_path / "out/openmpi-mca-params.conf").read_text()
    assert {"coll_tuned_use_dynamic_rules = 1", "coll_tuned_allreduce_algorithm = 4"} <= {*parameters.splitlines()}


def test_nothing_remembered_is_one_line(folder: Path, tmp_path: Path) -> None:
    done = run_hvscale(tmp_path, "settings", "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"nothing is remembered in {folder}" in done.stderr
    assert run_hvscale(tmp_path, "settings", "forget", "abc").returncode == 2


def test_the_users_state_folder_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HVSCALE_SETTINGS_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert memory.memory_folder() == Path("/state/hvscale/settings")


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "hvscale/remembered-settings/9"}', "\xff"])
def test_a_damaged_file_is_one_warning(folder: Path, content: str) -> None:
    path = memory.remember(entry())
    (folder / "other.json").write_text(content, encoding="latin-1")
    path.rename(folder / "renamed.json")
    memory.remember(entry())
    warnings: list[str] = []
    assert [one.settings for one in memory.recall_all(warnings.append)] == [{"cycle_time": "5"}]
    assert sorted(Path(text.split()[0]).name for text in warnings) == ["other.json", "renamed.json"]


def result(**fields: Any) -> dict[str, Any]:
    return {
        "schema": "hvscale/autotune/1",
        "state": "tuned",
        "settings": {"cycle_time": "5"},
        "pairs": [[1.2, 1.0], [1.25, 1.0], [1.2, 1.01]],
        "fingerprint": JOB.model_dump(mode="json"),
        **fields,
    }


def kept(tmp_path: Path, document: object, warnings: list[str] | None = None, has_failed: bool = False) -> str:
    run = RunFolder(tmp_path / "run")
    (run.path / FOLDER).mkdir(parents=True, exist_ok=True)
    (run.path / FOLDER / "result.json").write_text(json.dumps(document))
    warn = (warnings if warnings is not None else []).append
    return keep(run, COMMAND, OPENMPI, LIBRARIES["openmpi"], warn, has_failed)


def test_proven_settings_are_remembered_and_dropped_ones_forgotten(folder: Path, tmp_path: Path) -> None:
    line = kept(tmp_path, result())
    assert line.startswith("autotune: cycle_time=5: 1.21 times the throughput of the defaults (95 % interval 1.1")
    [remembered] = memory.recall_all(pytest.fail)
    assert remembered.fingerprint == JOB
    assert "HOROVOD_CYCLE_TIME=5" in (tmp_path / "run" / FOLDER / "env.sh").read_text()
    assert not (tmp_path / "run" / FOLDER / "guide.html").exists()
    assert "the defaults are kept: no" in kept(
        tmp_path, result(state="defaults", reason="no", settings={}, drops_remembered=True)
    )
    assert memory.recall_all(pytest.fail) == []


UNFINISHED = {"state": "unfinished", "settings": {}, "pairs": [], "reason": "the program ended after 80 of 150 steps"}


def test_settings_that_were_not_proven_in_time_are_remembered_as_such(folder: Path, tmp_path: Path) -> None:
    line = kept(tmp_path, result(**UNFINISHED, unproven={"cycle_time": "5"}))
    said = "nothing is proven: the program ended after 80 of 150 steps; the best so far: cycle_time=5; remembered in "
    assert line == f"autotune: {said}{folder}"
    [remembered] = memory.recall_all(pytest.fail)
    assert (remembered.settings, remembered.gain) == ({"cycle_time": "5"}, None)
    assert remembered.for_ranks()["proven"] is False
    assert not (tmp_path / "run" / FOLDER / "settings.toml").exists()
    assert "not proven" in run_hvscale(tmp_path, "settings", "list").stdout
    assert "not proven" in run_hvscale(tmp_path, "settings", "show", remembered.name).stdout
    refused = run_hvscale(tmp_path, "settings", "export", remembered.name, "--to", "out")
    assert refused.returncode == 2
    [line] = refused.stderr.splitlines()
    assert line.endswith("its gain is not proven yet: start the job with --autotune once more")
    assert not (tmp_path / "out").exists()


def test_the_best_that_is_not_proven_replaces_settings_that_lost(folder: Path, tmp_path: Path) -> None:
    kept(tmp_path, result())
    kept(tmp_path, result(**UNFINISHED, unproven={"cycle_time": "1"}))
    assert [one.settings for one in memory.recall_all(pytest.fail)] == [{"cycle_time": "5"}]
    kept(tmp_path, result(**UNFINISHED, unproven={"cycle_time": "1"}, drops_remembered=True))
    [remembered] = memory.recall_all(pytest.fail)
    assert (remembered.settings, remembered.gain) == ({"cycle_time": "1"}, None)


def test_a_memory_that_cannot_be_read_is_a_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    warnings: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", refuse)
        patch.setattr(memory, "write_text", refuse)
        line = kept(tmp_path, result(**UNFINISHED, unproven={"cycle_time": "5"}), warnings)
    assert line == f"autotune: nothing is proven: {UNFINISHED['reason']}; the best so far: cycle_time=5"
    assert [text.partition(";")[0] for text in warnings] == [
        f"cannot remember the settings in {folder}: Permission denied"
    ]


def test_settings_of_a_failed_job_are_remembered_only_if_proven(folder: Path, tmp_path: Path) -> None:
    line = kept(tmp_path, result(**UNFINISHED, unproven={"cycle_time": "5"}), has_failed=True)
    assert line == f"autotune: nothing is proven: {UNFINISHED['reason']}; the best so far: cycle_time=5"
    assert not folder.exists()
    kept(tmp_path, result(), has_failed=True)
    assert len(memory.recall_all(pytest.fail)) == 1


def test_a_training_that_is_shorter_than_its_tuning_keeps_the_result(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.meta_path", [*sys.meta_path])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "temporary").mkdir()
    run = RunFolder(tmp_path / "run")
    library, host = LIBRARIES["openmpi"], Host(name="h", kernel="k", cpu="c", cores=2, memory_bytes=1)
    record = RunRecord(
        command=COMMAND, np=2, library=library, host=host, working_directory="/", started_at=datetime.now(UTC)
    )
    run.path.mkdir()
    run.write(record)
    tuning = TunedTraining(None)
    assert list((tmp_path / "temporary").iterdir()) == []  # a rank that is killed leaves none
    request = RankRequest.parse(os.environ.pop(VARIABLE))

    class Tuned:
        def exit(self) -> None:
            Result(request, []).stop("the program ended after 4 steps", None)

    monkeypatch.setattr(agent, "AGENTS", [Tuned()])
    tuning.finish(run.path, has_failed=False)
    assert json.loads((run.path / FOLDER / "result.json").read_text())["state"] == "not tuned"
    assert capsys.readouterr().err.count("nothing was tuned: the program ended after 4 steps") == 2
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_training_keeps_the_knobs_that_its_ranks_were_started_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.meta_path", [*sys.meta_path])
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2.5")
    TunedTraining(None)
    assert RankRequest.parse(os.environ.pop(VARIABLE)).moves.keys() == {"fusion_threshold"}


def test_proven_settings_are_not_replaced_by_others(folder: Path, tmp_path: Path) -> None:
    kept(tmp_path, result())
    line = kept(tmp_path, result(**UNFINISHED, unproven={"cycle_time": "25"}))
    assert line.endswith("the best so far: cycle_time=25")
    [remembered] = memory.recall_all(pytest.fail)
    assert remembered.settings == {"cycle_time": "5"}
    assert remembered.gain is not None
    assert remembered.for_ranks()["proven"] is True


@pytest.mark.parametrize(
    "document", [[], {"state": "odd"}, result(pairs=[[0, 1]]), result(schema="hvscale/autotune/9")]
)
def test_a_damaged_result_is_one_line(folder: Path, tmp_path: Path, document: object) -> None:
    line = kept(tmp_path, document)
    assert line.endswith("result.json is not a result of --autotune, so it is ignored")
    assert not folder.exists()


def test_a_state_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HVSCALE_SETTINGS_DIR", str(tmp_path / "file" / "memory"))
    warnings: list[str] = []
    assert kept(tmp_path, result(), warnings).startswith("autotune: cycle_time=5: 1.21 times")
    [warning] = warnings
    assert warning.startswith("cannot remember the settings in ")
    assert "set HVSCALE_SETTINGS_DIR" in warning


def test_a_state_folder_that_cannot_be_read_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "glob", refuse)
    warnings: list[str] = []
    assert recall_all(warnings.append) == []
    assert len(warnings) == 1
    assert warnings[0].endswith(": Permission denied")


def test_the_knobs_of_each_library_that_can_change_live() -> None:
    moves = {mpi: live_moves(COMMAND, LaunchOptions(np=2, mpi=mpi), library) for mpi, library in LIVE.items()}
    assert moves["gloo"].keys() == {"cycle_time", "fusion_threshold"}
    of_mpi = {"allreduce_algorithm", "segment_size", "broadcast_algorithm", "hvscale_broadcast"}
    assert moves["openmpi"].keys() == {"cycle_time", "fusion_threshold", *of_mpi}
    two_level = {"HVBCAST_ALGORITHM": "two-level"}
    assert moves["openmpi"]["hvscale_broadcast"] == {"chain": {"HVBCAST_ALGORITHM": "chain"}, "two_level": two_level}
    assert moves["openmpi"]["fusion_threshold"]["16M"] == {"HOROVOD_FUSION_THRESHOLD": str(16 << 20)}
    ring = moves["openmpi"]["allreduce_algorithm"]["ring"]
    assert ring["OMPI_MCA_coll_tuned_allreduce_algorithm"] == "4"
    assert ring["OMPI_MCA_coll_tuned_use_dynamic_rules"] == "1"
    assert mpi_words(moves["openmpi"]) == []


LIVE: dict[str, Library] = {mpi: LIBRARIES[mpi] for mpi in ("openmpi", "gloo")}


def test_knobs_that_the_user_has_set_stay_as_they_are() -> None:
    options = OPENMPI.replace(set=("cycle_time=5",), env=("HOROVOD_FUSION_THRESHOLD=1048576",))
    others = {"allreduce_algorithm", "segment_size", "broadcast_algorithm", "hvscale_broadcast"}
    assert live_moves(COMMAND, options, LIBRARIES["openmpi"]).keys() == others
    options = options.replace(env=("HVBCAST_ALGORITHM=chain",))
    assert "hvscale_broadcast" not in live_moves(COMMAND, options, LIBRARIES["openmpi"])


def test_the_broadcasts_of_a_table_can_change_back_to_the_library_s() -> None:
    options = OPENMPI.replace(collectives=Path("table.toml"))
    moves = live_moves(COMMAND, options, LIBRARIES["openmpi"])
    assert list(moves["hvscale_broadcast"]) == ["chain", "two_level", "off"]


def test_live_knobs_are_marked(tmp_path: Path) -> None:
    rows = json.loads(run_hvscale(tmp_path, "knobs", "--json").stdout)["rows"]
    live = {(row["library"], row["knob"]) for row in rows if row["live"]}
    assert {
        ("Horovod", "cycle_time"),
        ("Open MPI", "allreduce_algorithm"),
        ("MPICH", "segment_size"),
        ("MPICH", "eager_threshold"),
        ("hvscale's broadcast", "hvscale_broadcast"),
    } <= live
    assert ("Open MPI", "eager_threshold") not in live  # the library refuses the change
    assert not [row for row in rows if row["live"] and row["restart"] == "start"]
