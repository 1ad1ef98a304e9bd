"""What a search of settings asks of a training that runs, and what it answers: files in `trials/` of the run folder, each written whole.

The folder's being there before the start says that orders may come. Rank 0 reads and writes it.
"""

import os
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from hvscale.core.run_folder import write_text

Document = TypeVar("Document", bound=BaseModel)


class Order(BaseModel):
    """Check the sums of the trial at work, begin the next one, or stop. `number` counts the orders of a start from 1.

    `variables`: what Horovod is to read at another hvd.init(), for the next trial.
    """

    number: int
    what: Literal["check", "begin", "stop"]
    variables: dict[str, str] = {}


class Answer(BaseModel):
    """To the order of this number. `steps`: made before it was obeyed; `problem`: what a check has found wrong."""

    number: int
    steps: int
    problem: str | None = None


class TrialFolder:
    """`trials/` of a run."""

    def __init__(self, run: Path) -> None:
        self.path = run / "trials"

    @classmethod
    def of_this_rank(cls) -> "TrialFolder | None":
        """That of the run which this process is a rank of; None where no order may come."""
        run = os.environ.get("HVSCALE_RUN")
        folder = cls(Path(run)) if run is not None else None
        return folder if folder is not None and folder.path.is_dir() else None

    def give(self, order: Order) -> None:
        self._write(self.path / "order.json", order)

    def answer(self, answer: Answer) -> None:
        self._write(self.path / f"answer-{answer.number:05d}.json", answer)

    def order(self) -> Order | None:
        """The last one that was given."""
        return self._read(self.path / "order.json", Order)

    def answered(self, number: int) -> Answer | None:
        return self._read(self.path / f"answer-{number:05d}.json", Answer)

    def _write(self, path: Path, document: BaseModel) -> None:
        write_text(path, document.model_dump_json())

    def _read(self, path: Path, kind: type[Document]) -> Document | None:
        try:
            return kind.model_validate_json(path.read_text())
        except (OSError, ValidationError):
            return None
