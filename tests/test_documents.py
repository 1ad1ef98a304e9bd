"""Hostile documents: nested 100,000 levels deep, or with invalid UTF-8."""

import json
from pathlib import Path

import pytest

from hvscale.bench.experiments.experiment_file import read as read_experiment
from hvscale.comm_tuning.collectives.tables.table import read_table
from hvscale.comm_tuning.knobs.settings_file import read_settings
from hvscale.core.documents import from_json, parse_json, to_json
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import Library
from tests.conftest import Run

DEEP = "[" * 100_000 + "]" * 100_000


def test_a_deeply_nested_run_json_is_one_line_and_status_2(hvscale: Run, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(DEEP)
    done = hvscale("breakdown", tmp_path)
    assert done.returncode == 2
    assert "nested too deeply" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("read", [read_experiment, read_table, read_settings])
def test_a_deeply_nested_toml_file_is_one_line(read: object, tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(f"a = {DEEP}")
    with pytest.raises(RequestError, match="is not valid TOML") as refused:
        read(path)  # type: ignore[operator]
    assert len(str(refused.value).splitlines()) == 1


def test_invalid_utf_8_survives_a_round_trip() -> None:
    written = to_json(Library(flavour="caf\udce9", version="1"))
    assert written.isascii()
    assert from_json(Library, written).flavour == "caf\udce9"
    assert json.loads(written) == parse_json(written)
