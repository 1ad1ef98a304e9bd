"""`--csv FILE`: it is checked before a job starts, and it is written after the result is shown."""

import csv
import os
from pathlib import Path

import pytest
from pydantic import BaseModel

from hvscale.cli.console import print_document, print_gradients
from hvscale.cli.model_options import check_csv
from hvscale.core.errors import RequestError
from hvscale.core.run_folder import RunFolder
from hvscale.report.csv_file import csv_text, write_csv
from tests.conftest import Run


class Row(BaseModel):
    name: str = "a"


@pytest.mark.parametrize("json", [False, True])
def test_a_result_is_shown_even_if_its_csv_file_cannot_be_written(
    json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RequestError, match=r"cannot write .*missing/a\.csv: No such file or directory"):
        print_document(
            Row(),
            json,
            tmp_path / "missing/a.csv",
            write_csv=lambda row, path: write_csv(path, [row]),
            show=lambda row: print(row.name),
            last="folder: here",
        )
    shown = capsys.readouterr()
    assert shown.out == ('{\n  "name": "a"\n}\n' if json else "a\n")
    assert "folder: here" in shown.err


def test_an_unwritable_csv_file_is_an_error_before_the_job_starts(hvscale: Run, tmp_path: Path) -> None:
    done = hvscale("profile", "-np", 1, "--csv", "missing/a.csv", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hvscale: cannot write missing/a.csv: No such file or directory\n"
    assert not (tmp_path / "runs").exists()


def test_a_csv_file_in_the_run_folder_is_allowed(tmp_path: Path) -> None:
    check_csv(tmp_path / "job/tables/a.csv", tmp_path / "job")
    check_csv(tmp_path / "a.csv", None)
    for wrong in (tmp_path / "job/a.csv", tmp_path):
        with pytest.raises(RequestError, match="cannot write"):
            check_csv(wrong, tmp_path / "other")
    assert not any(tmp_path.iterdir())


def test_a_device_is_written_to_and_never_replaced() -> None:
    reader, writer = os.pipe()
    path = Path(f"/dev/fd/{writer}")  # a link to the pipe, as /dev/stdout may be
    check_csv(path, None)
    check_csv(Path(os.devnull), None)
    write_csv(path, [Row()])
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "name\na\n"


def test_dicts_and_lists_are_written_as_json() -> None:
    text = csv_text(["variables", "flavours"], [{"variables": {"A": "é"}, "flavours": ["mpich"]}])
    (row,) = csv.DictReader(text.splitlines())
    assert row == {"variables": '{"A": "é"}', "flavours": '["mpich"]'}


def test_no_gradients_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_gradients(RunFolder.create(tmp_path / "job"))
    assert "warning: no gradients were recorded: --gradients needs a program that uses" in capsys.readouterr().err


def test_no_output_replaces_a_document_of_a_run(hvscale: Run, tmp_path: Path) -> None:
    assert hvscale("profile", "--mpi", "gloo", "--run", "job", "--", "true").returncode == 0
    document = tmp_path / "job/run.json"
    before = document.read_bytes()
    for words in (
        ("breakdown", "job", "--csv", document),
        ("runs", ".", "--csv", document),
        ("runs", ".", "--html", document),
        ("report", "job", "--output", document),
        ("report", "job", "--trace", document),
        ("scale", "--np", "1", "--csv", document, "--", "true"),
    ):
        refused = hvscale(*words)
        assert refused.returncode == 2, words
        assert (
            refused.stderr.splitlines()[-1] == f"hvscale: {document} belongs to a run or a study: write to another file"
        )
    assert document.read_bytes() == before
