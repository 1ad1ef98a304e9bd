"""Import rules (only lower subpackages, no cycles, no controller in a rank), and class names."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hvscale
from hvscale import profiling

PACKAGE = Path(hvscale.__file__).parent
FOUNDATION = {"launch", "profiling", "models", "report"}
MAY_IMPORT: dict[str, set[str]] = {  # in addition to core, which every subpackage may import
    "core": set(),
    "launch": set(),
    "profiling": set(),
    "models": set(),
    "report": set(),
    "trainer": FOUNDATION,
    "studies": FOUNDATION,
    "bench": {*FOUNDATION, "studies"},
    "comm_tuning": {*FOUNDATION, "studies", "bench"},
    "prediction": {*FOUNDATION, "studies"},
    "cli": {*FOUNDATION, "studies", "bench", "comm_tuning", "prediction", "trainer"},
}


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imported_nodes(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All import statements, including those in functions, except under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from imported_nodes(node)


def modules_imported_by(name: str) -> set[str]:
    found = set()
    for node in imported_nodes(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{name}: use an absolute import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {one if one in FILES else str(node.module) for one in names}
    return found & set(FILES) - {name}


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return {name: modules_imported_by(name) for name in FILES}


def subpackage_of(name: str) -> str:
    return [*name.split("."), ""][1]


def test_every_module_is_in_a_subpackage() -> None:
    assert {subpackage_of(name) for name in FILES} == {"", *MAY_IMPORT}
    assert [name for name in FILES if name.count(".") == 1 and FILES[name].name != "__init__.py"] == []


@pytest.mark.parametrize("subpackage", MAY_IMPORT)
def test_a_subpackage_imports_only_lower_ones(imports: dict[str, set[str]], subpackage: str) -> None:
    allowed = {"", subpackage, "core", *MAY_IMPORT[subpackage]}
    wrong = {
        name: sorted(found)
        for name in FILES
        if subpackage_of(name) == subpackage
        and (found := {one for one in imports[name] if subpackage_of(one) not in allowed})
    }
    assert wrong == {}


def test_there_are_no_import_cycles(imports: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def public_classes(name: str) -> list[str]:
    """A module's public classes and types of the form `Kind = Literal[...]`, at its top level."""
    found = []
    for node in ast.parse(FILES[name].read_text()).body:
        if isinstance(node, ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal["):
            found += [ast.unparse(target) for target in node.targets]
    return [one for one in found if not one.startswith("_")]


def test_each_public_class_name_is_used_once() -> None:
    modules: dict[str, list[str]] = {}
    for name in FILES:
        for one in public_classes(name):
            modules.setdefault(one, []).append(name)
    assert {one: places for one, places in modules.items() if len(places) > 1} == {}


def test_a_rank_does_not_load_the_controller() -> None:
    rank = "hvscale.bench.collectives"
    ranks = f"import hvscale.cli.main, hvscale.trainer.training, {rank}.rank_side.rank; {rank}.backends.BACKENDS.all()"
    program = f"import sys; {ranks}; print('hvscale.launch.controller' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"


def test_single_process_training_loads_neither_horovod_nor_elastic_modules() -> None:
    program = "import sys, hvscale.trainer.training; print([name for name in sys.modules if name == 'horovod' or 'elastic' in name])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_a_rank_that_marks_its_steps_loads_nothing_else() -> None:
    loaded = "sorted(name for name in sys.modules if name.split('.')[0] in ('hvscale', 'numpy', 'pydantic'))"
    program = f"import sys; from hvscale import profiling; profiling.step(); print({loaded})"
    names = ["hvscale", "hvscale.profiling", "hvscale.profiling.step_mark"]
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == str(names)


def test_every_public_name_of_profiling_can_be_imported() -> None:
    assert [name for name in profiling.__all__ if not hasattr(profiling, name)] == []
