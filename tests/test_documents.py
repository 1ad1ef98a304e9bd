"""Hostile documents: nested 100,000 levels deep, or with invalid UTF-8."""

import ast
import importlib
import json
from pathlib import Path

import pytest

import hvscale
from hvscale.bench.experiments.experiment_file import read as read_experiment
from hvscale.comm_tuning.collectives.tables.table import read_table
from hvscale.comm_tuning.knobs.settings_file import read_settings
from hvscale.core.documents import VersionedDocument, from_json, parse_json, to_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from tests.conftest import Run

PACKAGE = Path(hvscale.__file__).parent
DEEP = "[" * 100_000 + "]" * 100_000


def test_a_deeply_nested_run_json_gives_a_one_line_error_and_status_2(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(DEEP)
    done = hvscale("breakdown", tmp_path)
    assert done.returncode == 2
    assert "nested too deeply" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("read", [read_experiment, read_table, read_settings])
def test_a_deeply_nested_toml_file_gives_a_one_line_error(read: object, tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(f"a = {DEEP}")
    with pytest.raises(RequestError, match="is not valid TOML") as error:
        read(path)  # type: ignore[operator]
    assert len(str(error.value).splitlines()) == 1


def test_invalid_utf_8_survives_a_round_trip() -> None:
    written = to_json(Library(flavour="caf\udce9", version="1"))
    assert written.isascii()
    assert from_json(Library, written).flavour == "caf\udce9"
    assert json.loads(written) == parse_json(written)


def classes_of_documents() -> list[type[VersionedDocument]]:
    """VersionedDocument and the classes derived from it, in all modules that define one."""
    defined = {}  # the names of its bases and its module, for each class
    for file in PACKAGE.rglob("*.py"):
        module = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ClassDef):
                defined[module, node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    names, found = {""}, {"VersionedDocument"}
    while names != found:
        names, found = found, found | {name for (_, name), bases in defined.items() if bases & found}
    places = [place for place, bases in defined.items() if place[1] in names and bases & {"BaseModel", *names}]
    kinds = [getattr(importlib.import_module(module), name) for module, name in places]
    return [kind for kind in kinds if issubclass(kind, VersionedDocument)]


def test_every_document_begins_with_its_schema() -> None:
    kinds = classes_of_documents()
    assert {"ExplainedBreakdown", "ScalingDocument", "RunRecord"} <= {kind.__name__ for kind in kinds}
    assert [kind for kind in kinds if next(iter(kind.model_fields)) != "schema_"] == []


@pytest.mark.parametrize(("version", "writer"), [("1", "an older"), ("99", "a newer")])
@pytest.mark.parametrize(
    ("command", "file", "name"),
    [
        (["scale", "--np", "1"], "scale.json", "scale"),
        (["tune", "-np", "2"], "tune.json", "tune"),
        (["tune-collectives", "-np", "2"], "tune-collectives.json", "tune-collectives"),
        (["compare-settings", "-np", "2", "mpi,defaults"], "compare-settings.json", "compare-settings"),
    ],
)
def test_a_study_of_another_version_gives_a_one_line_error_and_status_2(
    hvscale: Run, tmp_path: Path, command: list[str], file: str, name: str, version: str, writer: str
) -> None:
    schema = f"hvscale/{name}/{version}"
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / file).write_text(json.dumps({"schema": schema, "state": "running"}))
    done = hvscale(*command, "--run", tmp_path / "study", *([] if name == "tune-collectives" else ["--", "true"]))
    assert done.returncode == 2
    assert done.stderr == (
        f"hvscale: {tmp_path}/study was written by {writer} hvscale (schema {schema}): use a new --run folder\n"
    )


def test_a_run_of_another_version_gives_a_one_line_error_and_status_2(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": "hvscale/run/1", "state": "finished"}))
    done = hvscale("breakdown", tmp_path)
    assert done.returncode == 2
    assert "was written by an older hvscale (schema hvscale/run/1)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
