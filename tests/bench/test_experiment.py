"""Experiment files, and the verdict of each kind of statement."""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from hvscale.bench.applications import APPLICATIONS, parse_sizes
from hvscale.bench.collectives import backends
from hvscale.bench.collectives.document import WrongResult, make_row
from hvscale.bench.collectives.request import MeasuredSize
from hvscale.bench.experiments import experiment_file
from hvscale.bench.experiments.document import ExperimentDocument, MeasurementRecord, StatementRow
from hvscale.bench.experiments.entries import LaunchContext, TableEntry
from hvscale.bench.experiments.entries.app import ApplicationEntry
from hvscale.bench.experiments.entries.collective import CollectiveEntry
from hvscale.bench.experiments.entries.command import CommandEntry
from hvscale.bench.experiments.entries.param_server import ParamServerEntry
from hvscale.bench.experiments.entries.predict import PredictEntry, Prediction
from hvscale.bench.experiments.entries.replay import ReplayEntry
from hvscale.bench.experiments.entries.settings import VariantsEntry
from hvscale.bench.experiments.output import efficiency_figures, page, text
from hvscale.bench.experiments.series import PredictedInterval, Series, Unavailable, predicted_interval
from hvscale.bench.experiments.statements import STATEMENTS, Finding, StatementComparison
from hvscale.bench.experiments.study import ExperimentStudy, take_over_state
from hvscale.cli.commands.train import app as train
from hvscale.cli.launch_options import resolve
from hvscale.comm_tuning.knobs.named_settings import NAMED, with_named_settings
from hvscale.core.documents import from_json, to_json
from hvscale.core.errors import RequestError, UntrustedError
from hvscale.core.host import gpus
from hvscale.core.run_folder import Host, Library, RankEnd, RunFolder, RunRecord
from hvscale.launch.options import LaunchOptions
from hvscale.launch.placement_options import PlacementOptions
from hvscale.report.progress import RunProgress
from hvscale.studies.base import load_previous
from tests.conftest import MPICH_PREFIX
from tests.prediction.predictions import prediction
from tests.profiling.synthetic import head, records

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*/experiment.toml"))
STUDENT_T_2_DEGREES = 4.302652729911275  # the 95 % confidence interval
# Noise of the rounds: means that differ by 20 % are distinguishable, and by 2 % they are not.
NOISE = (0.97, 1.0, 1.02, 0.99, 1.03, 0.98, 1.01, 1.0)


def series(mean: float, rounds: Sequence[float] = NOISE, average: Any = "geometric mean", **where: Any) -> Series:
    """Noisy times around a mean.

    Give two series different orders of noise; otherwise their ratio is the same in every round.
    """
    labels: dict[Any, Any] = where
    return Series(labels, {number: mean * one for number, one in enumerate(rounds, 1)}, average)


def of_backends(openmpi: float, gloo: float, average: str = "geometric mean", **where: Any) -> list[Series]:
    return [
        series(openmpi, average=average, backend="openmpi", **where),
        series(gloo, NOISE[::-1], average=average, backend="gloo", **where),
    ]


def by_sizes(times: Mapping[int, tuple[float, float]]) -> list[Series]:
    return [one for size, (openmpi, gloo) in times.items() for one in of_backends(openmpi, gloo, bytes=size)]


def by_flags(times: Mapping[str, Mapping[str, float]]) -> list[Series]:
    return [
        series(seconds, NOISE if flags == "-O2" else NOISE[::-1], "median", program=program, flags=flags, np=np)
        for program, table in times.items()
        for flags, seconds in table.items()
        for np in (1, 2)
    ]


def find(found: Sequence[Series], kind: str, **parameters: Any) -> Finding:
    statement = STATEMENTS.get(kind).model_validate({"kind": kind, "claim": "It is so", **parameters})
    return statement.test(found)


BOTH = {"of": {"backend": "openmpi"}, "than": {"backend": "gloo"}}
FLAGS = {"of": "flags", "between": "program"}
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "inconclusive"


@pytest.mark.parametrize("average", ["geometric mean", "median"])
@pytest.mark.parametrize(
    ("kind", "parameters", "times", "verdict"),
    [
        ("faster", {}, [(1, 2)], HOLDS),
        ("faster", {}, [(2, 1)], FAILS),
        ("faster", {}, [(1, 1)], UNKNOWN),
        ("faster", {}, [(1, 2), (1, 1)], UNKNOWN),
        ("faster", {}, [(1, 2), (2, 1)], FAILS),
        ("faster", {"by_percent": 40}, [(1, 2)], HOLDS),
        ("faster", {"by_percent": 60}, [(1, 2)], FAILS),
        ("faster", {"by_percent": 50}, [(1, 2)], UNKNOWN),
        ("faster", {"by_percent": 40, "somewhere": True}, [(1, 2), (2, 1)], HOLDS),
        ("faster", {"by_percent": 60, "somewhere": True}, [(1, 2), (2, 1)], FAILS),
        ("faster", {"by_percent": 50, "somewhere": True}, [(1, 2), (2, 1)], UNKNOWN),
        ("costs-less", {"percent": 30}, [(1.2, 1), (0.5, 1)], HOLDS),
        ("costs-less", {"percent": 10}, [(1.2, 1), (0.5, 1)], FAILS),
        ("costs-less", {"percent": 1}, [(1, 1)], UNKNOWN),
        ("overhead-grows", {"along": "np"}, [(1, 1), (1.1, 1), (1.3, 1)], HOLDS),
        ("overhead-grows", {"along": "np"}, [(1.3, 1), (1.4, 1), (1, 1)], FAILS),
        ("overhead-grows", {"along": "np"}, [(1.2, 1), (1.2, 1)], UNKNOWN),
        ("overhead-grows", {"along": "np"}, [(1.2, 1)], UNKNOWN),
    ],
)
def test_verdicts_on_pairs_of_back_ends(
    kind: str, parameters: dict[str, Any], times: list[tuple[float, float]], verdict: str, average: str
) -> None:
    found = [one for np, pair in enumerate(times, 2) for one in of_backends(*pair, average=average, np=np)]
    assert find(found, kind, **BOTH, **parameters).verdict == verdict


@pytest.mark.parametrize(
    ("times", "verdict"),
    [({1: 1, 2: 1.2, 4: 3}, HOLDS), ({1: 2, 4: 1}, FAILS), ({1: 1, 4: 1}, UNKNOWN), ({1: 1}, UNKNOWN)],
)
def test_time_grows(times: dict[int, float], verdict: str) -> None:
    found = [series(seconds, NOISE[:: 1 - 2 * (np > 1)], backend="gloo", np=np) for np, seconds in times.items()]
    assert find(found, "time-grows", along="np").verdict == verdict


