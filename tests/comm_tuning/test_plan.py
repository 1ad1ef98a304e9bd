"""Plans of trials: only `carry_out` starts jobs, and none within another one."""

import ast
import json
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hvscale.comm_tuning.tune
from hvscale.comm_tuning.tune import run as runner
from hvscale.comm_tuning.tune import search
from hvscale.comm_tuning.tune.defaults import check_losses
from hvscale.comm_tuning.tune.document import KnobChoice, Pair, Proof, Trial
from hvscale.comm_tuning.tune.plan import FreshStart, Plan, SameStart, TrialLimits, TrialOutcome
from hvscale.comm_tuning.tune.proof import prove, was_interrupted
from hvscale.comm_tuning.tune.request import TuneRequest
from hvscale.comm_tuning.tune.search import Search
from hvscale.comm_tuning.tune.steps import StepSource
from hvscale.comm_tuning.tune.study import TuneStudy
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate
from hvscale.core.trial_protocol import Reply, TrialFolder
from hvscale.launch.options import LaunchHooks, LaunchOptions
from tests.comm_tuning.studies import trial

LIMITS = TrialLimits(first_step=60, stall=60, trial=1e-6)
FOLDER = Path(hvscale.comm_tuning.tune.__file__).parent


def imports_of(file: Path) -> set[str]:
    """Full names of everything that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_only_run_can_start_a_job() -> None:
    starting = {
        file.name
        for file in FOLDER.rglob("*.py")
        if any(name.endswith((".profiled_launch", ".launch.controller.launch")) for name in imports_of(file))
    }
    assert starting == {"run.py"}
    assert not [file for file in FOLDER.rglob("*.py") if any("tune.run" in name for name in imports_of(file))]


class FakeLauncher:
    """A fake launch that writes steps, executes commands, and calls `watch` until the job ends."""

    def __init__(self) -> None:
        self.is_running = False
        self.started: list[str] = []
        self.commands: list[str] = []

    def launch(self, command: list[str], options: LaunchOptions, hooks: LaunchHooks) -> None:
        assert not self.is_running, "a job was started within another one"
        self.is_running = True
        assert options.run is not None
        assert hooks.watch is not None
        run, run_path = RunFolder(options.run), options.run
        run_path.mkdir(exist_ok=True)
        self.started.append(run_path.name)
        protocol = TrialFolder(run_path)
        with run.steps.open("a") as steps:
            for number in range(2000):
                time.sleep(0.001)
                steps.write(json.dumps({"images": 1, "seconds": 0.1}) + "\n")
                steps.flush()
                if self.execute(protocol, number) or hooks.watch(run):
                    break
        self.is_running = False

    def execute(self, protocol: TrialFolder, steps: int) -> bool:
        """True ends the training."""
        command = protocol.read_command()
        if command is None or protocol.read_reply(command.number) is not None:
            return False
        self.commands.append(command.action)
        protocol.send_reply(Reply(number=command.number, steps=steps))
        return command.action == "stop"


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    fake = FakeLauncher()
    monkeypatch.setattr(runner, "profiled_launch", fake.launch)
    monkeypatch.setattr("hvscale.comm_tuning.tune.trial_monitor.POLL_SECONDS", 0.0)
    return fake


def study_in(folder: Path, takes_commands: bool) -> Any:
    """The parts of a study that `carry_out` needs."""
    source = StepSource(2, None, "steps")
    return SimpleNamespace(
        path=folder,
        source=source,
        takes_commands=takes_commands,
        document=SimpleNamespace(command=["true"]),
        warn=print,
        request=SimpleNamespace(options_with=lambda settings: LaunchOptions(np=2)),
        check_library=lambda run: None,
    )


@pytest.mark.parametrize("takes_commands", [True, False])
def test_a_fresh_start_waits_for_the_running_job_to_end(
    tmp_path: Path, launcher: FakeLauncher, takes_commands: bool
) -> None:
    outcomes: list[TrialOutcome] = []
    ran_meanwhile: list[bool] = []

    def plan() -> Plan:
        for number in range(3):
            outcomes.append((yield FreshStart({"number": str(number)}, LIMITS, folder=f"start-{number}")))
            ran_meanwhile.append(launcher.is_running)

    runner.carry_out(study_in(tmp_path, takes_commands), plan())
    assert launcher.started == ["start-0", "start-1", "start-2"]
    # A job that takes commands is still running when the plan decides; any other job has ended.
    assert ran_meanwhile == [takes_commands] * 3
    assert [outcome.state for outcome in outcomes] == ["measured"] * 3
    assert [outcome.run.path.name for outcome in outcomes] == launcher.started


def test_a_plan_must_not_start_jobs(tmp_path: Path, launcher: FakeLauncher) -> None:
    study = study_in(tmp_path, takes_commands=True)

    def plan() -> Plan:
        yield FreshStart({}, LIMITS, folder="start-1")
        runner.carry_out(study, running)

    running = plan()
    with pytest.raises(ValueError, match="generator already executing"):
        runner.carry_out(study, running)
    assert launcher.started == ["start-1"]


def test_several_trials_run_in_one_start(tmp_path: Path, launcher: FakeLauncher) -> None:
    outcomes: list[TrialOutcome] = []

    def plan() -> Plan:
        outcomes.append((yield FreshStart({}, LIMITS, folder="start-1")))
        for value in ("1", "2"):
            outcomes.append((yield SameStart({"cycle_time": value}, LIMITS, variables={"HOROVOD_CYCLE_TIME": value})))
        outcomes.append((yield FreshStart({}, LIMITS, folder="start-2")))

    runner.carry_out(study_in(tmp_path, takes_commands=True), plan())
    assert launcher.started == ["start-1", "start-2"]
    assert launcher.commands == ["check", "begin", "check", "begin", "check", "stop", "check", "stop"]
    assert [outcome.settings.get("cycle_time") for outcome in outcomes] == [None, "1", "2", None]


def test_a_plan_cannot_continue_in_a_job_that_has_ended(tmp_path: Path, launcher: FakeLauncher) -> None:
    def plan() -> Plan:
        yield FreshStart({}, LIMITS, folder="start-1")
        yield SameStart({}, LIMITS, variables={})

    with pytest.raises(TypeError, match="must not continue in a job that has ended"):
        runner.carry_out(study_in(tmp_path, takes_commands=False), plan())


# The search: a test supplies the outcomes.


class NoProgress:
    """A progress reporter without output."""

    def trial_begins(self, settings: object) -> None: ...

    def trial_ended(self, trial: Trial, ratio: float) -> None: ...

    def pair_begins(self, settings: object, number: int, pairs: int) -> None: ...


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneStudy:
    """A study of two knobs; whether the losses repeat is unknown."""
    request = TuneRequest(
        command=["python", "train.py"],
        options=LaunchOptions(np=2),
        knobs=None,
        fixed={},
        metric=None,
        trials=5,
        minutes=None,
        pairs=7,
        limits=LIMITS,
    )
    found = TuneStudy(request, tmp_path / "study")
    found.path.mkdir()
    found.tell_user = lambda text: None

    def decide_space(study: TuneStudy, run: RunFolder) -> None:
        study.document.space = [
            KnobChoice(knob="cycle_time", values=["1", "5", "10"], reason=""),
            KnobChoice(knob="allreduce_algorithm", values=["default", "ring", "linear"], reason=""),
        ]

    monkeypatch.setattr(search, "decide_space", decide_space)
    monkeypatch.setattr(search, "accept_defaults", check_losses)
    return found


def outcome(study: TuneStudy, start: FreshStart | SameStart, losses: list[float]) -> TrialOutcome:
    assert isinstance(start, FreshStart)
    run = RunFolder(study.path / start.folder)
    run.path.mkdir()
    run.steps.write_text("".join(json.dumps({"loss": loss}) + "\n" for loss in losses))
    return TrialOutcome(start.settings, run, throughput=Estimate(mean=10, low=9, high=11))


@pytest.mark.parametrize("repeats", [True, False])
def test_losses_show_wrong_sums_only_if_those_of_the_defaults_repeat(study: TuneStudy, repeats: bool) -> None:
    plan = Search(study, NoProgress()).plan()
    first = next(plan)
    assert first.settings == {}
    changed = plan.send(outcome(study, first, [3.0, 2.0]))
    assert changed.settings != {}
    again = plan.send(outcome(study, changed, [3.0, 4.0]))
    assert again.settings == {}  # to see whether its losses repeat
    assert [trial.settings for trial in study.document.trials] == [{}]
    following = plan.send(outcome(study, again, [3.0, 2.0 if repeats else 5.0]))
    states = [(trial.settings, trial.state) for trial in study.document.trials]
    assert states == [({}, "measured"), ({}, "measured"), (changed.settings, "wrong sums" if repeats else "measured")]
    assert len(study.document.warnings) == (0 if repeats else 1)
    assert following.settings not in ({}, changed.settings)
    plan.send(outcome(study, following, [7.0]))
    plan.close()
    assert study.document.trials[-1].state == ("wrong sums" if repeats else "measured")


def test_a_resumed_search_runs_the_defaults_before_it_repeats_finalists(study: TuneStudy) -> None:
    ring, linear = {"allreduce_algorithm": "ring"}, {"allreduce_algorithm": "linear"}
    measured = [({}, 10.0), (ring, 12.0), (linear, 11.9), ({}, 10.0), (ring, 12.0)]
    study.document.trials = [trial(number, *one) for number, one in enumerate(measured)]
    plan = Search(study, NoProgress()).plan()
    first = next(plan)
    assert first.settings == {}
    second = plan.send(outcome(study, first, []))
    assert second.settings == linear
    with pytest.raises(StopIteration):
        plan.send(outcome(study, second, []))
    assert len(study.document.trials) == 7


def test_trials_that_repeat_finalists_are_not_those_of_the_search(study: TuneStudy) -> None:
    plan = Search(study, NoProgress()).plan()
    following: Any = next(plan)
    with suppress(StopIteration):
        while True:
            mean = 12.0 if following.settings else 10.0
            found = replace(outcome(study, following, [3.0]), throughput=Estimate(mean=mean, low=9, high=13))
            following = plan.send(found)
    assert study.request.trials == study.document.searched == 5
    assert len(study.document.trials) > 5


def test_an_interrupted_search_leaves_the_file_of_its_suggestions_alone(study: TuneStudy) -> None:
    """Ctrl-C within a transaction leaves SQLite's lock with the process until it ends."""
    plan = Search(study, NoProgress()).plan()
    plan.send(outcome(study, next(plan), [3.0]))
    with closing(sqlite3.connect(study.path / "study.db", isolation_level=None)) as interrupted:
        interrupted.execute("BEGIN EXCLUSIVE")
        with pytest.raises(KeyboardInterrupt):
            plan.throw(KeyboardInterrupt())


