"""The protocol between a settings search and a running training job: commands and replies as files.

The files are in `trials/` of the run folder and are written atomically. The search creates the
folder before the job starts. Rank 0 reads commands and writes replies.
"""

import os
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from hvscale.core.run_folder import write_text

Document = TypeVar("Document", bound=BaseModel)


class Command(BaseModel):
    """Check the sums of the current trial, begin the next trial, or stop.

    `number` counts the commands of one start from 1. `variables`: environment variables that
    Horovod reads at its next `hvd.init()`, for the next trial.
    """

    number: int
    action: Literal["check", "begin", "stop"]
    variables: dict[str, str] = {}


class Reply(BaseModel):
    """The reply to the command with this number.

    `steps`: steps done before the command was executed; `problem`: what a check found wrong.
    """

    number: int
    steps: int
    problem: str | None = None


class TrialFolder:
    """`trials/` of a run."""

    def __init__(self, run: Path) -> None:
        self.path = run / "trials"

    @classmethod
    def of_this_rank(cls) -> "TrialFolder | None":
        """Return the folder of this rank's run; None if no search controls it."""
        run = os.environ.get("HVSCALE_RUN")
        folder = cls(Path(run)) if run is not None else None
        return folder if folder is not None and folder.path.is_dir() else None

    def send_command(self, command: Command) -> None:
        self._write(self.path / "command.json", command)

    def read_command(self) -> Command | None:
        """The last command sent."""
        return self._read(self.path / "command.json", Command)

    def send_reply(self, reply: Reply) -> None:
        self._write(self._reply_file(reply.number), reply)

    def read_reply(self, number: int) -> Reply | None:
        """The reply to command `number`; None until it has been executed."""
        return self._read(self._reply_file(number), Reply)

    def _reply_file(self, number: int) -> Path:
        return self.path / f"reply-{number:05d}.json"

    def _write(self, path: Path, document: BaseModel) -> None:
        write_text(path, document.model_dump_json())

    def _read(self, path: Path, kind: type[Document]) -> Document | None:
        try:
            return kind.model_validate_json(path.read_text())
        except (OSError, ValidationError):
            return None
