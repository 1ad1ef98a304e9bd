"""Tables of a study for the terminal, the page and the CSV file, and its progress bar."""

from collections.abc import Iterable
from math import exp, log
from typing import Self

from pydantic import BaseModel
from rich.table import Table

from hvscale.comm_tuning.collectives.decide.cost_model import Fit, wire_seconds
from hvscale.comm_tuning.collectives.decide.decide import MAX_LOSS_RATIO, EagerLimitRow, SizeRow
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, LIBRARY_AUTO, AlgorithmChoice, CollectiveCase
from hvscale.comm_tuning.collectives.document import TuneCollectivesDocument, TuningJob
from hvscale.comm_tuning.collectives.measure.request import RankReport, Sample, Trying
from hvscale.comm_tuning.collectives.tables.table import Operation, Rule
from hvscale.core.units import human_bytes, human_number, human_seconds
from hvscale.report.progress import ProgressBar
from hvscale.report.tables import TableModel, plain_table

# Fields of a choice that are shown with their names.
NAMED_FIELDS = ("depth", "radix", "channels")
UNDECIDED = " ?"
BY_SIZE = "By size"


class SizeCsvRow(BaseModel):
    """One row of the CSV file.

    `choice`: the table's. `wire_seconds`: the least time the link needs, None if it is unknown.
    """

    operation: Operation
    np: int
    ranks_per_node: int
    bytes: int
    choice: str
    library_seconds: float
    table_seconds: float
    best_seconds: float
    wire_seconds: float | None
    gain: float
    significant: bool
    undecided: bool


def rows(document: TuneCollectivesDocument) -> list[SizeCsvRow]:
    return [
        SizeCsvRow(
            **{**dict(row), "choice": str(row.choice)}, wire_seconds=wire_bound(document, case_of(row), row.bytes)
        )
        for row in size_rows(document)
    ]


def size_rows(document: TuneCollectivesDocument) -> list[SizeRow]:
    return document.decision.rows if document.decision else []


def case_of(row: SizeRow | Rule) -> CollectiveCase:
    return CollectiveCase(row.operation, row.np, row.ranks_per_node)


