"""Published scaling curves, predicted from documented parameters alone.

Run it with the environment's Python; it needs no GPU and takes a few minutes:
`python benchmarks/published_curves.py`. The first table fits nothing. Two tables fit an
effective bandwidth at the smallest number of ranks of a curve (16, or 64 of study S1) and predict
the larger ones.

Each prediction has a band. At its lower end, links have half the documented bandwidth, messages
start up in twice the time, and computation varies twice as much. At its upper end, computation does
not vary. The last table is a curve whose loss has another cause.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from scipy.optimize import brentq

from hvscale.prediction.document import PredictedRow
from hvscale.prediction.explained import explained_by_communication
from hvscale.prediction.model.costs import HorovodSettings
from hvscale.prediction.model.documented_job import GradientType, Variation, model_job
from hvscale.prediction.model.horovod_loop import simulate
from hvscale.prediction.model.job import PredictedJob
from hvscale.prediction.model.networks import LONGEST_START_UP, SLOWEST_LINK, DocumentedCosts, load_network

MIB = 1 << 20
OLD_HOROVOD = HorovodSettings(cycle_seconds=5e-3, fusion_bytes=64 * MIB)
VARIATION = 0.01  # of a rank and of a step: relative standard deviations, assumed
Range = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """A published curve. `published`: efficiency by np, relative to `reference_np`."""

    source: str
    model: str
    images_per_second: float
    batch: int
    network: str
    published: Mapping[int, float | Range]
    assumed: str
    reference_np: int = 1
    ranks_per_node: int | None = None
    settings: HorovodSettings = OLD_HOROVOD
    trees: bool = True
    dtype: GradientType = "float32"
    options: Mapping[str, int] = field(default_factory=dict)

    def job(self, variation: float) -> PredictedJob:
        return cached_job(
            self.model, self.images_per_second, self.batch, self.dtype, variation, tuple(self.options.items())
        )

    def costs(self) -> DocumentedCosts:
        costs = load_network(self.network, self.ranks_per_node)
        kept = [one for one in costs.network.algorithm if self.trees or one.kind != "tree"]
        return replace(costs, network=costs.network.model_copy(update={"algorithm": kept}))


@cache
def cached_job(
    model: str,
    images_per_second: float,
    batch: int,
    dtype: GradientType,
    variation: float,
    options: tuple[tuple[str, int], ...],
) -> PredictedJob:
    return model_job(
        model,
        images_per_second=images_per_second,
        batch=batch,
        dtype=dtype,
        variation=Variation(variation, variation),
        **dict(options),
    )


PASCAL = "images/s of one GPU (Horovod pull request 44); PCI Express between GPUs; no trees in NCCL before 2.4"
HOROVOD_16 = "Horovod 2017, 4 nodes of 4 Pascal"
HOROVOD_512 = "Horovod 2018, nodes of 4 Pascal"
BASELINES = {"inception_v3": 134.4, "resnet101": 119.4, "vgg16": 130.9}


def horovod_2018(model: str, network: str, published: Mapping[int, float | Range]) -> Curve:
    source = HOROVOD_16 if max(published) == 16 else HOROVOD_512
    return Curve(source, model, BASELINES[model], 64, network, published, PASCAL, trees=False)


ROCE, TCP = "ethernet-25gbit-roce-nccl", "ethernet-25gbit-tcp-nccl"
CURVES = [
    horovod_2018("inception_v3", TCP, {16: 1990.7 / 16 / 134.4}),
    horovod_2018("resnet101", TCP, {16: 1685.1 / 16 / 119.4}),
    horovod_2018("vgg16", TCP, {16: 1308.7 / 16 / 130.9}),
    horovod_2018("inception_v3", ROCE, {16: 2022.6 / 16 / 134.4}),
    horovod_2018("resnet101", ROCE, {16: 1746.2 / 16 / 119.4}),
    horovod_2018("vgg16", ROCE, {16: 1787.4 / 16 / 130.9}),
    horovod_2018("inception_v3", TCP, {128: 0.88}),
    horovod_2018("resnet101", TCP, {128: 0.88}),
    horovod_2018("inception_v3", ROCE, {128: (0.90, 1.0), 512: 0.90}),
    horovod_2018("resnet101", ROCE, {128: (0.90, 1.0), 512: 0.90}),
    horovod_2018("vgg16", ROCE, {512: 0.68}),
    Curve(
        "Goyal et al. 2017, nodes of 8 P100",
        "resnet50",
        32 / 0.18,
        32,
        "ethernet-50gbit-gloo",
        {256: 0.90},
        "a step of 180 ms: the backward pass of 120 ms (paper) and half of it for the forward pass; Horovod's loop",
        reference_np=8,
    ),
    *(
        Curve(
            "NetAI 2020, 8 nodes of 8 V100",
            model,
            speed,
            32,
            "ethernet-100gbit-tcp-nccl",
            {64: (0.60, 0.76)},
            f"{origin}; batch of 32; TCP that fills the link",
        )
        for model, speed, origin in (
            ("resnet50", 367.0, "images/s of one GPU from NVIDIA's examples"),
            ("resnet101", 202.78, "images/s of one GPU from Horovod issue 416"),
            ("vgg16", 222.3, "images/s of one GPU: ResNet-101's, times the ratio on Pascal"),
        )
    ),
    Curve(
        "Horovod issue 779, nodes of 8 V100, 25 Gbit/s",
        "resnet50",
        872.0,
        256,
        TCP,
        {16: 0.919, 32: 0.855, 64: 0.845, 128: 0.804},
        "batch of 256; gradients in float32; NVLink as fast as PCI Express 3",
        ranks_per_node=8,
    ),
]


def efficiency(job: PredictedJob, settings: HorovodSettings, costs: DocumentedCosts, ranks: int) -> float:
    if ranks == 1:
        return 1.0
    simulation = simulate(job, settings, costs, ranks, chains=16, steps=24)
    return job.compute_seconds / float(simulation.step.mean())


def predicted_row(curve: Curve, ranks: int, costs: DocumentedCosts | None = None) -> PredictedRow:
    """The efficiency on `ranks` ranks with its band."""
    nominal = costs or curve.costs()
    job = curve.job(VARIATION)
    central = efficiency(job, curve.settings, nominal, ranks)
    slow = nominal.scaled(SLOWEST_LINK, LONGEST_START_UP)
    low = efficiency(curve.job(2 * VARIATION), curve.settings, slow, ranks)
    high = efficiency(curve.job(0.0), curve.settings, nominal, ranks)
    return PredictedRow(
        np=ranks,
        source="documented",
        step_seconds=job.compute_seconds / central,
        speed_up=central * ranks,
        exposed_seconds=job.compute_seconds / central - job.compute_seconds,
        scaling_efficiency=central,
        scaling_efficiency_low=min(low, central),
        scaling_efficiency_high=max(high, central),
    )


def percent(value: float | Range | None) -> str:
    if isinstance(value, tuple):
        return f"{percent(value[0])} to {percent(value[1])}"
    return "-" if value is None else f"{100 * value:.0f}"


def difference(predicted: float, published: float | Range) -> float:
    """Predicted minus published; 0 within a published range."""
    low, high = published if isinstance(published, tuple) else (published, published)
    return predicted - min(max(predicted, low), high)


def effective_bandwidth(curve: Curve, ranks: int, target: float) -> float | None:
    """Share of the documented bandwidth at which the prediction is `target`; None above all."""

    def excess(share: float) -> float:
        costs = curve.costs().scaled(share)
        reference = efficiency(curve.job(VARIATION), curve.settings, costs, curve.reference_np)
        return efficiency(curve.job(VARIATION), curve.settings, costs, ranks) / reference - target

    return float(brentq(excess, 0.01, 1, xtol=1e-3)) if excess(0.01) < 0 < excess(1) else None


def published_table(curves: Sequence[Curve]) -> Table:
    columns = ("curve", "model", "network", "GPUs", "published, %", "predicted, %", "band, %", "points", "needs, GB/s")
    table = make_table("Predicted from documented parameters", columns)
    differences, inside = [], 0
    for curve in curves:
        reference = predicted_row(curve, curve.reference_np)
        for ranks, published in curve.published.items():
            row = predicted_row(curve, ranks)
            value = row.scaling_efficiency / reference.scaling_efficiency
            bounds = (
                (row.scaling_efficiency_low or 0) / (reference.scaling_efficiency_low or 1),
                (row.scaling_efficiency_high or 0) / (reference.scaling_efficiency_high or 1),
            )
            differences.append(difference(value, published))
            lowest, highest = published if isinstance(published, tuple) else (published, published)
            inside += bounds[0] <= highest and lowest <= bounds[1]
            target = published[0] if isinstance(published, tuple) else published
            share = effective_bandwidth(curve, ranks, target)
            rate = curve.costs().network.between_nodes.bytes_per_second / 1e9
            table.add_row(
                curve.source,
                curve.model,
                curve.network,
                str(ranks),
                percent(published),
                percent(value),
                percent(bounds),
                f"{100 * differences[-1]:+.0f}",
                "-" if share is None else f"{share * rate:.2f} of {rate:.3g}",
            )
    errors = 100 * np.abs(differences)
    table.caption = (
        f"error: {errors.mean():.1f} points on average, {errors.max():.0f} at worst; "
        f"{inside} of {len(errors)} published figures lie in the band"
    )
    return table


def assumptions_table(curves: Sequence[Curve]) -> Table:
    table = make_table("Assumptions", ("curve", "model", "images/s of one GPU", "batch", "Horovod", "assumed"))
    for curve in curves:
        horovod = f"{1e3 * curve.settings.cycle_seconds:g} ms, {curve.settings.fusion_bytes // MIB} MiB"
        table.add_row(
            curve.source, curve.model, f"{curve.images_per_second:.1f}", str(curve.batch), horovod, curve.assumed
        )
    return table


S1 = Curve(
    "Study S1, nodes of 4 V100, EDR",
    "edsr",
    10.3,
    4,
    "infiniband-edr-mpi",
    {},
    "batch of 4; scale 2; a blocking MPI that takes its fastest algorithm",
    options={"scale": 2},
)
S1_AT_64 = {"lower end, 55 %": 0.55, "middle, 60 %": 0.60, "upper end, 65 %": 0.65}
S1_GAIN = 0.156  # of efficiency, tuned over default, at 512 GPUs


def s1_table() -> Table:
    """S1's default from an effective bandwidth fitted at 64 ranks, then what its gain needs."""
    columns = (
        "default at 64 (published range)",
        "fitted, GB/s",
        "128",
        "256",
        "512",
        "messages faster for +15.6 points, %",
    )
    table = make_table("Study S1: fitted at 64 ranks, predicted beyond, efficiency in %", columns)
    rate = S1.costs().network.between_nodes.bytes_per_second / 1e9
    for name, target in S1_AT_64.items():
        share = effective_bandwidth(S1, 64, target)
        if share is None:
            table.add_row(name, "none", "-", "-", "-", "-")
            continue
        curve = [
            efficiency(S1.job(VARIATION), S1.settings, S1.costs().scaled(share), ranks) for ranks in (128, 256, 512)
        ]
        tuned = effective_bandwidth(S1, 512, curve[-1] + S1_GAIN)
        less = "-" if tuned is None else percent(1 - share / tuned)
        table.add_row(name, f"{share * rate:.2f}", *map(percent, curve), less)
    vendor = [efficiency(S1.job(VARIATION), S1.settings, S1.costs(), ranks) for ranks in (128, 256, 512)]
    table.add_row("not fitted: documented bandwidth", f"{rate:.3g}", *map(percent, vendor), "-")
    table.caption = "published: default 55 to 65 % at scale; tuned +15.6 points, with up to 45 % less all-reduce time"
    return table


