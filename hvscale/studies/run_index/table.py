"""The index as a table in the terminal and as a CSV file."""

import shlex
from pathlib import Path

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import JustifyMethod
from rich.table import Table

from hvscale.core.plain_rich import PlainConsole
from hvscale.core.units import human_age, human_bytes, human_number, human_share
from hvscale.report.csv_file import write_csv
from hvscale.studies.run_index.entry import RUN, RunEntry
from hvscale.studies.run_index.index import RunIndex

COLUMNS = ("name", "command", "np", "placement", "state", "images/s", "comm. %", "age", "size")
LEFT = ("name", "command", "placement", "state")
NARROWEST = 16  # characters of a name or a command
GAP = 3  # characters between columns
# Left out of a terminal that is too narrow, in this order.
LEFT_OUT_FIRST = ("placement", "size", "age", "comm. %", "images/s", "np", "command")
PYTHONS = ("python", "python3")


class RunCsvRow(RunEntry):
    """An entry with its command as one text."""

    command: str  # type: ignore[assignment]


def print_entries(console: PlainConsole, entries: list[RunEntry]) -> None:
    """Print the table.

    On a terminal, commands are cut to what its width leaves them, and columns that do not fit are
    left out.
    """
    rows = [dict(zip(COLUMNS, cells(entry), strict=True)) for entry in entries]
    widths = {name: max(map(cell_len, [name, *(row[name] for row in rows)])) for name in COLUMNS}
    if not console.is_terminal:
        console.width = needed_width(widths)
    left_out = [name for name in LEFT_OUT_FIRST if leave_out(name, widths, console.width)]
    needed = needed_width(widths)
    # A long name is folded, because it is needed whole.
    for narrow in ("command", "name"):
        if narrow in widths:
            excess = max(0, needed - console.width)
            narrower = max(widths[narrow] - excess, min(widths[narrow], NARROWEST))
            needed, widths[narrow] = needed - widths[narrow] + narrower, narrower
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, width in widths.items():
        justify: JustifyMethod = "left" if name in LEFT else "right"
        table.add_column(name, justify=justify, overflow="fold", width=width, no_wrap=name != "name")
    for row in rows:
        if cell_len(row["command"]) > (width := widths.get("command", 1)):
            row["command"] = set_cell_size(row["command"], width - 1).rstrip() + "\N{HORIZONTAL ELLIPSIS}"
        table.add_row(*(row[name] for name in widths))
    console.print(table)
    if left_out:
        console.print(f"a wider terminal also shows: {', '.join(left_out)}", style="dim")


def needed_width(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def leave_out(name: str, widths: dict[str, int], width: int) -> bool:
    """Remove a column of `widths` if they do not fit even with short names and commands."""
    shortest = {one: min(size, NARROWEST) if one in ("name", "command") else size for one, size in widths.items()}
    if needed_width(shortest) <= width:
        return False
    del widths[name]
    return True


def cells(entry: RunEntry) -> list[str]:
    """The texts of a row, in the order of COLUMNS."""
    return [
        entry.name,
        short_command(entry),
        human_np(entry),
        entry.placement or "-",
        entry.state,
        human_number(entry.images_per_second),
        "-" if entry.communication_share is None else human_share(entry.communication_share),
        human_age(entry.age_seconds),
        human_bytes(entry.bytes),
    ]


def short_command(entry: RunEntry) -> str:
    """The command with its program, or Python's script, by its name, after the kind of a study."""
    words = list(entry.command)
    if words[1:] and Path(words[0]).name in PYTHONS:
        del words[0]
    if words and not words[0].startswith("-"):
        words[0] = Path(words[0]).name
    text = shlex.join(words)
    if entry.kind == RUN:
        return text or "-"
    return f"{entry.kind}: {text}" if text else entry.kind


def human_np(entry: RunEntry) -> str:
    if entry.np is None:
        return "-"
    return str(entry.np) if entry.np_min == entry.np else f"{entry.np_min}-{entry.np}"


def write_entries(index: RunIndex, path: Path) -> None:
    """Write the entries to a CSV file. Raises RequestError if it cannot be written."""
    rows = [
        RunCsvRow.model_construct(**{**dict(entry), "command": shlex.join(entry.command)}) for entry in index.entries
    ]
    write_csv(path, rows, list(RunCsvRow.model_fields))
