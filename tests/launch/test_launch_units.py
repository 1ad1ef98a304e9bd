"""Decisions of a launch, without starting anything."""

import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import docker
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library, RunFolder, default_run_path
from hvscale.launch import environment, flavours, placements
from hvscale.launch.cleanup import leftovers, ownership
from hvscale.launch.containers import engine, image, mounts
from hvscale.launch.controller import early_warnings
from hvscale.launch.effective_settings import LaunchedJob, SettingsReports, ucx
from hvscale.launch.flavours import mpich, mvapich2, openmpi
from hvscale.launch.job import Job, Node, Nodes
from hvscale.launch.mpi import build_record, mpi_library, reported_library
from hvscale.launch.mpi.probe import has_large_counts
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements import _slurm_job, netns, ssh
from hvscale.launch.rank_side import remote_start
from hvscale.launch.supervision import init_marker, job_supervisor, outcome, programs
from hvscale.launch.supervision.interrupts import InterruptedWaitError
from hvscale.launch.supervision.output import PIECE_BYTES, RankOutput, last_lines, lines_of, visible
from hvscale.profiling import library_path, preload_environment
from tests.conftest import HANG_SECONDS
from tests.launch.records import a_record


@pytest.mark.parametrize(("version", "mapping"), [("5.0.11", "slot:OVERSUBSCRIBE"), ("4.1.4", "--oversubscribe")])
def test_mpirun_gets_the_options_of_its_release(tmp_path: Path, version: str, mapping: str) -> None:
    job = Job(np=3, command=["train me"], run=tmp_path, environment={}, nodes=Nodes((Node(name="here", slots=3),)))
    words = openmpi.arguments(
        job, ["hvrank", "run"], Library(flavour="openmpi", version=version, launcher="/opt/bin/mpirun")
    )
    assert words[:5] == ["/opt/bin/mpirun", "-np", "3", "--bind-to", "none"]
    assert mapping in words
    assert words[-2:] == ["hvrank", "run"]


def test_flavours_by_name_and_soname() -> None:
    assert flavours.get("gloo").soname is None
    assert flavours.of_soname("libmpi.so.40") == ["openmpi"]
    assert flavours.of_soname("libmpi.so.12") == ["intelmpi", "mpich", "mvapich2"]
    assert flavours.of_soname("libmpi.so.99") == []
    with pytest.raises(RequestError, match="Known: gloo, intelmpi, mpich, mvapich2, openmpi"):
        flavours.get("lam")


# Results of MPI_Get_library_version, and output of each library's version program.
MPICH_TEXT = "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\n"
MPICH_4_TEXT = "MPICH Version:    \t4.0.2\nMPICH Device:    \tch4:ofi\n"
MVAPICH2_TEXT = "MVAPICH2 Version      :\t2.3.5\nMVAPICH2 Device       :\tch3:mrail\n"
MPINAME_TEXT = "MVAPICH2-GDR 2.3.7 Sun Apr 10 22:00:00 EST 2022 ch3:mrail\n\nCompilation\n"
INTEL_TEXT = "Intel(R) MPI Library 2021.19.0 for Linux* OS\n"
INTEL_LAUNCHER_TEXT = "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929 (id: 1821d9b)\n"
OPEN_MPI_TEXT = "Open MPI v5.0.11, package: Open MPI root@host Distribution, ident: 5.0.11\n"


@pytest.mark.parametrize(
    ("text", "described"),
    [
        (MPICH_TEXT, "mpich 5.0.2"),
        (MPICH_4_TEXT, "mpich 4.0.2"),
        (MVAPICH2_TEXT, "mvapich2 2.3.5"),
        (MPINAME_TEXT, "mvapich2 2.3.7-GDR"),
        (INTEL_TEXT, "intelmpi 2021.19.0"),
        (INTEL_LAUNCHER_TEXT, "intelmpi 2021.19.0"),
        (OPEN_MPI_TEXT, "openmpi 5.0.11"),
        ("MVAPICH Version: 4.0\n", "unknown (MVAPICH Version: 4.0)"),
    ],
)
def test_libraries_with_one_soname_are_recognized_by_their_version_text(text: str, described: str) -> None:
    assert flavours.describe(text) == described
    knowing = [flavour.name for flavour in flavours.all_with_mpi() if flavour.version_in(text)]
    assert knowing == ([] if described.startswith("unknown") else [described.split()[0]])