@pytest.mark.parametrize(
    ("times", "verdict", "reason"),
    [
        (
            {8: (1, 2), 4096: (1, 2), 8192: (2, 1)},
            HOLDS,
            "above 0 %: 2 of 2 intervals; crossover at 8 KiB (openmpi against gloo)",
        ),
        ({8: (1, 2), 4096: (2, 1)}, FAILS, "crossover at 4 KiB (openmpi against gloo)"),
        ({8: (1, 2), 4096: (1, 1)}, UNKNOWN, "no crossover at the measured sizes"),
        ({8192: (1, 2)}, UNKNOWN, "no measurement matches this statement"),
    ],
)
def test_small_messages(times: dict[int, tuple[float, float]], verdict: str, reason: str) -> None:
    found = find(by_sizes(times), "faster-when-small", **BOTH, up_to="4K")
    assert found.verdict == verdict
    assert found.reason.endswith(reason)


@pytest.mark.parametrize(
    ("times", "verdict", "reason"),
    [
        ({"sort": {"-O2": 1, "-O3": 2}, "sum": {"-O2": 2, "-O3": 1}}, HOLDS, "-O2 for sort, -O3 for sum"),
        ({"sort": {"-O2": 1, "-O3": 2}, "sum": {"-O2": 1, "-O3": 2}}, FAILS, "-O2 for sort, -O2 for sum"),
        ({"sort": {"-O2": 1, "-O3": 2}, "sum": {"-O2": 1.01, "-O3": 1}}, UNKNOWN, "-O2 for sort, -O3 for sum"),
        ({"sort": {"-O2": 1, "-O3": 2}}, UNKNOWN, "no measurement matches this statement"),
    ],
)
def test_best_flags(times: dict[str, dict[str, float]], verdict: str, reason: str) -> None:
    found = find(by_flags(times), "best-differs", **FLAGS)
    assert found.verdict == verdict
    assert found.reason.endswith(reason)


def test_flags_not_measured_on_every_np_are_never_the_best() -> None:
    complete = by_flags({"sort": {"-O2": 1, "-O3": 2}, "sum": {"-O2": 1, "-O3": 2}})
    less = [series(0.1, average="median", program="sort", flags="-Os", np=1)]
    found = find([*complete, *less], "best-differs", **FLAGS)
    assert found.reason.endswith(": -O2 for sort, -O2 for sum")


@pytest.mark.parametrize(
    ("lost", "incomplete"),
    [
        ({("sum", "-O3", 2)}, "-O3 for sum"),
        ({("sum", "-O3", 1), ("sum", "-O3", 2)}, "-O3 for sum"),
        ({("sort", "-O2", 1), ("sort", "-O2", 2), ("sum", "-O3", 2)}, "-O2 for sort, -O3 for sum"),
    ],
)
def test_a_choice_is_best_everywhere_only_if_all_were_compared(
    lost: set[tuple[str, str, int]], incomplete: str
) -> None:
    complete = by_flags({"sort": {"-O2": 1, "-O3": 2}, "sum": {"-O2": 1, "-O3": 2}})
    assert find(complete, "best-differs", **FLAGS).verdict == FAILS
    left = [one for one in complete if tuple(one.labels[key] for key in ("program", "flags", "np")) not in lost]
    found = find(left, "best-differs", **FLAGS)
    assert found.verdict == UNKNOWN
    assert found.reason.startswith(f"the times of {incomplete} are incomplete: ")


def test_the_best_choice_is_found_by_the_average_that_is_compared() -> None:
    """An outlier changes the arithmetic mean, but not the median."""
    rounds = {
        ("sort", "-O2"): [*[1.0] * 9, 2.0],
        ("sort", "-O3"): [1.05] * 10,
        ("sum", "-O2"): [2.0] * 10,
        ("sum", "-O3"): [1.0] * 10,
    }
    found = find(
        [series(1, values, "median", program=program, flags=flags) for (program, flags), values in rounds.items()],
        "best-differs",
        **FLAGS,
    )
    assert found.verdict == HOLDS
    assert found.reason.endswith("-O2 for sort, -O3 for sum")


def test_a_comparison_is_the_mean_ratio_of_rounds_with_student_s_interval() -> None:
    fast, slow = [1.0, 2.0, 1.5], [4.0, 6.0, 7.0]
    found = [
        Series({"backend": name}, dict(enumerate(seconds, 1)), "geometric mean")
        for name, seconds in (("openmpi", fast), ("gloo", [*slow, 9.0]))
    ]
    [comparison] = find(found, "faster", **BOTH).comparisons
    logs = [math.log(one / other) for one, other in zip(fast, slow, strict=True)]
    mean = sum(logs) / 3
    half_width = STUDENT_T_2_DEGREES * math.sqrt(sum((one - mean) ** 2 for one in logs) / 2 / 3)
    assert [comparison.percent, comparison.percent_low, comparison.percent_high] == pytest.approx(
        [100 * (1 - math.exp(mean + side * half_width)) for side in (0, 1, -1)]
    )
    assert comparison.what == "openmpi against gloo"


def test_a_difference_of_overheads_uses_only_rounds_with_all_four_times() -> None:
    last, first = [(1.3, 1.0), (2.8, 2.0), (1.2, 1.0)], [(1.1, 1.0), (1.0, 1.0), (3.3, 3.0)]
    found = [
        Series(
            {"backend": name, "np": np}, {number: pair[place] for number, pair in enumerate(pairs)}, "geometric mean"
        )
        for np, pairs in ((8, last), (2, first[:2]))
        for place, name in enumerate(("openmpi", "gloo"))
    ]
    [comparison] = find(found, "overhead-grows", **BOTH, along="np").comparisons
    assert comparison.percent == pytest.approx(100 * ((1.3 - 1.1) + (1.4 - 1.0)) / 2)
    assert comparison.what == "openmpi against gloo, np 2 to np 8"


def test_one_outlier_among_many_comparisons_is_inconclusive() -> None:
    """Its 95 % interval contradicts the statement; corrected for 20 comparisons, it does not."""
    many = [one for np in range(2, 21) for one in of_backends(1, 2, np=np)]
    outliers = [
        Series({"backend": "openmpi", "np": 64}, {1: 1.0, 2: 1.1, 3: 1.2}, "geometric mean"),
        Series({"backend": "gloo", "np": 64}, {1: 0.9, 2: 0.9, 3: 1.05}, "geometric mean"),
    ]
    assert find(outliers, "faster", **BOTH).verdict == FAILS
    found = find([*many, *outliers], "faster", **BOTH)
    assert (found.verdict, found.reason) == (UNKNOWN, "above 0 %: 19 of 20 intervals, 1 on the other side")
    assert (found.comparisons[0].what, found.comparisons[0].agrees) == ("openmpi against gloo, np 64", False)
    swapped = {"of": BOTH["than"], "than": BOTH["of"], "somewhere": True}
    assert find([*many, *outliers], "faster", **swapped).verdict == UNKNOWN


