"""Output files of a study: which are written, their content, and quoting of arbitrary text."""

import csv
import io
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from horovod.runner.common.util import config_parser
from horovod.runner.launch import parse_args
from hypothesis import given, settings
from hypothesis import strategies as st

from hvscale.comm_tuning.collectives.broadcast import library_path
from hvscale.comm_tuning.knobs.settings_file import read_settings
from hvscale.comm_tuning.tune.document import KnobChoice, Trial, TuneDocument
from hvscale.comm_tuning.tune.outputs import write_outputs
from hvscale.comm_tuning.tune.outputs.commands import shell
from hvscale.comm_tuning.tune.outputs.formats import guide_md, horovodrun_yaml, measurements_csv, settings_toml
from hvscale.comm_tuning.tune.outputs.formats.env_sh import exports
from hvscale.comm_tuning.tune.outputs.guide import Guide, effects_of
from hvscale.comm_tuning.tune.outputs.output_format import TunedJob
from hvscale.comm_tuning.tune.search_space import DEFAULT
from hvscale.comm_tuning.tune.terminal import verdict
from hvscale.core.errors import RequestError
from hvscale.launch.options import LaunchOptions
from tests.comm_tuning.studies import study, trial

ALWAYS = {"commands.txt", "env.sh", "measurements.csv", "guide.html", "guide.md", "settings.toml"}
RING = {"allreduce_algorithm": "ring", "segment_size": "64K", "fusion_threshold": "32M", "cycle_time": "2.5"}
# Anything that a variable, an argument or a text file can contain.
TEXT = st.text(st.characters(exclude_characters="\0", codec="utf-8"))
NAMES = st.from_regex(r"T_[A-Z0-9_]{1,8}", fullmatch=True)
SHELLS = ("sh", "dash", "bash")


def write_and_list(folder: Path, document: TuneDocument) -> set[str]:
    return {path.name for path in write_outputs(folder, document)}