def test_transports_are_read_from_the_build_information() -> None:
    assert mpich.transports_in(MPICH_TEXT) == ["ucx", "ofi"]
    assert mpich.transports_in(MPICH_4_TEXT) == ["ofi"]
    assert mpich.transports_in("MPICH Device: ch3:nemesis\n") == []
    assert mvapich2.device_in(MPINAME_TEXT) == "ch3:mrail"


@pytest.mark.parametrize("has_them", [True, False])
def test_large_counts_in_the_launcher_s_library(tmp_path: Path, has_them: bool) -> None:
    mpich = create_mpi(tmp_path, "libmpi.so.12", "PMPI_Bcast_c" if has_them else "PMPI_Bcast")
    assert has_large_counts([str(tmp_path / "program")], {}, mpich) is has_them


def test_large_counts_in_the_dynamic_linker_s_path(tmp_path: Path) -> None:
    create_mpi(tmp_path, "libmpich.so.12", "PMPI_Bcast_c")  # Debian's name
    elsewhere = Library(flavour="mpich", version="4.0.2", launcher="/nowhere/bin/mpiexec.hydra")
    command = [str(tmp_path / "program")]
    assert has_large_counts(command, {"LD_LIBRARY_PATH": str(tmp_path / "lib")}, elsewhere)
    assert not has_large_counts(command, {}, elsewhere)


def test_no_large_counts_without_mpi() -> None:
    assert not has_large_counts(["program"], {}, Library(flavour="gloo", version="0.28.1"))


def create_mpi(prefix: Path, soname: str, function: str) -> Library:
    """An installation whose libmpi has one function."""
    library = prefix / "lib" / soname
    library.parent.mkdir()
    (prefix / "mpi.c").write_text(f"int {function}(void) {{ return 0; }}")
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", library, prefix / "mpi.c"], check=True)
    return Library(flavour="mpich", version="4.0.2", launcher=str(prefix / "bin" / "mpiexec.hydra"))


@pytest.mark.parametrize("large_counts", [True, False])
def test_the_profiler_is_preloaded_into_ranks_only_and_mounted_into_containers(
    tmp_path: Path, large_counts: bool
) -> None:
    """All placements preload the same: hvrank copies LD_PRELOAD from run.json to the command."""
    library = library_path(large_counts)
    preload = preload_environment(RunFolder(tmp_path), {"LD_PRELOAD": "/opt/theirs.so"}, large_counts=large_counts)
    assert preload["LD_PRELOAD"] == f"{library}:/opt/theirs.so"
    with_marker = init_marker.environment(tmp_path, preload)["LD_PRELOAD"]
    assert with_marker.endswith(f"/{init_marker.LIBRARY}:{library}:/opt/theirs.so")
    folders = mounts.read_only_folders([sys.executable], {}, None)
    assert any(library.is_relative_to(folder) for folder in folders)


def test_mpirun_rsh_gets_a_host_for_each_rank(tmp_path: Path) -> None:
    job = Job(np=2, command=["train me"], run=tmp_path, environment={}, nodes=Nodes((Node("here", 2),)))
    found = Library(flavour="mvapich2", version="2.3.7", launcher="/opt/bin/mpirun_rsh")
    words = mvapich2.arguments(job, ["hvrank", "run"], found)
    assert words == ["/opt/bin/mpirun_rsh", "-export-all", "-np", "2", "localhost", "localhost", "hvrank", "run"]


