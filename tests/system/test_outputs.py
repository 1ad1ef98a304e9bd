"""The output files of `tune`, used by the libraries and launchers that they are written for.

The study consists of real runs on this machine.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from hvscale.comm_tuning.tune.document import KnobChoice, Pair, Proof, Trial, TrialState, TuneDocument
from hvscale.comm_tuning.tune.outputs import write_outputs
from hvscale.comm_tuning.tune.outputs.formats import openmpi_mca_params
from hvscale.comm_tuning.tune.outputs.output_format import TunedJob
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import estimate
from hvscale.launch.flavours import openmpi
from hvscale.launch.options import LaunchOptions
from hvscale.profiling.compare import compare
from hvscale.studies.throughput import Metric, read_throughput
from tests.comm_tuning.studies import study
from tests.conftest import (
    DIRECT_START,
    HANG_SECONDS,
    MPICH_PREFIX,
    PROGRAMS,
    Run,
    needs_mpich,
    requested_env,
    requested_knobs,
    run_json,
    write_program,
)

STEPS = 20
# Each rank prints its settings in one write that is small enough to be atomic in a pipe, because
# launchers interleave the output of ranks.
REPORT = """
set_here = {name: word for name, word in os.environ.items() if name.startswith(("HOROVOD_", "MPIR_CVAR_"))}
told = json.dumps({"size": size, "words": sys.argv[1:], **set_here})
sys.stdout.write(f"images/s: {rate}\\nhad {told}\\n")
sys.stdout.flush()
"""
# Code that initialises the library, the expression for the number of ranks, and an all-reduce into
# `total`.
MPI4PY = (
    "import numpy; from mpi4py import MPI",
    "MPI.COMM_WORLD.size",
    "total = numpy.ones(1 << 16, numpy.float32); MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)",
)
# For Gloo.
HOROVOD = (
    "import horovod.torch as hvd, torch; hvd.init()",
    "hvd.size()",
    "total = hvd.allreduce(torch.ones(1 << 16), name='gradient', op=hvd.Sum)",
)


def steps_program(start: str, size: str, allreduce: str) -> str:
    return f"""
import json, os, sys, time
{start}
from hvscale import profiling
size = {size}
began = time.monotonic()
for step in range({STEPS}):
    profiling.step()
    {allreduce}
    assert bool((total == size).all())
profiling.step()
rate = {STEPS} / (time.monotonic() - began)
{REPORT}"""


METRIC = r"images/s: (?P<per_rank>[0-9.]+)"
HOSTILE = "<script>throw new Error('guide')</script> \"quoted\" $(false) `x` | *"
WINNER = {"allreduce_algorithm": "ring", "segment_size": "64K", "fusion_threshold": "1M", "cycle_time": "0.5"}
NCCL = next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"), None)
# Broadcasts 1 MiB from rank 0 to all ranks, or within each half of the ranks.
BROADCAST = """
import sys, numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
communicator = world if sys.argv[1] == "world" else world.Split(world.rank // 2)
communicator.Bcast(numpy.ones(1 << 20, numpy.uint8))
"""
READ_NCCL_SETTINGS = """
import ctypes, sys
ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128))
environment = ctypes.CDLL(None)
environment.getenv.restype = ctypes.c_char_p
for name in sys.argv[2:]:
    print(environment.getenv(name.encode()).decode())
