"""All numeric options have finite bounds; an invalid number gives a one-line error and status 2."""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from hvscale.bench.applications import APPLICATIONS, parse_sizes
from hvscale.bench.collectives.elements import DTYPES
from hvscale.bench.collectives.request import Schedule
from hvscale.bench.collectives.sizes import named_sizes, parse_size, series
from hvscale.cli import main
from hvscale.comm_tuning.collectives.options import parse_nps
from hvscale.core.errors import RequestError
from hvscale.core.numbers import parse_ranks
from hvscale.launch.placement_options import PlacementOptions
from hvscale.launch.placements._link_shaping import bits_per_second
from hvscale.launch.placements.docker import shm_bytes
from hvscale.launch.placements.ssh import parse_hosts
from hvscale.profiling.analyze.grouping import parse_bins
from hvscale.trainer.data.sources import parse_range

INVALID = ("nan", "inf", "-inf", "1e400", "", "two", "3;5", "9" * 5000, "-1e30")
BORDERLINE = ("-1", "0", "1e3", "0.5", "1_0", "٣", str(10**20), str(2**63))


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that is not a group, with its path."""
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from commands(command.get_command(None, name), (*path, name))


def numeric_options() -> list[tuple[tuple[str, ...], Any, Any]]:
    found = []
    for path, command in commands(get_command(main.app)):
        for option in command.params:
            kind = option.type_descriptor.annotation if hasattr(option, "type_descriptor") else None
            if isinstance(kind, type) and issubclass(kind, int | float) and not issubclass(kind, bool):
                found.append((path, command, option))
    return found


OPTIONS = numeric_options()


def arguments(command: Any, option: Any, value: str) -> list[str]:
    """Return the option with the value, and placeholders for required arguments and options."""
    required = [one for one in command.params if one.required and one is not option]
    placeholders = ["word" for one in required if one.param_type_name == "argument"]
    others = [word for one in required if one.param_type_name == "option" for word in (one.opts[0], "1")]
    return [f"{option.opts[-1]}={value}", *others, *placeholders]


def test_every_number_has_finite_bounds() -> None:
    assert len(OPTIONS) > 140
    unbounded = [(path, option.opts[0]) for path, _, option in OPTIONS if option.min is None or option.max is None]
    assert unbounded == []
    assert all(math.isfinite(option.min) and math.isfinite(option.max) for _, _, option in OPTIONS)
    outside = [
        (path, option.opts[0])
        for path, _, option in OPTIONS
        if option.default is not None and not option.min <= option.default <= option.max
    ]
    assert outside == []


def test_numbers_outside_the_bounds_are_rejected() -> None:
    accepted, wrong = [], []
    for path, command, option in OPTIONS:
        for value in (*INVALID, *BORDERLINE):
            try:
                context = command.make_context(path[-1], arguments(command, option, value))
            except typer.TyperException as error:
                if len(error.format_message().splitlines()) != 1 or error.exit_code != 2:
                    wrong.append((path, option.opts[-1], value, error.format_message()))
                continue
            found = context.params[option.name]
            accepted.append((option.opts[-1], value, found))
            if value in INVALID or not option.min <= found <= option.max:
                wrong.append((path, option.opts[-1], value, found))
    assert wrong == []
    # Valid numbers are accepted, so the loop has tested something.
    assert ("--stall-timeout", "0", 0) in accepted
    assert ("--seconds", "1e3", 1000) in accepted


def test_an_invalid_number_gives_a_one_line_error_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, command, option in {
        option.opts[-1]: (path, command, option) for path, command, option in OPTIONS
    }.values():
        monkeypatch.setattr(sys, "argv", ["hvscale", *path, *arguments(command, option, "nan")])
        with pytest.raises(SystemExit) as ended:
            main.main()
        shown = capsys.readouterr()
        assert ended.value.code == 2, path
        assert len(shown.err.splitlines()) == 1
        assert option.opts[-1] in shown.err
        assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


PARSERS: dict[str, Callable[[str], object]] = {
    "--min-bytes": lambda text: parse_size("--min-bytes", text),
    "--sizes": lambda text: named_sizes(text, DTYPES["float32"]),
    "--step-bytes": lambda text: series("1", "1K", None, text),
    "--bins": parse_bins,
    "--iterations": lambda text: Schedule.parse("--iterations", text, minimum=1),
    "--iterations ": lambda text: Schedule.parse("--iterations", f"{text}:1,1", minimum=1),
    "--link": lambda text: bits_per_second(f"{text}gbit"),
    "--shm-size": lambda text: shm_bytes(f"{text}g"),
    "--np": parse_ranks,
    "--nps": lambda text: parse_nps(text, 8),
    "--size": lambda text: parse_sizes(APPLICATIONS.get("stencil"), [f"x={text}"]),
    "--hosts": lambda text: parse_hosts(PlacementOptions(hosts=f"a:{text}")),
    "--images": lambda text: parse_range("--images", text),
}


@pytest.mark.parametrize("name", PARSERS)
def test_invalid_sizes_rates_and_lists_are_rejected(name: str) -> None:
    for value in (*INVALID, "-1", "1e3", "²", f"{2**63}", f"{10**20}", f"{2**34}G"):
        with pytest.raises(RequestError, match=name.strip()) as error:
            PARSERS[name](value)
        assert len(str(error.value).splitlines()) == 1


def test_a_series_of_too_many_sizes_is_rejected() -> None:
    for factor, step in ((1.00001, None), (None, "1")):
        with pytest.raises(RequestError, match="more than 10000 message sizes"):
            series("4", "256M", factor, step)
