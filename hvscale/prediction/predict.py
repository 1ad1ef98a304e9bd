"""Predicts how a recorded job scales: throughput, efficiency, and what takes the time."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import percentile_interval, resampled_means
from hvscale.core.units import human_bytes
from hvscale.prediction.document import (
    CONFIDENCE,
    Loss,
    MessageSizes,
    PredictedRow,
    PredictionCheck,
    PredictionDocument,
    StepTimeline,
)
from hvscale.prediction.model.costs import Costs, HorovodSettings
from hvscale.prediction.model.horovod_loop import Simulation, simulate
from hvscale.prediction.model.job import PredictedJob, read_job
from hvscale.prediction.model.measured_costs import (
    ALGORITHM_NAMES,
    FEWEST_RANKS,
    MeasuredCosts,
    at_np,
    fit_costs,
    is_like_more_ranks,
)
from hvscale.prediction.model.networks import DocumentedCosts
from hvscale.prediction.model.samples import (
    SETUP_STEPS,
    Samples,
    have_same_recording,
    is_replay,
    run_samples,
    shows_copies,
    undisturbed,
)
from hvscale.prediction.model.slowed_computing import Computing, measured_computing, why_unused
from hvscale.prediction.model.tables import OPTION, named, network, of_runs, with_algorithm
from hvscale.prediction.settings import PredictedSettings, apply, recorded_settings
from hvscale.prediction.timeline import measured_timeline, predicted_timeline
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.profiling.analyze.messages import FUSION_OFF
from hvscale.profiling.analyze.steps import read_step_log
from hvscale.profiling.read.gradients_file import read_gradients
from hvscale.studies.document import ResultSource

Floats = NDArray[np.float64]
CHAINS, STEPS = 48, 24
CENTRAL_CHAINS = 16  # with the fitted costs themselves
LARGER_BYTES = 2  # messages so many times as large as any measured one are warned of
MOST_BLOCKS = 1000  # of steps: the bootstrap holds 2000 times as many numbers
LARGER_SHARE = 0.1  # if they carry more than this share of all bytes
# Of the model, for each doubling of the largest measured np, beside what the fit leaves open. With
# it, the 90 % intervals hold 117 of 122 starts on 16 ranks, each predicted from one start on 2 and
# one on 4 (docs/explanation/prediction-measurements.md).
ERROR_PER_DOUBLING = 0.02
MIN_RESIDUAL = 0.02  # two starts with the same settings differed by 2.4 to 5 %: 1.2 to 2.5 % from their mean


@dataclass(frozen=True)
class PredictionRequest:
    """What `hvscale predict` was asked.

    `np`: numbers of ranks. `set`: as in `--set`. `bytes_per_second`: of a node's link, None as
    measured. `cores`: that all ranks share, None if each rank has its own. `ranks_per_node`: None
    as measured. `costs`: of a documented network, instead of measured ones.
    """

    np: list[int]
    set: tuple[str, ...] = ()
    bytes_per_second: float | None = None
    cores: int | None = None
    ranks_per_node: int | None = None
    costs: Costs | None = None
    samples: list[Samples] = field(default_factory=list)
    """Further measured all-reduces, such as those of `hvscale bench`."""

    def __post_init__(self) -> None:
        """Raise RequestError for `set` if no run could answer it."""
        settings = apply(PredictedSettings(HorovodSettings()), self.set)
        if self.costs is not None and settings.algorithm is not None:
            raise RequestError(
                "--set allreduce_algorithm chooses among measured messages, and --network replaces these: "
                "give one of them"
            )

    @property
    def as_measured(self) -> bool:
        """Whether runs with the same settings answer the same question."""
        return self.bytes_per_second is None and self.costs is None


class MeasuredRun(NamedTuple):
    """The steps of a profiled run.

    `cores`: that all its ranks shared. `seconds`: (steps,), empty if unknown.
    """

    np: int
    nodes: int
    cores: int
    seconds: Floats
    is_replay: bool
    horovod: HorovodSettings
    algorithm: str | None


def predict(runs: Sequence[RunFolder], request: PredictionRequest) -> PredictionDocument:
    """Predict the first run that recorded gradients, with costs from all runs.

    Without such a run, the messages of the first run stand for its gradients. Raises RequestError
    when it has none either, or a needed cost was never measured.
    """
    recorded = first_recorded(runs)
    job = read_job(recorded)
    settings = apply(PredictedSettings(recorded_settings(job.settings)), request.set)
    if job.basis is not None:
        settings = replace(settings, horovod=without_fusion(settings.horovod, request))
    found = measurements(runs, recorded, settings, request)
    # Steps count where their messages do: another library or link answers another question.
    others = [run for run, _ in found.profiled if not runs_job(run, recorded)]
    own = [(run, measured_run(run, recorded, job, samples)) for run, samples in found.profiled if run not in others]
    measured = [one for _, one in own if len(one.seconds)]
    request = without_measured_link(request, found.samples)
    costs: Costs = request.costs or measured_costs(found, request)
    trained = [run for run in runs if run is not recorded and not is_replay(run.read())]
    computing = measured_computing(job, recorded, trained)
    algorithm = costs.formula.algorithm if isinstance(costs, MeasuredCosts) else None
    document = PredictionDocument(
        runs=[str(run.path) for run in runs],
        measured_np=sorted({run.np for run in found.samples}),
        settings=settings.described(),
        network=costs.description,
        compute_seconds=computing.alone.compute_seconds,
        lost_speed=computing.lost_speed,
        gradient_bytes=int(job.bytes.sum()),
        checks=(
            leave_one_out(computing, found.samples, measured, algorithm, found.unlimited)
            if algorithm is not None
            else []
        ),
        timelines=timelines(
            [run for run, one in own if answers(one, settings, request)], computing, settings, costs, found.samples
        ),
        warnings=[
            *warnings(job, settings, request, found),
            *(
                f"{run.path.name}: another job than {recorded.path.name}; only what its messages cost is used"
                for run in others
            ),
            *without_messages([run for run in runs if run is not recorded], found),
            *(
                f"{run.path.name}: {why}"
                for run in trained
                if run not in others and (why := why_unused(recorded, run)) is not None
            ),
        ],
    )
    add_rows(document, computing, settings, costs, request, measured, found.samples)
    return document


class SelectedMeasurements(NamedTuple):
    """What was measured of the library and link to predict.

    `runs`: all that have all-reduces. `profiled`: those that ran there, with their all-reduces.
    `samples`: those that costs are fitted to, from runs and tables. `unlimited`: as in `fit_costs`.
    `left_out`: runs with another library or link.
    """

    runs: list[RunFolder]
    profiled: list[tuple[RunFolder, Samples]]
    samples: list[Samples]
    unlimited: list[Samples]
    left_out: list[RunFolder]


def measurements(
    runs: Sequence[RunFolder], recorded: RunFolder, settings: PredictedSettings, request: PredictionRequest
) -> SelectedMeasurements:
    """Choose what was measured. Raises RequestError if nothing answers the request."""
    found = [(run, one) for run in runs if (one := run_samples(run)) is not None]
    every = [*request.samples, *(one for _, one in found)]
    unlimited = [one for one in every if shows_copies(one, every)]
    profiled = [(run, one) for run, one in found if not is_among(one, unlimited)]
    # The tables, or else the other runs, say which library and link: a job may have been recorded
    # with others.
    tables = of_runs([one for one in request.samples if not is_among(one, unlimited)], [one for _, one in profiled])
    given = tables or [one for run, one in profiled if run is not recorded]
    networks = {network(one) for one in given}
    profiled = [(run, one) for run, one in profiled if not networks or network(one) in networks]
    samples = [one for _, one in profiled]
    samples += with_algorithm(tables, samples, settings.algorithm)
    used = [] if request.costs is not None else undisturbed(matching_samples(samples, settings, request))
    unlimited = [one for one in unlimited if any(are_alike(one, other) for other in used)]
    left_out = [run for run, one in found if not is_among(one, [*samples, *unlimited])]
    return SelectedMeasurements([run for run, _ in found], profiled, used, unlimited, left_out)


def is_among(one: Samples, others: Sequence[Samples]) -> bool:
    return any(one is other for other in others)


def are_alike(one: Samples, other: Samples) -> bool:
    """Whether two runs are of one library, algorithm and number of ranks per node."""
    return (one.library, one.algorithm, one.np / one.nodes) == (other.library, other.algorithm, other.np / other.nodes)


def without_messages(runs: Sequence[RunFolder], found: SelectedMeasurements) -> list[str]:
    """A warning for each run on several ranks of which nothing is used."""
    return [
        f"{run.path.name}: not used, because the calls of its all-reduces were not recorded: record them with "
        "`hvscale profile --record calls`"
        for run in runs
        if run not in found.runs and run.read().np > 1
    ]


def add_rows(
    document: PredictionDocument,
    computing: Computing,
    settings: PredictedSettings,
    costs: Costs,
    request: PredictionRequest,
    measured: Sequence[MeasuredRun],
    samples: Sequence[Samples],
) -> None:
    """Add a row for each requested and each measured np. `samples`: that `costs` are fitted to."""
    residual = max([MIN_RESIDUAL, *(abs(check.error_percent) / 100 for check in document.checks)])
    own = measured_by_np([run for run in measured if answers(run, settings, request)])
    larger: list[tuple[float, float]] = []
    for np_ in sorted({*request.np, *own}):
        there = costs_at(costs, samples, np_)
        job = computing.at(settings.horovod, there, np_)
        simulation = simulate(job, settings.horovod, there, np_, chains=CENTRAL_CHAINS, steps=STEPS)
        spread = simulate(job, settings.horovod, perturbed(there), np_, chains=CHAINS, steps=STEPS)
        slowed = job.compute_seconds - computing.alone.compute_seconds
        row = predicted_row(computing.alone, simulation, np_, residual, costs.largest_np, spread, slowed)
        if np_ in own:
            document.predicted_beside.append(row)
            computed = computing.recorded if own[np_].is_replay or np_ == job.recorded_np else job
            row = with_measured(row, computing.alone, own[np_], computed.compute_seconds)
        elif isinstance(there, MeasuredCosts):
            larger += larger_than_measured(there, simulation)
        document.rows.append(row)
    if larger:
        size, measured_size = max(larger)
        document.warnings.append(
            f"messages of up to {human_bytes(size)} are predicted from measured ones of up to "
            f"{human_bytes(measured_size)}, which widens the intervals; measure larger ones with "
            f"`hvscale profile -np 4 {''.join(f'--set {one} ' for one in request.set)}-- hvscale replay RUN` and add that run"
        )


def larger_than_measured(costs: MeasuredCosts, simulation: Simulation) -> list[tuple[float, float]]:
    """The bytes of the largest message and of the largest measured one, if many bytes go in larger
    messages than measured; else empty.
    """
    sizes = simulation.traffic.bytes
    larger = sizes[sizes > LARGER_BYTES * costs.largest_bytes]
    return [(float(larger.max()), costs.largest_bytes)] if larger.sum() > LARGER_SHARE * sizes.sum() else []


def measured_by_np(runs: Sequence[MeasuredRun]) -> dict[int, MeasuredRun]:
    """The steps of all runs of an np together: of the trainings, or without any of the replays."""
    found: dict[int, MeasuredRun] = {}
    for run in sorted(runs, key=lambda run: run.is_replay):
        first = found.setdefault(run.np, run)
        if first is not run and first.is_replay == run.is_replay:
            found[run.np] = first._replace(seconds=np.concatenate([first.seconds, run.seconds]))
    return found


def without_fusion(horovod: HorovodSettings, request: PredictionRequest) -> HorovodSettings:
    """The settings under which recorded messages keep their pattern.

    Raises RequestError if another pattern is asked for.
    """
    if any(one.replace("-", "_").startswith("fusion_threshold") for one in request.set):
        raise RequestError(
            "--set fusion_threshold: the run recorded messages that Horovod had fused already; record its gradients "
            "with `hvscale profile --gradients`"
        )
    return replace(horovod, fusion_bytes=0)


def first_recorded(runs: Sequence[RunFolder]) -> RunFolder:
    """The first run that recorded gradients; without one, the first run."""
    recorded = [run for run in runs if any(run.hvprof.glob("gradients-*.hvg"))]
    return recorded[0] if recorded else runs[0]


def measured_run(run: RunFolder, recorded: RunFolder, job: PredictedJob, samples: Samples) -> MeasuredRun:
    """The known steps of a run of the job, and what it was measured with.

    `job`: as read from `recorded`, which knows its steps even if the program wrote no steps.jsonl.
    """
    record, log = run.read(), read_step_log(run)
    recorded_steps = job.recorded_seconds.mean(axis=0) if run is recorded else []
    return MeasuredRun(
        record.np,
        samples.nodes,
        samples.cores,
        np.asarray(recorded_steps if log is None else log.seconds[SETUP_STEPS:], np.float64),
        is_replay(record),
        recorded_settings(horovod_variables(run, recorded, job)),
        samples.algorithm,
    )


def horovod_variables(run: RunFolder, recorded: RunFolder, job: PredictedJob) -> Mapping[str, str]:
    """The variables of Horovod that a run of the job had.

    `job`: as read from `recorded`, whose variables a replay takes unless it is given others.
    """
    asked, asked_there = run.read().env_asked, recorded.read().env_asked
    if is_replay(run.read()):
        return {**job.settings, **asked, **(FUSION_OFF if job.basis else {})}
    if run is not recorded and (path := min(run.hvprof.glob("gradients-*.hvg"), default=None)) is not None:
        with suppress(RequestError):  # its messages count even if this file is damaged
            return read_gradients(path).header.settings
    # What the program sets itself is the same in both runs.
    kept = {name: text for name, text in job.settings.items() if asked.get(name) == asked_there.get(name)}
    return {**asked, **kept}


def answers(run: MeasuredRun, settings: PredictedSettings, request: PredictionRequest) -> bool:
    """Whether a run was measured with the settings, and in the place, to predict."""
    same_place = request.cores in (None, run.cores) and request.ranks_per_node in (None, run.np / run.nodes)
    same_settings = run.horovod == settings.horovod and settings.algorithm in (None, run.algorithm)
    return request.as_measured and same_place and same_settings


def runs_job(run: RunFolder, recorded: RunFolder) -> bool:
    """Whether a run is of the recorded job: a replay of it, or the same command."""
    if run.path.absolute() == recorded.path.absolute():
        return True
    if is_replay(run.read()):
        return have_same_recording(run, recorded)
    return run.read().command == recorded.read().command


def without_measured_link(request: PredictionRequest, samples: Sequence[Samples]) -> PredictionRequest:
    """The request without --link, if all runs were measured on a link of that rate."""
    if samples and all(one.bytes_per_second == request.bytes_per_second for one in samples):
        return replace(request, bytes_per_second=None)
    return request


def matching_samples(samples: list[Samples], settings: PredictedSettings, request: PredictionRequest) -> list[Samples]:
    """The runs with the requested algorithm and layout. Raises RequestError if there are none."""
    if settings.algorithm is not None:
        names = next(names for names in ALGORITHM_NAMES.values() if settings.algorithm in names)
        measured = {run.algorithm for run in samples}
        chosen = [run for run in samples if run.algorithm == settings.algorithm]
        samples = chosen or [run for run in samples if run.algorithm in names]
        if not samples:
            raise RequestError(
                f"--set allreduce_algorithm={settings.algorithm}: no run was measured with it, but with {named(measured)}; measure "
                f"one with `hvscale profile -np 4 --set allreduce_algorithm={settings.algorithm} -- hvscale replay RUN`"
            )
    if request.ranks_per_node is not None:
        samples = [run for run in samples if run.np == request.ranks_per_node * run.nodes]
        if not samples:
            raise RequestError(
                f"--ranks-per-node {request.ranks_per_node}: no run was measured with it; measure one with `hvscale profile -np "
                f"{2 * request.ranks_per_node} --placement netns --nodes 2 -- hvscale replay RUN`, or on your cluster"
            )
    return samples


def measured_costs(found: SelectedMeasurements, request: PredictionRequest) -> MeasuredCosts:
    """Fit the costs to these runs, on the requested link."""
    costs = fit_costs(found.samples, request.cores, unlimited=found.unlimited)
    if request.bytes_per_second is None:
        return costs
    if costs.burst is None:
        raise RequestError(
            "--link: no run was measured on a limited link; measure one with `hvscale profile -np 4 --placement netns --nodes 4 "
            "--link RATE -- hvscale replay RUN`"
        )
    return costs.with_link(request.bytes_per_second)


def costs_at(costs: Costs, samples: Sequence[Samples], np_: int) -> Costs:
    """As `at_np`, for any costs."""
    return at_np(costs, samples, np_) if isinstance(costs, MeasuredCosts) else costs


def perturbed(costs: Costs) -> Costs:
    """One draw of the fit's parameters for each simulated job."""
    return costs.perturbed(CHAINS) if isinstance(costs, MeasuredCosts | DocumentedCosts) else costs