"""


def real_study(hvscale: Run, folder: Path, program: Path, library: str, winner: dict[str, str]) -> TuneDocument:
    """Make a study from runs below `folder`: three trials, one of them crashed, and two pairs."""
    command = ["python", str(program), HOSTILE]

    crash = {"cycle_time": "9"}
    failing_command = ["python", "-c", "import sys; sys.exit(sys.argv[1])", HOSTILE]
    runs = {
        **{"trial-0": ({}, command), "trial-1": (winner, command), "trial-2": (crash, failing_command)},
        **{"default-0": ({}, command), "default-1": ({}, command)},
        **{"tuned-0": (winner, command), "tuned-1": (winner, command)},
    }

    def start(name: str) -> None:
        settings, words = runs[name]
        knobs = [word for knob, text in settings.items() for word in ("--set", f"{knob}={text}")]
        hvscale("profile", "-np", 2, "--mpi", library, "--run", folder / name, *knobs, "--", *words)

    with ThreadPoolExecutor(3) as pool:  # no test depends on their speeds
        list(pool.map(start, runs))

    def run(name: str) -> RunFolder:
        return RunFolder.open(folder / name)

    def speed(found: RunFolder) -> float:
        return read_throughput(found, 2, Metric.parse(METRIC), lambda text: None).value

    def trial(number: int, settings: dict[str, str], state: TrialState, found: RunFolder) -> Trial:
        record = found.read()
        assert record.state == ("failed" if state == "crashed" else "finished")
        assert record.ended_at is not None
        seconds = (record.ended_at - record.started_at).total_seconds()
        measured = estimate([speed(found)]) if state == "measured" else None
        problem = None if measured else f"rank {record.failed_rank} failed: {found.log(0).read_text().splitlines()[-1]}"
        return Trial(
            number=number,
            settings=settings,
            state=state,
            run=found.path.name,
            start=number,
            steps=STEPS if measured else 0,
            seconds=seconds,
            throughput=measured,
            problem=problem,
        )

    trials = [
        trial(0, {}, "measured", run("trial-0")),
        trial(1, winner, "measured", run("trial-1")),
        trial(2, crash, "crashed", run("trial-2")),
    ]
    pairs = [(run(f"default-{number}"), run(f"tuned-{number}")) for number in range(2)]
    speeds = [(speed(before), speed(after)) for before, after in pairs]
    record = pairs[-1][1].read()
    return TuneDocument(
        state="finished",
        folder=str(folder),
        command=command,
        np=2,
        launch=LaunchOptions(mpi=library),
        measured_by=f"what --metric matches ({METRIC})",
        library=record.library,
        transport=record.library.transport,
        host=record.host,
        space=[
            KnobChoice(knob="cycle_time", values=["0.5", "9"], reason=""),
            KnobChoice(knob="broadcast_algorithm", values=[], reason="broadcasts take no time in a step"),
        ],
        trials=trials,
        proof=Proof(
            pairs=[
                Pair(default=before, tuned=after, default_run=first.path.name, tuned_run=second.path.name)
                for (before, after), (first, second) in zip(speeds, pairs, strict=True)
            ],
            gain=estimate([after / before for before, after in speeds]),
            accepted=False,
        ),
        winner=winner,
        profile=compare(*pairs[-1]) if library != "gloo" else None,
        warnings=record.warnings,
    )


def accepted(document: TuneDocument) -> TuneDocument:
    """Return the document with an accepted proof.

    Two pairs on a busy machine prove little, and the output files do not depend on it.
    """
    assert document.proof is not None
    return document.model_copy(update={"proof": document.proof.model_copy(update={"accepted": True})})


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(steps_program(*MPI4PY))
    return path


@pytest.fixture(scope="module")
def run_anywhere(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("anywhere")

    def run(*arguments: object, timeout: float = HANG_SECONDS, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAMS / "hvscale"), *map(str, arguments)]
        surrounding = {**os.environ, **environment}
        return subprocess.run(command, cwd=folder, env=surrounding, capture_output=True, text=True, timeout=timeout)

    return run


@pytest.fixture(scope="module")
def document(run_anywhere: Run, program: Path, tmp_path_factory: pytest.TempPathFactory) -> TuneDocument:
    return real_study(run_anywhere, tmp_path_factory.mktemp("study of 'one'"), program, "openmpi", WINNER)


@pytest.fixture
def folder(document: TuneDocument) -> Path:
    """Write the outputs of the study with an accepted gain; return their folder."""
    path = Path(document.folder)
    write_outputs(path, accepted(document))
    return path


def sh(text: str, folder: Path, prefix: Path = PROGRAMS.parent, **environment: str) -> str:
    """Run shell commands with the programs of the environment; return their output."""
    path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
    passed = {**os.environ, **DIRECT_START, **environment, "PATH": path}
    done = subprocess.run(
        ["sh", "-ec", text], cwd=folder, env=passed, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def reported_by_ranks(output: str) -> list[dict[str, Any]]:
    """Return what each rank printed about itself and its libraries' variables."""
    return [json.loads(text) for text in re.findall(r"had (\{.*\})", output)]