def test_devices_split_needs_a_library_with_its_own_device_list() -> None:
    gdr = Library(flavour="mvapich2", version="2.3.7-GDR")
    assert environment.library_devices_variable("split", mvapich2.MVAPICH2(), gdr) == "MV2_VISIBLE_DEVICES"
    for name in ("gloo", "mpich", "openmpi", "intelmpi", "mvapich2"):
        with pytest.raises(RequestError, match=f"{name} 2.3.7 uses the GPUs"):
            environment.library_devices_variable("split", flavours.get(name), Library(flavour=name, version="2.3.7"))


def test_an_mpirun_of_another_family_is_an_error_that_names_it(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho HYDRA build details:\n")
    mpirun.chmod(0o755)
    with pytest.raises(RequestError, match=r"is not Open MPI's .it prints: HYDRA build details"):
        flavours.get("openmpi").find({"PATH": str(tmp_path)})
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 3.1.1'\n")
    with pytest.raises(RequestError, match="4 or later is required"):
        flavours.get("openmpi").find({"PATH": str(tmp_path)})
    mpirun.unlink()
    with pytest.raises(RequestError, match="no mpirun in PATH"):
        flavours.get("openmpi").find({"PATH": str(tmp_path)})


def test_only_listed_and_named_variables_are_passed() -> None:
    caller = {
        "PATH": "/bin",
        "STRAY": "1",
        "UCX_TLS": "tcp",
        "HOROVOD_CYCLE_TIME": "2",
        "ASKED": "x=y",
        "NCCL_VERSION": "2",
    }
    passed = {
        **environment.inherited_variables(caller),
        **environment.env_variables(["ASKED", "UCX_TLS=sm", "EMPTY="], caller),
    }
    assert passed == {"PATH": "/bin", "ASKED": "x=y", "UCX_TLS": "sm", "EMPTY": ""}
    assert environment.dropped_variables(passed, caller) == ["HOROVOD_CYCLE_TIME"]


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][A-Z_]{0,20}", fullmatch=True), st.text(st.characters(exclude_characters="\0"))
    )
)
def test_env_values_arrive_unchanged(variables: dict[str, str]) -> None:
    assert environment.env_variables([f"{name}={value}" for name, value in variables.items()], {}) == variables


def test_secrets_are_not_recorded() -> None:
    hidden = ("WANDB_API_KEY", "DATABASE_URL", "PGPASS", "HVSCALE_OWN", "UCX_KEY", "HOROVODISH", "PATH")
    shown = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0", "HYDRA_BINDING": "none"}
    requests = [f"{name}={value}" for name, value in {**dict.fromkeys(hidden, "s3cret"), **shown}.items()]
    recorded = [*hidden, *(f"{name}={value}" for name, value in shown.items())]
    assert environment.recordable_requests(requests) == recorded
    assert environment.recordable_requests(["PGPASS=s3cret", "NCCL_DEBUG=INFO"]) == ["PGPASS", "NCCL_DEBUG=INFO"]


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\r\n"), min_size=1), max_size=60))
def test_last_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    log = tmp_path_factory.mktemp("log") / "rank.log"
    log.write_text("".join(line + "\n" for line in lines))
    assert last_lines(log, 20) == lines[-20:]


@given(
    st.lists(st.binary(max_size=8) | st.sampled_from([b"\n", b"\r", "é€😀".encode(), b"x" * 40000]), max_size=12),
    st.lists(st.integers(1, 100000), max_size=4),
)
@example([b"x" * PIECE_BYTES, b"\r", b"end"], [PIECE_BYTES + 1])
@example([b"x" * (PIECE_BYTES + 1), b"\r", b"end"], [PIECE_BYTES + 1])
def test_shown_lines_do_not_depend_on_when_the_log_is_polled(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], cuts: list[int]
) -> None:
    """The lines are the same for any number of polls. Only overlong lines are split, and never
    inside a character.
    """
    run = RunFolder(tmp_path_factory.mktemp("run"))
    run.logs.mkdir()
    text, shown = b"".join(parts), list[str]()
    output = RankOutput(run, 1, lambda rank, line: shown.append(line))
    for end in [*sorted(cuts), len(text)]:
        run.log(0).write_bytes(text[:end])
        output.poll()
    output.finish()
    assert list(lines_of(run.log(0))) == shown
    expected = [visible(line) for line in (text.removesuffix(b"\n")).split(b"\n")] if text else []
    if all(len(line) <= PIECE_BYTES for line in text.split(b"\n")):
        assert shown == expected
    elif b"\r" not in text:
        assert "".join(shown) == "".join(expected)
    assert max(map(len, shown), default=0) <= 2 * PIECE_BYTES


