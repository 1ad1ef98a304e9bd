"""Plans `hvscale tune --predict-np`: searches the model and prepares the replays that prove it."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.launch import placements
from hvscale.launch.options import LaunchOptions, Resolve
from hvscale.launch.placements._link_shaping import bits_per_second
from hvscale.prediction.model.job import PredictedJob, read_job
from hvscale.prediction.settings import PredictedSettings, apply, recorded_settings
from hvscale.prediction.tuning.document import RECORDED, PredictedCandidate, PredictedTune
from hvscale.prediction.tuning.search import (
    HOROVOD_KNOBS,
    Model,
    SamplesByKnobs,
    SearchPoint,
    Settings,
    grid,
    measured_costs,
    model_error,
    predicted_gain,
    predicted_step,
    propose,
    search,
    shared_cores,
)
from hvscale.prediction.tuning.study import ReplayProof
from hvscale.studies.base import digest_of

MOST_CANDIDATES = 3
MOST_ERROR = 0.1  # of the model at the measured np, before a warning
MIN_PAIRS = 2  # fewer give no interval
Names = dict[str, Settings]


@dataclass(frozen=True)
class PredictedTuneRequest:
    """What `hvscale tune --predict-np` was asked.

    `np`: ranks of the replays, None for as many as were recorded. `options`, `fixed`: the launch
    options, except np, and the knobs of every replay. `pairs`: replays of each candidate. `steps`:
    of each replay. `cores`: that the predicted ranks share, None if each has its own.
    """

    predict_np: int
    np: int | None
    options: LaunchOptions
    pairs: int
    steps: int
    cores: int | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)


def plan_proof(
    runs: Sequence[RunFolder],
    request: PredictedTuneRequest,
    resolve: Resolve,
    write_settings: Callable[[PredictedTune], None],
) -> ReplayProof:
    """Search the model, and prepare the study that replays its candidates; starts nothing.

    `runs`: the recording, and profiled runs of the job or of its replay. Raises RequestError for
    runs that cannot answer the request, and for settings that the job's libraries do not support.
    """
    job = read_job(runs[0])
    if job.basis is not None:
        raise RequestError(
            f"{runs[0].path} recorded messages that Horovod had fused already, which no replay can fuse otherwise: record "
            "its gradients with `hvscale profile --gradients`"
        )
    options = with_np(request, job)
    recording, np_ = runs[0].path.absolute(), options.np
    replay = ["hvscale", "replay", str(recording), "--steps", str(request.steps)]
    link = options.placement.link
    rate = bits_per_second(str(link)) / 8 if link else None
    measure = shlex.join(["hvscale", "profile", *words(options), "--", *replay])
    costs = measured_costs(runs, options.mpi, rate, measure)
    recorded = recorded_choice(job, runs[0], request.fixed, costs)
    points = grid(job, recorded, costs, request.fixed)
    on_this_machine = placements.find(options.placement.name).on_this_machine
    cores = shared_cores(costs.samples[recorded.library], np_, on_this_machine)
    # A prediction for as many ranks as are replayed is one for the same place.
    shared = cores if request.predict_np == np_ and request.cores is None else request.cores
    model = Model(job, costs, request.predict_np, shared)
    found, refined = search(model, points)
    in_proof = Model(job.replayed(np_, request.steps), costs, np_, cores)
    error = model_error(job, runs[0], recorded, costs)
    chosen = propose(refined, recorded, in_proof, MOST_CANDIDATES, error)
    names = {RECORDED: recorded, **{f"candidate-{number}": one for number, one in enumerate(chosen, 1)}}
    candidates = predicted(names, model, in_proof, error, request.fixed, costs.measured_np[-1])
    jobs = {
        name: resolve(replay, options.replace(set=tuple(f"{knob}={text}" for knob, text in one.settings.items())))
        for name, one in candidates.items()
    }
    return ReplayProof(
        jobs,
        replay,
        repeats=request.pairs,
        write_settings=write_settings,
        predict_np=request.predict_np,
        recording=str(recording),
        files={"recording": digest_of(runs[0].run_json)},
        profiled_runs=[str(run.path.absolute()) for run in runs[1:]],
        measured_np=costs.measured_np,
        points=[SearchPoint(settings=one.as_set(), step_seconds=seconds) for one, seconds in found],
        candidates=candidates,
        warnings=[*warnings(options, costs, error), *unused(runs[1:], costs, options)],
    )


def warnings(options: LaunchOptions, costs: SamplesByKnobs, error: float) -> list[str]:
    """What limits the prediction, a sentence each."""
    found = []
    if error > MOST_ERROR:
        found.append(
            f"the model is up to {100 * error:.0f} % off at the measured np: trust what is proven, and measure more np"
        )
    measured = sorted({run.np / run.nodes for _, run in costs.runs})
    nodes = options.placement.nodes
    if nodes is not None and options.np / nodes not in measured:
        found.append(
            f"the replays have {options.np / nodes:g} ranks on a node, the measured costs "
            f"{', '.join(f'{one:g}' for one in measured)}: predictions hold for those"
        )
    return found


def unused(runs: Sequence[RunFolder], costs: SamplesByKnobs, options: LaunchOptions) -> list[str]:
    """A warning for each run whose messages are not among the measured costs."""
    used = [run for run, _ in (*costs.runs, *costs.unlimited)]
    link = "without a limited link" if options.placement.link is None else f"on links of {options.placement.link}"
    return [
        f"{run.path.name}: not used, because the calls of all-reduces of {options.mpi} {link} were not recorded in it"
        for run in runs
        if run not in used
    ]


def with_np(request: PredictedTuneRequest, job: PredictedJob) -> LaunchOptions:
    """The options of the replays; without -np as many ranks as were recorded."""
    if request.pairs < MIN_PAIRS:
        raise RequestError(f"--pairs {request.pairs}: a proof needs at least {MIN_PAIRS} replays of each candidate")
    if request.predict_np < 2:
        raise RequestError(f"--predict-np {request.predict_np}: a single rank sends no messages; use 2 or more")
    options = request.options.replace(np=request.np or job.recorded_np)
    if options.np < 2:
        raise RequestError(f"-np {options.np}: a single rank sends no messages; replay on -np 2 or more")
    return options


def words(options: LaunchOptions) -> list[str]:
    """-np and the launch options that differ from their defaults, on a command line."""
    fields = LaunchOptions.model_fields
    left_out = [["-np", str(options.np)], *(["--" + name, fields[name].default] for name in ("mpi", "devices"))]
    given = options.replace(run=None).command_line()
    return ["-np", str(options.np), *(word for part in given if part not in left_out for word in part)]


def recorded_choice(job: PredictedJob, run: RunFolder, fixed: Mapping[str, str], costs: SamplesByKnobs) -> Settings:
    """The recorded settings, with the fixed ones.

    The library's knobs are those of the recording where they were measured, else its own choice.
    """
    own = [f"{knob}={text}" for knob, text in fixed.items() if knob in HOROVOD_KNOBS]
    horovod = apply(PredictedSettings(recorded_settings(job.settings)), own, option="--fix").horovod
    return Settings(horovod, costs.nearest(run, fixed))


def predicted(
    names: Names, model: Model, in_proof: Model, error: float, fixed: Mapping[str, str], largest_np: int
) -> dict[str, PredictedCandidate]:
    """What the model says about each of the settings, the recorded ones first."""
    baseline = model.simulate(names[RECORDED])
    found = {}
    for name, settings in names.items():
        simulation = model.simulate(settings)
        found[name] = PredictedCandidate(
            settings={**fixed, **settings.as_set()},
            step=predicted_step(simulation, model, error, largest_np),
            step_in_proof=predicted_step(in_proof.simulate(settings), in_proof, error, largest_np),
            gain=None if name == RECORDED else predicted_gain(simulation, baseline),
        )
    return found
