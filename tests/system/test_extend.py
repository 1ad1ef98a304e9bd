"""docs/how-to/extend.md: each example works as a plugin, and its command succeeds."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, Run, run_json

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"
EXAMPLE = re.compile(r'^```python title="(hvscale_plugins/[^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ hvscale (.*)$", re.MULTILINE)


@pytest.fixture
def plugins(tmp_path: Path) -> str:
    """Write every example of the page to a folder; return the folder."""
    examples = EXAMPLE.findall(PAGE.read_text())
    assert [Path(path).stem for path, _ in examples] == ["site_mpi", "background", "scan", "tbb"]
    for path, text in examples:
        file = tmp_path / "site" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(tmp_path / "site")


def commands() -> list[str]:
    return COMMAND.findall(PAGE.read_text())


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("launch -np 2 --mpi site-mpi", "hello"),
        ("launch -np 2 --placement background", "19"),
        ("bench scan", "scan"),
        ("knobs", "TBB_NUM_THREADS"),
    ],
)
def test_commands_of_the_page_succeed(hvscale: Run, plugins: str, prefix: str, expected: str) -> None:
    [command] = [command for command in commands() if command.startswith(prefix)]
    done = hvscale(*shlex.split(command), PYTHONPATH=plugins)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert len(commands()) == 4


def test_a_plugin_flavour_starts_ranks(hvscale: Run, plugins: str, tmp_path: Path) -> None:
    program = "import os, horovod.torch as hvd; hvd.init(); print(hvd.rank(), os.environ['OMPI_MCA_pml'])"
    words = ("launch", "-np", 2, "--mpi", "site-mpi", "--run", "job", "--", "python", "-c", program)
    done = hvscale(*words, PYTHONPATH=plugins, SITE_MPI=str(PROGRAMS.parent))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 0 ob1", "[1] 1 ob1"]
    record = run_json(tmp_path / "job")
    assert (record["library"]["flavour"], record["library"]["transport"]) == ("site-mpi", "ob1")
    assert [reported["flavour"] for reported in record["libraries_reported"]] == ["site-mpi"]
    assert "ran on" not in done.stderr
    shown = hvscale("launch", "--help", PYTHONPATH=plugins).stdout
    assert "site-mpi" in shown


def test_a_plugin_placement_makes_nodes(hvscale: Run, plugins: str, tmp_path: Path) -> None:
    words = ("launch", "-np", 2, "--placement", "background", "--run", "job", "--", "nice")
    done = hvscale(*words, PYTHONPATH=plugins)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 19", "[1] 19"]
    record = run_json(tmp_path / "job")
    assert (record["placement"], record["placement_settings"]) == ("background", {"nice": 19})
    rejected = hvscale("launch", "--placement", "background", "--link", "1gbit", "--", "true", PYTHONPATH=plugins)
    assert rejected.returncode == 2
    assert "--link does not apply to --placement background" in rejected.stderr


def test_a_plugin_collective_is_measured_and_checked(hvscale: Run, plugins: str) -> None:
    words = ("bench", "scan", "-np", 2, "-e", "4K", "-n", 5, "--json", "--run", "job")
    done = hvscale(*words, PYTHONPATH=plugins)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["in_place"] for row in rows} == {True, False}
    assert all(row["wrong"] == 0 for row in rows)


def test_a_plugin_knob_library_is_listed(hvscale: Run, plugins: str) -> None:
    done = hvscale("knobs", "--mpi", "tbb", PYTHONPATH=plugins)
    assert done.returncode == 0, done.stderr
    assert "TBB_NUM_THREADS" in done.stdout


def test_without_the_plugin_similar_names_are_suggested(hvscale: Run) -> None:
    done = hvscale("launch", "-np", 2, "--mpi", "openmp", "--", "true")
    assert (done.returncode, "did you mean openmpi?" in done.stderr) == (2, True)


def test_a_broken_plugin_is_not_reported_as_missing(hvscale: Run, tmp_path: Path) -> None:
    file = tmp_path / "site" / "hvscale_plugins" / "launch" / "flavours" / "broken.py"
    file.parent.mkdir(parents=True)
    file.write_text("import no_such_module\n")
    done = hvscale("launch", "-np", 2, "--mpi", "broken", "--", "true", PYTHONPATH=str(tmp_path / "site"))
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "hvscale: hvscale_plugins.launch.flavours.broken: the plug-in cannot be loaded: "
            "ModuleNotFoundError: No module named 'no_such_module'"
        ],
    )


@pytest.mark.parametrize(
    ("folder", "name", "words"),
    [
        ("launch/flavours", "openmpi", ("launch", "--", "true")),
        ("launch/placements", "host", ("launch", "--", "true")),
        ("bench/collectives/operations", "allreduce", ("bench", "allreduce")),
        ("comm_tuning/knobs/libraries", "openmp", ("knobs",)),
        ("models/presets", "edsr", ("models",)),
    ],
)
def test_a_plugin_with_the_name_of_an_own_file_is_an_error(
    hvscale: Run, tmp_path: Path, folder: str, name: str, words: tuple[str, ...]
) -> None:
    file = tmp_path / "site" / "hvscale_plugins" / folder / f"{name}.py"
    file.parent.mkdir(parents=True)
    file.touch()
    done = hvscale(*words, PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hvscale: {file}: hvscale has a file of this name, ")
    assert f"hvscale/{folder}/{name}.py: rename the plug-in" in line