def test_last_lines_of_a_missing_log_and_of_long_lines(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    assert last_lines(log) == []
    log.write_text("x" * 1_000_000 + "\n" + "end\n")
    assert last_lines(log, 1) == ["end"]
    log.write_text("x" * 100_000 + "the cause")
    [line] = last_lines(log)
    assert line.endswith("the cause")
    assert len(line) < 2100


def test_a_progress_bar_is_shown_as_on_a_terminal() -> None:
    assert visible(b" 10%\r 50%\r100%") == "100%"
    assert visible(b"windows line\r") == "windows line"


def test_run_folder_names_are_unique(tmp_path: Path) -> None:
    first = default_run_path(["python", "/home/me/train me.py", "--lr", "1"], tmp_path)
    assert first.name.endswith("-python-train-me.py-1")
    assert first.is_dir()
    assert default_run_path(["python", "/home/me/train me.py", "--lr", "1"], tmp_path) != first


def test_writing_an_agent_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    existing = tmp_path / "existing"
    existing.write_text("mine")
    (tmp_path / "agent").symlink_to(existing)
    agent = Nodes((Node("here", 1),)).write_agent(tmp_path)
    assert existing.read_text() == "mine"
    assert stat.S_IMODE(agent.lstat().st_mode) == 0o700
    assert subprocess.run([agent, "here", "exit 7"]).returncode == 7


def test_paths_that_launchers_or_docker_would_split_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="contains a space or a colon; choose another folder with --run"):
        Nodes((Node("here", 1),)).write_agent(tmp_path / "a:b")
    (tmp_path / "a:b").mkdir()
    monkeypatch.chdir(tmp_path)
    inside = mounts.volumes([sys.executable], {}, None, tmp_path / "a:b", ())
    assert str(tmp_path) in inside
    monkeypatch.chdir(tmp_path / "a:b")
    with pytest.raises(RequestError, match="a:b: Docker mounts no path with a colon"):
        mounts.volumes([sys.executable], {}, None, tmp_path / "run", ())


def test_programs_of_an_agent_do_not_inherit_ignored_signals() -> None:
    show = ["grep", "SigIgn", "/proc/self/status"]
    command = json.dumps({"program": show, "environment": dict(os.environ), "directory": "/"})
    default = ["env", "--default-signal", sys.executable, "-I", "-S", remote_start.__file__]
    with subprocess.Popen(default, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(command + "\n")
        agent.stdin.flush()  # closing stdin would kill the program
        ignored = int(agent.stdout.read().split()[1], 16)
    known = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR1)
    assert [number for number in known if ignored >> (number - 1) & 1] == []


