"""`hvscale predict --from-table`, and predictions of jobs over Gloo."""

import json
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from hvscale.prediction.document import PredictionDocument
from tests.conftest import Run, run_hvscale, write_program
from tests.system.test_predict import GRADIENT_BYTES, PROGRAM

SIZES = ("--sizes", "8,4K,16K", "--iterations", "5", "--warmup", "1")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Record the job on two ranks of a flavour, once for all tests."""

    @cache
    def record_job(flavour: str) -> Path:
        folder = tmp_path_factory.mktemp(flavour)
        write_program(folder, PROGRAM)
        words = ("--gradients", "-np", 2, "--mpi", flavour, "--run", "job", "--", "python", "program.py")
        done = run_hvscale(folder, "profile", *words)
        assert done.returncode == 0, done.stderr
        return folder / "job"

    return record_job


@pytest.fixture
def bench(hvscale: Run, tmp_path: Path) -> Callable[..., Path]:
    """Measure a collective on one back end."""

    def measure(np: int, backend: str, collective: str = "allreduce") -> Path:
        folder = tmp_path / f"{collective}-{backend}-{np}"
        done = hvscale("bench", collective, "-np", np, "--backend", backend, "--run", folder, *SIZES)
        assert done.returncode == 0, done.stderr
        return folder

    return measure


def predicted(done: subprocess.CompletedProcess[str]) -> PredictionDocument:
    return PredictionDocument.model_validate_json(done.stdout)


def test_costs_from_benchmarks(
    hvscale: Run, record: Callable[[str], Path], bench: Callable[..., Path], tmp_path: Path
) -> None:
    job = record("openmpi")
    tables = [word for np in (2, 3) for word in ("--from-table", bench(np, "openmpi"))]
    done = hvscale("predict", job, *tables, "--np", "6", "--run", "prediction", "--json")
    assert done.returncode == 0, done.stderr
    document = predicted(done)
    assert document.measured_np == [2, 3]
    rows = {row.np: row for row in document.rows}
    assert (rows[6].source, rows[6].extrapolation) == ("predicted", 2)
    assert sum(size.bytes for size in rows[6].messages) == pytest.approx(GRADIENT_BYTES)
    assert rows[6].loss is not None
    assert rows[6].loss.wire_seconds > 0
    assert rows[6].loss.agreement_seconds > 0
    assert not any("agreements" in text for text in document.warnings)
    refused = hvscale(
        *("predict", job, *tables, "--np", 8, "--set", "allreduce_algorithm=ring", "--run", "other"),
    )
    assert refused.returncode == 2
    assert "no all-reduces by ring; measured: the library's own choice" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_a_job_over_gloo(hvscale: Run, record: Callable[[str], Path], bench: Callable[..., Path]) -> None:
    job = record("gloo")
    done = hvscale("predict", job, "--np", "8", "--json")
    assert done.returncode == 0, done.stderr
    alone = predicted(done)
    assert alone.measured_np == [2]
    assert any("agreements take no time" in text for text in alone.warnings)
    done = hvscale("predict", job, "--from-table", bench(3, "gloo") / "bench.json", "--np", "6", "--json")
    assert done.returncode == 0, done.stderr
    document = predicted(done)
    assert document.measured_np == [3]
    assert not any("agreements" in text for text in document.warnings)
    rows = {row.np: row for row in document.rows}
    assert (rows[6].source, rows[6].extrapolation) == ("predicted", 2)
    assert rows[6].loss is not None
    assert rows[6].loss.agreement_seconds > 0


def test_a_table_of_another_library_replaces_the_jobs_messages(
    hvscale: Run, record: Callable[[str], Path], bench: Callable[..., Path]
) -> None:
    job = record("gloo")
    done = hvscale("predict", job, "--from-table", bench(2, "openmpi"), "--np", "2,8", "--json")
    assert done.returncode == 0, done.stderr
    document = predicted(done)
    assert any("job: another library or link" in text for text in document.warnings)
    # How many of the four gradients are ever sent together depends on when they were ready.
    larger = r"messages of up to (39|78|117|156) KiB are predicted from measured ones of up to 16 KiB, which widens"
    assert any(re.match(larger, text) for text in document.warnings)
    assert [row.source for row in document.rows] == ["predicted", "predicted"]


def test_what_is_no_table_is_refused(hvscale: Run, record: Callable[[str], Path], bench: Callable[..., Path]) -> None:
    job, broadcast = record("openmpi"), bench(2, "openmpi", "broadcast")
    horovod = bench(2, "horovod-openmpi")
    for table, problem in (
        (job, "has no bench.json or tune-collectives.json"),
        (job / "run.json", "not a table of measured all-reduces"),
        (broadcast, "it measured broadcast"),
        (horovod, "measure the library itself"),
    ):
        done = hvscale("predict", job, "--from-table", table, "--np", 8)
        assert done.returncode == 2
        assert problem in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    document = json.loads((broadcast / "bench.json").read_text())
    (broadcast / "bench.json").write_text(json.dumps({**document, "schema": "hvscale/bench/1"}))
    done = hvscale("predict", job, "--from-table", broadcast, "--np", 8)
    assert done.returncode == 2
    assert "an older hvscale (schema hvscale/bench/1)" in done.stderr