FITTED = [
    horovod_2018("vgg16", ROCE, {16: 1787.4 / 16 / 130.9, 512: 0.68}),
    horovod_2018("inception_v3", ROCE, {16: 2022.6 / 16 / 134.4, 512: 0.90}),
    horovod_2018("resnet101", ROCE, {16: 1746.2 / 16 / 119.4, 512: 0.90}),
    CURVES[-1],
]


def fitted_table(curves: Sequence[Curve]) -> Table:
    """Fit the effective bandwidth at the smallest np of each curve; predict the others."""
    columns = ("curve", "model", "fitted at", "GB/s", "GPUs", "published, %", "predicted, %", "points")
    table = make_table("Effective bandwidth fitted at 16 GPUs, predicted beyond", columns)
    for curve in curves:
        published = {ranks: value for ranks, value in curve.published.items() if not isinstance(value, tuple)}
        first = min(published)
        share = effective_bandwidth(curve, first, published.pop(first))
        costs = curve.costs().scaled(share or 1.0)
        rate = (share or 1.0) * costs.network.between_nodes.bytes_per_second / 1e9
        for ranks, value in published.items():
            found = efficiency(curve.job(VARIATION), curve.settings, costs, ranks)
            figures = (percent(value), percent(found), f"{100 * (found - value):+.0f}")
            table.add_row(curve.source, curve.model, str(first), f"{rate:.2f}", str(ranks), *figures)
    return table