def test_a_statement_beyond_the_measured_range_is_inconclusive() -> None:
    found = [one for np in (2, 4) for one in of_backends(1, 2, np=np)]
    parameters: dict[str, Any] = {**BOTH, "where": {"np": {"to": 32}}}
    short = find(found, "faster", **parameters)
    assert (short.verdict, short.reason) == (UNKNOWN, "measured up to np 4, not np 32; above 0 %: 2 of 2 intervals")
    assert find([*found, *of_backends(1, 2, np=64)], "faster", **parameters).verdict == HOLDS
    assert find(found, "faster", **parameters, by_percent=60).verdict == FAILS
    assert find(found, "faster", **parameters, somewhere=True).verdict == HOLDS
    # What holds somewhere may do so where it was not measured.
    assert find(found, "faster", **parameters, by_percent=60, somewhere=True).verdict == UNKNOWN
    shares = of_settings("share", opt=[0.93, 0.94, 0.95], mpi=[0.4, 0.41, 0.42])
    shares = [replace(one, labels={**one.labels, "np": 4}) for one in shares]
    verdicts = [
        find(shares, "share-above", percent=percent, somewhere=True, where=parameters["where"]).verdict
        for percent in (90, 98)
    ]
    assert verdicts == [HOLDS, UNKNOWN]
    only_gloo = series(2, backend="gloo", np=64)
    assert find([*found, only_gloo], "faster", **parameters).verdict == UNKNOWN
    other_size = [one for np, bytes_ in ((2, 8), (64, 8), (2, 16)) for one in of_backends(1, 2, np=np, bytes=bytes_)]
    assert find(other_size, "faster", **parameters).reason.startswith("measured up to np 2, not np 32;")
    small = find(by_sizes({8: (1, 2), 1024: (1, 2)}), "faster-when-small", **BOTH, up_to="4K")
    assert (small.verdict, small.reason.partition(";")[0]) == (UNKNOWN, "measured up to 1 KiB, not 4 KiB")
    larger = {"where": {"bytes": {"from": "1K"}}, "up_to": "4K"}
    sizes = {8: (2.0, 1.0), 2048: (1.0, 2.0), 4096: (1.0, 2.0)}
    assert find(by_sizes(sizes), "faster-when-small", **BOTH, **larger).verdict == HOLDS
    del sizes[8]
    without = find(by_sizes(sizes), "faster-when-small", **BOTH, **larger)
    assert (without.verdict, without.reason.partition(";")[0]) == (UNKNOWN, "measured from 2 KiB on, not from 1 KiB")


def test_a_statement_about_a_range_needs_its_lower_end() -> None:
    parameters: dict[str, Any] = {**BOTH, "where": {"bytes": {"from": 4, "to": "16K"}}}
    upper = find(by_sizes({16384: (1, 2)}), "faster", **parameters)
    assert (upper.verdict, upper.reason.partition(";")[0]) == (UNKNOWN, "measured from 16 KiB on, not from 4 B")
    assert find(by_sizes({4: (1, 2), 16384: (1, 2)}), "faster", **parameters).verdict == HOLDS
    # Any measured size proves that it does not hold everywhere.
    assert find(by_sizes({16384: (2, 1)}), "faster", **parameters).verdict == FAILS
    # Sizes beyond the range show that the range was covered.
    assert find(by_sizes({2: (2, 1), 64: (1, 2), 32768: (2, 1)}), "faster", **parameters).verdict == HOLDS
    of_two = [
        one for np, bytes_ in ((2, 8), (64, 8), (4, 16), (64, 16)) for one in of_backends(1, 2, np=np, bytes=bytes_)
    ]
    several = {**BOTH, "where": {"np": {"from": 2}}}
    assert find(of_two, "faster", **several).reason.startswith("measured from np 4 on, not from np 2;")
    assert find(of_two, "faster", **several, somewhere=True).verdict == HOLDS
    assert find(of_two, "faster", **several, by_percent=60, somewhere=True).verdict == UNKNOWN


def test_s1_judges_messages_of_the_ranks_that_were_measured() -> None:
    """One rank may send no messages, and not every part measures two ranks."""
    path = next(path for path in EXPERIMENTS if path.parent.name == "S1")
    statements = {one.claim: one for one in experiment_file.read(path).statements}
    labels: Any = {"program": "edsr", "placement": "ssh", "device": "cuda"}
    hits = [
        Series(
            {**labels, "settings": "mpi-reg", "source": "measured", "operation": "cache-hits", "np": np},
            {1: 0.95, 2: 0.951, 3: 0.952},
            "geometric mean",
            "share",
        )
        for np in (4, 8)
    ]
    assert statements["93 % of messages hit the registration cache"].test(hits).verdict == HOLDS
    times = [
        series(seconds, NOISE[::step], **labels, settings=name, source="replayed", operation="allreduce", np=np)
        for np in (4, 8)
        for name, seconds, step in (("mpi", 1, 1), ("mpi-opt", 0.9, -1))
    ]
    claim = "MPI-Opt takes up to 45 % less time in all-reduce than MPI"
    assert statements[claim].test(times).verdict == FAILS


def test_one_size_does_not_show_what_holds_up_to_it() -> None:
    one = find(by_sizes({4096: (1, 2), 8192: (2, 1)}), "faster-when-small", **BOTH, up_to="4K")
    assert (one.verdict, one.reason.partition(";")[0]) == (UNKNOWN, "measured only one size up to 4 KiB")
    assert find(by_sizes({4096: (2, 1)}), "faster-when-small", **BOTH, up_to="4K").verdict == FAILS
    # Every np needs two sizes.
    both = [one for size in (8, 4096) for one in of_backends(1, 2, np=2, bytes=size)]
    assert find(both, "faster-when-small", **BOTH, up_to="4K").verdict == HOLDS
    alone = of_backends(1, 2, np=4, bytes=4096)
    assert find([*both, *alone], "faster-when-small", **BOTH, up_to="4K").verdict == UNKNOWN


def test_one_round_is_inconclusive() -> None:
    found = find([series(1, [1.0], backend="openmpi"), series(9, [1.0], backend="gloo")], "faster", **BOTH)
    assert (found.verdict, found.reason) == (UNKNOWN, "above 0 %: too few rounds for confidence intervals")
    assert (found.comparisons[0].percent_low, found.comparisons[0].agrees) == (None, None)


def test_series_that_also_differ_in_other_keys_are_not_compared() -> None:
    found = [
        series(1, backend="openmpi", placement="host", dtype="float32", bytes=8),
        series(2, backend="gloo", placement="host", dtype="float32", bytes=8),
        series(2, backend="gloo", placement="netns", dtype="float32", bytes=8),
        series(2, backend="gloo", placement="host", dtype="float16", bytes=8),
        series(2, backend="gloo", placement="host", dtype="float32", bytes=16),
    ]
    assert len(find(found, "faster", **BOTH).comparisons) == 1
    anywhere = {**BOTH, "than": {"backend": "gloo", "placement": ["host", "netns"]}}
    assert len(find(found, "faster", **anywhere).comparisons) == 2


