"""One row of the index: what the files of a run or a study say about it."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict

from hvscale.core.documents import is_document, parse_json
from hvscale.core.errors import HvscaleError, RequestError
from hvscale.core.files import open_regular, read_bytes
from hvscale.core.folder_lock import is_abandoned
from hvscale.core.numbers import StepImages, StepSeconds
from hvscale.core.run_folder import DEFAULT_PLACEMENT, OPEN_STATES, RunFolder, RunRecord
from hvscale.studies.run_index.communication import communication_share
from hvscale.studies.throughput import from_result, from_steps

RUN = "run"
UNREADABLE = "unreadable"
PREDICTION = "prediction"  # the document of `hvscale predict`, which records neither folder nor state
RECENT_BYTES = 1 << 14  # of a longer steps.jsonl, about a hundred steps: listings must be quick
IMAGES = "images/s"
LAST_SECOND = 253_402_214_400.0  # a day before the year 10000, which no time zone reaches
UNENCODABLE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # surrogates that stand for no byte
# Any program may have written a document: what cannot be written to a file is replaced.
Text = Annotated[str, AfterValidator(lambda text: UNENCODABLE.sub("\N{REPLACEMENT CHARACTER}", text))]


class RunEntry(BaseModel):
    """A run, or a study with the runs inside its folder.

    `kind`: "run", or the command of the study. `command`: of a benchmark, what it measures. `np`,
    `np_min`: the largest and the smallest number of ranks. `ended_at`: the last change, where the
    end was not recorded. `images_per_second`: of all ranks together; of a study, that of its
    fastest run. `communication_share`: the ranks' time in collectives over their time from start to
    end, null without hvprof's profile. `bytes`: on disk. `page`: its report, relative to its
    folder. `problem`: why it could not be read, or not completely.
    """

    name: str
    kind: str
    state: Text
    command: list[Text] = []
    np: int | None = None
    np_min: int | None = None
    placement: Text | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime
    age_seconds: float
    images_per_second: float | None = None
    communication_share: float | None = None
    bytes: int
    runs: int
    page: str | None = None
    problem: Text | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may still run."""
        return self.state in OPEN_STATES


class Contents(NamedTuple):
    """What a walk over a folder found. `changed`: the last change, in seconds since 1970."""

    bytes: int
    runs: int
    changed: float


class StudyFile(NamedTuple):
    """A study's document. `content` is None if it cannot be read, and `problem` says why."""

    path: Path
    content: dict[str, Any] | None
    problem: str | None = None

    @property
    def is_in_its_folder(self) -> bool:
        """Whether a study wrote it here: false for a copy, such as one that --json printed."""
        if self.content is None:
            return False
        if self.path.stem == PREDICTION:
            return self.path.with_suffix(".html").is_file()
        return Path(str(self.content["folder"])).name == self.path.parent.name


def read_entry(path: Path, now: float) -> RunEntry | None:
    """The entry of a folder; None if it is neither a run nor a study.

    `now`: seconds since 1970. Reads run.json or the study's document, result.json, steps.jsonl and
    the fixed part of profiles. Raises OSError if the folder vanishes meanwhile.
    """
    try:
        is_run = (path / "run.json").exists() or has_run_folders(path)
    except PermissionError as error:  # another user's own, in a shared folder of runs
        problem = f"{path} cannot be read: {error.strerror}"
        age = _age(path.stat().st_mtime, now)
        return RunEntry(name=path.name, kind=RUN, state=UNREADABLE, bytes=0, runs=1, problem=problem, **age)
    if is_run:
        return _read_run(RunFolder(path), now)
    study = find_study(path)
    return _read_study(path, study, now) if study is not None else None


def has_run_folders(path: Path) -> bool:
    """Whether the folder is a run's, even if its run.json was not written yet, or is lost."""
    return all((path / name).is_dir() for name in ("hvprof", "logs", "ranks"))


def _read_run(run: RunFolder, now: float) -> RunEntry:
    contents = walk(run.path)
    page = "report.html" if (run.path / "report.html").is_file() else None
    common: dict[str, Any] = {"name": run.path.name, "kind": RUN, "bytes": contents.bytes, "runs": 1, "page": page}
    try:
        record = run.read()
    except RequestError as error:
        problem = (
            str(error)
            if run.run_json.exists()
            else f"{run.path} holds no run.json: the job has not begun, or it is lost"
        )
        return RunEntry(**common, state=UNREADABLE, problem=problem, **_age(contents.changed, now))
    changed = record.ended_at.timestamp() if record.ended_at is not None else contents.changed
    speed, remark = _throughput(run, record)
    until = now if record.state in OPEN_STATES else contents.changed
    return RunEntry(
        **common,
        state=record.state,
        command=record.command,
        np=record.np,
        np_min=record.np,
        placement=record.placement,
        started_at=record.started_at,
        images_per_second=speed,
        communication_share=communication_share(run, record, until),
        problem=remark,
        **_age(changed, now),
    )


def _age(changed: float, now: float) -> dict[str, Any]:
    changed = min(max(changed, 0.0), LAST_SECOND)  # a damaged record or clock may say any time
    # The clock of the host where the run ended may be ahead.
    return {"ended_at": datetime.fromtimestamp(changed).astimezone(), "age_seconds": max(0.0, now - changed)}


