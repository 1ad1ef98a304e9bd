"""Imports run one way, down, and a rank never loads what controls ranks from outside."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hvscale

PACKAGE = Path(hvscale.__file__).parent
MAY_IMPORT: dict[str, set[str]] = {  # beside core, which every room stands on
    "core": set(),
    "launch": set(),
    "profiling": set(),
    "models": set(),
    "comm_tuning": {"launch", "profiling", "profiled_launch", "scaling", "bench"},
    "trainer": {"launch", "profiling", "models"},
    "scaling": {"launch", "profiling", "profiled_launch", "trainer"},
    "bench": {"launch", "profiling", "profiled_launch", "scaling"},
}


def rooms_imported_by(file: Path) -> set[str]:
    modules = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
    parts = [module.split(".") for module in modules if module.startswith("hvscale.")]
    return {part[1] for part in parts if (PACKAGE / part[1]).is_dir() or part[1] in ("cli", "demo", "profiled_launch")}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files
    wrong = {
        str(file): found for file in files if (found := rooms_imported_by(file) - {room, "core"} - MAY_IMPORT[room])
    }
    assert wrong == {}


def test_a_rank_does_not_load_the_controller() -> None:
    ranks = "import hvscale.cli, hvscale.trainer.loop, hvscale.bench.rank; hvscale.bench.backends.backends()"
    asked = f"import sys; {ranks}; print('hvscale.launch.controller' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", asked], text=True).strip() == "False"


def test_training_alone_loads_neither_horovod_nor_what_is_elastic() -> None:
    asked = "import sys, hvscale.trainer.loop; print([name for name in sys.modules if name == 'horovod' or 'elastic' in name])"
    assert subprocess.check_output([sys.executable, "-c", asked], text=True).strip() == "[]"