@pytest.mark.parametrize(
    ("selector", "sizes"),
    [
        ({"from": "4K"}, [4096, 8192]),
        ({"to": "4K"}, [8, 4096]),
        ({"from": 9, "to": 4096}, [4096]),
        ("8K", [8192]),
        ([8, "8K"], [8, 8192]),
    ],
)
def test_sizes_can_be_selected_with_units(selector: Any, sizes: list[int]) -> None:
    found = find(by_sizes(dict.fromkeys((8, 4096, 8192), (1, 2))), "faster", **BOTH, where={"bytes": selector})
    assert len(found.comparisons) == len(sizes)
    words = {8: "8 B", 4096: "4 KiB", 8192: "8 KiB"}
    described = " ".join(comparison.what for comparison in found.comparisons)
    assert len(sizes) == 1 or all(words[size] in described for size in sizes)


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ([(1, 2), (1.1, 1)], HOLDS),
        ([(1, 1), (1, 1)], UNKNOWN),
        ([(1, 2), (4, 1)], FAILS),
        ([], UNKNOWN),
    ],
)
def test_an_average_over_all_comparisons(times: list[tuple[float, float]], verdict: str) -> None:
    found = [one for np, pair in enumerate(times, 2) for one in of_backends(*pair, np=np)]
    finding = find(found, "faster-on-average", **BOTH)
    assert finding.verdict == verdict
    if times:
        mean = math.prod(one / other for one, other in times) ** (1 / len(times))
        [comparison] = finding.comparisons
        assert comparison.percent == pytest.approx(100 * (1 - mean))


def of_settings(unit: Any, **values: Sequence[float]) -> list[Series]:
    """Series by settings, with values for each round."""
    return [
        Series({"settings": name, "operation": "efficiency"}, dict(enumerate(each)), "geometric mean", unit)
        for name, each in values.items()
    ]


SHARES = {"of": {"settings": "opt"}, "than": {"settings": "mpi"}}


def test_a_difference_of_shares_is_in_points_with_student_s_interval() -> None:
    opt, mpi = [0.8, 0.82, 0.9], [0.6, 0.65, 0.61, 0.1]
    found = find(of_settings("share", opt=opt, mpi=mpi), "higher-share", **SHARES, by_points=15.6)
    [comparison] = found.comparisons
    differences = [100 * (one - other) for one, other in zip(opt, mpi, strict=False)]
    mean = sum(differences) / 3
    reach = STUDENT_T_2_DEGREES * math.sqrt(sum((one - mean) ** 2 for one in differences) / 2 / 3)
    assert [comparison.percent, comparison.percent_low, comparison.percent_high] == pytest.approx(
        [mean, mean - reach, mean + reach]
    )
    assert found.verdict == UNKNOWN
    assert find(of_settings("share", opt=opt, mpi=mpi), "higher-share", **SHARES, by_points=5).verdict == HOLDS
    assert find(of_settings("share", opt=opt, mpi=mpi), "higher-share", **SHARES, by_points=40).verdict == FAILS


def test_shares_have_a_lower_and_an_upper_limit() -> None:
    found = of_settings("share", opt=[0.93, 0.94, 0.95])
    verdicts = [find(found, kind, percent=percent).verdict for kind in ABOVE_BELOW for percent in (90, 94, 98)]
    assert verdicts == [HOLDS, UNKNOWN, FAILS, FAILS, UNKNOWN, HOLDS]


ABOVE_BELOW = ("share-above", "share-below")


def test_times_and_shares_are_not_compared() -> None:
    assert find(of_settings("seconds", opt=[1, 1.1], mpi=[2, 2.1]), "higher-share", **SHARES).comparisons == []
    assert find(of_settings("share", opt=[0.1, 0.11], mpi=[0.2, 0.21]), "faster", **SHARES).comparisons == []


def predicted(value: float, low: float, high: float, confidence: float = 0.9, **labels: Any) -> Series:
    unit: Any = "share" if labels["operation"] == "efficiency" else "seconds"
    known: dict[Any, Any] = labels
    return Series(known, {1: value}, "geometric mean", unit, PredictedInterval(low, high, confidence))


def test_two_predictions_are_compared_by_their_intervals() -> None:
    times = [
        predicted(0.5, 0.4, 0.625, 0.95, settings="opt", operation="throughput"),
        predicted(1.0, 0.8, 1.25, 0.95, settings="mpi", operation="throughput"),
    ]
    [time] = find(times, "faster", **SHARES).comparisons
    reach = math.sqrt(2) * math.log(1.25)
    assert [time.percent, time.percent_low, time.percent_high] == pytest.approx(
        [50, 100 * (1 - 0.5 * math.exp(reach)), 100 * (1 - 0.5 * math.exp(-reach))]
    )
    shares = [
        predicted(0.8, 0.7, 0.8 / 0.7 * 0.8, 0.95, settings="opt", operation="efficiency"),
        predicted(0.6, 0.5, 0.72, 0.95, settings="mpi", operation="efficiency"),
    ]
    [points] = find(shares, "higher-share", **SHARES).comparisons
    assert [points.percent, points.percent_low, points.percent_high] == pytest.approx(
        [20, 20 - 100 * math.hypot(0.1, 0.12), 20 + 100 * math.hypot(0.8 / 0.7 * 0.8 - 0.8, 0.1)]
    )


@given(
    value=st.floats(0.01, 100),
    below=st.floats(0.2, 0.99),
    above=st.floats(1.01, 5),
    confidence=st.floats(0.5, 0.99),
    more=st.floats(0.001, 0.009),
)
def test_a_predicted_interval_contains_its_value_and_widens_with_confidence(
    value: float, below: float, above: float, confidence: float, more: float
) -> None:
    one = predicted(value, value * below, value * above, 0.9, operation="throughput")
    _, low, high = predicted_interval(one, confidence)
    _, lower, higher = predicted_interval(one, confidence + more)
    assert lower < low < value < high < higher
    assert predicted_interval(one, 0.9)[1:] == pytest.approx((value * below, value * above))


def test_a_prediction_is_not_compared_with_a_measurement() -> None:
    mixed = [
        predicted(0.8, 0.7, 0.9, settings="opt", operation="efficiency"),
        *of_settings("share", mpi=[0.5, 0.51]),
    ]
    assert find(mixed, "higher-share", **SHARES).comparisons == []


NCCL = Unavailable("settings", {"program": "edsr", "settings": "nccl"}, "Horovod is built without NCCL")