def section(folder: Path, title: str) -> str:
    """Return the section of commands.txt for one launcher."""
    parts = (folder / "commands.txt").read_text().split("\n\n")
    [found] = [part for part in parts if re.match(rf"# {title}\b", part)]
    return found


def reported_value(output: str, name: str) -> str:
    """Return the value that Open MPI prints for a parameter, with its source."""
    values: list[str] = re.findall(rf"{name}=(.*)", output)
    return values[-1]


def test_env_sh_sets_the_same_variables_as_launch(hvscale: Run, folder: Path, tmp_path: Path) -> None:
    output = sh(". ./env.sh; env -0", folder)
    before = sh("env -0", folder)
    new = dict(entry.split("=", 1) for entry in set(output.split("\0")) - set(before.split("\0")))
    new.pop("_", None)
    settings = folder / "settings.toml"
    done = hvscale(
        "launch", "-np", 2, "--run", "job", "--settings", settings, "--", "python", "-c", "import mpi4py.MPI"
    )
    assert done.returncode == 0, done.stderr
    record = run_json(tmp_path / "job")
    assert new == requested_env(record)
    assert requested_knobs(record) == WINNER
    [reported] = [reported for reported in record["settings_in_effect"] if reported["library"].startswith("Open MPI")]
    assert reported["not_applied"] == {}
    assert reported["settings"]["coll_tuned_allreduce_algorithm"] == "ring"


def test_set_overrides_the_file_and_another_mpi_is_rejected(hvscale: Run, folder: Path, tmp_path: Path) -> None:
    settings = ("--settings", folder / "settings.toml")
    done = hvscale(
        "profile",
        "--run",
        "job",
        *settings,
        "--set",
        "cycle_time=7",
        "--json",
        "--",
        "python",
        "-c",
        "import mpi4py.MPI",
    )
    assert done.returncode == 0, done.stderr
    assert requested_knobs(run_json(tmp_path / "job")) == {**WINNER, "cycle_time": "7"}
    rejected = hvscale("launch", *settings, "--mpi", "gloo", "--run", "none", "--", "true")
    assert rejected.returncode == 2
    [line] = rejected.stderr.splitlines()
    assert "was made for --mpi openmpi, but this job uses --mpi gloo: add --mpi openmpi" in line
    text = (folder / "settings.toml").read_text()
    (tmp_path / "cut.toml").write_text(text[:-2])
    (tmp_path / "soon.toml").write_text(re.sub("cycle_time = .*", 'cycle_time = "soon"', text))
    for path, message in (
        ("cut.toml", "is not valid TOML"),
        ("nowhere.toml", "No such file or directory"),
        ("soon.toml", "--settings soon.toml: cycle_time=soon: Horovod accepts"),
    ):
        done = hvscale("scale", "--np", "1", "--settings", path, "--", "true")
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "none").exists()


def test_launch_uses_the_options_of_the_file(hvscale: Run, tmp_path: Path) -> None:
    write_outputs(tmp_path, study({}, launch=LaunchOptions(transport="ucx", devices="own"), accepted=None))
    program = ("--", "python", "-c", "import mpi4py.MPI")
    assert hvscale("launch", "--settings", "settings.toml", "--run", "as-written", *program).returncode == 0
    record = run_json(tmp_path / "as-written")
    assert (record["library"]["transport"], record["launch"]["devices"]) == ("ucx", "own")
    options = ("--transport", "ob1", "--run", "asked")
    assert hvscale("launch", "--settings", "settings.toml", *options, *program).returncode == 0
    record = run_json(tmp_path / "asked")
    assert (record["library"]["transport"], record["launch"]["devices"]) == ("ob1", "own")