def leave_one_out(
    computing: Computing,
    samples: list[Samples],
    measured: list[MeasuredRun],
    algorithm: str,
    unlimited: Sequence[Samples] = (),
) -> list[PredictionCheck]:
    """Predict each measured np from the others, with the algorithm that fits all of them.

    `unlimited`: as in `fit_costs`.
    """
    checks: list[PredictionCheck] = []
    known = {(one.np, one.algorithm) for one in samples}
    for run in measured:
        others = [one for one in samples if one.np != run.np and len(one.bytes)]
        # A training is checked even if only replays say what messages cost.
        is_known = (run.np, run.algorithm) in known if run.is_replay else run.algorithm in {name for _, name in known}
        if not any(map(is_like_more_ranks, others)) or not is_known or run.np < FEWEST_RANKS:
            continue  # it would say nothing about more ranks
        costs = fit_costs(others, run.cores, algorithm, unlimited)
        simulation = simulate(
            computed(computing, run, costs), run.horovod, costs, run.np, chains=CHAINS // 2, steps=STEPS
        )
        predicted, real = float(simulation.step.mean()), float(run.seconds.mean())
        checks.append(
            PredictionCheck(
                np=run.np, step_seconds=real, predicted_seconds=predicted, error_percent=100 * (predicted / real - 1)
            )
        )
    return checks


