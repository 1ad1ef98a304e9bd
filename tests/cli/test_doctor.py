"""`hvscale doctor`: its table and its document, with checks of the test's own."""

import io
import sys

import pytest

from hvscale.cli import doctor
from hvscale.cli.commands import doctor as command
from hvscale.cli.doctor import Check
from hvscale.core.plain_rich import PlainConsole

LONG = "/a/very/long/path" * 8


def test_a_good_check_needs_no_fix() -> None:
    assert Check(name="CMA", good=True, found="works", fix="do this").fix == ""
    assert Check(name="CMA", good=False, found="fails", fix="do this").fix == "do this"


def test_long_paths_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvscale.cli.doctor.examine", lambda: [Check(name="MPI", good=False, found=LONG, fix="x")])
    console = PlainConsole()
    console.file, console.width = io.StringIO(), 60
    monkeypatch.setattr(command, "results", lambda: console)
    command.doctor()
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 60
    assert LONG in "".join("".join(lines).split())


def test_a_check_that_fails_is_a_bad_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # its import then fails
    torch = doctor.examined(doctor.torch)
    assert (torch.name, torch.good, torch.fix) == ("PyTorch", False, "run `make setup`")
    assert "cannot be imported" in torch.found
    cores = doctor.examined(doctor.cores)
    assert cores.good
    assert "PyTorch" not in cores.found

    def compiler() -> Check:
        raise OSError(8, "Exec format error")

    assert "Exec format error" in doctor.examined(compiler).found