class LockTakenByASignal:
    """Popen's lock, if a signal's handler raises just after the first wait has acquired it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.was_raised = False

    def acquire(self, blocking: bool = True) -> bool:
        acquired = self.lock.acquire(blocking)
        if acquired and not self.was_raised:
            self.was_raised = True
            raise InterruptedWaitError
        return acquired

    def __enter__(self) -> bool:
        return self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


@pytest.mark.parametrize(
    "context",
    ["hvscale.launch.supervision.interrupts.catch_signals", "hvscale.cli.watch_view.key_waiter"],
)
def test_signals_can_be_caught_although_a_preloaded_library_handles_sighup(tmp_path: Path, context: str) -> None:
    """UCX does so, and a tool that wraps MPI loads UCX into hvscale with LD_PRELOAD."""
    source = tmp_path / "handler.c"
    source.write_text(
        "#include <signal.h>\n"
        "static void ignore(int number) { (void)number; }\n"
        "__attribute__((constructor)) static void start(void) { signal(SIGHUP, ignore); }\n"
    )
    library = tmp_path / "handler.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    module, name = context.rsplit(".", 1)
    program = (
        f"import signal; from {module} import {name}\n"
        "assert signal.getsignal(signal.SIGHUP) is None\n"
        f"with {name}(): pass\n"
    )
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@pytest.mark.parametrize(
    "start",
    [
        lambda folder: programs.call(["sbatch"]),
        lambda folder: _slurm_job.submit("#!/bin/sh\n", RunFolder(folder / "run")),
    ],
    ids=["call", "submit"],
)
def test_an_interrupt_at_any_moment_of_a_wait_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[Path], object]
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nsleep 0.2\n")
    (tmp_path / "sbatch").chmod(0o755)
    original = subprocess.Popen.__init__

    def init(self: Any, *words: Any, **settings: Any) -> None:
        original(self, *words, **settings)
        self._waitpid_lock = LockTakenByASignal()

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(subprocess.Popen, "__init__", init)
    monkeypatch.setattr(programs, "END_SECONDS", 0.1)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            start(tmp_path)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    assert [type(error) for error in raised] == [InterruptedWaitError]


def test_a_job_script_reaches_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ncat > {tmp_path}/submitted\necho '7;cluster'\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert _slurm_job.submit("#!/bin/sh\nexec true\n", RunFolder(tmp_path / "run")) == "7"
    assert (tmp_path / "submitted").read_text() == "#!/bin/sh\nexec true\n"


def test_programs_whose_answer_is_lost_are_asked_once_more(tmp_path: Path) -> None:
    """The first answers only when it runs again, the second never, the third fails."""
    counting = (
        "import pathlib, sys; f = pathlib.Path(sys.argv[1]); print('x' * f.exists(), end=''); f.open('a').write('+')"
    )
    silent, failing = "import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write('+')", "raise SystemExit(7)"
    scripts = [counting, silent, failing]
    words = [[sys.executable, "-c", script, str(tmp_path / str(number))] for number, script in enumerate(scripts)]
    found = [(one.returncode, one.stdout) for one in programs.ask_all(words, 60) if one is not None]
    assert found == [(0, "x"), (0, ""), (7, "")]
    assert [(tmp_path / name).read_text() for name in "01"] == ["++", "++"]


def fake_distribution(folder: Path, name: str) -> tuple[Path, Path]:
    """A launcher and a library elsewhere, to which a program beside the launcher is linked."""
    libraries = folder / "lib" / "of-this-machine"
    (folder / "bin").mkdir()
    libraries.mkdir(parents=True)
    library = libraries / name
    compiler = ["cc", "-x", "c", "-", "-o"]
    function = b"int MPI_Get_version(int *v, int *s) { *v = 3; *s = 1; return 0; }"
    subprocess.run([*compiler, library, "-shared", f"-Wl,-soname,{name}"], input=function, check=True)
    linked = ["-x", "none", str(library), f"-Wl,-rpath,{libraries}"]
    main = b"int MPI_Get_version(int *, int *); int main(void) { return MPI_Get_version(0, 0); }"
    subprocess.run([*compiler, str(folder / "bin" / "mpichversion"), *linked], input=main, check=True)
    return folder / "bin" / "mpirun", library


def test_mpi4py_gets_the_library_of_a_linux_distribution(tmp_path: Path) -> None:
    launcher, library = fake_distribution(tmp_path, "libmpi.so.40")
    found = mpi_library.for_mpi4py({"A": "b"}, launcher, "libmpi.so.40")
    assert found == {"A": "b", "MPI4PY_LIBMPI": str(library)}
    named_by_user = {"MPI4PY_LIBMPI": "mine"}
    assert mpi_library.for_mpi4py(named_by_user, launcher, "libmpi.so.40") == named_by_user


def test_mpi4py_gets_debians_mpich_under_the_usual_name(tmp_path: Path) -> None:
    """Also in a program that has already loaded MPI: it loads the library by name alone."""
    launcher, library = fake_distribution(tmp_path, "libmpich.so.12")
    found = mpi_library.for_mpi4py({"LD_LIBRARY_PATH": "/other"}, launcher, "libmpi.so.12")
    named = Path(found["MPI4PY_LIBMPI"])
    assert named.name == "libmpi.so.12"
    assert found["LD_LIBRARY_PATH"] == f"{named.parent}:/other"
    # The linker finds a distribution's folder without the variable.
    environment = found | {"LD_LIBRARY_PATH": f"{found['LD_LIBRARY_PATH']}:{library.parent}"}
    program = """