def computed(computing: Computing, run: MeasuredRun, costs: Costs) -> PredictedJob:
    """What the ranks of a measured run compute: a replay takes the times that were recorded."""
    if run.is_replay:
        return computing.recorded.replayed(run.np, len(run.seconds) + SETUP_STEPS)
    return computing.at(run.horovod, costs, run.np)


def predicted_row(
    job: PredictedJob,
    simulation: Simulation,
    np_: int,
    residual: float,
    largest: int,
    spread: Simulation | None = None,
    slowed_seconds: float = 0.0,
) -> PredictedRow:
    """A row with intervals over the simulated jobs, widened by the model's error.

    `job`: as it computes without messages. `spread`: jobs with costs drawn from the fit, for the
    intervals; None: `simulation`. Its mean would follow the few draws of very slow messages.
    `slowed_seconds`: how much longer the job's messages make it.
    """
    drawn = (spread or simulation).step.mean(axis=1)
    extrapolation = max(1.0, np_ / largest) if largest else 1.0
    doublings = np.log2(extrapolation)
    width = np.sqrt(residual**2 * (1 + doublings) + ERROR_PER_DOUBLING**2 * doublings)
    noise = np.exp(np.random.default_rng(1).standard_normal(len(drawn)) * width)
    step = float(simulation.step.mean())
    # The jobs scatter around their mean, and the model's error around each of them.
    low, high = (float(limit) for limit in np.quantile(drawn * noise, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    low, high = min(low, step), max(high, step)  # documented networks are only drawn slower
    compute = job.compute_seconds
    exposed = float((simulation.step - simulation.compute).mean())
    slowest = float((simulation.compute + simulation.slowest_rank).mean()) - compute - slowed_seconds
    source: ResultSource = "predicted" if largest else "documented"
    return PredictedRow(
        np=np_,
        source=source,
        extrapolation=extrapolation,
        **figures(job, np_, step, low, high),
        exposed_seconds=exposed,
        exposed_seconds_low=max(0.0, exposed + low - step),
        exposed_seconds_high=exposed + high - step,
        loss=Loss(
            agreement_seconds=float(simulation.agreement.mean()),
            slowest_rank_seconds=max(0.0, slowest),
            wire_seconds=float(simulation.wire.mean()),
            copies_seconds=float(simulation.copies.mean()),
            slowed_computing_seconds=slowed_seconds,
        ),
        messages=message_sizes(simulation),
    )


def figures(job: PredictedJob, np_: int, step: float, low: float | None, high: float | None) -> dict[str, Any]:
    """The columns that follow from a step's seconds."""
    compute, images = job.compute_seconds, None if job.images is None else job.images * np_

    def over(limit: float | None, factor: float | None) -> float | None:
        return None if limit is None or factor is None else factor / limit

    return {
        "step_seconds": step,
        "step_seconds_low": low,
        "step_seconds_high": high,
        "speed_up": np_ * compute / step,
        "scaling_efficiency": compute / step,
        "scaling_efficiency_low": over(high, compute),
        "scaling_efficiency_high": over(low, compute),
        "images_per_second": over(step, images),
        "images_per_second_low": over(high, images),
        "images_per_second_high": over(low, images),
    }


def with_measured(row: PredictedRow, job: PredictedJob, run: MeasuredRun, compute_seconds: float) -> PredictedRow:
    """The row of a measured run: its steps, and the predicted parts.

    `job`: as it computes without messages. `compute_seconds`: of a step of the run.
    """
    # Of a long run, blocks of steps are drawn.
    blocks = np.array_split(run.seconds, min(len(run.seconds), MOST_BLOCKS))
    sums, steps = np.array([[block.sum(), len(block)] for block in blocks]).T
    low, high = percentile_interval(resampled_means(sums, steps, seed=2), CONFIDENCE)
    step = float(run.seconds.mean())
    exposed = max(0.0, step - compute_seconds)
    changes = figures(job, row.np, step, low, high)
    changes |= {"exposed_seconds": exposed, "exposed_seconds_low": None, "exposed_seconds_high": None}
    return row.model_copy(
        update={"source": "replayed" if run.is_replay else "measured", "extrapolation": 1.0, **changes}
    )


def message_sizes(simulation: Simulation) -> list[MessageSizes]:
    """The fused messages of a step, in the study's ranges of sizes."""
    bins = parse_bins("study")
    sizes = simulation.traffic.bytes
    index = bins.index(sizes.astype(np.int64))
    rows = []
    for one in np.unique(index):
        low, high = bins.limits(int(one))
        at = index == one
        rows.append(
            MessageSizes(
                bytes_min=low,
                bytes_max=high,
                calls=float(at.sum() / simulation.step.size),
                bytes=float(sizes[at].sum() / simulation.step.size),
            )
        )
    return rows


def timelines(
    runs: Sequence[RunFolder],
    computing: Computing,
    settings: PredictedSettings,
    costs: Costs,
    samples: Sequence[Samples],
) -> list[StepTimeline]:
    """A recorded step and a predicted one, on the same number of ranks.

    `runs`: of the job, with these settings. `samples`: that `costs` are fitted to.
    """
    found: list[StepTimeline] = []
    for run in runs:
        one = measured_timeline(run, "replayed" if is_replay(run.read()) else "measured")
        if one is not None and one.messages:
            found.append(one)
            break
    np_ = found[0].np if found else max(2, computing.recorded.recorded_np)
    costs = costs_at(costs, samples, np_)
    job = computing.at(settings.horovod, costs, np_)
    # As for the row of this np, whose mean the typical step follows.
    simulation = simulate(job, settings.horovod, costs, np_, chains=CENTRAL_CHAINS, steps=STEPS)
    return [*found, predicted_timeline(simulation, np_, "predicted" if costs.largest_np else "documented")]


def warnings(
    job: PredictedJob, settings: PredictedSettings, request: PredictionRequest, measured: SelectedMeasurements
) -> list[str]:
    """What limits the prediction, a sentence each."""
    found = list(job.warnings)
    if request.costs is not None:
        found.append(f"the network is {request.costs.description}")
    if request.bytes_per_second is not None:
        found.append("no run was measured at this --link: only the link's rate was changed in the measured costs")
    if request.costs is None and not any(len(run.agreements) for run in measured.samples):
        found.append(
            "no all-reduce of a few bytes was measured, so Horovod's agreements take no time; measure them with "
            f"`hvscale bench allreduce --min-bytes 8` and add the folder with {OPTION}"
        )
    crowded = {run.np for run in measured.samples if run.ranks_per_core > 1}
    if crowded and request.cores is None:
        found.append(
            f"ranks shared cores at np {', '.join(map(str, sorted(crowded)))}; the prediction gives each rank its own. "
            "--cores N predicts ranks that share N cores"
        )
    out_of_turn = {run.np for run in measured.samples if run.ranks_per_core > 1 and not run.round_robin}
    if out_of_turn and any(np_ > max(out_of_turn) for np_ in request.np):
        found.append(
            f"ranks shared cores under the kernel's default scheduling at np {', '.join(map(str, sorted(out_of_turn)))}; "
            "the accuracy of predictions was measured with replays under `chrt --rr 1` (as root)"
        )
    waiting = any(run.bytes_per_second is not None and run.one_machine for run in measured.samples)
    if waiting and not measured.unlimited and any(np_ > (request.cores or np_) for np_ in request.np):
        found.append(
            "while few ranks wait for a limited link, the cost of copying into sockets does not show, so a typical value is used; "
            "measure it without --link, such as with `hvscale profile -np 4 --placement netns --nodes 4 -- hvscale replay RUN`, "
            "and add that run"
        )
    if len(job.names) > settings.horovod.cache_capacity:
        found.append(
            f"the job has {len(job.names)} tensors, more than cache_capacity={settings.horovod.cache_capacity}: "
            "Horovod negotiates the rest one by one, which the model leaves out"
        )
    if measured.left_out:
        names = ", ".join(run.path.name for run in measured.left_out)
        found.append(f"{names}: another library or link than the other measurements; not used for costs")
    return found