def test_the_mpirun_command_applies_the_settings(folder: Path) -> None:
    output = sh(section(folder, "mpirun"), folder, OMPI_MCA_mpi_show_mca_params="enviro")
    ranks = reported_by_ranks(output)
    assert [rank["size"] for rank in ranks] == [2, 2]
    assert all(rank["words"] == [HOSTILE] for rank in ranks)
    assert all(rank["HOROVOD_FUSION_THRESHOLD"] == str(1 << 20) for rank in ranks)
    assert reported_value(output, "coll_tuned_allreduce_algorithm") == "ring (environment)"
    assert reported_value(output, "coll_tuned_allreduce_algorithm_segmentsize") == "65536 (environment)"


def test_the_srun_command_applies_the_settings(folder: Path) -> None:
    """Checks the environment and arguments of one process without srun, which needs a cluster."""
    alone = re.sub(r"srun -n 2 --mpi=pmix --cpu-bind=none", "", section(folder, "srun"))
    output = sh(alone, folder, OMPI_MCA_mpi_show_mca_params="enviro")
    [rank] = reported_by_ranks(output)
    assert (rank["words"], rank["HOROVOD_CYCLE_TIME"]) == ([HOSTILE], "0.5")
    assert reported_value(output, "coll_tuned_allreduce_algorithm") == "ring (environment)"


def test_the_hvscale_command_applies_the_settings(folder: Path, tmp_path: Path) -> None:
    sh(section(folder, "hvscale").replace("--settings", "--run again --settings"), tmp_path)
    record = run_json(tmp_path / "again")
    assert (requested_knobs(record), record["np"]) == (WINNER, 2)
    assert record["command"][-1] == HOSTILE


def test_horovodrun_applies_its_configuration_file(folder: Path, tmp_path: Path) -> None:
    over_open_mpi = sh(section(folder, "horovodrun"), folder, OMPI_MCA_mpi_show_mca_params="enviro")
    assert reported_value(over_open_mpi, "coll_tuned_allreduce_algorithm") == "ring (environment)"
    config = folder / "horovodrun.yaml"
    gloo = config.read_text().replace("controller: mpi", "controller: gloo")
    (folder / "gloo.yaml").write_text(gloo)
    program = write_program(tmp_path, steps_program(*HOROVOD))
    words = shlex.join(["horovodrun", "-np", "2", "--config-file", str(folder / "gloo.yaml"), "python", str(program)])
    for output in (over_open_mpi, sh(words, folder)):
        ranks = reported_by_ranks(output)
        assert [rank["size"] for rank in ranks] == [2, 2]
        assert all(float(rank["HOROVOD_FUSION_THRESHOLD"]) == 1 << 20 for rank in ranks)
        assert all(rank["HOROVOD_CYCLE_TIME"] == "0.5" for rank in ranks)
    (folder / "gloo.yaml").unlink()


def ompi_infos() -> list[Path]:
    """Return the ompi_info of the environment and, if installed, of the system's Open MPI."""
    own = Path("/usr/bin/ompi_info")
    return [PROGRAMS / "ompi_info", *([own] if own.exists() else [])]


@pytest.mark.parametrize("info", ompi_infos(), ids=str)
def test_open_mpi_reads_its_parameter_file(folder: Path, info: Path) -> None:
    text = (folder / "openmpi-mca-params.conf").read_text()
    wanted = dict(re.findall(r"^(\w+) = (.*)$", text, re.MULTILINE))
    assert len(wanted) == 5
    info_output = sh(
        f"{info} --all --parsable", folder, OMPI_MCA_mca_base_param_files=str(folder / "openmpi-mca-params.conf")
    )
    known = openmpi.parse(info_output)
    for name, word in wanted.items():
        assert openmpi.is_same_value(word, known[name].value) or known[name].names[word] == known[name].value
        assert f":{name}:source:file" in info_output


def test_open_mpi_reads_its_parameter_file_although_a_folder_has_a_comma(tmp_path: Path) -> None:
    folder = tmp_path / "lr 0.1, ring"
    document = study(WINNER, "openmpi")
    write_outputs(folder, document)
    use = openmpi_mca_params.use(TunedJob.of(folder, document))
    assert use in (folder / "guide.md").read_text()
    output = sh(f"{use}; {PROGRAMS / 'ompi_info'} --all --parsable", folder, HOME=str(tmp_path))
    assert ":coll_tuned_allreduce_algorithm:source:file" in output


