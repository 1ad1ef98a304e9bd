"""`hvscale --help`, and the error for an unknown command."""

import re

import pytest

from hvscale.cli.main import PANELS
from tests.conftest import Run


def test_help_groups_the_commands(hvscale: Run) -> None:
    text = hvscale("--help", COLUMNS="80").stdout
    places = [text.index(f" {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    ends = [*places[1:], len(text)]
    for (panel, commands), begin, end in zip(PANELS.items(), places, ends, strict=True):
        shown = re.findall(r"^│ ([a-z-]+)", text[begin:end], re.MULTILINE)
        assert shown == list(commands), panel


@pytest.mark.parametrize("command", ["train", "launch", "bench allreduce"])
def test_a_narrow_help_has_whole_names_of_options(hvscale: Run, command: str) -> None:
    narrow, wide = (hvscale(*command.split(), "--help", COLUMNS=width).stdout for width in ("80", "250"))
    assert max(map(len, narrow.splitlines())) <= 80
    names, expected = ({*re.findall(r"(?<= )--[a-z-]+(?=[ ,])", text)} for text in (narrow, wide))
    assert len(expected) > 20
    assert expected <= names
    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow
    usage_and_arguments = narrow.partition("─ Options")[0]
    assert not re.search(r"[{<]|\[\[", usage_and_arguments), usage_and_arguments


def test_an_unknown_command_suggests_the_nearest(hvscale: Run) -> None:
    for wrong, right in (("lunch", "launch"), ("tune-colectives", "tune-collectives"), ("breakdwon", "breakdown")):
        done = hvscale(wrong)
        assert done.returncode == 2
        assert f"'{right}'" in done.stderr
        assert done.stderr.count("\n") == 1
