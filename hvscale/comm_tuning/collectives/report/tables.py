"""A study of collectives for people: its tables, for the terminal and for the page, and its sizes as rows of a CSV file."""

from collections.abc import Iterable
from math import exp, log

from pydantic import BaseModel
from rich.table import Table

from hvscale.comm_tuning.collectives.decide.cost_model import Fit, wire_seconds
from hvscale.comm_tuning.collectives.decide.decide import LOSS, EagerLimitRow, SizeRow
from hvscale.comm_tuning.collectives.decide.measurements import LIBRARY, TOLD, Choice, Place
from hvscale.comm_tuning.collectives.document import TuneCollectives
from hvscale.comm_tuning.collectives.tables.table import Operation, Rule
from hvscale.core.units import human_bytes, human_number, human_seconds
from hvscale.report.tables import TableModel, plain_table

# A number of bytes is a chunk's or a segment's; the others have their names.
COUNTED = ("depth", "radix", "channels")
UNDECIDED = " ?"
BY_SIZE = "By size"


class Row(BaseModel):
    """One line of the CSV file. `choice`: what the table takes, in a rule's words; `wire_seconds`: at least, None where the link is not known."""

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
    apart: bool
    undecided: bool


def rows(document: TuneCollectives) -> list[Row]:
    return [
        Row(**{**dict(row), "choice": str(row.choice)}, wire_seconds=wire(document, place_of(row), row.bytes))
        for row in size_rows(document)
    ]


def size_rows(document: TuneCollectives) -> list[SizeRow]:
    return document.decision.rows if document.decision else []


def place_of(row: SizeRow | Rule) -> Place:
    return Place(row.operation, row.np, row.ranks_per_node)