def test_settings_that_failed_in_the_proof_are_not_proven_again(study: TuneStudy) -> None:
    tuned = {"cycle_time": "5"}
    study.document.trials = [trial(0, {}, 10.0), trial(1, tuned, 12.0)]
    proof = prove(study, NoProgress())
    first = next(proof)
    assert first.settings == {}
    second = proof.send(outcome(study, first, [3.0]))
    assert second.settings == tuned
    assert was_interrupted(study)
    with pytest.raises(StopIteration):
        proof.send(replace(outcome(study, second, [3.0]), state="crashed", problem="rank 1: exit 1"))
    assert (study.document.winner, study.document.failed_in_proof) == ({}, [tuned])
    assert not was_interrupted(study)
    assert list(prove(study, NoProgress())) == []


def test_more_pairs_for_a_finished_study_do_not_replace_the_search(study: TuneStudy) -> None:
    pairs = [Pair(default=10.0, tuned=12.0, default_run="d", tuned_run="t")] * 5
    gain = Estimate(mean=1.2, low=1.1, high=1.3)
    study.document.proof = Proof(settings={"cycle_time": "5"}, pairs=pairs, gain=gain, accepted=True)
    assert was_interrupted(study)
    study.document.winner = {"cycle_time": "5"}
    assert not was_interrupted(study)


def test_a_copied_folder_of_a_start_is_not_counted(study: TuneStudy) -> None:
    for name in ("start-0002", "start-0002.bak", "start-old"):
        (study.path / name).mkdir()
    assert study.next_start() == "start-0003"