def test_a_job_applies_the_open_mpi_parameter_file(folder: Path, program: Path) -> None:
    file = shlex.quote(str(folder / "openmpi-mca-params.conf"))
    start = f"mpirun --mca mca_base_param_files {file} -np 2 --map-by slot:OVERSUBSCRIBE python {program}"
    output = sh(start, folder, OMPI_MCA_mpi_show_mca_params="file")
    assert reported_value(output, "coll_tuned_allreduce_algorithm").startswith("ring (file (")


def sent_by_rank_0(folder: Path, words: str, environment: dict[str, str]) -> dict[int, int]:
    """Return the number of messages from rank 0 to each rank, from Open MPI's monitoring."""
    (folder / "broadcast.py").write_text(BROADCAST)
    monitoring = "--mca pml_monitoring_enable 2 --mca pml_monitoring_enable_output 3 --mca pml_monitoring_filename prof"
    start = f"mpirun -np 4 --map-by slot:OVERSUBSCRIBE {monitoring} python broadcast.py {words}"
    exports = "".join(f"export {name}={shlex.quote(word)}; " for name, word in environment.items())
    sh(exports + start, folder)
    counted = (folder / "prof.0.prof").read_text()
    return {
        int(rank): int(count)
        for rank, count in re.findall(r"^I\t0\t(\d+)\t\d+ bytes\t(\d+) msgs", counted, re.MULTILINE)
    }


def test_open_mpi_rules_apply_only_to_communicators_of_the_jobs_size(tmp_path: Path) -> None:
    write_outputs(tmp_path, study({"broadcast_algorithm": "pipeline", "segment_size": "64K"}))
    [use] = re.findall(r"^# (export .*)$", (tmp_path / "openmpi-coll-rules.conf").read_text(), re.MULTILINE)[-1:]
    name, _, file = use.removeprefix("export ").partition("=")
    rules = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_priority": "45"}
    with_file = {**rules, name: shlex.split(file)[0]}
    # The pipeline sends 16 segments of 64 KiB from rank 0 to rank 1 only.
    assert sent_by_rank_0(tmp_path, "world", with_file) == {1: 16}
    assert sent_by_rank_0(tmp_path, "world", rules) != {1: 16}
    assert sent_by_rank_0(tmp_path, "halves", with_file) == sent_by_rank_0(tmp_path, "halves", rules) != {1: 16}