import ctypes, os, sys
version, minor = ctypes.c_int(), ctypes.c_int()
for name in (os.environ["MPI4PY_LIBMPI"], "libmpi.so.12"):
    ctypes.CDLL(name).MPI_Get_version(ctypes.byref(version), ctypes.byref(minor))
    print(version.value, minor.value)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "1", "3", "1"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("MVAPICH2 2.3.7 in /opt/mvapich2", "mvapich2"),
        ("MPICH 5.0.2", "mpich"),
        ("Intel(R) MPI Library 2021.19 in /opt/intel", "intelmpi"),
        ("Open MPI v4.1.4 in /usr", "openmpi"),
        ("Another MPI 1.0 in /opt", "openmpi"),
        (None, "openmpi"),
    ],
)
def test_the_default_flavour_is_that_of_the_recorded_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, expected: str
) -> None:
    own = Path(sysconfig.get_path("purelib"), "horovod", build_record.FILE_NAME)
    record = json.loads(own.read_text())
    record["mpi"]["version"] = version
    (tmp_path / "horovod").mkdir()
    # Without a version, the record is damaged.
    (tmp_path / "horovod" / build_record.FILE_NAME).write_text(json.dumps(record))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert flavours.of_this_environment() == expected


@pytest.mark.parametrize(
    ("program", "host", "is_used"),
    [("docker", None, True), ("podman", "unix:///podman.sock", True), ("podman", None, False), ("other", None, False)],
)
def test_leftovers_of_docker_and_of_podmans_service_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, host: str | None, is_used: bool
) -> None:
    (tmp_path / program).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine, "DEFAULT_SOCKET", "unix:///docker.sock")
    if host is not None:
        monkeypatch.setenv("DOCKER_HOST", host)
    assert leftovers.runs_with_containers() == []
    with pytest.raises(RequestError, match=f"does not answer at {engine.address()}") if is_used else nullcontext():
        assert list(leftovers.docker_leftovers(remove=False, keep=())) == []


def test_a_hostfile_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"a\xff:4\n")
    with pytest.raises(RequestError, match="hosts: not a text file in UTF-8"):
        ssh.parse_hosts(PlacementOptions(hostfile=tmp_path / "hosts"))


def test_invalid_variables_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVSCALE_SSH", 'ssh "')
    with pytest.raises(RequestError, match='HVSCALE_SSH=ssh ": No closing quotation'):
        ssh.ssh_words()
    monkeypatch.setenv("DOCKER_HOST", "tcp://::")
    with pytest.raises(RequestError, match="set DOCKER_HOST to its address"), engine.connection():
        pass


