"""What the documents of all studies have in common."""

from abc import abstractmethod
from typing import Any, Literal

from hvscale.core.documents import VersionedDocument
from hvscale.core.run_folder import Host
from hvscale.core.statistics import CONFIDENCE

StudyState = Literal["running", "finished", "failed", "interrupted"]
ResultSource = Literal["measured", "replayed", "predicted", "documented"]


class StudyDocument(VersionedDocument):
    """The JSON document in a study's folder, written after every run and printed by --json.

    `files`: SHA-256 of the files that the study was given, by what they are.
    """

    state: str = "running"  # a StudyState, or a study's own word
    folder: str
    host: Host | None = None  # where the study was started
    warnings: list[str] = []
    files: dict[str, str] = {}


class InterleavedDocument(StudyDocument):
    """The document of a study in `repeats` rounds.

    `runs`: models with a field `problem`, which is None for a run that counts.
    """

    repeats: int
    confidence: float = CONFIDENCE  # of all intervals in the tables
    runs: list[Any] = []

    @abstractmethod
    def tabulate(self) -> None:
        """Compute the tables from the results so far."""
