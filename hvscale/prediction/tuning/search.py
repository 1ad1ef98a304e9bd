"""Searches the model for settings that shorten a job's steps on a given number of ranks.

The search covers Horovod's fusion threshold and cycle time, and every choice of the library's knobs
(algorithm, eager threshold) that profiled runs were measured with.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from pydantic import BaseModel

from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.core.statistics import Estimate
from hvscale.core.units import KIB, MIB
from hvscale.prediction.document import CONFIDENCE
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.horovod_loop import Simulation, simulate
from hvscale.prediction.model.job import PredictedJob
from hvscale.prediction.model.measured_costs import MeasuredCosts, at_np, fit_costs
from hvscale.prediction.model.samples import Samples, run_samples, shows_copies, undisturbed
from hvscale.prediction.model.slowed_computing import Computing
from hvscale.prediction.predict import (
    CHAINS,
    MIN_RESIDUAL,
    STEPS,
    leave_one_out,
    measured_run,
    predicted_row,
    runs_job,
)

HOROVOD_KNOBS = ("fusion_threshold", "cycle_time", "cache_capacity")
FUSION_BYTES = tuple(256 * KIB << number for number in range(11))  # 256 KiB to 256 MiB
CYCLE_SECONDS = (1e-3, 2e-3, 5e-3, 10e-3, 20e-3)
BRIEF_CHAINS, BRIEF_STEPS = 8, 8  # of the first look at every point
# Points that are simulated longer: the best, and the best that differ clearly.
REFINED_BEST, REFINED_DISTINCT = 4, 8
NEAR_BEST = 0.02  # candidates are predicted within this share of the best
DISTINCT = 4.0  # two candidates differ by this factor in a knob, or in a knob of the library


@dataclass(frozen=True)
class Settings:
    """Horovod's settings, and the values of the library's knobs."""

    horovod: HorovodSettings
    library: tuple[tuple[str, str], ...] = ()

    def as_set(self) -> dict[str, str]:
        """By knob, as --set takes them."""
        return {
            "fusion_threshold": size_text(self.horovod.fusion_bytes),
            "cycle_time": f"{1000 * self.horovod.cycle_seconds:g}",
            **dict(self.library),
        }

    def is_distinct_from(self, other: "Settings") -> bool:
        """Whether a replay of both can be expected to tell them apart."""
        pairs = (
            (self.horovod.fusion_bytes, other.horovod.fusion_bytes),
            (self.horovod.cycle_seconds, other.horovod.cycle_seconds),
        )
        return self.library != other.library or any(
            max(pair) > min(pair) and max(pair) >= DISTINCT * min(pair) for pair in pairs
        )


def size_text(size: int) -> str:
    """Bytes as --set takes them: 16M, 256K, 1000."""
    for unit, name in ((MIB, "M"), (KIB, "K")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


Points = list[tuple[Settings, float]]


class SearchPoint(BaseModel):
    """A setting of the search. `step_seconds`: predicted, on the requested number of ranks."""

    settings: dict[str, str]
    step_seconds: float


@dataclass(frozen=True)
class SamplesByKnobs:
    """Samples by the library's knobs that they were measured with, and where they were measured.

    `runs`: their run folders. `bytes_per_second`: of the nodes' links in the prediction, None as
    measured. `unlimited`: run folders and samples, as in `fit_costs`.
    """

    samples: Mapping[tuple[tuple[str, str], ...], list[Samples]]
    runs: Sequence[tuple[RunFolder, Samples]]
    bytes_per_second: float | None
    unlimited: Sequence[tuple[RunFolder, Samples]]

    def fit(self, library: tuple[tuple[str, str], ...], cores: int | None) -> MeasuredCosts:
        """The costs with these knobs of the library, on ranks that share `cores`."""
        costs = fit_costs(self.samples[library], cores, unlimited=self.unlimited_with(library))
        return costs if self.bytes_per_second is None else costs.with_link(self.bytes_per_second)

    def unlimited_with(self, library: tuple[tuple[str, str], ...]) -> list[Samples]:
        return [one for run, one in self.unlimited if knobs_of(run) == library]

    def nearest(self, run: RunFolder, fixed: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """The measured knobs of the library that are those of the run, or else the fewest.

        Raises RequestError if no run was measured with the fixed knobs.
        """
        measured = [knobs for knobs in self.samples if matches(knobs, fixed)]
        if not measured:
            wanted = " ".join(f"{knob}={text}" for knob, text in fixed.items() if knob not in HOROVOD_KNOBS)
            raise RequestError(
                f"--fix: no run was measured with {wanted}; profile a replay with --set and add that run"
            )
        own = knobs_of(run)
        return own if own in measured else min(measured, key=len)

    @property
    def measured_np(self) -> list[int]:
        return sorted({run.np for runs in self.samples.values() for run in runs})


def measured_costs(
    runs: Sequence[RunFolder], flavour: str, bytes_per_second: float | None, measure: str
) -> SamplesByKnobs:
    """The all-reduces of the runs that were profiled on this flavour and link.

    `bytes_per_second`: of the nodes' links, None for no limit. `measure`: the command that measures
    what is missing. Raises RequestError without a usable run.
    """
    profiled = [
        (run, one)
        for run in runs
        if run.read().library.flavour == flavour and (one := run_samples(run)) is not None and len(one.bytes)
    ]
    if not profiled:
        raise RequestError(
            f"no run contains all-reduces measured with {flavour}: measure some with `{measure}` and add that run"
        )
    limited = [pair for pair in profiled if (pair[1].bytes_per_second is None) == (bytes_per_second is None)]
    if not limited:
        where = "on limited links: give the same --placement, --nodes and --link"
        if bytes_per_second is not None:
            where = "without a limited link: leave out --link"
        raise RequestError(f"the runs were measured {where}, or measure here with `{measure}` and add that run")
    same = [pair for pair in limited if pair[1].bytes_per_second == bytes_per_second]
    used = same or limited
    by_knobs: dict[tuple[tuple[str, str], ...], list[Samples]] = {}
    for run, one in used:
        by_knobs.setdefault(knobs_of(run), []).append(one)
    by_knobs = {knobs: undisturbed(samples) for knobs, samples in by_knobs.items()}
    limits = [one for _, one in used]
    unlimited = [(run, one) for run, one in profiled if shows_copies(one, limits)]
    return SamplesByKnobs(by_knobs, used, None if same else bytes_per_second, unlimited)


def shared_cores(samples: Sequence[Samples], np_: int, on_this_machine: bool) -> int | None:
    """The cores that `np_` ranks share where the samples were measured; None if each has its own.

    `on_this_machine`: more ranks share the same cores. Otherwise they take more hosts, with as many
    ranks per core as the largest measured run.
    """
    largest = max(samples, key=lambda run: run.np)
    if on_this_machine:
        return largest.cores
    return round(np_ / largest.ranks_per_core) if largest.ranks_per_core > 1 else None


def knobs_of(run: RunFolder) -> tuple[tuple[str, str], ...]:
    """The knobs of the library that the run was started with, sorted."""
    asked = run.read().launch.get("set", [])
    pairs = (str(request).partition("=") for request in (asked if isinstance(asked, list) else []))
    return tuple(sorted((knob, text) for knob, _, text in pairs if knob not in HOROVOD_KNOBS))


def grid(job: PredictedJob, recorded: Settings, costs: SamplesByKnobs, fixed: Mapping[str, str]) -> list[Settings]:
    """Every setting to search, the recorded ones included.

    A threshold above the sum of all gradients is as good as any other: one of them is kept.
    `fixed`: knobs of every launch.
    """
    total, now = int(job.bytes.sum()), recorded.horovod
    enough = (
        now.fusion_bytes if now.fusion_bytes >= total else next(iter(larger(FUSION_BYTES, total)), FUSION_BYTES[-1])
    )
    sizes = sorted({*(size for size in FUSION_BYTES if size < total), enough, now.fusion_bytes})
    cycles = sorted({*CYCLE_SECONDS, now.cycle_seconds})
    if "fusion_threshold" in fixed:
        sizes = [now.fusion_bytes]
    if "cycle_time" in fixed:
        cycles = [now.cycle_seconds]
    libraries = [knobs for knobs in costs.samples if matches(knobs, fixed)]
    return [
        Settings(replace(now, fusion_bytes=size, cycle_seconds=cycle), library)
        for library, size, cycle in product(libraries, sizes, cycles)
    ]


def larger(sizes: Iterable[int], least: int) -> list[int]:
    return [size for size in sizes if size >= least]


def matches(knobs: tuple[tuple[str, str], ...], fixed: Mapping[str, str]) -> bool:
    """Whether runs with these knobs had the fixed ones."""
    return all(dict(knobs).get(knob) == text for knob, text in fixed.items() if knob not in HOROVOD_KNOBS)


class Model:
    """The model of one job on one number of ranks."""

    def __init__(self, job: PredictedJob, costs: SamplesByKnobs, np_: int, cores: int | None) -> None:
        self.job, self.np = job, np_
        self.costs = {library: at_np(costs.fit(library, cores), one, np_) for library, one in costs.samples.items()}

    def simulate(self, settings: Settings, chains: int = CHAINS, steps: int = STEPS) -> Simulation:
        """Simulate the same jobs for all settings."""
        drawn = self.costs[settings.library].perturbed(chains)
        # The few draws of what larger messages cost would favour some settings by chance.
        costs = replace(drawn, error_of_larger=None)
        return simulate(self.job, settings.horovod, costs, self.np, chains=chains, steps=steps)

    def seconds(self, settings: Settings, chains: int = CHAINS, steps: int = STEPS) -> float:
        """The mean step."""
        return float(self.simulate(settings, chains, steps).step.mean())


def search(model: Model, points: Sequence[Settings]) -> tuple[Points, Points]:
    """The points with their predicted seconds, best first: briefly, and the best ones longer.

    Those that are simulated longer are the best few, the best of each choice of the library's
    knobs, and the best that differ clearly.
    """
    first = [(point, model.seconds(point, BRIEF_CHAINS, BRIEF_STEPS)) for point in points]
    first.sort(key=lambda pair: pair[1])
    order = [point for point, _ in first]
    by_library = {point.library: point for point in reversed(order)}
    longer = [*order[:REFINED_BEST], *by_library.values(), *distinct(order, REFINED_DISTINCT)]
    refined = [(point, model.seconds(point)) for point in dict.fromkeys(longer)]
    return first, sorted(refined, key=lambda pair: pair[1])


def distinct(points: Iterable[Settings], count: int) -> list[Settings]:
    """At most `count` points that differ clearly from each other, the first ones first."""
    chosen: list[Settings] = []
    for point in points:
        if len(chosen) < count and all(point.is_distinct_from(one) for one in chosen):
            chosen.append(point)
    return chosen


def propose(points: Points, recorded: Settings, in_proof: Model, count: int, model_error: float) -> list[Settings]:
    """At most `count` distinct settings to prove, without the recorded ones.

    First the best. Then the best of each other choice of the library's knobs within the model's
    error, which does not cancel out between them. Then those within 2 % of the best, which the
    model cannot tell apart on the predicted np: the best on the np of the proof first.
    """
    seconds = points[0][1]
    new = [(point, predicted) for point, predicted in points if point != recorded]
    by_library = {point.library: (point, predicted) for point, predicted in reversed(new)}
    others = [point for point, predicted in by_library.values() if predicted <= (1 + model_error) * seconds]
    near = [point for point, predicted in new if predicted <= (1 + NEAR_BEST) * seconds]
    best = near[:1]
    return distinct([*best, *others, *sorted(near, key=in_proof.seconds)], count)


def predicted_step(simulation: Simulation, model: Model, model_error: float, largest_np: int) -> Estimate:
    """The predicted step with its interval, as `hvscale predict` gives it."""
    row = predicted_row(model.job, simulation, model.np, model_error, largest_np)
    return Estimate(mean=row.step_seconds, low=row.step_seconds_low, high=row.step_seconds_high)


def predicted_gain(simulation: Simulation, baseline: Simulation) -> Estimate:
    """How many times longer the baseline's step is: the mean and the interval over simulated jobs.

    Both simulate the same jobs, so what slows both cancels out.
    """
    ratios = baseline.step.mean(axis=1) / simulation.step.mean(axis=1)
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(mean=float(ratios.mean()), low=float(low), high=float(high))


def model_error(job: PredictedJob, recording: RunFolder, recorded: Settings, costs: SamplesByKnobs) -> float:
    """The largest error when each measured np is predicted from the others; at least 2 %."""
    samples = costs.samples[recorded.library]
    measured = [
        found
        for run, one in costs.runs
        if runs_job(run, recording)
        and knobs_of(run) == recorded.library
        and len((found := measured_run(run, recording, job, one)).seconds)
    ]
    algorithm = costs.fit(recorded.library, None).formula.algorithm
    checks = leave_one_out(Computing(job), samples, measured, algorithm, costs.unlimited_with(recorded.library))
    return max([MIN_RESIDUAL, *(abs(check.error_percent) / 100 for check in checks)])
