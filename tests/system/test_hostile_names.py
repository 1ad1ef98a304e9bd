"""Names that look like markup to rich, formulas to spreadsheets or commands to terminals."""

import csv
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.conftest import PROGRAMS, Run

# Contains an unclosed tag, a closing tag that does not match, one that closes nothing, and an emoji
# code.
NAME = "[bold]x[/blue] [/] :smile:"
MESSAGES = "from mpi4py import MPI; import numpy; MPI.COMM_WORLD.Allreduce(numpy.ones(9), numpy.ones(9))"
CONTROL_SEQUENCES = "\x1b]52;c;cm0=\x07\x1b[2J"


def test_names_are_shown_unchanged(hvscale: Run, tmp_path: Path) -> None:
    name, run = NAME, f"{NAME} run"
    (tmp_path / f"{name} data").mkdir(parents=True)
    (tmp_path / f"{name} data" / "=1+1[red].png").write_text("no image")
    last = Path(run).name
    calls: list[tuple[tuple[str, ...], int, str]] = [
        (("profile", "--run", run, "--csv", "table.csv", "--", "python", "-c", MESSAGES), 0, f"{last}: communication"),
        (("breakdown", run, "--per-rank"), 0, f"{last}: communication"),
        (("compare", run, run), 0, last),
        (("report", run, "--output", f"{name}.html"), 0, f"report: {name}.html"),
        (("breakdown", f"{name} missing"), 2, f"{name} missing is not a folder"),
        (("data", "check", f"{name} data", "--csv", "problems.csv"), 2, "=1+1[red].png"),
        (("models", name), 2, name),
        (("knobs", name), 2, name),
        (("launch", "--run", f"{name} failed", "--", "python", "-c", f"raise SystemExit({name!r})"), 3, name),
        (("launch", "--mpi", name, "--", "true"), 2, name),
        (("launch", "--env", name, "--", "true"), 2, name),
        (("tune", "-np", "2", "--run", run, "--", "true"), 2, run),
        (("no" + name,), 2, name),
    ]
    for call, status, message in calls:
        done = hvscale(*call)
        assert (call, done.returncode) == (call, status), done.stderr
        assert message in " ".join((done.stdout + done.stderr).split()), call
        assert "Traceback" not in done.stderr
    files = [row["file"] for row in csv.DictReader((tmp_path / "problems.csv").read_text().splitlines())]
    assert files == [f"{name} data/=1+1[red].png"]


def on_a_terminal(tmp_path: Path, *arguments: object) -> str:
    """Run the command with a terminal as stdin, stdout and stderr; return all that it writes."""
    our_end, its_end = pty.openpty()
    command = [str(PROGRAMS / "hvscale"), *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=its_end, stdout=its_end, stderr=its_end, env={**os.environ, "TERM": "xterm"}
    ):
        os.close(its_end)
        written = b""
        while True:
            try:
                new = os.read(our_end, 65536)
            except OSError:  # Linux returns EIO when the last process has closed the terminal
                break
            if not new:
                break
            written += new
    os.close(our_end)
    return written.decode(errors="replace")


def test_output_and_names_cannot_control_the_terminal(program: Callable[[str], Path], tmp_path: Path) -> None:
    text = f"\x1b[31mred {CONTROL_SEQUENCES}words"
    script = program(f"import sys; print({text!r}); sys.exit({('end ' + text)!r})")
    shown = on_a_terminal(tmp_path, "launch", "--run", f"{CONTROL_SEQUENCES}run", "--", "python", script)
    assert "[0] \x1b[31mred words\x1b[0m" in shown
    assert "    \x1b[31mred words\x1b[0m" in shown  # in the last lines of the failed rank
    assert "\\x1b]52;c;cm0=\\x07\\x1b[2Jrun" in shown
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{CONTROL_SEQUENCES}.png").write_text("no image")
    checked = on_a_terminal(tmp_path, "data", "check", "data")
    assert "\\x1b]52;c;cm0=\\x07\\x1b[2J.png" in "".join(checked.split())
    for one in (shown, checked):
        assert "\x1b]" not in one
        assert "\x1b[2J" not in one


def test_redirected_output_is_unchanged(hvscale: Run, program: Callable[[str], Path]) -> None:
    script = program(f"print({CONTROL_SEQUENCES + 'words'!r})")
    assert hvscale("launch", "--", "python", script).stdout == f"[0] {CONTROL_SEQUENCES}words\n"