def wire_bound(document: TuneCollectivesDocument, case: CollectiveCase, size: int) -> float | None:
    """The least seconds that the links need; None within a node and for an unknown link."""
    if document.link_bits_per_second is None:
        return None
    nodes = -(-case.np // case.ranks_per_node)
    return wire_seconds(case.operation, nodes, size, document.link_bits_per_second / 8) or None


def describe_choice(choice: AlgorithmChoice) -> str:
    """Such as `chain 32 KiB, depth 8`.

    The bytes are the chunk of hvscale's broadcast, or the segment of a library's algorithm.
    """
    if choice == LIBRARY:
        return "library's own"
    if choice == LIBRARY_AUTO:
        return "library's auto"
    name = choice.algorithm if choice.library_algorithm is None else f"library's {choice.library_algorithm}"
    size = choice.chunk_bytes or choice.segment_bytes
    first = name if size is None else f"{name} {human_bytes(size)}"
    counts = [f"{field} {value}" for field in NAMED_FIELDS if (value := getattr(choice, field)) is not None]
    return ", ".join([first, *([choice.protocol] if choice.protocol else []), *counts])


def choice_of_rule(rule: Rule) -> AlgorithmChoice:
    return AlgorithmChoice.model_validate({name: getattr(rule, name) for name in ("algorithm", *rule.valid_fields)})


def describe_case(case: CollectiveCase) -> str:
    ranks = "1 rank" if case.ranks_per_node == 1 else f"{case.ranks_per_node} ranks"
    layout = f"{ranks} per node" if case.ranks_per_node < case.np else "one node"
    return f"{case.operation}, np {case.np}, {layout}"


def describe_sizes(rule: Rule) -> str:
    low, high = human_bytes(rule.bytes_min), None if rule.bytes_max is None else human_bytes(rule.bytes_max)
    if rule.bytes_min == 1:
        return "all" if high is None else f"up to {high}"
    return f"from {low}" if high is None else f"{low} to {high}"


def mean_gain(rows: Iterable[SizeRow]) -> float:
    """The geometric mean of the gains of at least one row."""
    logs = [log(row.gain) for row in rows]
    return exp(sum(logs) / len(logs))


def by_case(document: TuneCollectivesDocument) -> dict[CollectiveCase, list[SizeRow]]:
    found: dict[CollectiveCase, list[SizeRow]] = {}
    for row in size_rows(document):
        found.setdefault(case_of(row), []).append(row)
    return found


def verdict(document: TuneCollectivesDocument) -> str:
    """The result in one line."""
    decision = document.decision
    if decision is None:
        return "no decision yet: the baseline, the library with nothing set, was not measured"
    if (
        all(choice_of_rule(rule) == LIBRARY for rule in decision.table.rule)
        and decision.table.eager_limit_bytes is None
    ):
        return "keep the library's own choices: no other choice is significantly faster"
    return f"the table is {human_number(decision.gain)} times as fast as the library with nothing set: geometric mean over all sizes"


def tables(document: TuneCollectivesDocument) -> list[TableModel]:
    """All tables that are not empty.

    The first two columns contain text, the others numbers. A group without a name has no heading.
    """
    made = [rules_table(document), sizes_table(document), eager_limits_table(document), fits_table(document.fits)]
    return [shown for shown in made if shown.groups]


def terminal_tables(document: TuneCollectivesDocument) -> list[Table]:
    """The tables for a terminal of 80 columns; the table by size is split by case."""
    found = []
    for shown in tables(document):
        if shown.title == BY_SIZE:
            *others, (last, rows) = shown.groups.items()
            found += [terminal_table(f"{BY_SIZE}: {case}", shown.columns, {"": lines}, []) for case, lines in others]
            found.append(terminal_table(f"{BY_SIZE}: {last}", shown.columns, {"": rows}, shown.caption))
        else:
            found.append(terminal_table(shown.title, shown.columns, shown.groups, shown.caption))
    return found


def terminal_table(title: str, columns: list[str], groups: dict[str, list[list[str]]], caption: list[str]) -> Table:
    result = plain_table(title, "\n".join(caption) or None, *columns)
    result.columns[1].justify, result.columns[1].no_wrap = "left", False
    for heading, rows in groups.items():
        if heading:
            result.add_row(heading, style="bold")
        for first, *others in rows:
            result.add_row(f"  {first}" if heading else first, *others)
    return result


def rules_table(document: TuneCollectivesDocument) -> TableModel:
    groups: dict[str, list[list[str]]] = {}
    for rule in document.decision.table.rule if document.decision else []:
        lines = groups.setdefault(describe_case(case_of(rule)), [])
        lines.append([describe_sizes(rule), describe_choice(choice_of_rule(rule))])
    caption = []
    if document.decision and (limit := document.decision.table.eager_limit_bytes) is not None:
        caption.append(f"with an eager limit of {human_bytes(limit)} for the whole job")
    if any(describe_choice(LIBRARY_AUTO) == takes for lines in groups.values() for _, takes in lines):
        caption.append(
            "auto: the automatic choice of the library's tunable component; the library's own choice may use another component"
        )
    return TableModel(title="Algorithm by message size", columns=["size", "algorithm"], groups=groups, caption=caption)


def sizes_table(document: TuneCollectivesDocument) -> TableModel:
    """A group for each case, with the geometric mean as its last row."""
    cases = by_case(document)
    with_wire = any(wire_bound(document, case, 1) for case in cases)
    groups = {}
    for case, found in cases.items():
        last = ["all", "geometric mean", "", "", human_number(mean_gain(found)), *([""] if with_wire else [])]
        groups[describe_case(case)] = [*(cells(document, row, with_wire) for row in found), last]
    caption = ["gain: median time of the library with nothing set / median time of the table, on the slowest rank"]
    if with_wire:
        caption.append("wire: the table's time / the least time that the link needs")
    if any(row.undecided for row in size_rows(document)):
        caption.append(
            f"?: the best choice is more than {100 * (MAX_LOSS_RATIO - 1):.0f} % faster, but within the noise; more samples are needed"
        )
    wrong = sum(point.wrong > 0 for point in document.measurements.points)
    if wrong:
        caption.append(f"{wrong} choices with wrong results are left out")
    return TableModel(
        title=BY_SIZE,
        columns=["size", "algorithm", "library", "table", "gain", *(["wire"] if with_wire else [])],
        groups=groups,
        caption=caption,
    )


def cells(document: TuneCollectivesDocument, row: SizeRow, with_wire: bool) -> list[str]:
    """The cells of one row. `with_wire`: whether the table has the column."""
    bound = wire_bound(document, case_of(row), row.bytes)
    return [
        human_bytes(row.bytes),
        describe_choice(row.choice),
        human_seconds(row.library_seconds),
        human_seconds(row.table_seconds),
        (human_number(row.gain) if row.significant else "no difference") + UNDECIDED * row.undecided,
        *([human_number(row.table_seconds / bound) if bound else "-"] if with_wire else []),
    ]


def eager_limits_table(document: TuneCollectivesDocument) -> TableModel:
    """The eager limits and their gains."""
    rows = [eager_limit_cells(row) for row in document.decision.eager_limits] if document.decision else []
    return TableModel(
        title="Eager limits",
        columns=["eager limit", "gain", "worst gain", ""],
        groups={"": rows} if rows else {},
        caption=["gain: geometric mean over all sizes; worst gain: at the worst size"],
    )


def eager_limit_cells(row: EagerLimitRow) -> list[str]:
    return [
        describe_limit(row.eager_limit_bytes),
        human_number(row.gain),
        human_number(row.min_gain),
        "chosen" if row.chosen else "not measured for every case" if row.gain is None else "",
    ]


def describe_limit(eager_limit_bytes: int | None) -> str:
    return "library's own" if eager_limit_bytes is None else human_bytes(eager_limit_bytes)


def fits_table(fits: list[Fit]) -> TableModel:
    """The parameters of the cost model."""
    rows = [
        [
            fit.level,
            describe_limit(fit.eager_limit_bytes),
            human_or_zero(1e6 * fit.start_seconds),
            "-" if fit.bytes_per_second is None else human_number(fit.bytes_per_second / 1e9),
            human_or_zero(1e6 * fit.rendezvous_seconds),
            human_or_zero(fit.error_percent),
            str(fit.points),
        ]
        for fit in fits
    ]
    return TableModel(
        title="Cost model",
        columns=["level", "eager limit", "start us", "GB/s", "rendezvous us", "error %", "points"],
        groups={"": rows} if rows else {},
        caption=["a message of m bytes takes start + m / bandwidth, plus the rendezvous above the eager limit"],
    )


def human_or_zero(value: float) -> str:
    return human_number(value) if value else "0"


class CollectivesProgress(ProgressBar):
    """A progress bar over the sizes of all jobs.

    It appears with the first job, so that an earlier error is a single line.
    """

    def __init__(self) -> None:
        super().__init__(None, description="")
        self.sizes = 0  # of earlier jobs
        self.seen: set[int] = set()
        self.job_label = ""

    def __enter__(self) -> Self:
        return self

    def job(self, document: TuneCollectivesDocument, job: TuningJob, sizes: list[int]) -> None:
        self.progress.start()
        self.sizes += len(self.seen)
        self.seen = set()
        remaining = sum(
            len(document.sizes[one.operation]) for one in document.jobs if not one.finished and one is not job
        ) + len(sizes)
        eager = f", eager limit {human_bytes(job.eager_limit_bytes)}" if job.eager_limit_bytes else ""
        self.job_label = f"np {job.np}, {job.operation}{eager}"
        self.update(total=self.sizes + remaining, completed=self.sizes, description=self.job_label)

    def report(self, report: RankReport) -> None:
        if isinstance(report, Trying | Sample):
            self.seen.add(report.bytes)
            choice = report.choice if isinstance(report, Trying) else report.choices[0]
            self.update(
                description=f"{self.job_label}, {human_bytes(report.bytes)}: {choice}",
                completed=self.sizes + len(self.seen) - 1,
            )