@pytest.mark.parametrize(
    ("where", "measured", "verdict"),
    [
        ({}, [], "cannot be tested here"),
        ({"program": "edsr"}, [], "cannot be tested here"),
        ({"program": "resnet50"}, [], UNKNOWN),
        ({}, [series(2, NOISE[::-1], settings="nccl", program="edsr")], HOLDS),
    ],
)
def test_a_claim_about_something_unavailable_cannot_be_tested(
    where: dict[str, Any], measured: list[Series], verdict: str
) -> None:
    statement = STATEMENTS.get("faster").model_validate(
        {
            "kind": "faster",
            "claim": "It is so",
            "of": {"settings": "mpi"},
            "than": {"settings": "nccl"},
            "where": where,
        }
    )
    found = statement.test([series(1, settings="mpi", program="edsr"), *measured], [NCCL])
    assert found.verdict == verdict
    assert (found.reason == NCCL.reason) == (verdict == "cannot be tested here")


def test_text_and_page_show_every_comparison() -> None:
    found = find(by_sizes({8: (1, 2), 4096: (1, 1)}), "faster", **BOTH)
    rows = [
        StatementRow(**dict(found), claim="<MPI> wins", kind="faster", metric="saves %"),
        StatementRow(verdict="inconclusive", reason="nothing", claim="Nobody knows", kind="faster", metric="saves %"),
    ]
    records = [MeasurementRecord(name="sums", measure="collective", folder="sums", state="finished")]
    document = ExperimentDocument(folder="made", title="Made up", part="small", measurements=records, statements=rows)
    shown = text(document)
    assert "<MPI> wins: inconclusive\n  above 0 %: 1 of 2 intervals, 0 on the other side\n" in shown
    assert "openmpi against gloo, 8 B" in shown
    assert "Nobody knows: inconclusive\n  nothing\n" in shown
    html = page(document)
    assert html.count('class="chart"') == 1
    assert "<MPI>" not in html


def figure_of(statement: StatementRow) -> dict[str, Any]:
    """The figure of the page's only statement."""
    document = ExperimentDocument(folder="made", title="Made up", part="small", measurements=[], statements=[statement])
    written = re.search(r'id="figures">(.*?)</script>', page(document))
    assert written is not None
    [figure] = json.loads(written[1]).values()
    return dict(figure)


def test_the_axis_contains_the_intervals_that_the_table_shows() -> None:
    wide = [("a", 19.0, -554.0, 90.0), ("b", 12.0, -81.0, 257.0), ("c", 1.0, -90_000.0, 99.0), ("d", 5.0, None, None)]
    compared = [
        StatementComparison(what=what, percent=percent, percent_low=low, percent_high=high, agrees=None)
        for what, percent, low, high in wide
    ]
    row = StatementRow(
        claim="It is so", kind="faster", metric="saves %", verdict="inconclusive", reason="", comparisons=compared
    )
    figure = figure_of(row)
    low, high = figure["layout"]["xaxis"]["range"]
    assert -600 < low < -554
    assert 257 < high < 300
    intervals = ["-554 to +90.0", "-81.0 to +257", "> factor 100", "-"]
    assert figure["data"][0]["customdata"] == intervals


def efficiency(np: int, **labels: Any) -> Series:
    always = {"program": "edsr", "settings": "mpi", "source": "measured", "operation": "efficiency"}
    known: dict[Any, Any] = {**always, "np": np, **labels}
    return Series(known, {1: 0.9, 2: 0.8}, "geometric mean", "share")


def test_each_job_has_its_own_line_of_efficiency() -> None:
    on_hosts = [efficiency(np, placement="host", device=device) for device in ("cpu", "cuda") for np in (2, 4)]
    predicted_more = [efficiency(np, source="predicted", device="cpu") for np in (8, 16)]
    [(_, figure)] = efficiency_figures([*on_hosts, *predicted_more]).values()
    assert {line.name: list(line.x) for line in figure.data} == {
        "mpi, measured, cpu": [2, 4],
        "mpi, measured, cuda": [2, 4],
        "mpi, predicted, cpu": [8, 16],
    }
    cpu, cuda, more = (line.line for line in figure.data)
    assert cpu.color == more.color != cuda.color
    assert cpu.dash == cuda.dash != more.dash
    [(_, figure)] = efficiency_figures([efficiency(np, placement="netns", device="cpu") for np in (4, 2)]).values()
    assert [(line.name, list(line.x)) for line in figure.data] == [("mpi, measured", [2, 4])]