@needs_mpich
def test_mpich_files_and_command_apply_the_settings(run_anywhere: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(steps_program(*MPI4PY))
    winner = {"allreduce_algorithm": "tree", "segment_size": "16K", "eager_threshold": "32K", "transport": "ofi"}
    folder = tmp_path / "study"
    study_of_mpich = real_study(run_anywhere, folder, program, "mpich", winner)
    names = {path.name for path in write_outputs(folder, accepted(study_of_mpich))}
    assert "mpich.conf" in names
    assert "openmpi-mca-params.conf" not in names
    expected = {
        "MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE": "16384",
        "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD": "32768",
        "MPIR_CVAR_CH4_NETMOD": "ofi",
    }
    command = str(MPICH_PREFIX / "bin/mpivars")
    # mpivars prints no value for variables that are words.
    numbers = {name: word for name, word in expected.items() if word.isdigit()}
    for read in ("set -a; . ./mpich.conf; set +a", ". ./env.sh"):
        assert numbers.items() <= control_variables(sh(f"{read}; {command}", folder)).items()
    ranks = reported_by_ranks(sh(section(folder, "mpiexec.hydra"), folder, MPICH_PREFIX))
    assert [rank["size"] for rank in ranks] == [2, 2]
    assert all(expected.items() <= rank.items() for rank in ranks)


def control_variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\t(\w+) *=(.*?)\tSCOPE", text, re.MULTILINE))


@needs_mpich
def test_mpich_reads_its_file_from_etc(tmp_path: Path) -> None:
    """In a separate mount namespace whose /etc contains only that file."""
    etc = tmp_path / "etc"
    etc.mkdir()
    private = ["unshare", "--mount", "sh", "-c", f'mount --bind {shlex.quote(str(etc))} /etc && exec "$@"', "sh"]
    if subprocess.run([*private, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here: that needs root")
    write_outputs(tmp_path, study({"allreduce_algorithm": "tree", "segment_size": "16K"}, "mpich"))
    shutil.copy(tmp_path / "mpich.conf", etc)
    command = [*private, str(MPICH_PREFIX / "bin/mpivars")]
    variables = control_variables(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert variables["MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE"] == "16384"


@pytest.mark.skipif(NCCL is None, reason="no NCCL wheel here")
def test_nccl_reads_its_file(tmp_path: Path) -> None:
    winner = {"nccl_algorithm": "ring", "nccl_channels": "8", "nccl_buffer_size": "8M", "socket_interfaces": "lo"}
    write_outputs(tmp_path, study({**winner, "nccl_protocol": "ll"}, "gloo"))
    lines = [line for line in (tmp_path / "nccl.conf").read_text().splitlines() if not line.startswith("#")]
    wanted = dict(line.split("=", 1) for line in lines)
    assert wanted.keys() >= {"NCCL_ALGO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_PROTO"}
    # NCCL reads the file when it starts, even without a GPU, and exports its settings to the
    # environment.
    done = subprocess.run(
        [sys.executable, "-c", READ_NCCL_SETTINGS, str(NCCL), *wanted],
        env={"PATH": os.environ["PATH"], "NCCL_CONF_FILE": str(tmp_path / "nccl.conf")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == list(wanted.values())


def test_the_guide_in_a_browser(open_page: Callable[..., Page], document: TuneDocument, folder: Path) -> None:
    for width in (1280, 390):
        page = open_page(folder / "guide.html", width)
        page.wait_for_selector("#trials .scatterlayer .point")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "Use these settings" in page.inner_text("#answer")
        assert page.locator("#trials .scatterlayer .trace").count() == 2
        assert page.locator("#proof .scatterlayer .trace").count() == 2
        assert page.locator("#seconds .trace.bars").count() == 2
        assert HOSTILE in page.inner_text("#tried")
        assert shlex.quote(str(folder / "settings.toml")) in page.inner_text("#do")
        assert "broadcasts take no time in a step" in page.inner_text("#not")
        assert document.profile is not None
        assert page.locator("#profile tr").count() >= len(document.profile.rows) + 2
    write_outputs(folder, document.model_copy(update={"winner": {}, "proof": None, "profile": None}))
    page = open_page(folder / "guide.html")
    page.wait_for_selector("#trials .scatterlayer .point")
    assert "Keep the defaults" in page.inner_text("#answer")
    assert page.locator("#do pre").count() == 0
    assert page.locator("#proof").count() == 0
    write_outputs(folder, TuneDocument(folder=str(folder), command=["true"], np=2, launch=LaunchOptions()))
    page = open_page(folder / "guide.html")
    assert "Nothing to use yet" in page.inner_text("#answer")


def test_the_commands_of_the_guide_repeat_the_proof_and_the_comparison(folder: Path, tmp_path: Path) -> None:
    text = (folder / "guide.md").read_text().partition("## How to repeat it")[2]
    [line] = re.findall(r"^hvscale compare-settings(?:.|\n)*?(?=\n```)", text, re.MULTILINE)
    found = re.sub(r"--repeat \d+", "--repeat 1 --run again", line).replace("REGEX", shlex.quote(METRIC))
    sh(found, tmp_path)
    runs = [requested_knobs(run_json(tmp_path / "again" / f"{name}-repeat-1")) for name in ("defaults", "settings")]
    assert runs == [{}, WINNER]
    [line] = re.findall(r"^hvscale compare (?:.|\n)*?(?=\n```)", text, re.MULTILINE)
    assert "communication per step, np 2" in sh(line, tmp_path)
