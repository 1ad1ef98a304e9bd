"""The jobs in which a study of collectives confirms its best choices, without starting ranks."""

from pathlib import Path
from typing import Any

import pytest

from hvscale.comm_tuning.collectives.document import TuningJob
from hvscale.comm_tuning.collectives.study import MAX_CONFIRMATION_ROUNDS, CollectivesStudy
from hvscale.launch.options import LaunchOptions
from tests.comm_tuning.collective_studies import study


class SimulatedStudy(CollectivesStudy):
    """Its jobs start nothing; `finishes`: whether they end before their time limit."""

    finishes = False

    def launch(self, job: TuningJob, *_: Any) -> None:
        run = self.free_folder(job.run)
        run.mkdir(parents=True)
        job.run, job.finished = run.name, self.finishes


@pytest.fixture
def confirming(tmp_path: Path) -> SimulatedStudy:
    document = study([4]).model_copy(update={"folder": str(tmp_path / "study")})
    tmp_path.joinpath("study").mkdir()
    made = SimulatedStudy(document, LaunchOptions(np=4, mpi="openmpi"), None, False)
    made.tell_user = lambda text: None
    return made


def confirm(study: SimulatedStudy) -> list[TuningJob]:
    reporter: Any = None
    study.confirm(reporter)
    return study.document.jobs


def test_a_call_without_time_adds_no_job(confirming: SimulatedStudy) -> None:
    confirming.minutes = 0.0
    warnings: list[str] = []
    confirming.tell_user = warnings.append
    for _ in range(3):
        assert confirm(confirming) == []
    assert "before the best choices were confirmed" in warnings[0]


def test_a_confirmation_that_ran_out_of_time_is_resumed(confirming: SimulatedStudy) -> None:
    for _ in range(3):
        jobs = confirm(confirming)
        assert sorted((job.operation, job.confirmation, job.finished) for job in jobs) == [
            ("allreduce", True, False),
            ("broadcast", True, False),
        ]
    confirming.finishes = True
    jobs = confirm(confirming)
    assert len(jobs) == 2 * MAX_CONFIRMATION_ROUNDS
    assert all(job.finished for job in jobs)
    assert len({job.run for job in jobs}) == len(jobs)
    assert len(confirm(confirming)) == len(jobs)
