"""Untrusted names and output: no markup, no formulas, no terminal control sequences."""

import ast
import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

import hvscale
from hvscale.core.plain_rich import PlainConsole
from hvscale.core.terminal import printable, rank_line
from hvscale.core.units import (
    MIB,
    human_bytes,
    human_number,
    human_seconds,
    human_share,
    signed_percent_interval,
)
from hvscale.report.csv_file import csv_text
from hvscale.report.tables import plain_table

PACKAGE = Path(hvscale.__file__).parent
PLAIN_RICH = PACKAGE / "core/plain_rich.py"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_the_plain_console_and_column_are_used() -> None:
    """Other classes of rich parse text as markup. A Table or Text is parsed by the console that
    prints it.
    """
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [name.name for name in node.names] if isinstance(node, ast.ImportFrom | ast.Import) else []
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if module.partition(".")[0] == "rich" and file != PLAIN_RICH:
                allowed = {
                    "rich": {"box"},
                    "rich.cells": {"cell_len", "set_cell_size"},
                    "rich.console": {"JustifyMethod", "RenderableType"},
                    "rich.table": {"Table"},
                    "rich.text": {"Text"},
                }
                progress = {
                    "BarColumn",
                    "DownloadColumn",
                    "MofNCompleteColumn",
                    "Progress",
                    "ProgressColumn",
                    "SpinnerColumn",
                    "TimeElapsedColumn",
                    "TimeRemainingColumn",
                }
                wrong += [f"{file}: {name}" for name in names if name not in allowed.get(module, progress)]
            wrong += [f"{file}: import {name}" for name in names if not module and name.partition(".")[0] == "rich"]
            wrong += [
                f"{file}: from_markup" for _ in [0] if isinstance(node, ast.Attribute) and node.attr == "from_markup"
            ]
    assert wrong == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain \t text, é and 😀", "plain \t text, é and 😀"),
        ("\x1b[1;31mred\x1b[0m and \x1b[32mgreen", "\x1b[1;31mred\x1b[0m and \x1b[32mgreen\x1b[0m"),
        ("\x1b[2J\x1b[Hcleared\x1b[K\x1b[?25l\x1b[1A", "cleared"),
        (
            "title \x1b]0;mine\x07clipboard \x1b]52;c;cm0=\x1b\\link \x1b]8;;http://x\x07here\x1b]8;;\x07",
            "title clipboard link here",
        ),
        ("\x1bP1$r0m\x1b\\dcs \x1b_apc\x1b\\ \x1bc\x1b(0", "dcs  "),
        ("unfinished \x1b]52;c;cm0=", "unfinished \\x1b]52;c;cm0="),
        ("bell \x07 C1 \x9b2J back\x08 \x7f", "bell \\x07 C1 \\x9b2J back\\x08 \\x7f"),
    ],
)
def test_a_rank_s_output_keeps_only_colour_sequences(written: str, shown: str) -> None:
    assert rank_line(written, Terminal()) == shown
    assert rank_line(written, io.StringIO()) == written


@given(st.text(st.sampled_from("\x1b[]P\\m;0?52c\x07\x9b\x9c\x08\r axé\u202e"), max_size=40))
def test_no_output_controls_the_terminal(text: str) -> None:
    for shown in (printable(text, Terminal()), rank_line(text, Terminal())):
        without_colours = re.sub(r"\x1b\[[0-9;:]*m", "", shown)
        assert not set(without_colours) & set("\x1b\x07\x9b\x9c\x08\r\u202e")
    assert "\x1b" not in printable(text, Terminal())


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        *((name, f"'{name}") for name in ("=1+1", "+x", "-rf", "@SUM(A1)", "\tx", "\rx", "-1M")),
        *((same, str(same)) for same in (-1.5, -3, "-1.5", "+2e3", "np 2", "a=b", "", True)),
        (None, ""),
        (Path("=cmd"), "'=cmd"),
    ],
)
def test_names_are_not_formulas_and_numbers_do_not_change(value: object, cell: str) -> None:
    _, row = csv.reader(io.StringIO(csv_text(["name", "other"], [{"name": value, "other": 1}]), newline=""))
    assert row == [cell, "1"]


def test_values_just_below_1000_have_no_exponent() -> None:
    assert [human_seconds(value) for value in (0.9994, 0.9996, 9.996e-7)] == ["999 ms", "1000 ms", "1000 ns"]
    assert human_bytes(999.6 * MIB) == "1000 MiB"
    assert [human_number(value) for value in (999.4, 999.5, 999.96)] == ["999", "1000", "1000"]


def test_zeros_negative_numbers_and_half_a_percent_can_be_read() -> None:
    assert [human_number(value) for value in (None, 0, -1.5, -1e-4)] == ["-", "0", "-1.50", "-1.00e-04"]
    assert [human_share(share) for share in (0, 0.005, 0.0051)] == ["0", "<1", "1"]


def test_an_interval_of_percentages_beyond_a_factor_of_100_is_not_printed_as_digits() -> None:
    assert signed_percent_interval(-9900, 9900) == "-9900 to +9900"
    assert signed_percent_interval(-3.3e24, 100) == signed_percent_interval(-100, 9901) == "> factor 100"
    assert signed_percent_interval(None, None) == "-"


def test_tables_in_files_and_pipes_are_not_cut() -> None:
    """Where no stream is a terminal, as in a batch job."""
    program = (
        "from rich.table import Table; from hvscale.core.plain_rich import PlainConsole;"
        "table = Table(*'abcde'); table.add_row(*(name * 30 for name in 'abcde')); PlainConsole().print(table)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    assert all(name * 30 in done.stdout for name in "abcde"), done.stderr


@given(st.lists(st.integers(1, 12), min_size=2, max_size=8), st.integers(30, 120))
def test_a_narrow_terminal_shows_the_first_columns_whole_and_names_the_others(sizes: list[int], width: int) -> None:
    names = [f"n{number}" for number in range(len(sizes))]
    values = [f"{number}" * size for number, size in enumerate(sizes)]
    table = plain_table("title", "caption", *names)
    table.add_row(*values)
    lines = shown_lines(table, width)
    needed = [max(map(len, pair)) for pair in zip(names, values, strict=True)]
    fitting = [number for number in range(1, len(sizes) + 1) if sum(needed[:number]) + number - 1 <= width]
    count = max(2, len(fitting))
    assert lines[1].split() == names[:count]
    assert values[:count] in [line.split() for line in lines]
    _, wider, remark = " ".join(lines).partition("a wider terminal also shows: ")
    assert (bool(wider), remark) == (count < len(names), ", ".join(names[count:]))


def test_a_column_of_text_is_wrapped_where_it_would_not_fit() -> None:
    table = plain_table(None, None, "knob", "why")
    table.columns[1].no_wrap = False
    table.add_row("cycle_time", "the job has no gradients")
    lines = shown_lines(table, 20)
    assert " ".join(" ".join(lines).split()).endswith("cycle_time the job has no gradients")
    assert max(map(len, lines)) <= 20


def test_names_that_may_be_folded_leave_room_for_numbers() -> None:
    table = plain_table(None, None, "image", "PSNR", "SSIM")
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    name = "a" * 70 + ".png"
    table.add_row(name, "29.93", "0.8712")
    lines = shown_lines(table, 40)
    assert "29.93 0.8712" in lines[2]
    assert "".join(line.split()[0] for line in lines[2:]) == name


def shown_lines(table: Table, width: int) -> list[str]:
    console, shown = PlainConsole(), io.StringIO()
    console.file, console.width = shown, width
    console.print(table)
    return [line.rstrip() for line in shown.getvalue().splitlines()]