VALID_FILE = """
title = "Sums"
[small.sums]
measure = "collective"
collective = "allreduce"
backend = ["openmpi"]
np = [2]
[[statements]]
claim = "It is so"
kind = "time-grows"
where = { backend = "openmpi" }
along = "bytes"
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("title", "titel", "titel: unknown key; did you mean title?"),
        ("np = ", "nps = ", "small.sums.nps: unknown key; did you mean np?"),
        ('"collective"', '"colective"', "small.sums.measure: colective: unknown kind; did you mean collective?"),
        (
            'measure = "collective"\n',
            "",
            "small.sums: measure is missing. Known: app, collective, command, param-server, predict, replay, settings",
        ),
        ("np = [2]", "np = [0]", "small.sums.np.0: Input should be greater than 0"),
        ("np = [2]", "np = []", "small.sums.np: "),
        ("[small.sums]", '[small."../sums"]', "small.../sums: String should match"),
        ("along = ", "alnog = ", "statements.0.alnog: unknown key; did you mean along?"),
        ('"time-grows"', '"time-grow"', "statements.0.kind: time-grow: unknown kind; did you mean time-grows?"),
        ("{ backend", "{ bakcend", "statements.0.where.bakcend: unknown key; did you mean backend?"),
        ('"openmpi" }', "1.5 }", "statements.0.where.backend: give a value, a list of values, or { from"),
        (
            VALID_FILE[VALID_FILE.index("kind") :],
            'kind = "share-above"\npercent = nan\n',
            "percent: Input should be a finite",
        ),
        ('{ backend = "openmpi" }', '{ bytes = "many" }', "bytes many: invalid size"),
        ("along", "[", "is not valid TOML"),
    ],
)
def test_an_invalid_file_is_rejected_in_one_line_that_names_the_place(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(VALID_FILE)
    assert experiment_file.read(path).statements[0].claim == "It is so"
    path.write_text(VALID_FILE.replace(before, after, 1))
    with pytest.raises(RequestError) as error:
        experiment_file.read(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def launch_context(**options: Any) -> LaunchContext:
    """The launch options, as parsed from the command line."""
    named = {name: partial(with_named_settings, name) for name in NAMED}
    return LaunchContext(LaunchOptions.of(**options), resolve, settings=named)


def test_an_invalid_request_names_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(VALID_FILE.replace("openmpi", "opnmpi"))
    with pytest.raises(RequestError, match=r"^small\.sums: --backend opnmpi: unknown back end; did you mean openmpi"):
        ExperimentStudy.of(path, "small", launch_context(), tmp_path / "folder")
    with pytest.raises(RequestError, match="part full has no measurements"):
        ExperimentStudy.of(path, "full", launch_context(), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_table_is_required_if_an_entry_uses_it_and_rejected_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    table = {"collectives": tmp_path / "table.toml"}
    path.write_text(VALID_FILE)
    with pytest.raises(
        RequestError, match=r"--collectives .*/table\.toml: no measurement .*; leave out --collectives$"
    ):
        ExperimentStudy.of(path, "small", launch_context(**table), tmp_path / "folder")
    path.write_text(VALID_FILE.replace("np =", 'collectives = ["library", "table"]\nnp ='))
    with pytest.raises(RequestError, match=r"sums .* --collectives TABLE; `hvscale tune-collectives` makes it$"):
        ExperimentStudy.of(path, "small", launch_context(), tmp_path / "folder")
    with pytest.raises(RequestError, match=r"^small\.sums: .*/table\.toml"):
        ExperimentStudy.of(path, "small", launch_context(**table), tmp_path / "folder")
    path.write_text(path.read_text().replace('["openmpi"]', '["gloo"]'))
    with pytest.raises(
        RequestError, match=r"^small\.sums: --collectives applies to back ends over MPI only; none of gloo is$"
    ):
        ExperimentStudy.of(path, "small", launch_context(**table), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


PREDICTED = f"""
title = "Scales"
[small.replayed]
measure = "replay"
program = "edsr"
command = ["{sys.executable}"]
settings = ["mpi", "mpi-reg"]
np = [2]
[small.predicted]
measure = "predict"
program = "edsr"
of = "replayed"
np = [8]
"""


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        (
            "",
            {"set": ["registration_cache=off"]},
            r"small\.replayed: mpi-reg: --set registration_cache=off and registration_cache=on ask for different values: ",
        ),
        (
            'link = "1gbit"\nrepeat = 2',
            {},
            r"small\.predicted: .*link, repeat: a prediction starts no ranks; for another network write flags = ",
        ),
        ('flags = ["--lnik", "10gbit"]', {}, r"small\.predicted: flags: hvscale predict: .*--lnik"),
        ('flags = ["--link"]', {}, r"small\.predicted: flags: hvscale predict: .*--link.* requires an argument"),
        ('flags = ["--link", "fast"]', {}, r"small\.predicted: flags: hvscale predict: .*fast"),
        ('flags = ["--cores", "0"]', {}, r"small\.predicted: flags: hvscale predict: .*--cores"),
        (
            'flags = ["--set", "cycle_time=soon"]',
            {},
            r"small\.predicted: flags: hvscale predict: --set cycle_time=soon: ",
        ),
        ('flags = ["--from-table", "none"]', {}, r"small\.predicted: flags: hvscale predict: .*none"),
        ('flags = ["--np", "4"]', {}, r"small\.predicted: .*flags: --np: the experiment gives it itself; leave it out"),
        ('flags = ["--run=here"]', {}, r"small\.predicted: .*flags: --run=here: the experiment gives it itself"),
    ],
)
def test_what_would_be_ignored_or_fail_later_is_rejected_at_once(
    tmp_path: Path, more: str, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(PREDICTED + more)
    with pytest.raises(RequestError, match=message):
        ExperimentStudy.of(path, "small", launch_context(**options), tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_flags_of_a_prediction_are_options_of_predict(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(PREDICTED + 'flags = ["--link", "10gbit", "--set", "cycle_time=5", "--why"]')
    assert len(ExperimentStudy.of(path, "small", launch_context(), tmp_path / "folder").measurements) == 2


def test_a_replay_with_other_options_is_another_study(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    entry = f'''title = "Replays"
    [small.replayed]
    measure = "replay"
    program = "none"
    command = ["{sys.executable}"]
    settings = ["mpi"]
    np = [1, 2]
    '''

    def replay(more: str) -> Any:
        path.write_text(entry + more)
        [measurement] = ExperimentStudy.of(path, "small", launch_context(), tmp_path / "folder").measurements
        return measurement.study  # type: ignore[attr-defined]

    first = replay("steps = 4")
    first.path.mkdir(parents=True)
    first.write("interrupted")
    for more, field in (("steps = 4", None), ("steps = 9", "replay_options"), ("steps = 4\nrecord_np = 3", "record")):
        study = replay(more)
        with nullcontext() if field is None else pytest.raises(RequestError, match=f"its {field} differs"):
            assert load_previous(study.file, study.document, study.must_match) is not None


def test_a_refused_experiment_changes_nothing_on_disk(tmp_path: Path) -> None:
    path, folder = tmp_path / "experiment.toml", tmp_path / "folder"

    def experiment(steps: str) -> ExperimentStudy:
        commands = {"first": "true", "second": steps}
        entries = [
            f'[small.{name}]\nmeasure = "command"\nprogram = "{name}"\ncommand = ["{command}"]\nnp = 1\n'
            for name, command in commands.items()
        ]
        path.write_text('title = "Two"\n' + "".join(entries))
        return ExperimentStudy.of(path, "small", launch_context(), folder)

    def contents() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    study = experiment("sleep")
    for measurement in study.measurements:
        measurement.path.mkdir(parents=True)
        measurement.study.write("finished")  # type: ignore[attr-defined]
    study.write("finished")
    before = contents()
    with pytest.raises(RequestError, match="second holds another study: its command differs"):
        experiment("false").measure(RunProgress, warn=lambda text: None)
    assert contents() == before


def test_wrong_results_of_an_earlier_call_still_fail_the_measurement(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(VALID_FILE.replace("np =", 'sizes = "8"\nrepeat = 2\nnp ='))
    [measurement] = ExperimentStudy.of(path, "small", launch_context(), tmp_path / "folder").measurements
    folder = tmp_path / "folder/sums/np-2-float32-host-repeat-1"
    document = measurement.bench(measurement.variants[0], folder).document  # type: ignore[attr-defined]
    seconds = MeasuredSize(bytes=8, count=2, in_place=False, calls_per_sample=1, seconds=[1], rank_seconds=[1], wrong=1)
    document.rows, document.state = [make_row("openmpi", seconds, 1)], "finished"
    document.warnings = ["2 ranks on 1 core"]
    document.wrong = [
        WrongResult(backend="openmpi", bytes=8, in_place=False, wrong=1, rank=0, element=0, got=1, expected=2)
    ]
    folder.mkdir(parents=True)
    (folder / "bench.json").write_bytes(b"\xff")
    measurement.resume(warn=lambda text: None)  # what is damaged is measured again
    (folder / "bench.json").write_text(to_json(document))
    warnings: list[str] = []
    with pytest.raises(UntrustedError, match="wrong allreduce of 8 bytes"):
        measurement.measure(RunProgress(1, 2), warn=warnings.append)
    assert warnings[0] == "2 ranks on 1 core"
    assert [one.name for one in folder.parent.iterdir()] == [folder.name]


def test_results_of_two_versions_of_a_library_give_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(VALID_FILE.replace("np =", 'sizes = "8"\nrepeat = 2\nnp ='))
    [measurement] = ExperimentStudy.of(path, "small", launch_context(), tmp_path / "folder").measurements
    seconds = MeasuredSize(bytes=8, count=2, in_place=False, calls_per_sample=1, seconds=[1], rank_seconds=[1])
    for repeat, version in enumerate(("4.1.6", "5.0.11"), 1):
        folder = tmp_path / f"folder/sums/np-2-float32-host-repeat-{repeat}"
        document = measurement.bench(measurement.variants[0], folder).document  # type: ignore[attr-defined]
        document.rows, document.state = [make_row("openmpi", seconds, 1)], "finished"
        document.backends[0].library = f"Open MPI v{version}"
        folder.mkdir(parents=True)
        (folder / "bench.json").write_text(to_json(document))
    warnings: list[str] = []
    measurement.measure(RunProgress(1, 2), warn=warnings.append)
    [warning] = warnings
    assert warning.startswith("runs on Open MPI v4.1.6 are compared with runs on Open MPI v5.0.11: ")


def test_a_measurement_that_ctrl_c_ends_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(VALID_FILE)
    study = ExperimentStudy.of(path, "small", launch_context(), tmp_path / "folder")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study.measurements[0], "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        study.measure(RunProgress, warn=lambda text: None)
    assert (study.document.state, study.document.measurements[0].state) == ("interrupted", "interrupted")


def finished_run(path: Path) -> RunFolder:
    """A locked run folder of two ranks without output."""
    run = RunFolder.create(path)
    run.write(
        RunRecord(
            command=["true"],
            np=2,
            state="finished",
            library=Library(flavour="Open MPI", version="5"),
            host=Host(name="h", kernel="k", cpu="c", cores=2, memory_bytes=1),
            working_directory="/",
            started_at=datetime.now(UTC),
            warnings=["2 ranks on 1 core"],
            ranks=[RankEnd(rank=rank, host="h", pid=1, started_at=1.0, ended_at=3.0) for rank in (0, 1)],
        )
    )
    return run


def test_a_resumed_experiment_takes_over_all_results_before_it_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "experiment.toml", tmp_path / "folder"

    def experiment(metric: str) -> ExperimentStudy:
        path.write_text(
            f"""title = "Two jobs"
            small.first = {{ measure = "command", program = "one", command = ["true"], np = 2 }}
            small.second = {{ measure = "command", program = "two", command = ["true"], np = 2, metric = "{metric}" }}"""
        )
        return ExperimentStudy.of(path, "small", launch_context(), folder)

    def files() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    started = experiment("speed ([0-9]+)")
    started.tell_user = lambda text: None
    for measurement in started.measurements:
        measurement.path.mkdir(parents=True)
        measurement.study.write("running")  # type: ignore[attr-defined]
    for repeat in (1, 2, 3):
        run = finished_run(folder / f"second/host-library-repeat-{repeat}")
        run.log(0).write_text(f"speed {repeat}\n")
        run.unlock()
    started.write("interrupted")
    before = files()
    with pytest.raises(RequestError, match="matches no line"):
        experiment("sped ([0-9]+)").measure(RunProgress, warn=lambda text: None)
    assert files() == before

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    resumed = experiment("speed ([0-9]+)")
    monkeypatch.setattr(resumed.measurements[0], "measure", interrupted)
    warnings: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        resumed.measure(RunProgress, warn=warnings.append)
    found = {one.labels["operation"]: one.values for one in resumed.series()}
    assert found["throughput"] == {1: 1, 2: 1 / 2, 3: 1 / 3}
    assert "second: 2 ranks on 1 core" in warnings
    assert [one.state for one in resumed.document.measurements] == ["interrupted", "finished"]
    assert resumed.page_written


def test_a_resumed_experiment_shows_the_predictions_of_the_same_entry_until_it_makes_them_again(
    tmp_path: Path,
) -> None:
    path, folder = tmp_path / "experiment.toml", tmp_path / "folder"

    def predictions(toml: str) -> Any:
        path.write_text(toml)
        _, measurement = ExperimentStudy.of(path, "small", launch_context(), folder).measurements
        return measurement

    first = predictions(PREDICTED)
    first.document.predictions["mpi"] = from_json(Prediction, to_json(prediction()))
    first.path.mkdir(parents=True)
    first.file.write_text(to_json(first.document))
    again, other = predictions(PREDICTED), predictions(PREDICTED.replace("np = [8]", "np = [9]"))
    warnings: list[str] = []
    again.resume(warnings.append)
    other.resume(warnings.append)
    assert warnings == ["mpi: np 1024 was left out"]
    assert again.series() == first.series() != []
    assert other.series() == []
    assert not again.is_complete  # there are no replays


@pytest.mark.parametrize(
    ("before", "is_complete", "now"),
    [
        ("finished", True, "finished"),
        ("finished", False, "waiting"),  # more repeats were asked for
        ("running", False, "interrupted"),  # the call was killed
        ("waiting", True, "finished"),
        ("failed", True, "failed"),
        (None, False, "waiting"),
    ],
)
def test_a_measurement_of_an_earlier_call_keeps_its_state(before: Any, is_complete: bool, now: str) -> None:
    def record(state: Any) -> MeasurementRecord:
        return MeasurementRecord(name="job", measure="command", folder="job", state=state)

    found = record("waiting")
    take_over_state(found, None if before is None else record(before), is_complete)
    assert found.state == now


def test_message_times_of_a_damaged_or_incomplete_profile_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(
        """title = "A job"
        small.job = { measure = "command", program = "job", command = ["true"], np = 2, repeat = 3 }"""
    )
    [measurement] = ExperimentStudy.of(path, "small", launch_context(), tmp_path / "folder").measurements
    study = measurement.study  # type: ignore[attr-defined]
    warnings: list[str] = []
    study.tell_user = warnings.append
    made = records(8)
    profiles = [head(8, 8, rank, made) + made.tobytes() for rank in (0, 1)]
    [variant] = study.variants
    for repeat, files in enumerate((profiles, profiles[:1], [b"damaged"]), 1):
        run = finished_run(tmp_path / f"folder/job/host-library-repeat-{repeat}")
        for rank, content in enumerate(files):
            (run.hvprof / f"rank-{rank:05d}.hvp").write_bytes(content)
        run.unlock()
        study.run_variant(variant, repeat)
    found = {one.labels["operation"]: sorted(one.values) for one in measurement.series()}
    assert found.pop("job") == [1, 2, 3]
    assert found
    assert all(repeats == [1] for repeats in found.values())
    assert [text.partition(":")[0] for text in warnings] == [
        *("2 ranks on 1 core", "host, library, repeat 2", "host, library, repeat 3")
    ]


@pytest.mark.parametrize(
    ("command_line", "options"),
    [
        ({}, {"placement": "netns", "nodes": 2, "link": "1gbit"}),
        ({"nodes": 3}, {"placement": "netns", "nodes": 3, "link": "1gbit"}),
        ({"placement": "host"}, {"placement": "host"}),
        ({"placement": "docker:node", "link": "2gbit"}, {"placement": "docker:node", "link": "2gbit"}),
    ],
)
def test_the_command_line_takes_precedence_over_the_placement_of_an_entry(
    tmp_path: Path, command_line: dict[str, Any], options: dict[str, Any]
) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(VALID_FILE.replace("np =", 'placement = ["netns"]\nnodes = 2\nlink = "1gbit"\nnp ='))
    places, found = experiment_file.read(path).small["sums"].resolve_placement(PlacementOptions(**command_line))
    assert found.model_dump(exclude_none=True) == options
    assert places == (options["placement"],)


def test_each_study_of_the_bench_has_an_experiment() -> None:
    assert {"S1", "S2", "S3", "S4", "S5"} <= {path.parent.name for path in EXPERIMENTS}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.parent.name)
def test_every_part_of_an_experiment_is_valid(path: Path, tmp_path: Path) -> None:
    """Without containers; skips entries that need a GPU or MPICH that this machine lacks."""
    experiment = experiment_file.read(path)
    assert {"small", "full"} == {part for part in experiment_file.PARTS if experiment.part(part)}
    for part in experiment_file.PARTS:
        for name, entry in experiment.part(part).items():
            check_names_are_known(entry, experiment.part(part))
            has_gpus = getattr(entry, "device", "cpu") == "cpu" or bool(gpus())
            has_mpich = "mpich" not in str(getattr(entry, "backend", "")) or (MPICH_PREFIX / "bin/hvscale").exists()
            if has_gpus and has_mpich:
                where = {"hosts": "a:600"} if entry.placement == ("ssh",) else {"placement": "host"}
                places = ("ssh",) if "hosts" in where else ("host",)
                on_host = entry.model_copy(update={"placement": places, "nodes": None, "link": None})
                options = launch_context(**{**where, "placement": places[0]})
                assert on_host.measurement(tmp_path / part / name, options).starts > 0
    assert not any(tmp_path.iterdir())


def check_names_are_known(entry: Any, entries: Mapping[str, Any]) -> None:
    """Check an entry's names against the engines, regardless of this machine's hardware."""
    if isinstance(entry, ApplicationEntry):
        assert (
            parse_sizes(APPLICATIONS.get(entry.program), [f"{name}={value}" for name, value in entry.size.items()])
            == entry.size
        )
        assert [APPLICATIONS.get(entry.program).unsupported_reason(np, entry.size) for np in entry.np] == [None] * len(
            entry.np
        )
    elif isinstance(entry, CollectiveEntry):
        for backend in backends.select(entry.backend, "openmpi"):
            for dtype in entry.dtype:
                assert backends.supported_paths(backend, entry.collective, dtype, entry.device, [])  # type: ignore[arg-type]
            assert backends.in_place_modes(backend, entry.collective, entry.in_place)  # type: ignore[arg-type]
    elif isinstance(entry, PredictEntry):
        assert isinstance(entries[entry.of], ReplayEntry)
        assert entries[entry.of].program == entry.program
    elif isinstance(entry, CommandEntry | VariantsEntry):
        program, verb, *options = entry.command
        assert (program, verb) == ("hvscale", "train")
        assert get_command(train).make_context(verb, options)
    else:
        assert isinstance(entry, ParamServerEntry)
        for backend in backends.select(entry.backend, "openmpi"):
            assert backend.supports_param_server
            for operation in entry.operation:
                assert backends.supported_paths(backend, operation, entry.dtype, entry.device, list(entry.path))  # type: ignore[arg-type]


def measured_names(entry: Any) -> set[str]:
    """The names of back ends in an entry's tables."""
    if isinstance(entry, ApplicationEntry | CommandEntry | VariantsEntry | PredictEntry):
        return set()
    operations = entry.operation if isinstance(entry, ParamServerEntry) else (entry.collective,)
    return {
        backends.display_name(backend, path)
        for backend in backends.select(entry.backend, "openmpi")
        for operation in operations
        for path in backends.supported_paths(backend, operation, "float32", entry.device, list(entry.path))
    }


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.parent.name)
def test_statements_use_only_values_that_an_entry_measures(path: Path) -> None:
    experiment = experiment_file.read(path)
    every = [entry for part in experiment_file.PARTS for entry in experiment.part(part).values()]
    known: dict[str, set[str]] = {
        "backend": set().union(*map(measured_names, every)),
        "placement": {place for entry in every for place in entry.placement},
        "program": {str(program) for entry in every if (program := getattr(entry, "program", None))},
        "settings": {name for entry in every if isinstance(entry, VariantsEntry) for name in entry.settings},
        "device": {str(device) for entry in every if (device := getattr(entry, "device", None))},
        "collectives": {one for entry in every if isinstance(entry, TableEntry) for one in entry.collectives},
    }
    for statement in experiment.statements:
        for selector in (statement.where, getattr(statement, "of", {}), getattr(statement, "than", {})):
            selected: dict[Any, Any] = selector if isinstance(selector, dict) else {}
            for key, names_of_key in known.items():
                value = selected.get(key, [])
                assert set(value if isinstance(value, list) else [value]) <= names_of_key


def test_the_applications_are_measured_at_their_preset_sizes() -> None:
    [path] = [path for path in EXPERIMENTS if path.parent.name == "S3"]
    experiment = experiment_file.read(path)
    for part, preset in (("small", []), ("full", ["full"])):
        entries = [entry for entry in experiment.part(part).values() if isinstance(entry, ApplicationEntry)]
        assert sorted(entry.program for entry in entries) == APPLICATIONS.names()
        for entry in entries:
            assert entry.size == parse_sizes(APPLICATIONS.get(entry.program), preset)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.parent.name)
def test_the_readme_has_every_statement_and_both_commands(path: Path) -> None:
    readme = path.with_name("README.md").read_text()
    name = path.relative_to(path.parents[2])
    table = any(entry.needs_table for entry in experiment_file.read(path).small.values())
    words = f" --collectives {path.parent.name}-table/collectives.toml" if table else ""
    assert f"hvscale bench experiment {name}{words} --run {path.parent.name}\n" in readme
    assert f"hvscale bench experiment {name} --part full" in readme
    for statement in experiment_file.read(path).statements:
        assert f"| {statement.claim} |" in readme