@pytest.mark.parametrize("missing", ["SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE"])
def test_an_allocation_without_its_variables_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in (("ID", "5"), ("NODELIST", "n1"), ("CPUS_PER_NODE", "2")):
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    monkeypatch.delenv("SLURM_TASKS_PER_NODE", raising=False)
    placements.get(PlacementOptions(placement="slurm"), 2)
    monkeypatch.delenv(missing)
    with pytest.raises(RequestError, match=f"SLURM_JOB_ID is set, but {missing} is not"):
        placements.get(PlacementOptions(placement="slurm"), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 4}, "--nodes 4: this is inside allocation 5, of which -np 3 uses 2: leave it out"),
        ({"sbatch": Path("job.sh")}, "--sbatch is for a job that is still to be requested, and this is inside"),
        ({"sbatch_option": ("--time=1",)}, "--sbatch-option is for a job that is still to be requested, and this is"),
    ],
)
def test_options_about_a_job_to_request_are_refused_inside_an_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in (("JOB_ID", "5"), ("JOB_NODELIST", "n[1-4]"), ("TASKS_PER_NODE", "2(x4)")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    placements.get(PlacementOptions(submit=True, nodes=2), 3)
    with pytest.raises(RequestError, match=re.escape(message)):
        placements.get(PlacementOptions(submit=True, **options), 3)


@pytest.mark.parametrize(("np", "nodes", "warns"), [(2, 1, True), (2, 2, False), (1, 1, False)])
def test_a_link_that_no_message_crosses_is_warned_of(np: int, nodes: int, warns: bool) -> None:
    record = a_record(np)
    created = Nodes(tuple(Node(f"node-{number}", np // nodes) for number in range(nodes)))
    options = LaunchOptions.of(np=np, placement="netns", link="1mbit")
    found = early_warnings(record, created, {}, options)
    assert any(text.startswith("--link 1mbit limits nothing: all 2 ranks are on one node") for text in found) == warns


def test_a_job_that_is_not_submitted_is_warned_of() -> None:
    """--submit inside an allocation runs the job there."""
    found = early_warnings(a_record(1), Nodes((Node("n", 1),)), {}, LaunchOptions.of(submit=True))
    assert "--submit: this is inside an allocation, so the job runs on its nodes and nothing is submitted" in found


def test_signals_without_a_name_have_a_number() -> None:
    assert outcome.describe_exit(-signal.SIGKILL) == "was killed by SIGKILL"
    assert outcome.describe_exit(-35) == "was killed by signal 35"


def test_a_launcher_s_end_is_seen_with_more_than_1024_open_files() -> None:
    """As in a job of 500 ranks that each have an agent."""
    _, most = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 2048 and most != resource.RLIM_INFINITY:
        pytest.skip("ulimit -H -n is too low")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, most))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1024):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        process = subprocess.Popen(["true"])
        job_supervisor.wait_for_launcher_end([process], 60)
        assert process.poll() == 0


def test_more_programs_run_at_once_than_the_limit_of_open_files_allows() -> None:
    """As `true` in each of 600 nodes."""
    _, most = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
        found = programs.run_all([["true"]] * 40, 60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [one and one.returncode for one in found] == [0] * 40


def test_a_library_that_does_not_report_its_settings_is_asked_once(tmp_path: Path) -> None:
    library = create_mpi(tmp_path, "libmpi.so.12", "PMPI_Bcast")  # without the tools interface
    job = LaunchedJob(RunFolder(tmp_path / "run"), library, ["true"], {"MPIR_CVAR_ENABLE_GPU": "1"})
    reports = SettingsReports(job, mpich.ControlVariableReport(), np=1)
    (reported,) = reports.new()
    assert (reported.library, reported.settings, reported.not_applied) == ("MPICH 4.0.2", {}, {})
    assert list(reports.new(ended=True)) == []


def test_unknown_variables_are_found_in_the_lines_that_a_rank_s_log_has_gained(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    variables = {"UCX_FIRST": "1", "UCX_SECOND": "1"}
    job = LaunchedJob(run, Library(flavour="openmpi", version="5"), ["true"], variables)
    warning = "UCX  WARN  unused environment variable: "
    first, reader = f"{warning}UCX_FIRST\n", ucx.UCX()
    run.log(0).write_text(f"{'.' * (len(first) - 1)}\n{warning}UCX_SE")
    assert reader.read(job, ended=False) is None
    run.log(0).write_text(f"{first}{warning}UCX_SECOND\n")  # the first line is not read again
    found = reader.read(job, ended=False)
    assert found is not None
    assert found.not_applied == {"UCX_SECOND": "UCX has no such variable"}


def test_a_run_folder_that_its_command_removed_has_no_reports(tmp_path: Path) -> None:
    assert reported_library.LibraryReports(tmp_path / "removed", 1).new(ended=True) is None


@pytest.mark.parametrize(("writable", "folder"), [(True, "/run/lock"), (False, "/tmp")])  # noqa: S108
def test_a_user_s_lock_is_in_a_folder_that_all_may_write_to(
    writable: bool, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.access", lambda path, mode: writable)
    assert ownership.lock_file("swarm") == Path(folder, "hvscale-1000-swarm.lock")


@pytest.mark.parametrize(
    ("routes", "subnet"),
    [
        (["default", "10.1.0.0/16", "10.213.0.0/24"], "10.213.1.0/24"),
        (["10.0.0.0/8", "198.18.0.0/24"], "198.18.1.0/24"),
        (["0.0.0.0/1", "128.0.0.0/1"], "10.213.0.0/24"),
    ],
)
def test_the_network_of_namespaces_avoids_routes(
    routes: list[str], subnet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netns, "call", lambda words: json.dumps([{"dst": route} for route in routes]))
    assert str(netns.free_subnet()) == subnet


def test_the_dockerfile_makes_the_image_that_hvscale_builds() -> None:
    dockerfile = (Path(__file__).parents[2] / "docker" / "Dockerfile").read_text()
    assert f"--no-install-recommends {' '.join(image.PACKAGES)} " in dockerfile
    assert "ENV LANG=C.UTF-8\n" in dockerfile


def test_what_docker_s_library_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "DockerClient", lambda **settings: io.BytesIO())
    with pytest.raises(RequestError, match="Resource ID was not provided"), engine.connection():
        raise docker.errors.NullResource("Resource ID was not provided")


def test_a_signal_ends_the_build_of_an_image_and_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HVSCALE_CACHE", "~/cache")
    monkeypatch.setattr(image, "with_apt_proxy", lambda: dict(os.environ))
    unmounts = f"trap 'touch {tmp_path}/unmounted; exit 143' TERM; kill -TERM {os.getpid()}; sleep 30 & wait"
    with pytest.raises(SystemExit) as ended, image.temporary_folder(image.cache_folder()) as work:
        image.run_debootstrap(["sh", "-c", unmounts], work / "log")
    assert ended.value.code == 143
    assert (tmp_path / "unmounted").exists()
    assert [*(tmp_path / "cache/images").iterdir()] == []
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot be written"), image.temporary_folder(tmp_path / "file/images"):
        pass


@pytest.mark.parametrize(
    ("name", "option", "problem"),
    [
        ("netns", "link", "--link : not a rate"),
        ("docker:rank", "link", "--link : not a rate"),
        ("docker:node", "shm_size", "--shm-size : not a valid size"),
    ],
)
def test_netns_and_docker_do_not_ignore_an_empty_value(
    name: str, option: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = placements.find(name)
    monkeypatch.setattr(type(place), "readiness", lambda self: "")
    monkeypatch.setattr(type(place), "ready_with", lambda self, image: "", raising=False)
    with pytest.raises(RequestError, match=problem):
        place.check(PlacementOptions.model_validate({"placement": name, option: ""}), 2)


def test_what_was_removed_before_a_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove_two(remove: bool) -> Iterator[leftovers.Leftover]:
        yield leftovers.Leftover(kind="namespaces", name="first*", run="job")
        raise RequestError("the second cannot be removed")

    monkeypatch.setattr(leftovers, "docker_leftovers", lambda remove, keep: iter(()))
    monkeypatch.setattr(leftovers, "namespace_leftovers", remove_two)
    monkeypatch.setattr(leftovers, "shared_memory_leftovers", lambda remove: iter(()))
    found, problems = leftovers.clean_up()
    assert ([one.name for one in found], problems) == (["first*"], ["the second cannot be removed"])