def _throughput(run: RunFolder, record: RunRecord) -> tuple[float | None, str | None]:
    """The throughput in images/s, and a problem in reading it."""
    problems: list[str] = []
    try:
        found = from_result(run, record.np, problems.append)
        if found is None and has_step_log(run, RECENT_BYTES):
            found = from_steps(run, record.np, problems.append)
        speed = found.value if found is not None else recent_throughput(run)
    except HvscaleError as error:
        return None, str(error)
    return speed, (problems[0] if problems else None)


class _Step(BaseModel):
    """The fields read from a line of steps.jsonl, which any program may have written."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    seconds: StepSeconds
    images: StepImages


def recent_throughput(run: RunFolder) -> float | None:
    """The throughput of the newest steps of a long steps.jsonl; None if it is short or has none."""
    try:
        with open_regular(run.steps) as stream:
            if os.fstat(stream.fileno()).st_size <= RECENT_BYTES:
                return None
            stream.seek(-RECENT_BYTES, os.SEEK_END)
            lines = stream.read(RECENT_BYTES).split(b"\n")[1:-1]  # the first and the last may be cut
    except OSError:
        return None
    images = seconds = 0.0
    for line in lines:
        with suppress(ValueError):
            step = _Step.model_validate_json(line)
            images, seconds = images + step.images, seconds + step.seconds
    return images / seconds if images and seconds else None


def has_step_log(run: RunFolder, most: int) -> bool:
    """Whether the run has a steps.jsonl of at most `most` bytes."""
    with suppress(OSError):
        return 0 < run.steps.stat().st_size <= most
    return False


def find_study(path: Path) -> StudyFile | None:
    """The study in a folder: a document that names its folder and state, or a prediction."""
    for file in sorted(path.glob("*.json")):
        try:
            if not is_document(file):
                continue
            content = parse_json(read_bytes(file))
        except ValueError as error:
            return StudyFile(file, None, f"{file} cannot be read ({str(error).splitlines()[0]}): it may be damaged")
        except OSError:
            continue
        if {"folder", "state"} <= content.keys() or file.stem == PREDICTION:
            return StudyFile(file, content)
    return None


def _read_study(path: Path, study: StudyFile, now: float) -> RunEntry:
    contents, file = walk(path), study.path
    pages = [name for name in (f"{file.stem}.html", "guide.html") if (path / name).is_file()]
    common: dict[str, Any] = {
        "name": path.name,
        "kind": "predict" if file.stem == PREDICTION else file.stem,
        "bytes": contents.bytes,
        "runs": contents.runs,
        "page": pages[0] if pages else None,
        **_age(file.stat().st_mtime, now),
    }
    if study.content is None:
        return RunEntry(**common, state=UNREADABLE, problem=study.problem)
    content = study.content
    state = str(content.get("state", "finished"))
    numbers = [
        number for name in ("np", "nps", "workers", "predict_np") for number in _whole_numbers(content.get(name))
    ]
    command = next((content[name] for name in ("command", "collective", "application") if name in content), None)
    return RunEntry(
        **common,
        state="interrupted" if state in OPEN_STATES and is_abandoned(path) else state,
        command=[str(word) for word in (command if isinstance(command, list) else [command]) if word is not None],
        np=max(numbers, default=None),
        np_min=min(numbers, default=None),
        placement=", ".join(_placements(content)) or None,
        images_per_second=_fastest(content),
    )


def _whole_numbers(value: Any) -> list[int]:
    return [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]


def _placements(content: dict[str, Any]) -> list[str]:
    """The placements of a study's runs, each once."""
    listed, launch = content.get("placements"), content.get("launch")
    if isinstance(listed, list):
        return [str(one) for one in listed]
    if not isinstance(launch, dict):
        return []
    variants = [one for one in launch.values() if isinstance(one, dict)] or [launch]
    return list(dict.fromkeys(str(one.get("placement", DEFAULT_PLACEMENT)) for one in variants))


def _fastest(content: dict[str, Any]) -> float | None:
    """The highest throughput of a study's runs that count, if it is in images/s."""
    runs = content.get("runs")
    if content.get("unit") != IMAGES or not isinstance(runs, list):
        return None
    speeds = [run.get("throughput") for run in runs if isinstance(run, dict) and run.get("problem") is None]
    # Any program may have written the document: NaN, infinity, or an integer that no float holds.
    known = (float(one) for one in speeds if isinstance(one, int | float) and 0 < one <= sys.float_info.max)
    return max(known, default=None)


def walk(path: Path) -> Contents:
    """Disk space, runs and last change of a folder; follows no symbolic link."""
    size, runs, changed = 0, 0, 0.0
    for entry in _files(path):
        with suppress(OSError):  # removed meanwhile
            found = entry.stat(follow_symlinks=False)
            size += found.st_blocks * 512  # rings are sparse
            changed = max(changed, found.st_mtime)
            runs += entry.name == "run.json"
    return Contents(size, runs, changed or path.stat().st_mtime)


def _files(path: Path) -> Iterator[os.DirEntry[str]]:
    folders = [path]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    yield entry