def horovodrun_environment(config: Path) -> dict[str, str]:
    """The environment that horovodrun derives from a --config-file."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["horovodrun", "-np", "2", "--config-file", str(config), "true"])
        return dict(config_parser.set_env_from_args({}, parse_args()))


@pytest.mark.parametrize(
    ("flavour", "winner", "more"),
    [
        ("openmpi", RING, {"horovodrun.yaml", "openmpi-mca-params.conf", "openmpi-coll-rules.conf"}),
        ("openmpi", {"cycle_time": "5"}, {"horovodrun.yaml", "openmpi-mca-params.conf"}),
        ("openmpi", {"transport": "ucx", "eager_threshold": "1M"}, {"openmpi-mca-params.conf"}),
        (
            "mpich",
            {"allreduce_algorithm": "ring", "nccl_algorithm": "tree"},
            {"horovodrun.yaml", "mpich.conf", "nccl.conf"},
        ),
        ("mvapich2", {"cuda_ipc": "off"}, set()),
        ("gloo", {"cycle_time": "5"}, {"horovodrun.yaml"}),
    ],
)
def test_only_applicable_formats_are_written(
    tmp_path: Path, flavour: str, winner: dict[str, str], more: set[str]
) -> None:
    assert write_and_list(tmp_path, study(winner, flavour)) == ALWAYS | more
    assert {path.name for path in tmp_path.iterdir()} == ALWAYS | more


@pytest.mark.parametrize(("winner", "accepted"), [({}, None), (RING, False), (RING, None), (None, None)])
@pytest.mark.parametrize("flavour", ["openmpi", "mpich", "mvapich2", "gloo"])
def test_unproven_settings_are_not_written(
    tmp_path: Path, flavour: str, winner: dict[str, str] | None, accepted: bool | None
) -> None:
    write_and_list(
        tmp_path, study({"allreduce_algorithm": "ring"} if flavour == "openmpi" else {"cycle_time": "2"}, flavour)
    )
    names = write_and_list(tmp_path, study(winner, flavour, accepted))
    # Files of an earlier call are removed.
    assert {path.name for path in tmp_path.iterdir()} == names
    assert "openmpi-coll-rules.conf" not in names
    assert "export" not in (tmp_path / "env.sh").read_text()
    assert tomllib.loads((tmp_path / "settings.toml").read_text())["set"] == {}
    for name in names & {"openmpi-mca-params.conf", "mpich.conf"}:
        assert all(line.startswith("#") for line in (tmp_path / name).read_text().splitlines())
    for name in ("guide.md", "guide.html"):
        text = (tmp_path / name).read_text()
        assert "Use these settings" not in text
        assert (
            "Nothing to use yet" if winner is None or (winner and accepted is None) else "Keep the defaults"
        ) in text


def test_fixed_settings_of_the_study_are_written(tmp_path: Path) -> None:
    launch = LaunchOptions(transport="ucx", env=("SECRET=word", "HOROVOD_CYCLE_TIME=3"))
    write_outputs(tmp_path, study({}, accepted=None, fixed={"fusion_threshold": "1M"}, launch=launch))
    environment = (tmp_path / "env.sh").read_text()
    assert "export HOROVOD_FUSION_THRESHOLD=1048576\n" in environment
    assert "export OMPI_MCA_pml=ucx\n" in environment
    found = read_settings(tmp_path / "settings.toml")
    assert (found.mpi, found.transport, found.set) == ("openmpi", "ucx", {"fusion_threshold": "1M"})
    everything = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "SECRET=word" not in everything
    assert "--env SECRET" in everything
    assert "--fix fusion_threshold=1M" in (tmp_path / "guide.md").read_text()


def test_other_launchers_preload_hvscale_s_broadcast(tmp_path: Path) -> None:
    write_outputs(tmp_path, study({"hvscale_broadcast": "chain"}))
    for own, preloaded in {"": str(library_path()), "/own.so": f"{library_path()}:/own.so"}.items():
        show = f"LD_PRELOAD={own}; . ./env.sh; echo $HVBCAST_ALGORITHM $LD_PRELOAD"
        done = subprocess.run(["sh", "-c", show], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == f"chain {preloaded}\n"
    assert "-x HVBCAST_ALGORITHM=chain" in (tmp_path / "commands.txt").read_text()
    assert read_settings(tmp_path / "settings.toml").set == {"hvscale_broadcast": "chain"}


def test_launcher_command_lines(tmp_path: Path) -> None:
    write_outputs(tmp_path, study({**RING, "binding": "core"}))
    commands = (tmp_path / "commands.txt").read_text()
    assert "mpirun -np 4 --bind-to core:overload-allowed --map-by slot:OVERSUBSCRIBE" in commands
    assert "--mca coll_tuned_allreduce_algorithm 4" in commands
    assert "-x HOROVOD_CYCLE_TIME=2.5" in commands
    assert "srun -n 4 --mpi=pmix --cpu-bind=cores" in commands
    write_outputs(tmp_path, study({"cuda_ipc": "off"}, "mvapich2"))
    commands = (tmp_path / "commands.txt").read_text()
    assert "/opt/mv2/bin/mpirun_rsh -np 4 -hostfile HOSTFILE" in commands
    assert "MV2_CUDA_IPC=0" in commands
    # hvscale sets this in every job.
    assert "MV2_ENABLE_AFFINITY=0" in commands
    assert "MV2_ENABLE_AFFINITY" not in (tmp_path / "env.sh").read_text()


def test_the_hvscale_command_line_has_the_placement_of_the_study(tmp_path: Path) -> None:
    launch = LaunchOptions.of(
        placement="docker:node",
        link="1gbit",
        cma=False,
        mount=["/data", "/more data"],
        nodes=None,
        start_timeout=60.0,
    )
    write_outputs(tmp_path, study(RING, launch=launch))
    hvscale = (tmp_path / "commands.txt").read_text().partition("# mpirun")[0].replace("\\\n", "")
    words = shlex.split(hvscale, comments=True)
    given = ["--placement", "docker:node", "--link", "1gbit", "--no-cma", "--mount", "/data", "--mount", "/more data"]
    assert words[:6] == ["hvscale", "launch", "-np", "4", "--mpi", "openmpi"]
    assert words[6:-5] == [*given, "--start-timeout", "60.0"]
    assert words[-5:] == ["--settings", str(tmp_path / "settings.toml"), "--", "python", "train.py"]


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RequestError, match="cannot write the run folder"):
        write_outputs(tmp_path / "taken", study({}))


@pytest.mark.parametrize("which", SHELLS)
@settings(max_examples=25)
@given(variables=st.dictionaries(NAMES, TEXT, min_size=1))
def test_env_sh_sets_exactly_the_variables(which: str, variables: dict[str, str]) -> None:
    script = exports(variables) + "env -0"
    done = subprocess.run([which, "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True)
    found = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert {name: word for name, word in found.items() if name.startswith("T_")} == variables


@settings(max_examples=25)
@given(parts=st.lists(st.lists(TEXT, min_size=1), min_size=1))
def test_shell_quoting_round_trip(parts: list[list[str]]) -> None:
    done = subprocess.run(["sh", "-c", shell([["printf", r"%s\0"], *parts])], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [word for part in parts for word in part]


@given(values=st.dictionaries(NAMES, TEXT))
def test_toml_round_trip(values: dict[str, str]) -> None:
    assert tomllib.loads("\n".join(settings_toml.pairs(values))) == values


@pytest.mark.parametrize("throughput", ["0.0", "-5.0", "NaN", "Infinity"])
def test_a_trial_with_an_impossible_throughput_is_not_read(throughput: str) -> None:
    text = trial(1, {}, 7.5).model_dump_json()
    assert Trial.model_validate_json(text) == trial(1, {}, 7.5)
    with pytest.raises(ValueError, match="is not a throughput"):
        Trial.model_validate_json(text.replace('"mean":7.5', f'"mean":{throughput}'))


@given(problem=TEXT, command=st.lists(TEXT, min_size=1))
def test_csv_round_trip(problem: str, command: list[str]) -> None:
    broken = Trial(number=0, settings={}, state="crashed", run="r", start=0, steps=0, seconds=0, problem=problem)
    document = study({}, accepted=None, trials=[broken], command=command)
    [row] = csv.DictReader(io.StringIO(measurements_csv.text(TunedJob.of(Path("/s"), document)), newline=""))
    assert row["problem"] in (problem, f"'{problem}")  # with an apostrophe if it would be a formula


@given(problem=TEXT, command=st.lists(TEXT, min_size=1))
def test_markdown_escapes_any_text(problem: str, command: list[str]) -> None:
    assert len(guide_md.plain(problem).splitlines()) <= 1
    fence, *inside, end = guide_md.code(shell([command])).split("\n")
    assert end == fence.removesuffix("sh")
    assert all(end not in line for line in inside)


@given(size=st.integers(0, 2**63 - 1), cycle=st.floats(0, 1e6, allow_nan=False), capacity=st.integers(0, 2**31 - 1))
def test_horovodrun_parses_the_numbers_of_its_config_file(
    tmp_path_factory: pytest.TempPathFactory, size: int, cycle: float, capacity: int
) -> None:
    winner = {"fusion_threshold": str(size), "cycle_time": str(cycle), "cache_capacity": str(capacity)}
    tuned = TunedJob.of(Path("/s"), study(winner))
    text = horovodrun_yaml.text(tuned)
    config = tmp_path_factory.mktemp("config") / "horovodrun.yaml"
    config.write_text(text)
    found = horovodrun_environment(config)
    if "HOROVOD_FUSION_THRESHOLD" in text:  # only env.sh can express the value; the comment says so
        assert "HOROVOD_FUSION_THRESHOLD" not in found
    else:
        # Horovod parses any number of digits.
        digits, _, rest = found["HOROVOD_FUSION_THRESHOLD"].partition(".")
        assert (int(digits), rest.strip("0")) == (size, "")
    assert float(found["HOROVOD_CYCLE_TIME"]) == cycle
    assert int(found["HOROVOD_CACHE_CAPACITY"]) == capacity


def test_measurements_contain_every_trial_and_every_run_of_the_proof(tmp_path: Path) -> None:
    document = study(RING)
    write_outputs(tmp_path, document)
    with (tmp_path / "measurements.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["kind"] for row in rows] == ["trial"] * 3 + ["proof, defaults", "proof, tuned"] * 7
    assert [row["state"] for row in rows[:3]] == ["measured", "measured", "crashed"]
    assert (rows[1]["set cycle_time"], rows[1]["set allreduce_algorithm"], rows[0]["set cycle_time"]) == (
        "2.5",
        "ring",
        "",
    )
    assert float(rows[1]["throughput"]) == 13.0
    assert (rows[2]["throughput"], rows[2]["problem"]) == ("", "rank 1: exit 1")


def test_rejected_settings_are_named_with_their_runs(tmp_path: Path) -> None:
    write_outputs(tmp_path, study({}, accepted=False))
    with (tmp_path / "measurements.csv").open(newline="") as stream:
        rows = {row["kind"]: row for row in csv.DictReader(stream)}
    assert (rows["proof, tuned"]["set cycle_time"], rows["proof, defaults"]["set cycle_time"]) == ("5", "")
    assert "not proven: cycle\\_time=5." in (tmp_path / "guide.md").read_text()


def test_settings_that_failed_in_a_pair_of_the_proof_are_not_a_matter_of_chance(tmp_path: Path) -> None:
    document = study({}, accepted=False, failed_in_proof=[{"cycle_time": "5"}])
    assert verdict(document) == "keep the defaults: cycle_time=5 failed in the proof"
    write_outputs(tmp_path, document)
    guide = (tmp_path / "guide.md").read_text()
    assert "the best settings of the search failed in the proof" in guide
    assert "A start with cycle\\_time=5 failed in pair 8." in guide
    assert "chance" not in guide


def test_the_guide_compares_trials_with_the_defaults_before_them(tmp_path: Path) -> None:
    """The machine is half as fast from the third trial on."""
    slower, faster = {"cycle_time": "5"}, {"cycle_time": "10"}
    trials = [trial(0, {}, 10.0), trial(1, slower, 8.0), trial(2, slower, 8.1), trial(3, {}, 5.0)]
    trials += [trial(4, faster, 6.0), trial(5, faster, 6.1)]
    document = study({}, accepted=None, trials=trials)
    assert [one.value for one in effects_of(document.space[0], document)] == ["10", DEFAULT, "5"]
    write_outputs(tmp_path, document)
    (row,) = [line for line in (tmp_path / "guide.md").read_text().splitlines() if line.startswith("| 4 |")]
    assert "+20.0 %" in row


def test_the_guide_shows_the_best_trials_over_the_defaults_before_them_first(tmp_path: Path) -> None:
    """The machine is half as fast in the second call, which finds the best settings."""
    best, proven = {"cycle_time": "9"}, {"cycle_time": "5"}
    trials = [trial(0, {}, 100.0)]
    trials += [trial(number, {"cycle_time": f"1.{number}"}, 100 + number / 100) for number in range(1, 32)]
    trials += [trial(32, {}, 50.0), trial(33, best, 75.0), trial(34, proven, 45.0)]
    trials += [trial(35, {"cycle_time": "2"}, 90.0).model_copy(update={"state": "stopped early"})]
    trials += [trial(36, {"cycle_time": "3"}, 95.0).model_copy(update={"state": "wrong sums"})]
    document = study({}, accepted=False, trials=trials)
    guide = Guide(TunedJob.of(tmp_path, document))
    numbers = [row.number for row in guide.trials]
    assert (len(numbers), guide.hidden) == (30, 7)
    assert numbers[:2] == [33, 31]
    assert numbers[-2:] == [0, 34]  # the defaults, and the settings of the proof
    few = Guide(TunedJob.of(tmp_path, study({}, accepted=False, trials=[trials[0], *trials[33:]])))
    assert [row.number for row in few.trials] == [0, 33, 34, 35, 36]


def test_the_guide_repeats_the_search_with_its_options(tmp_path: Path) -> None:
    """Without the trial that measured the best settings once more."""
    request = {"knobs": ["cycle_time", "binding"], "metric": r"speed: (\S+)", "trial_seconds": 5.0}
    write_outputs(tmp_path, study(RING, request=request, searched=2))
    search, proof, *_ = (tmp_path / "guide.md").read_text().partition("## How to repeat it")[2].split("```sh")[1:]
    metric = r"--metric 'speed: (\S+)'"
    limits = ("--trial-seconds 5", "--trials 2", "--pairs 7")
    assert all(words in search for words in ("--knobs cycle_time,binding", *limits, metric)), search
    assert "compare-settings" in proof
    assert metric in proof
    # compare-settings finds no throughput that only tune counts.
    write_outputs(tmp_path, study(RING, unit="steps/s"))
    _, proof, *_ = (tmp_path / "guide.md").read_text().partition("## How to repeat it")[2].split("```sh")[1:]
    assert "--metric REGEX" in proof


def test_bytes_that_are_no_text_are_written_as_they_are(tmp_path: Path) -> None:
    odd = os.fsdecode(b"tr\xffin.py")
    write_outputs(tmp_path, study(RING, command=["python", odd]))
    assert b"tr\xffin.py" in (tmp_path / "commands.txt").read_bytes()


def test_the_guide_lists_knobs_without_effect_separately(tmp_path: Path) -> None:
    speeds = {"on": [20.0, 20.2, 19.9], "off": [10.0, 10.1, 9.9]}
    trials: list[Trial] = [trial(9, {}, 15.0)]
    for number in range(6):
        registration, interface = ("on", "off")[number % 2], ("1", "2", "2")[number % 3]
        chosen = {"registration_cache": registration, "cycle_time": interface}
        trials.append(trial(number, chosen, speeds[registration][number // 2]))
    space = [
        KnobChoice(knob="registration_cache", values=["on", "off"], reason=""),
        KnobChoice(knob="cycle_time", values=["1", "2"], reason=""),
    ]
    document = study({"registration_cache": "on"}, trials=trials, space=space)
    best, unset, worst = effects_of(space[0], document)
    assert [one.value for one in (best, unset, worst)] == ["on", DEFAULT, "off"]
    assert (best.verdict, worst.verdict) == ("faster", "slower")
    assert best.ratio is not None
    assert best.ratio.mean == pytest.approx(20 / (10**3 * 15) ** (1 / 4), rel=0.01)  # geometric means
    write_outputs(tmp_path, document)
    without_effect = (tmp_path / "guide.md").read_text().partition("## What was not searched, or made no difference")[2]
    assert "cycle\\_time: tried" in without_effect
    assert "registration" not in without_effect.partition("## How")[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'mpi = "openmpi"\nspeed = "high"',
            "speed: unknown key. Known: devices, mpi, schema, set, transport",
        ),
        ('mpi = "openmpi"\n[set]\nfusion_treshold = "1M"', "did you mean fusion_threshold?"),
        ('mpi = "openmpi"\n[set]\nfusion_threshold = ""', "the value is missing"),
        ('mpi = "openmpi"\n[set]\nfusion_threshold = []', "set.fusion_threshold: Input should be a valid string"),
        ("[set]\n", "mpi: Field required"),
        ('schema = "hvscale/run/2"\nmpi = "openmpi"', "schema: Input should be 'hvscale/settings/1'"),
        ('mpi = "open', "is not valid TOML"),
        ("\udcff", "is not valid TOML"),
    ],
)
def test_an_invalid_settings_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RequestError) as raised:
        read_settings(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_a_settings_file_accepts_numbers_and_booleans(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text('mpi = "openmpi"\n[set]\ncuda_ipc = false\nfusion_threshold = 33554432\ncycle_time = 2.5\n')
    assert read_settings(path).set == {"cuda_ipc": "off", "fusion_threshold": "33554432", "cycle_time": "2.5"}


@pytest.mark.parametrize("winner", [RING, {"transport": "ob1"}, {"visible_devices": "own", "binding": "core"}])
def test_settings_file_round_trip(tmp_path: Path, winner: dict[str, str]) -> None:
    write_outputs(tmp_path, study(winner))
    assert read_settings(tmp_path / "settings.toml").set == winner