def wire(document: TuneCollectives, place: Place, size: int) -> float | None:
    """Seconds, at least. None within a node, and where the link is not known."""
    if document.link is None:
        return None
    nodes = -(-place.np // place.ranks_per_node)
    return wire_seconds(place.operation, nodes, size, document.link / 8) or None


def in_words(choice: Choice) -> str:
    """`chain 32 KiB, depth 8`: the bytes are a chunk's of ours, and a segment's of the library's."""
    if choice == LIBRARY:
        return "library's own"
    if choice == TOLD:
        return "library's auto"
    name = choice.algorithm if choice.library_algorithm is None else f"library's {choice.library_algorithm}"
    size = choice.chunk_bytes or choice.segment_bytes
    first = name if size is None else f"{name} {human_bytes(size)}"
    counts = [f"{field} {value}" for field in COUNTED if (value := getattr(choice, field)) is not None]
    return ", ".join([first, *([choice.protocol] if choice.protocol else []), *counts])


def of_rule(rule: Rule) -> Choice:
    return Choice.model_validate({name: getattr(rule, name) for name in ("algorithm", *rule.own_fields)})


def place_in_words(place: Place) -> str:
    nodes = f"{place.ranks_per_node} on a node" if place.ranks_per_node < place.np else "one node"
    return f"{place.operation}, np {place.np}, {nodes}"


def sizes_in_words(rule: Rule) -> str:
    low, high = human_bytes(rule.bytes_min), None if rule.bytes_max is None else human_bytes(rule.bytes_max)
    if rule.bytes_min == 1:
        return "all" if high is None else f"up to {high}"
    return f"from {low}" if high is None else f"{low} to {high}"


def mean_gain(rows: Iterable[SizeRow]) -> float:
    """Geometric, of one row at least."""
    logs = [log(row.gain) for row in rows]
    return exp(sum(logs) / len(logs))


def by_place(document: TuneCollectives) -> dict[Place, list[SizeRow]]:
    found: dict[Place, list[SizeRow]] = {}
    for row in size_rows(document):
        found.setdefault(place_of(row), []).append(row)
    return found


def verdict(document: TuneCollectives) -> str:
    """What came of it, in a line."""
    decision = document.decision
    if decision is None:
        return "nothing is decided: the library with nothing set was measured nowhere"
    if all(of_rule(rule) == LIBRARY for rule in decision.table.rule) and decision.table.eager_limit_bytes is None:
        return "leave it to the library: nothing measured is faster beyond the noise"
    return f"the table is {human_number(decision.gain)} times as fast as the library with nothing set: geometric mean over all sizes"


def tables(document: TuneCollectives) -> list[TableModel]:
    """Those that there is something in. Words stand in the first two columns, figures in the others; a group without a name has no heading."""
    made = [rules_shown(document), sizes_shown(document), eager_limits_shown(document), fits_shown(document.fits)]
    return [shown for shown in made if shown.groups]


def terminal_tables(document: TuneCollectives) -> list[Table]:
    """About 80 columns wide; that by size is one for each place."""
    found = []
    for shown in tables(document):
        if shown.title == BY_SIZE:
            *others, (last, rows) = shown.groups.items()
            found += [terminal_table(f"{BY_SIZE}: {place}", shown.columns, {"": lines}, []) for place, lines in others]
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


def rules_shown(document: TuneCollectives) -> TableModel:
    groups: dict[str, list[list[str]]] = {}
    for rule in document.decision.table.rule if document.decision else []:
        lines = groups.setdefault(place_in_words(place_of(rule)), [])
        lines.append([sizes_in_words(rule), in_words(of_rule(rule))])
    caption = []
    if document.decision and (limit := document.decision.table.eager_limit_bytes) is not None:
        caption.append(f"with an eager limit of {human_bytes(limit)} for all of the job")
    if any(in_words(TOLD) == takes for lines in groups.values() for _, takes in lines):
        caption.append(
            "auto: what the library's tunable part chooses by itself; its own choice need not be that part's"
        )
    return TableModel(
        title="Which algorithm for which message", columns=["size", "takes"], groups=groups, caption=caption
    )


def sizes_shown(document: TuneCollectives) -> TableModel:
    """A group for each place, with its geometric mean below."""
    places = by_place(document)
    known = any(wire(document, place, 1) for place in places)
    groups = {}
    for place, found in places.items():
        last = ["all", "geometric mean", "", "", human_number(mean_gain(found)), *([""] if known else [])]
        groups[place_in_words(place)] = [*(cells(document, row, known) for row in found), last]
    caption = ["gain: the library's time with nothing set, divided by the table's; medians of the slowest rank"]
    if known:
        caption.append("wire: the table's time, in times of what the link needs at least")
    if any(row.undecided for row in size_rows(document)):
        caption.append(
            f"?: the best measured is more than {100 * (LOSS - 1):.0f} % faster, but not beyond the noise; more samples tell"
        )
    wrong = sum(point.wrong > 0 for point in document.measurements.points)
    if wrong:
        caption.append(f"left out: {wrong} measured choices with wrong results")
    return TableModel(
        title=BY_SIZE,
        columns=["size", "takes", "library", "table", "gain", *(["wire"] if known else [])],
        groups=groups,
        caption=caption,
    )


def cells(document: TuneCollectives, row: SizeRow, known: bool) -> list[str]:
    """`known`: whether there is a column for the wire."""
    bound = wire(document, place_of(row), row.bytes)
    return [
        human_bytes(row.bytes),
        in_words(row.choice),
        human_seconds(row.library_seconds),
        human_seconds(row.table_seconds),
        (human_number(row.gain) if row.apart else "no difference") + UNDECIDED * row.undecided,
        *([human_number(row.table_seconds / bound) if bound else "-"] if known else []),
    ]


def eager_limits_shown(document: TuneCollectives) -> TableModel:
    """What holds for all of a job, and what it comes to."""
    rows = [eager_limit_cells(row) for row in document.decision.eager_limits] if document.decision else []
    return TableModel(
        title="Eager limits",
        columns=["eager limit", "gain", "least gain", ""],
        groups={"": rows} if rows else {},
        caption=["gain: geometric mean over all sizes; least gain: that of the worst size"],
    )


def eager_limit_cells(row: EagerLimitRow) -> list[str]:
    return [
        limit_in_words(row.eager_limit_bytes),
        human_number(row.gain),
        human_number(row.least_gain),
        "taken" if row.taken else "not measured everywhere" if row.gain is None else "",
    ]


def limit_in_words(eager_limit_bytes: int | None) -> str:
    return "its own" if eager_limit_bytes is None else human_bytes(eager_limit_bytes)


def fits_shown(fits: list[Fit]) -> TableModel:
    """The cost model's figures."""
    rows = [
        [
            fit.level,
            limit_in_words(fit.eager_limit_bytes),
            human_or_zero(1e6 * fit.start_seconds),
            "-" if fit.bytes_per_second is None else human_number(fit.bytes_per_second / 1e9),
            human_or_zero(1e6 * fit.rendezvous_seconds),
            human_or_zero(fit.error_percent),
            str(fit.points),
        ]
        for fit in fits
    ]
    return TableModel(
        title="The model beside it",
        columns=["level", "eager limit", "start us", "GB/s", "rendezvous us", "error %", "points"],
        groups={"": rows} if rows else {},
        caption=["a message of m bytes takes start + m / bandwidth, and above the eager limit the rendezvous more"],
    )


def human_or_zero(value: float) -> str:
    return human_number(value) if value else "0"