CYCLES = (1e-3, 5e-3, 10e-3, 20e-3)


def cycle_table() -> Table:
    """512 GPUs again, with other cycle times: a longer cycle sends fewer, larger messages."""
    columns = ("model", "published, %", *(f"{1e3 * cycle:g} ms, %" for cycle in CYCLES), "with trees, 5 ms, %")
    table = make_table("Horovod 2018 on 512 GPUs, by cycle time", columns)
    for model, published in (("inception_v3", 0.90), ("resnet101", 0.90), ("vgg16", 0.68)):
        curve = horovod_2018(model, ROCE, {512: published})
        job = curve.job(VARIATION)
        found = [efficiency(job, replace(curve.settings, cycle_seconds=cycle), curve.costs(), 512) for cycle in CYCLES]
        trees = efficiency(job, curve.settings, replace(curve, trees=True).costs(), 512)
        table.add_row(model, percent(published), *map(percent, found), percent(trees))
    return table


NEGATIVE = Curve(
    "Horovod issue 871, nodes of 8 V100",
    "resnet50",
    750.0,
    128,
    TCP,
    {},
    "ResNet-50, batch of 128, 25 Gbit/s, NVLink as fast as PCI Express 3",
    ranks_per_node=8,
)
NEGATIVE_MEASURED = {8: 750.0, 16: 693.0, 32: 584.0}  # images/s of each GPU


def negative_table() -> tuple[Table, str]:
    rows = [predicted_row(NEGATIVE, ranks) for ranks in NEGATIVE_MEASURED]
    measured = {ranks: ranks * each for ranks, each in NEGATIVE_MEASURED.items()}
    answer = explained_by_communication(measured, rows)
    table = make_table(
        "A loss with another cause (Horovod issue 871)", ("GPUs", "measured, %", "predicted, %", "band, %", "verdict")
    )
    for point in answer.points:
        band = (point.predicted_efficiency_low, point.predicted_efficiency_high)
        figures = (percent(point.measured_efficiency), percent(point.predicted_efficiency), percent(band))
        table.add_row(str(point.np), *figures, point.verdict)
    return table, answer.sentence


def make_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=MARKDOWN, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    console = Console(width=220, highlight=False)
    console.print(published_table(CURVES))
    console.print(assumptions_table([*CURVES, S1, NEGATIVE]))
    console.print(fitted_table(FITTED))
    console.print(cycle_table())
    console.print(s1_table())
    table, sentence = negative_table()
    console.print(table)
    console.print(sentence)


if __name__ == "__main__":
    main()
